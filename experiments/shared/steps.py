"""One step of each trainer as a function and the arguments of a call, to time, compare or lower it.

    trunk                images to the inputs of the first trained stage
    rows                 a feature map's rows
    fit_step             a chunk of `fit`'s steps; fit_many_step: of `fit_many`, for several models at once
    private_step         the clipped sum and the step of `fit_private` as one program
    make_pass            gradient, Hessian's product and factors of one batch of a pass of `solve`

Steps take the first chunk of the data, in the order of the examples. The first argument of a trainer's step is its
state, and the first result the state after it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tangent_jax as tj
from tangent_jax.core.notation import Tree
from tangent_jax.linear.jacobian import Fresh, keep
from tangent_jax.models.trunk import in_dtype, run_trunk
from tangent_jax.privacy.discrete import step_key
from tangent_jax.privacy.train import clip_all
from tangent_jax.privacy.train import private_step as step_of_sum
from tangent_jax.solver import passes
from tangent_jax.train.batches import Chunk
from tangent_jax.train.fit import State, Training, train_epoch
from tangent_jax.train.fit_many import repeat, train_epoch_many
from tangent_jax.train.optimizers import Optimizer, as_data


class Step(NamedTuple):
    """A function, and the arguments of a call."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]


class Pass(NamedTuple):
    """The computations on one batch of a pass; `fresh`: the batch with J not kept, `kept`: with the values of J v."""

    fresh: passes.Part
    kept: passes.Part
    gradient: Step
    product: Step
    curvature: Step


def trunk(predict: tj.Predictor, images: Any) -> Step:
    """The trunk on images "b y x 3"."""
    options = {"model": predict.model, "stop": predict.subset.stage, "dtype": predict.dtype}
    return Step(partial(run_trunk, **options), (in_dtype(predict.w, predict.dtype), images))


def rows(map_: tj.models.FeatureMap, batch: int) -> Step:
    """The rows of a feature map, from images, or from zeros of the first stage that it runs."""
    stage = map_.subset.stage
    dtype = jnp.dtype(map_.dtype or jnp.float32) if stage else np.dtype(np.uint8)
    return Step(tj.models.FeatureMap.rows, (map_, jnp.zeros((batch, *map_.model.input_shape(stage)), dtype)))


def fit_step(
    predict: Any,
    data: tj.Batches,
    objective: tj.Objective,
    optimizer: Optimizer | None = None,
    metrics: tuple[Callable[..., Any], ...] = (),
    start: Tree | None = None,
) -> Step:
    """The steps of `fit` on a chunk; start: None for the predictor's zero."""
    training = Training(predict, objective, as_data(optimizer or tj.adam()), metrics)
    state = training.start(predict.zeros() if start is None else start)

    def run(state: State, training: Training, chunk: Chunk) -> Any:
        return train_epoch(training, state, chunk, None, 0.0)

    return Step(run, (state, training, first_chunk(data)))


def fit_many_step(
    predict: tj.Predictor, data: tj.Batches, count: int, objective: tj.Objective, optimizer: Optimizer | None = None
) -> Step:
    """The steps of `fit_many` on a chunk for `count` models, all on the same batches."""
    training = Training(predict, objective, as_data(optimizer or tj.adam()), ())
    states = repeat(training.start(predict.zeros()), count)
    chunk = first_chunk(data)
    order, present = (jnp.repeat(jnp.asarray(a)[:, None], count, 1) for a in (chunk.order, chunk.present))

    def run(states: State, training: Training, chunk: Chunk, order: Any, present: Any) -> Any:
        return train_epoch_many(training, states, (chunk.inputs, chunk.targets), (order, present, None), 0.0)

    return Step(run, (states, training, chunk, order, present))


def private_step(
    predict: Any,
    data: tj.Batches,
    mechanism: tj.privacy.Mechanism,
    objective: tj.Objective,
    optimizer: Optimizer | None = None,
    start: Tree | None = None,
    summed: Callable[..., tj.privacy.ClippedSum] | None = None,
) -> Step:
    """A step of `fit_private` with its clipped sum; its noise comes from a seed.

    Args:
        summed: Another clipped sum of the batch, (predict, dw, x, y) -> `ClippedSum`; None: the library's.
    """
    optimizer = as_data(optimizer or tj.privacy.momentum())
    dw = predict.zeros() if start is None else start

    def run(state: State, key: Any, predict: Any, chunk: Chunk) -> tuple[State, Tree]:
        if summed is None:
            total = clip_all(predict, state.dw, chunk, len(chunk.present), objective, mechanism)
        else:
            total = summed(predict, state.dw, *chunk.at(0))
        return step_of_sum(state, total, float(len(data)), key, objective, mechanism, optimizer)

    return Step(run, (State(dw, optimizer.init(dw)), step_key(mechanism, 0, 0), predict, first_chunk(data)))


def make_pass(predict: tj.Predictor, data: tj.Batches, objective: tj.Objective, signals: int) -> Pass:
    """The computations of a pass of `solve` on the first batch, at dw = 0.

    Args:
        signals: The number of random cotangents per example for the factors; 0 for those of all outputs.
    """
    zero = predict.zeros()
    chunk = first_chunk(data)
    if chunk.order is None:
        jacobian = Fresh(predict, chunk.inputs[0], None)
        targets = chunk.targets[0]
    else:
        jacobian = Fresh(predict, chunk.inputs, chunk.order[0])
        targets = chunk.targets[chunk.order[0]]
    fresh = passes.Part(jacobian, targets, chunk.present[0])
    kept = fresh._replace(jacobian=keep(jacobian, zero))
    outputs = jnp.zeros_like(kept.jacobian.outputs)
    total = passes.Summed(zero, jnp.zeros(()), jnp.zeros(()))
    key = jax.random.key(0) if signals else None
    return Pass(
        fresh,
        kept,
        Step(passes.add_gradient, (total, kept, zero, objective)),
        Step(passes.add_product, (zero, kept, zero, outputs, objective)),
        Step(partial(passes.part_curvature, signals=signals or 1), (fresh, zero, outputs, objective, key, 0)),
    )


def first_chunk(data: tj.Batches) -> Chunk:
    """The first chunk of the examples, on the device."""
    return jax.tree.map(jnp.asarray, next(data.chunks(*data.in_order())))
