"""DP-SGD: clipped sums, noise and a ledger, on the whole data at every step or on Poisson samples.

    S  = sum of clipped g_b over the sample
    G  = (S + sigma C N(0, I)) / (q n)          or discrete noise on a grid (discrete.py)
    dw = dw + optimiser((G + penalty dw) / C)

The paper's private runs are 50 full-batch steps of cross entropy (q = 1, without amplification). The unit of protection
is an example, or an owner, whose g_b is the sum over all their examples. Every intermediate dw may be released. The
number of units n is public, and q n divides the sum of every sample, whatever its size. The optimiser gets the gradient
in units of C, so that learning rate and clip norm are independent.
"""

import dataclasses
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Num

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.identities import program
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.linear.tangent import as_tangent, for_loop
from tangent_jax.models.protocol import as_numbers
from tangent_jax.privacy.clipping import ClippedSum
from tangent_jax.privacy.conditions import check_finite, check_no_batching, check_optimizer
from tangent_jax.privacy.discrete import check_grid, on_grid, sensitivity_of, step_key
from tangent_jax.privacy.log import log_private_step
from tangent_jax.privacy.mechanism import Mechanism, Spent
from tangent_jax.privacy.norms import clipped_gradients
from tangent_jax.privacy.transformation import check_delta, private_mean
from tangent_jax.privacy.units import as_units, sample_chunks
from tangent_jax.train.batches import Batches, Chunk
from tangent_jax.train.bound import check_data
from tangent_jax.train.fit import State
from tangent_jax.train.objective import Objective, as_objective, make_objective
from tangent_jax.train.optimizers import Optimizer, apply, as_data, momentum
from tangent_jax.train.run import Fitted, Log, OnStep, Row, Run, Saved, measure_name, run_identity
from tangent_jax.train.targets import Predict, start_of


class Private(NamedTuple):
    """The account of a private run; a kill may lose steps that were paid for."""

    spent: Spent


@runtime_checkable
class Account(Saved, Protocol):
    """The saves of a private run, and its account, which pays for a step before it runs."""

    @property
    def spent(self) -> Spent:
        """What is paid so far."""
        ...

    def pay(self, steps: int) -> None:
        """Pays for `steps` in total; no kill can undo it when this returns."""
        ...


@runtime_checkable
class Ledger(Protocol):
    """Where the account of a private run is kept, such as `tj.Ledger(folder)`."""

    def open(self, run: str, spent: Spent) -> AbstractContextManager[Account]:
        """The account of the run with this identity; `spent`: before its first step."""
        ...


def default_objective() -> Objective:
    """The default of private runs: cross entropy without penalty."""
    return make_objective("ce", penalty=0.0)


def clip(
    predict: Predict,
    dw: Tree,
    x: Num[Array, "n ..."],
    y: Num[Array, "n ..."],
    present: Num[Array | np.ndarray, "o *e"],
    objective: Objective,
    mechanism: Mechanism,
) -> ClippedSum:
    """The clipped sum of one micro-batch; for discrete noise, on its grid."""
    summed = clipped_gradients(predict, dw, x, y, present, loss=objective.loss, clip_norm=mechanism.clip_norm)
    return on_grid(summed, mechanism)


def clip_all(
    predict: Predict, dw: Tree, chunk: Chunk, count: Any, objective: Objective, mechanism: Mechanism
) -> ClippedSum:
    """The clipped sum over the first `count` micro-batches of a chunk, before any noise."""
    present = chunk.present

    def part(i: Any) -> ClippedSum:
        return clip(predict, dw, *chunk.at(i), present[i], objective, mechanism)

    def add(i: Array, total: ClippedSum) -> ClippedSum:
        more = part(i)
        value = jax.tree.map(jnp.add, total.value, more.value)
        norms = total.norms.at[i].set(more.norms)
        return dataclasses.replace(total, value=value, norms=norms, non_finite=total.non_finite + more.non_finite)

    if len(present) == 1:
        return part(0)
    shape = jax.eval_shape(part, 0)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    norms = jnp.zeros((len(present), *shape.norms.shape), shape.norms.dtype)
    sensitivity = sensitivity_of(mechanism, dw, present[0].size)
    zero = dataclasses.replace(zero, norms=norms, sensitivity=sensitivity)
    total = jax.lax.fori_loop(0, count, add, zero)
    return dataclasses.replace(total, norms=total.norms.ravel())


def private_step(
    state: State, total: ClippedSum, expected: float | Array, key: Array, objective: Objective, mechanism: Mechanism,
    optimizer: Optimizer,
) -> tuple[State, Tree]:  # fmt: skip
    """One step on the noisy mean of a clipped sum over `expected` examples, and that mean, the private gradient G.

    Noise is added here (`private_mean`) and nowhere else: for the trainer, for searches and for audits. Values computed
    from private values alone are private.
    """
    gradient = private_mean(total, mechanism, expected, key)
    gradient = jax.lax.optimization_barrier(gradient)  # else XLA draws the noise twice, also for dw
    ridge = jax.grad(objective.ridge)(state.dw)
    scaled = jax.tree.map(lambda g, r: (g.astype(r.dtype) + r) / mechanism.clip_norm, gradient, ridge)
    return State(*apply(optimizer, scaled, state.optimizer_state, state.dw)), gradient


@partial(jax.jit, static_argnames="traced")
def clip_chunk(predict: Predict, *arguments: Any, traced: str = "") -> ClippedSum:
    """As `clip_all`, compiled."""
    return clip_all(for_loop(predict), *arguments)


@partial(jax.jit, static_argnames="traced", donate_argnums=0)
def take_step(state: State, *arguments: Any, traced: str = "") -> tuple[State, Array]:
    """As `private_step`, compiled: the state after a step, and the norms of the private gradient and of dw, "2"."""
    after, gradient = private_step(state, *arguments)
    return after, jnp.stack([trees.norm(gradient), trees.norm(after.dw)])


@promotes
def fit_private(
    predict: Predict,
    data: Any,
    objective: Objective | None = None,
    *,
    mechanism: Mechanism,
    start: Tree | None = None,
    optimizer: Optimizer | None = None,
    seed: int | None = None,
    on_step: OnStep | None = None,
    ledger: Ledger | None = None,
    log: Log | None = None,
    progress: Progress = silent,
) -> Fitted[Private]:
    """Trains dw under differential privacy by the mechanism's steps (DP-SGD).

    Args:
        predict, start, on_step: As in `fit`.
        data: Features or Batches in memory, whose batch size is that of micro-batches, with `owners` if these are the
            mechanism's unit.
        objective: None: cross entropy without penalty.
        mechanism: By `make_mechanism`.
        optimizer: None: `momentum()`.
        seed: None takes noise and samples from the operating system's entropy; a number makes them repeatable, and the
            result NOT private.
        ledger: Such as `tj.Ledger(folder)`, from which the same run resumes, or, once finished, is read.
        log, progress: As in `fit`.

    Returns:
        Fitted, with the account `info.spent`. Each row of the history has the `seconds` until its step ended, and
        `non_finite`, the units whose gradient was not finite. These two and `run` are not private; everything else
        depends on a training example through dw alone.

    Guarantees:
        (epsilon, delta)-differentially private in dw and every earlier dw_t, for adding or removing one unit, given
        secret noise, and a start and predictor, with their classes, that do not depend on the data; sums are divided by
        q n, never by a sample's size; with a ledger, a run, killed or not, takes no step that `spent` does not count.
        Losses and a function's gradients see one example at a time; a model's closed form is checked against single
        examples before the first step.

    Edge cases:
        A unit whose gradient is not finite counts as zero, and is counted; a Poisson sample may be empty; equal
        examples, by content identifier or input, are warned of: epsilon protects one of them, not all.

    Raises:
        InputError: delta >= 1 / n, a repeated row, owners that are unknown or have more examples than a micro-batch, a
            model that mixes examples, targets of no class, a ledger of another run or one that disagrees with its
            checkpoint, a step that is not finite.

    >>> mechanism = tj.make_mechanism(epsilon=8.0, delta=1e-2, steps=5)
    >>> fitted = tj.fit_private(demo.predict, demo.train, mechanism=mechanism)
    >>> fitted.steps, round(fitted.info.spent.compute_epsilon(), 1)
    (5, 8.0)
    """
    dw, predict = start_of(predict, start), jax.tree.map(placement.automatic, trees.as_pytree(predict))
    objective = as_objective(objective, default_objective)
    optimizer = as_data(momentum() if optimizer is None else optimizer)
    batches, units = as_units(data, mechanism)
    check_private(predict, dw, batches, mechanism, objective, len(units))
    check_optimizer(optimizer, dw)
    state, spent, traced = State(dw, optimizer.init(dw)), Spent(mechanism, 0, seed is None), ""
    account: Account | None = None
    with Run(on_step, progress, log) as run:
        if ledger is not None:
            traced = step_program(predict, state, batches, objective, mechanism, optimizer)
            numbers = jax.tree.leaves((predict, state, objective, mechanism, optimizer))
            name = run_identity(batches, traced, numbers, mechanism, seed, units)
            account = run.enter_context(ledger.open(name, spent))
            run.keep(account, measure_name(on_step, dw))
            state, spent = run.restore(state), account.spent
            if not run.history.rows and spent.steps_paid == mechanism.steps:
                raise InputError("ledger has no result, but its budget is spent. It is not spent again.")
        state, predict = placement.place((jax.tree.map(placement.copied, state), predict))  # as dw is donated
        began = time.perf_counter() - show_steps(run, spent)
        expected = mechanism.expected_size(len(units))
        for step in range(spent.steps_paid, mechanism.steps):
            spent = spent.pay(step + 1)
            if account is not None:
                account.pay(step + 1)
            run.begin()
            chunks = sample_chunks(batches, mechanism, units, seed, step)
            total = add_up(predict, state.dw, chunks, objective, mechanism, traced)
            key = step_key(mechanism, seed, step)
            state, norms = take_step(state, total, expected, key, objective, mechanism, optimizer, traced=traced)
            check_finite(float(norms[1]), step)
            row: Row = {"step": step + 1, "seconds": time.perf_counter() - began, "non_finite": int(total.non_finite)}
            if run.log is not None:
                log_private_step(run.log, spent, float(norms[0]), mechanism.public_count(len(units)))
            run.end(row, state.dw, state, step + 1 == mechanism.steps)
    return private_result(run, state.dw, spent)


def show_steps(run: Run, spent: Spent) -> float:
    """Opens the progress bar and log of a private run; returns the seconds of its steps so far."""
    last = run.history.rows[-1] if len(run.history) else {"step": 0, "seconds": 0.0}
    run.show(spent.mechanism.steps, "step", spent.steps_paid)
    run.open_log(last["step"], spent.mechanism.steps)
    return last["seconds"]


def private_result(run: Run, dw: Tree, spent: Spent) -> Fitted[Private]:
    """The result of a private run, gathered on every device."""
    rows = run.history.merge()
    return Fitted(placement.replicate(dw), rows, rows[-1]["seconds"], len(rows), run.identity, Private(spent))


def check_private(
    predict: Predict, dw: Tree, batches: Batches, mechanism: Mechanism, objective: Objective, units: int
) -> None:
    """Raises InputError if the guarantee would not hold for one of the units."""
    if units < 2:
        raise InputError(f"data must have at least 2 {mechanism.unit}s; got {units}")
    repeats = len(batches) - len(np.unique(batches.rows))
    if repeats:
        raise InputError(f"rows must be of distinct examples; got {repeats} that repeat. Each counts for epsilon once.")
    whole_number("the mechanism's steps", mechanism.steps, 1)
    check_data(predict, dw, batches, objective)
    check_no_batching(predict, dw, batches, objective)
    check_grid(mechanism, dw, batches.batch_size, -(-len(batches) // batches.batch_size))
    check_delta(mechanism, units)
    rows = batches.rows[: batches.batch_size]
    x, y = np.asarray(batches.inputs[rows]), batches.targets[rows]
    if as_tangent(predict).has_factors:
        check_alone(predict, dw, x, y, objective)


def check_alone(predict: Any, dw: Tree, x: np.ndarray, y: np.ndarray, objective: Objective) -> None:
    """Raises InputError if a model's closed form mixes the examples of a batch.

    At a random step, on a whole micro-batch: the norm of one example's gradient must not change beside the others,
    beside others that are not finite, or beside copies of itself.
    """
    x, rng = np.array(as_numbers(predict.model, jnp.asarray(x), predict.subset.stage)), np.random.default_rng(0)
    at = jax.tree.map(lambda leaf: jnp.asarray(0.1 * rng.standard_normal(leaf.shape), leaf.dtype), dw)
    half = jnp.finfo(predict.dtype or jnp.float32).eps > jnp.finfo(jnp.float32).eps
    mechanism, tolerance = Mechanism(1.0, 1.0, 1, 1e-5), 5e-2 if half else 1e-3

    def clipped(x: np.ndarray, y: np.ndarray) -> ClippedSum:
        chunk = Chunk(jnp.asarray(x)[None], jnp.asarray(y)[None], None, np.ones((1, len(x)), np.float32))
        return clip_chunk(predict, at, chunk, 1, objective, mechanism)

    together, n = np.asarray(clipped(x, y).norms), len(x)
    for i in sorted({0, n // 2, n - 1}):
        lonely = np.full_like(x, np.nan) if np.issubdtype(x.dtype, np.floating) else x.copy()
        lonely[i] = x[i]
        repeated = clipped(np.broadcast_to(x[i], x.shape), np.broadcast_to(y[i], y.shape))
        norms = [np.asarray(clipped(lonely, y).norms)[i], *np.asarray(repeated.norms)]
        apart = float(np.max(np.abs(np.subtract(norms, together[i])))) if np.isfinite(together[i]) else 0.0
        if not apart <= tolerance * (1e-6 + together[i]):
            raise InputError(
                "examples of the model must not see each other; got a gradient norm that moves by"
                f" {apart:.2g} of {together[i]:.2g} when the others change. Use no batch statistics in `dual`."
            )


def step_program(
    predict: Predict, state: State, batches: Batches, objective: Objective, mechanism: Mechanism, optimizer: Optimizer
) -> str:
    """The fingerprint of a private run's programs: the start of the optimiser, and a step."""
    rows = batches.rows[:1].repeat(batches.batch_size)
    present = np.ones((1, len(rows)) if mechanism.unit == "example" else (1, 1, len(rows)), np.float32)
    chunk = Chunk(batches.inputs[rows][None], batches.targets[rows][None], None, present)

    def step(predict: Predict, state: State, chunk: Any, key: Array, others: Any) -> Any:
        objective, mechanism, optimizer = others
        total = clip_all(predict, state.dw, chunk, 1, objective, mechanism)
        return optimizer.init(state.dw), private_step(state, total, 1.0, key, objective, mechanism, optimizer)

    return program(step, predict, state, chunk, step_key(mechanism, 0, 0), (objective, mechanism, optimizer))


def add_up(
    predict: Predict, dw: Tree, chunks: Iterable[Chunk], objective: Objective, mechanism: Mechanism, traced: str = ""
) -> ClippedSum:
    """The clipped sum over all micro-batches of all chunks, before any noise; `traced`: as `train_epoch` has it."""
    total = None
    for chunk in chunks:
        steps = len(chunk.present)
        chunk = chunk.pad(1 << (steps - 1).bit_length()).place()  # few shapes, for samples of any size
        part = clip_chunk(predict, dw, chunk, steps, objective, mechanism, traced=traced)
        total = part if total is None else total + part
    assert total is not None
    return total
