"""Training of many models in one compiled program: vmap over dw, with a shared anchor.

Each model's run equals `fit` on its batches alone: the same order of examples, batches and decay.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, instance, whole_number
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.train.batches import Batches
from tangent_jax.train.bound import check_data
from tangent_jax.train.fit import (
    Batch,
    Metrics,
    State,
    Training,
    as_source,
    epoch_row,
    make_training,
    step_keys,
    summary,
)
from tangent_jax.train.objective import Objective
from tangent_jax.train.optimizers import Optimizer
from tangent_jax.train.run import Fitted, Row, Run
from tangent_jax.train.targets import Predict, start_of


@partial(jax.jit, donate_argnames="states")
def train_epoch_many(
    training: Training, states: State, data: tuple[Array, Array], steps: tuple[Any, Any, Any], progress: Any
) -> tuple[State, Array]:
    """The steps of every model on (inputs, targets); states and sums, "k s m".

    Args:
        steps: (rows of the data "k s b", present "k s b", keys "k s" or None).
    """
    inputs, targets = data
    training = training.for_loop()

    def step(state: State, rows: Array, present: Array, key: Array | None) -> tuple[State, Array]:
        return training.step(state, Batch(inputs[rows], targets[rows], present, key), progress)

    return jax.lax.scan(lambda states, of_step: jax.vmap(step)(states, *of_step), states, steps)


@promotes
def fit_many(
    predict: Predict,
    runs: Sequence[Batches],
    objective: Objective | None = None,
    *,
    start: Tree | None = None,
    optimizer: Optimizer | None = None,
    epochs: int = 30,
    metrics: Metrics | None = None,
    at_once: int = 10,
    progress: Progress = silent,
) -> list[Fitted[None]]:
    """Trains one dw for each entry of `runs`.

    Args:
        runs: Each with its own rows and key, all of the same inputs, which the device holds.
        at_once: The number of models per program (memory: about five times dw for each).

    Returns:
        One Fitted per run, in order; `seconds` is its share of its group's time.

    Guarantees:
        Each equals `fit` on its batches alone, up to rounding.

    Edge cases:
        Runs with different numbers of steps train in different groups.

    Raises:
        InputError: Runs of different inputs, or without a key.

    >>> runs = [demo.train.batches(jax.random.key(s), rows=rows) for s, rows in enumerate(demo.halves.values())]
    >>> fits = tj.fit_many(demo.predict, runs, optimizer=tj.adam(0.3), epochs=5)
    >>> [fitted.steps for fitted in fits]
    [5, 5]
    """
    if not runs:
        raise InputError("runs must be at least one; got none")
    whole_number("epochs", epochs, 1)
    dw, metrics = start_of(predict, start), metrics or {}
    training = make_training(predict, objective, optimizer, metrics)
    check_runs(training, dw, runs)
    data, training, results = runs[0].resident(), placement.place(training), {}
    with Run(progress=progress) as frame:
        frame.show(len(runs) * epochs, "epoch")
        for members in groups(runs, at_once):
            together = [runs[s] for s in members]
            states, axis = start_together(training, dw, len(together))
            histories: list[list[Row]] = [[] for _ in together]
            for epoch in range(epochs):
                began = time.perf_counter()
                steps = steps_together(together, epoch, training.draws, axis)
                states, sums = train_epoch_many(training, states, data, steps, epoch / epochs)
                totals = placement.on_host(sums).astype(np.float64).sum(0)
                seconds = (time.perf_counter() - began) / len(together)
                for run, history, total in zip(together, histories, totals, strict=True):
                    row = epoch_row(epoch, total, len(run), run.steps, seconds)
                    history.append(row | dict(zip(metrics, (total[1:] / len(run)).tolist(), strict=True)))
                frame.advance(len(together))
            for i, s in enumerate(members):
                own = placement.replicate(jax.tree.map(lambda leaf, i=i: leaf[i], states.dw))
                results[s] = summary(own, histories[i])
    return [results[s] for s in range(len(runs))]


def start_together(training: Training, dw: Tree, count: int) -> tuple[State, int]:
    """(the states of `count` models, the axis of their batches, "k s b", that the devices divide).

    That is the models' axis if each device has whole models, else the examples'.
    """
    states = repeat(training.start(dw), count)
    if count % placement.mesh().size == 0:
        return jax.tree.map(lambda leaf: placement.divide(leaf, 0), states), 1
    return placement.place(states), 2


def steps_together(runs: Sequence[Batches], epoch: int, draws: bool, axis: int) -> tuple[Array, Array, Array | None]:
    """The rows and `present` of an epoch's steps, "k s b", divided along an axis, and keys "k s" for random draws."""
    order = zip(*(run.order(epoch) for run in runs), strict=True)
    rows, present = (placement.divide(np.stack(parts, 1), axis) for parts in order)
    keys = [step_keys(run, epoch, 0, run.steps) for run in runs] if draws else None
    return rows, present, None if keys is None else jnp.stack(keys, 1)


def check_runs(training: Training, dw: Tree, runs: Sequence[Batches]) -> None:
    """Raises InputError for runs that are not Batches, do not fit the loss, or have different arrays."""
    for run in runs:
        do = "Pass features.batches(key, rows=...)"
        instance("each of runs", run, Batches, do)
        as_source(run, None)
        check_data(training.predict, dw, run, training.objective)
    shared = all(run.inputs is runs[0].inputs and np.array_equal(run.targets, runs[0].targets) for run in runs)
    if not shared:
        raise InputError(
            "runs must be of one array of inputs and targets; got several. Pass rows= of the same features."
        )


def groups(runs: Sequence[Batches], at_once: int) -> Iterator[list[int]]:
    """Yields the runs that train together: of one batch size and number of steps, at most `at_once`."""
    alike: dict[tuple[int, int], list[int]] = {}
    for s, run in enumerate(runs):
        alike.setdefault((run.batch_size, run.steps), []).append(s)
    for members in alike.values():
        yield from (members[start : start + at_once] for start in range(0, len(members), at_once))


def repeat(state: Tree, count: int) -> Tree:
    """`count` copies of the state along a new first axis, s."""
    return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], count, 0), state)
