"""Checks of targets, outputs and starts, before training, evaluation and clipping."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Float64, Int32, Num

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError, as_array, failure
from tangent_jax.core.notation import Tree
from tangent_jax.linear.tangent import as_tangent

Predict = Callable[[Tree, Any], jax.Array]


def as_targets(targets: Any) -> Num[np.ndarray, "n ..."]:
    """Targets "n ..." as an array of numbers, whole numbers as int32.

    Raises:
        InputError: Unless it is an array of numbers with an entry for each example.
    """
    array = as_array("targets", targets)
    is_integer = np.issubdtype(array.dtype, np.integer)
    if not is_integer and not jax.numpy.issubdtype(array.dtype, np.floating):
        raise InputError(f"targets must be whole numbers or floats; got dtype {array.dtype}")
    if array.ndim < 1:
        raise InputError(f"targets must be one for each example, of shape (n, ...); got shape {array.shape}")
    if not is_integer:
        return array
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < -(1 << 31) or high >= 1 << 31:
            raise InputError(f"targets must be whole numbers below 2147483648; got {max(-low, high)}")
    return array.astype(np.int32, copy=False)


def as_labels(targets: Any, classes: int | None = None) -> Int32[np.ndarray, "n"]:
    """The targets as class indices, "n" int32.

    Raises:
        InputError: Unless they are whole numbers, one for each example, each the index of a class.
    """
    array = as_array("targets", targets)
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"targets must be class indices, whole numbers; got dtype {array.dtype}")
    if array.ndim != 1:
        raise InputError(f"targets must be one class index for each example, of shape (n,); got shape {array.shape}")
    if len(array):
        low, high = int(array.min()), int(array.max())
        if low < 0:
            raise InputError(f"class indices must be >= 0; got {low}")
        most = (1 << 31) if classes is None else classes
        if high >= most:
            raise InputError(f"class indices must be below {most}, the number of classes; got {high}")
    return array.astype(np.int32, copy=False)


def is_real(dtype: Any) -> bool:
    """True for whole numbers, Booleans and floats, those of half precision too."""
    return dtype.kind in "biu" or jax.numpy.issubdtype(dtype, np.floating)


def as_numbers(name: str, values: Any) -> Float64[np.ndarray, "..."]:
    """The values in f64, those of bfloat16 too; InputError for anything but an array of real numbers."""
    array = as_array(name, values)
    if not is_real(array.dtype):
        raise InputError(f"{name} must be numbers; got {array.dtype}")
    return array.astype(np.float64)


def check_indices(outputs: Any, targets: Any) -> None:
    """Raises InputError unless outputs are numbers "n c" and targets their class indices "n"."""
    array = as_numbers("outputs", outputs)
    if array.ndim != 2:
        raise InputError(f'outputs must be numbers "n c"; got {array.dtype} of shape {array.shape}')
    count = len(as_labels(targets, array.shape[1]))
    if count != len(array):
        raise InputError(f"targets must be {len(array)}, one for each example; got {count}")


@jax.jit
def call(predict: Predict, dw: Tree, x: Any) -> Any:
    """predict(dw, x), "b ...", as one program that all callers share."""
    return predict(dw, x)


def output_shape(predict: Predict, dw: Tree, x: Any) -> tuple[int, ...]:
    """The shape of one output of `predict`, by tracing; `x`: some inputs, "b ...".

    Raises:
        InputError: Unless `predict` gives an array "b ..." of floats.
    """
    try:
        shape = call.eval_shape(trees.as_pytree(predict), dw, x)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError) or not callable(predict):
            raise
        inputs = f"inputs {x.dtype} {('b', *np.shape(x)[1:])}".replace("'", "")
        raise InputError(
            f"predict must be a function (dw, x) for {inputs}; got {failure(error)}. Compare shapes."
        ) from error
    expected = f"predict must return floats of shape ({len(x)}, ...)"
    if not hasattr(shape, "shape"):
        kind = type(shape).__name__
        advice = ". Return f_lin(dw, x).total" if kind == "Dual" else ""
        raise InputError(f"{expected}; got {kind}{advice}")
    rows_match = len(shape.shape) >= 1 and shape.shape[0] == len(x)
    if not rows_match or not jax.numpy.issubdtype(shape.dtype, jax.numpy.floating):
        raise InputError(f"{expected}; got shape {shape.shape}, {shape.dtype}")
    return shape.shape[1:]


def check_start(dw: Tree, of_function: bool) -> None:
    """Raises InputError for an untrainable start: no leaves, leaves that are not f32 or f64, or traced."""
    leaves = trees.leaves(dw)
    if not leaves:
        zeros = "jax.tree.map(jnp.zeros_like, part of w)" if of_function else "predict.zeros()"
        raise InputError(f"a start dw must have leaves; got none. Start from {zeros}.")
    for path, leaf in leaves.items():
        if isinstance(leaf, Tracer):
            raise InputError(f"{path} of dw must be an array; got a tracer. Call it outside of jax.jit, grad and vmap.")
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        if str(kind) not in ("float32", "float64"):
            is_whole = hasattr(leaf, "dtype") and not jax.numpy.issubdtype(kind, jax.numpy.inexact)
            advice = trees.NO_FLOATS if is_whole else "Half precision overflows; compute in it by dtype="
            raise InputError(f"{path} of dw must be float32 or float64; got {kind}. {advice}.")


def start_of(predict: Predict, start: Tree | None) -> Tree:
    """The start; without one, the zero of a predictor.

    Raises:
        InputError: A function without a start, or an untrainable start.
    """
    zeros = as_tangent(predict).zeros()
    if start is None and zeros is None:
        raise InputError("start must be given for a function; got none. Pass start=, dw to begin at.")
    start = zeros if start is None else jax.tree.map(placement.automatic, start)
    check_start(start, zeros is None)
    return start
