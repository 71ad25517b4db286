"""Labels and logits as they must be, checked where training, measuring and clipping begin."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tangent_jax.core import Tree, require, trees

Predict = Callable[[Tree, Any], jax.Array]


def as_labels(function: str, labels: Any, classes: int | None = None) -> np.ndarray:
    """The labels as class indices, "n" int32.

    Raises: InputError for labels that are no whole numbers, not one for each example, or of no class.
    """
    array = np.asarray(labels)
    kind, shape = array.dtype, array.shape
    require(np.issubdtype(kind, np.integer), function, "labels that are class indices, whole numbers", f"dtype {kind}")
    require(len(shape) == 1, function, "one label for each example, of shape (n,)", f"shape {shape}")
    if len(array):
        low, high = int(array.min()), int(array.max())
        require(low >= 0, function, "labels >= 0", low)
        most = (1 << 31) if classes is None else classes
        require(high < most, function, f"labels below {most}, the number of classes", high)
    return array.astype(np.int32, copy=False)


@jax.jit
def called(predict: Predict, dw: Tree, x: Any) -> Any:
    """predict(dw, x) as one program, shared by all who ask."""
    return predict(dw, x)


def classes_of(function: str, predict: Predict, dw: Tree, x: Any) -> int:
    """How many logits `predict` gives, without computing them; `x`: some inputs, "b ...".

    Raises: InputError where it gives no array "b c" of floats.
    """
    shape = called.eval_shape(trees.as_pytree(predict), dw, x)
    found = f"shape {shape.shape}, {shape.dtype}" if hasattr(shape, "shape") else type(shape).__name__
    rows_match = hasattr(shape, "shape") and len(shape.shape) == 2 and shape.shape[0] == len(x)
    good = rows_match and jax.numpy.issubdtype(shape.dtype, jax.numpy.floating)
    require(good, function, f"logits of shape ({len(x)}, classes) from predict, floats", found)
    return shape.shape[1]


def check_start(function: str, dw: Tree) -> None:
    """Raises InputError for a step that cannot be trained: no leaves, or leaves that are not f32 or f64."""
    leaves = trees.leaves(dw)
    require(leaves, function, "a step dw with leaves", "none", "Start from task.zeros()")
    for path, leaf in leaves.items():
        kind, do = getattr(leaf, "dtype", type(leaf).__name__), "Half precision overflows; compute in it by dtype="
        require(str(kind) in ("float32", "float64"), function, f"{path} of dw in float32 or float64", kind, do)
