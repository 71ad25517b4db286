"""Training dw with optax: each epoch is a compiled scan over inputs on the device.

    min_dw  mean_b loss(predict(dw, x_b), y_b) + penalty / 2 |dw|^2

`predict(dw, x)` is the tangent model (convex in dw), the non-linear baseline f(w + dw, x), or any callable pytree.
Source: Liu et al. 2024, for loss and settings.
"""

import dataclasses
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Int32

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError, instance, whole_number
from tangent_jax.core.identities import program
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.linear.tangent import for_loop
from tangent_jax.train.batches import STEPS, Batches, Chunk, Source, as_batches, epoch_chunks
from tangent_jax.train.bound import check_data
from tangent_jax.train.evaluate import Metric
from tangent_jax.train.objective import (
    Keyed,
    Objective,
    alone,
    as_objective,
    check_targets,
    make_objective,
    outputs_of,
    with_fixed_key,
)
from tangent_jax.train.optimizers import Optimizer, adam, apply, as_data
from tangent_jax.train.run import (
    OWN,
    Checkpoints,
    Fitted,
    Log,
    OnStep,
    Row,
    Run,
    StepLog,
    check_names,
    measure_name,
    run_identity,
    saves_of,
)
from tangent_jax.train.targets import Predict, output_shape, start_of

Metrics = Mapping[str, Metric]


class State(NamedTuple):
    """The state of training between steps."""

    dw: Tree
    optimizer_state: Any


class Batch(NamedTuple):
    """One step's inputs "b ...", targets "b ...", 1 or (padding) 0 "b", and a key for random draws, or None."""

    x: Array
    y: Array
    present: Array
    key: Array | None = None


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["predict", "objective", "optimizer"],
    meta_fields=["metrics", "traced"],
)
@dataclasses.dataclass(frozen=True)
class Training:
    """The computation of a run; its numbers are data to jit.

    Attributes:
        traced: The fingerprint of a step's program, if it names the run: another program is compiled again.
    """

    predict: Predict
    objective: Objective
    optimizer: Optimizer
    metrics: tuple[Metric, ...] = ()
    traced: str = ""

    def step(self, state: State, batch: Batch, progress: Any) -> tuple[State, Array]:
        """One step; also the sums over its examples of the loss and of each metric, "1 + metrics"."""
        x, y, present, key = batch

        def value(dw: Tree) -> tuple[Array, Array]:
            outputs = outputs_of(self.predict, dw, x, key)
            return self.objective.of_outputs(outputs, dw, y, present, key), outputs

        def value_fn(dw: Tree, progress: Any = None) -> Array:  # a line search passes on all arguments
            return value(dw)[0]

        (total, outputs), gradient = jax.value_and_grad(value, has_aux=True)(state.dw)
        known = {"progress": progress, "value": total, "grad": gradient, "value_fn": value_fn}
        values = [self.objective.losses(outputs, y, key), *(alone(metric, outputs, y) for metric in self.metrics)]
        sums = jnp.stack([jnp.sum(of_examples * present) for of_examples in values])
        return State(*apply(self.optimizer, gradient, state.optimizer_state, state.dw, **known)), sums

    @property
    def draws(self) -> bool:
        """True where a step needs a key."""
        return isinstance(self.predict, Keyed) or self.objective.draws

    def for_loop(self) -> "Training":
        """The computation for a loop over steps."""
        return dataclasses.replace(self, predict=for_loop(self.predict))

    def start(self, dw: Tree) -> State:
        """The state before the first step."""
        return State(dw, self.optimizer.init(dw))


@partial(jax.jit, donate_argnames="state")
def train_epoch(training: Training, state: State, chunk: Chunk, keys: Any, progress: Any) -> tuple[State, Array]:
    """(the state after an epoch or a chunk of it; each step's sums, "k m").

    Args:
        keys: "k", or None.
    """

    training = training.for_loop()

    def step(state: State, of_step: tuple[Array, Array | None]) -> tuple[State, Array]:
        i, key = of_step
        return training.step(state, Batch(*chunk.at(i), chunk.present[i], key), progress)

    return jax.lax.scan(step, state, (jnp.arange(len(chunk.present)), keys))


@dataclasses.dataclass
class Sums:
    """The sums of the loss and of each metric over an epoch's examples, added chunk by chunk."""

    epoch: int
    epochs: int
    names: tuple[str, ...]
    before: int = 0  # steps of earlier epochs
    totals: Any = 0.0
    examples: int = 0
    steps: int = 0


def train_chunk(run: Run, training: Training, state: State, chunk: Chunk, keys: Any, sums: Sums) -> State:
    """Trains on a chunk, logs its steps, and adds their sums to the epoch's; returns the state."""
    present, progress = chunk.present, sums.epoch / sums.epochs
    run.begin(len(present))
    state, per_step = train_epoch(training, state, chunk.place(), keys, progress)
    per_step = np.asarray(per_step, np.float64)
    if run.log is not None:
        log_chunk(run.log, sums, per_step, present)
    sums.totals += per_step.sum(0)
    sums.examples += int(present.sum())
    sums.steps += len(present)
    run.check_stop()
    return state


def log_chunk(log: StepLog, sums: Sums, per_step: np.ndarray, present: np.ndarray) -> None:
    """Logs the steps after those of `sums`: their sums "k m", present "k b"."""
    counts = present.sum(1)
    rows = []
    for i, count in enumerate(counts):
        row: Row = {"step": sums.before + sums.steps + i + 1, "epoch": sums.epoch + 1}
        row |= dict(zip(sums.names, (per_step[i] / count).tolist(), strict=True))
        rows.append(row)
    log.add(rows, int(counts.sum()))


@promotes
def fit(
    predict: Predict,
    data: Source,
    objective: Objective | None = None,
    *,
    start: Tree | None = None,
    optimizer: Optimizer | optax.MultiSteps | None = None,
    epochs: int = 30,
    key: Array | None = None,
    metrics: Metrics | None = None,
    on_step: OnStep | None = None,
    checkpoints: Checkpoints | None = None,
    log: Log | None = None,
    progress: Progress = silent,
) -> Fitted[None]:
    """Trains the tangent weights dw.

    Args:
        predict: (dw, x "b ...") -> outputs "b c", a pytree or a function.
        data: Features (with `key`, for the order of examples), or `Batches` with a key, or an iterable of (x, y) that
            each epoch reads, or a function of the epoch that returns one.
        objective: None: the paper's rescaled square loss.
        start: The first dw, None: the predictor's zero.
        optimizer: An optax transformation, None: the paper's `adam()`.
        metrics: {name: (outputs, targets) -> "b"}, averaged over each epoch's examples during training.
        on_step: Called after every epoch with its row of the history and dw, whose memory the next epoch reuses (copy
            it to keep it); the mapping that it returns is added to the row, and has no name of the run's own, such as
            `loss`.
        checkpoints: Such as `tj.Checkpoints(folder)`: a killed run resumes from its last finished epoch. Everything
            that decides dw names the run: data, start, settings, and the program of a step. A resumed row has its
            metrics, and the values of an `on_step` with a name, such as `Measure`.
        log: The log of every step, such as `tj.log_steps` yields.
        progress: `tqdm.tqdm`, or what `tj.show_progress` yields.

    Returns:
        Fitted.

    Guarantees:
        With one number of devices the result has the same bits, resumed or not; on one device, also streamed or
        resident. Another number of devices changes last bits, of sums and rows; a run may resume there.

    Edge cases:
        A last batch that is not full is padded; padding has no weight.

    Raises:
        InputError: No epoch, unusable data or targets, a loss that is not finite.

    >>> fitted = tj.fit(demo.predict, demo.train, key=jax.random.key(0), optimizer=tj.adam(0.3), epochs=5)
    >>> fitted.steps, fitted.history[-1]["loss"] < fitted.history[0]["loss"]
    (5, True)
    """
    whole_number("epochs", epochs, 1)
    dw, metrics = start_of(predict, start), metrics or {}
    training = make_training(predict, objective, optimizer, metrics)
    predict = training.predict
    source = as_source(data, key)
    if isinstance(source, Batches):
        check_data(predict, dw, source, training.objective)
    state, check = training.start(dw), partial(check_batch, predict, dw, training.objective)
    with Run(on_step, progress, log) as run:
        if checkpoints is not None:
            training = with_program(training, state, source)
            name = run_identity(source, training.traced, jax.tree.leaves((training, state)), epochs)
            run.keep(
                saves_of(checkpoints, name), measure_name(on_step, dw, *metric_programs(metrics, predict, dw, source))
            )
        state = jax.tree.map(placement.copied, run.restore(state))  # as dw is donated
        state, training = placement.place((state, training))
        run.show(epochs, "epoch", len(run.history), shown_values)
        taken = sum(row["steps"] for row in run.history.rows)
        run.open_log(taken, None if checkpoints is None else epochs * source.steps)
        for epoch in range(len(run.history), epochs):
            began, sums = time.perf_counter(), Sums(epoch, epochs, ("loss", *metrics), taken)
            for chunk in epoch_chunks(source, epoch, check):
                keys = step_keys(source, epoch, sums.steps, len(chunk.present)) if training.draws else None
                state = train_chunk(run, training, state, chunk, keys, sums)
            taken += sums.steps
            row = epoch_row(epoch, sums.totals, sums.examples, sums.steps, time.perf_counter() - began)
            measured = dict(zip(metrics, (sums.totals[1:] / sums.examples).tolist(), strict=True))
            run.end(row, state.dw, state, epoch + 1 == epochs, measured)
    return summary(placement.replicate(state.dw), run.history.merge(), run.identity)


@promotes
def compile_fit(
    predict: Predict,
    data: Batches,
    objective: Objective | None = None,
    *,
    optimizer: Optimizer | optax.MultiSteps | None = None,
    metrics: Metrics | None = None,
    has_checkpoints: bool = False,
) -> None:
    """Compiles what `fit` runs with these arguments, so that a thread can do it while the inputs are computed.

    Args:
        data: Only the shapes and dtypes of its inputs count.

    Edge cases:
        Nothing is compiled for inputs that are streamed, steps that draw, or more devices than one.
    """
    training, dw = make_training(predict, objective, optimizer, metrics or {}), start_of(predict, None)
    if placement.mesh().size > 1 or not data.is_resident or training.draws:
        return
    state = training.start(dw)
    training = with_program(training, state, data) if has_checkpoints else training
    state, training = placement.place((state, training))
    if data.key is not None:
        data.permutation(0)  # the draw is a program, too
    for steps in {min(STEPS, data.steps - start) for start in range(0, data.steps, STEPS)}:
        train_epoch.lower(training, state, chunk_shapes(data, steps), None, 0.0).compile()


def chunk_shapes(data: Batches, steps: int) -> Chunk:
    """The shapes and dtypes on a device of a chunk of this many steps, of resident or of streamed inputs."""
    batches = (steps, data.width)

    def shape_of(array: Any) -> jax.ShapeDtypeStruct:
        shape = array.shape if data.is_resident else batches + array.shape[1:]
        return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(array.dtype))

    order = jax.ShapeDtypeStruct(batches, jnp.int32) if data.is_resident else None
    return Chunk(shape_of(data.inputs), shape_of(data.targets), order, jax.ShapeDtypeStruct(batches, jnp.float32))


def with_program(training: Training, state: State, source: Any) -> Training:
    """The training with the fingerprint of its step, which names its run; InputError for endless data."""
    if not isinstance(source, Batches):
        raise InputError(
            f"data must be Batches if checkpoints are given; got {type(source).__name__}. Pass "
            "features.batches(key), or Batches(inputs, targets, key)."
        )
    return dataclasses.replace(training, traced=step_program(training, state, source))


def as_source(data: Any, key: Array | None) -> Any:
    """The data as Batches with a key; an iterable or function of batches (x, y) is unchanged.

    Raises:
        InputError: Other data, or Batches without a key for their order.
    """
    advice = "Pass features.batches(key), or Batches(inputs, targets, key)"
    if isinstance(data, Batches) or hasattr(data, "batches"):
        batches = as_batches(data, key=key)
        if isinstance(data, Batches) and key is not None and data.key is not None:
            raise InputError("key must be left out beside Batches that have a key; got both, and one decides the order")
        if batches.key is None:
            advice = advice if key is None else "Pass the key to Batches, not to fit"
            raise InputError(f"batches must have a key, which decides their order; got none. {advice}.")
        return batches
    is_iterable = hasattr(data, "__iter__") and not isinstance(data, (tuple, dict, str))
    if not callable(data) and not is_iterable:
        raise InputError(
            f"data must be Features, Batches, or an iterable of batches (x, y); got {type(data).__name__}. {advice}."
        )
    return data


def check_batch(predict: Predict, dw: Tree, objective: Objective, x: np.ndarray, y: np.ndarray) -> None:
    """Raises InputError for a batch x, y, "b ...", whose targets do not fit the loss."""
    check_targets(y, output_shape(with_fixed_key(predict), dw, x), objective)


def step_keys(data: Any, epoch: int, first: int, count: int) -> Any:
    """Keys "k" of `count` steps from `first` of an epoch, folded from the data's key.

    Raises:
        InputError: Data without one.
    """
    do = "The predictor or the loss draws, so pass Batches(inputs, targets, key)"
    instance("data", data, Batches, do)
    assert data.key is not None
    of_epoch = jax.random.fold_in(jax.random.fold_in(data.key, epoch), 1)
    return placement.replicate(fold_each(of_epoch, jnp.arange(first, first + count)))


@jax.jit
def fold_each(key: Array, numbers: Int32[Array, "k"]) -> Array:
    """Keys "k", each folded alone: under vmap, one of impl unsafe_rbg would depend on the others."""
    return jax.lax.map(partial(jax.random.fold_in, key), numbers)


def step_program(training: Training, state: State, data: Batches) -> str:
    """The fingerprint of a training's program, without its numbers and metrics: the optimiser's start, and a step."""
    rows = data.rows[:1].repeat(data.batch_size)
    ones: Any = np.ones(len(rows), np.float32)
    key = step_keys(data, 0, 0, 1)[0] if training.draws else None
    bare, batch = dataclasses.replace(training, metrics=()), Batch(data.inputs[rows], data.targets[rows], ones, key)
    return program(
        lambda t, state, batch, at: (t.start(state.dw), t.step(state, batch, at)[0]), bare, state, batch, 0.0
    )


def make_training(
    predict: Predict, objective: Objective | None, optimizer: Optimizer | optax.MultiSteps | None, metrics: Metrics
) -> Training:
    """The computation of a run, by default with the paper's objective and optimiser.

    Raises:
        InputError: An invalid objective or optimiser, and metrics with reserved names.
    """
    objective = as_objective(objective, make_objective)
    optimizer = as_data(adam() if optimizer is None else optimizer)
    check_names("metrics must have", metrics)
    return Training(trees.as_pytree(predict), objective, optimizer, tuple(metrics.values()))


def metric_programs(metrics: Metrics, predict: Predict, dw: Tree, data: Batches) -> list[Any]:
    """The name and the program of each metric."""
    z = jax.ShapeDtypeStruct((1, *output_shape(with_fixed_key(predict), dw, data.inputs[data.rows[:1]])), jnp.float32)
    y = data.targets[data.rows[:1]]
    return [(name, program(metric, z, y)) for name, metric in metrics.items()]


def epoch_row(epoch: int, sums: np.ndarray, examples: int, steps: int, seconds: float) -> Row:
    """The row of an epoch, from its sums "1 + metrics"; InputError for a loss that is not finite."""
    loss = float(sums[0] / examples)
    if not np.isfinite(loss):
        raise InputError(
            f"the loss must be finite; got {loss} in epoch {epoch + 1}."
            " Lower the learning rate, or look for inputs that are not finite."
        )
    return {"epoch": epoch + 1, "loss": loss, "seconds": seconds, "steps": steps, "examples": examples}


def shown_values(row: Row) -> Row:
    """The loss, and the measured values of a row, as a progress bar shows them."""
    return {name: f"{v:.4g}" for name, v in row.items() if name == "loss" or name not in OWN}


def summary(dw: Tree, history: list[Row], run: str | None = None) -> Fitted[None]:
    """The result of a run of epochs; its seconds exclude `on_step`."""
    return Fitted(dw, history, sum(row["seconds"] for row in history), sum(row["steps"] for row in history), run)
