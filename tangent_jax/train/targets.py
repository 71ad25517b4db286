"""Checks of targets, outputs and starts, before training, evaluation and clipping."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, as_array, expect, failure, unexpected
from tangent_jax.core.notation import Tree

Predict = Callable[[Tree, Any], jax.Array]


def as_targets(targets: Any) -> np.ndarray:
    """Targets "n ..." as an array of numbers, whole numbers as int32.

    Raises: InputError unless it is an array of numbers with an entry for each example.
    """
    array = as_array("targets", targets)
    is_number = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    expect(is_number, "targets that are whole numbers or floats", f"dtype {array.dtype}")
    expect(array.ndim >= 1, "one target for each example, of shape (n, ...)", f"shape {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        return array
    if array.size:
        low, high = int(array.min()), int(array.max())
        expect(low >= -(1 << 31) and high < 1 << 31, "whole numbers below 2147483648", max(-low, high))
    return array.astype(np.int32, copy=False)


def as_labels(targets: Any, classes: int | None = None) -> np.ndarray:
    """The targets as class indices, "n" int32.

    Raises: InputError unless they are whole numbers, one for each example, each the index of a class.
    """
    array = as_array("targets", targets)
    kind, shape = array.dtype, array.shape
    expect(np.issubdtype(kind, np.integer), "targets that are class indices, whole numbers", f"dtype {kind}")
    expect(len(shape) == 1, "one class index for each example, of shape (n,)", f"shape {shape}")
    if len(array):
        low, high = int(array.min()), int(array.max())
        expect(low >= 0, "class indices >= 0", low)
        most = (1 << 31) if classes is None else classes
        expect(high < most, f"class indices below {most}, the number of classes", high)
    return array.astype(np.int32, copy=False)


def check_indices(outputs: Any, targets: Any) -> None:
    """Raises InputError unless outputs are numbers "n c" and targets their class indices "n"."""
    array = as_array("outputs", outputs)
    good = array.ndim == 2 and array.dtype.kind in "fiu"
    expect(good, 'outputs as numbers "n c"', f"{array.dtype} of {array.shape}")
    count = len(as_labels(targets, array.shape[1]))
    expect(count == len(array), f"{len(array)} targets, one for each example", count)


@jax.jit
def call(predict: Predict, dw: Tree, x: Any) -> Any:
    """predict(dw, x), "b ...", as one program that all callers share."""
    return predict(dw, x)


def output_shape(predict: Predict, dw: Tree, x: Any) -> tuple[int, ...]:
    """The shape of one output of `predict`, by tracing; `x`: some inputs, "b ...".

    Raises: InputError unless `predict` gives an array "b ..." of floats.
    """
    try:
        shape = call.eval_shape(trees.as_pytree(predict), dw, x)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError) or not callable(predict):
            raise
        inputs = f"inputs {x.dtype} {('b', *np.shape(x)[1:])}".replace("'", "")
        raise unexpected(f"predict as a function (dw, x) for {inputs}", failure(error), "Compare shapes") from error
    got = f"shape {shape.shape}, {shape.dtype}" if hasattr(shape, "shape") else type(shape).__name__
    rows_match = hasattr(shape, "shape") and len(shape.shape) >= 1 and shape.shape[0] == len(x)
    good = rows_match and jax.numpy.issubdtype(shape.dtype, jax.numpy.floating)
    do = "Return f_lin(dw, x).total" if got == "Dual" else ""
    expect(good, f"outputs of shape ({len(x)}, ...) from predict, floats", got, do)
    return shape.shape[1:]


def check_start(dw: Tree, of_function: bool) -> None:
    """Raises InputError for an untrainable start: no leaves, leaves that are not f32 or f64, or traced."""
    leaves, zeros = trees.leaves(dw), "jax.tree.map(jnp.zeros_like, part of w)" if of_function else "predict.zeros()"
    expect(leaves, "a start dw with leaves", "none", f"Start from {zeros}")
    for path, leaf in leaves.items():
        do = "Call it outside of jax.jit, grad and vmap"
        expect(not isinstance(leaf, Tracer), f"{path} of dw as an array", "a tracer", do)
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        is_whole = hasattr(leaf, "dtype") and not jax.numpy.issubdtype(kind, jax.numpy.inexact)
        do = trees.NO_FLOATS if is_whole else "Half precision overflows; compute in it by dtype="
        expect(str(kind) in ("float32", "float64"), f"{path} of dw in float32 or float64", kind, do)


def start_of(predict: Predict, start: Tree | None) -> Tree:
    """The start; without one, the zero of a predictor.

    Raises: InputError for a function without a start, or an untrainable start.
    """
    zeros: Any = getattr(predict, "zeros", None)
    if start is None:
        expect(zeros is not None, "a start for a function", "none", "Pass start=, dw to begin at")
        start = zeros()
    check_start(start, zeros is None)
    return start
