"""An objective on a data set: whether both fit, and a bound of the distance from the optimum, by the gradient."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.linear.tangent import Tangent, as_tangent
from tangent_jax.train.batches import Batches, Chunk, as_batches
from tangent_jax.train.objective import ROUNDING, Objective, check_penalty, check_targets, with_fixed_key
from tangent_jax.train.targets import Predict, output_shape


@jax.default_matmul_precision("highest")
@promotes
def distance_bound(predict: Predict, dw: Tree, data: Any, objective: Objective) -> float:
    """An upper bound of the L2 distance, over the tree, of dw from the optimum on all of `data`.

        |dw - dw*| <= (|grad F(dw)| + rounding) / lambda

    Args:
        data: Features or Batches.

    Guarantees:
        Valid if F is lambda-strongly convex: a tangent model, any loss of this library, lambda = penalty > 0.

    Raises:
        InputError: A penalty of 0.

    >>> tj.solver.distance_bound(demo.predict, demo.dw, demo.train, demo.objective) < 0.1
    True
    """
    check_penalty(objective)
    if not all(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in jax.tree.leaves(dw)):
        raise InputError("dw must be floats; got other numbers")
    batches = as_batches(data, 64)
    predict, dw = placement.place((as_tangent(predict).exact, dw))
    total, n = jax.grad(objective.ridge)(dw), len(batches)
    size = trees.norm(total)
    for chunk in batches.chunks(*batches.in_order()):
        gradient, own = summed_gradient(predict, dw, chunk.place(), objective)
        total, size = trees.plus(total, trees.scale(1 / n, gradient)), size + own / n
    rounding = ROUNDING * jnp.finfo(size.dtype).eps * size
    return float(trees.norm(total) + rounding) / float(objective.penalty)


@jax.jit
def summed_gradient(predict: Tangent, dw: Tree, chunk: Chunk, objective: Objective) -> tuple[Tree, Array]:
    """(the gradient of the sum of losses, the sum of `gradient_sizes`) of a chunk, without penalty and padding."""

    def add(total: tuple[Tree, Array], i: Array) -> tuple[tuple[Tree, Array], None]:
        x, y = chunk.at(i)

        def value(dw: Tree) -> Array:
            return jnp.sum(objective.losses(predict(dw, x), y) * chunk.present[i])

        size = jnp.sum(objective.gradient_sizes(predict, dw, x, y) * chunk.present[i])
        return (trees.plus(total[0], jax.grad(value)(dw)), total[1] + size), None

    zero = jax.tree.map(jnp.zeros_like, dw), jnp.zeros((), jnp.result_type(float))
    return jax.lax.scan(add, zero, jnp.arange(len(chunk.present)))[0]


def check_data(predict: Predict, dw: Tree, batches: Batches, objective: Objective) -> tuple[int, ...]:
    """The shape of one output; InputError unless outputs, targets and loss fit each other."""
    placement.check_alike(partial(sample_of_data, batches))
    predict, dw = jax.tree.map(placement.automatic, (predict, dw))
    shape = output_shape(with_fixed_key(predict), dw, batches.inputs[batches.rows[:2]])
    check_targets(batches.targets[batches.rows], shape, objective)
    return shape


def sample_of_data(batches: Batches) -> Iterator[np.ndarray]:
    """Yields some inputs, all targets, and the first order: enough to distinguish data and keys."""
    yield np.asarray(batches.inputs[batches.rows[:: max(1, len(batches) // 8)]])
    yield batches.targets[batches.rows]
    if batches.key is not None:
        yield batches.permutation(0)
