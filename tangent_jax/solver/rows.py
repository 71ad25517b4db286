"""The rows of J for a predictor's examples, in f64 on the host, for the exact kernel and results from it.

A model with a closed form gives them by inputs and signals; for any other model autodiff forms them.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.rows import padded
from tangent_jax.linear.gram import Rows
from tangent_jax.linear.tangent import Tangent
from tangent_jax.models.predict import Predictor
from tangent_jax.train.batches import as_inputs

BATCH = 32  # examples whose signals are computed at once


@jax.default_matmul_precision("highest")
def jacobian_rows(predict: Predictor, inputs: Any, progress: Progress = silent) -> Rows:
    """The rows of J for every input and output, by one backward pass per output, in f64.

    Raises:
        InputError: No inputs, rows that take too much memory, and outputs that are not finite.

    >>> rows = tj.solver.jacobian_rows(demo.predict, demo.test.inputs)
    >>> rows.gram().shape  # J J^T, for 12 examples and 3 outputs
    (36, 36)
    """
    inputs = as_inputs(inputs)
    n, parts = len(inputs), []
    if not n:
        raise InputError("inputs must be one or more; got none")
    check_room(predict, n)
    with jax.enable_x64(True):
        exact = dataclasses.replace(predict, w=trees.cast(predict.w, jnp.float64), dtype=None)
        with progress(total=n, unit="example") as bar:
            for start in range(0, n, BATCH):
                x = np.asarray(inputs[start : start + BATCH])
                rows = rows_of(exact, exact.zeros(), jnp.asarray(padded(x, min(BATCH, n))))
                parts.append(jax.tree.map(np.asarray, rows))
                bar.update(len(x))
    rows = jax.tree.map(lambda *arrays: np.concatenate(arrays)[:n], *parts)
    wrong = int(np.sum(~np.isfinite(rows.outputs).all(-1)))
    if wrong:
        raise InputError(f"outputs must be finite; got {wrong} rows that are not. Look for inputs that are not finite.")
    return rows


@jax.jit
def rows_of(predict: Tangent, zero: Tree, x: Array) -> Rows:
    """The rows of J of a batch at dw = 0, in the dtype of the outputs."""
    probed = predict.probe(zero, x, at_zero=True)
    outputs = probed.outputs
    b, c = outputs.shape
    units = jnp.eye(c, dtype=outputs.dtype)[:, None]
    return Rows(outputs, probed.rows(jnp.broadcast_to(units, (c, b, c))))


def check_room(predict: Predictor, count: int) -> None:
    """Raises InputError if the rows of J, for a model without a closed form, need half of the memory."""
    classes, room = max(1, predict.model.classes), placement.machine_memory() // 2
    needed = 0 if predict.has_factors else 8 * count * classes * predict.subset.size
    if needed > room:
        raise InputError(
            f"rows of J must take at most {room >> 20} MiB in f64; got {count} x {classes} x {predict.subset.size}"
            " numbers. Train fewer leaves, or use tj.solve."
        )
