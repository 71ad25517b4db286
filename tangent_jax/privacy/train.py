"""Private training: clipped sums, noise and a ledger, on the whole data at every step or on Poisson samples.

    S  = sum of clipped g_b over the sample
    G  = (S + sigma C N(0, I)) / (q n)
    dw = dw + optimiser((G + penalty dw) / C)

The paper's private runs are 50 full-batch steps of cross entropy (q = 1: nothing is amplified). Covered is the presence
of each example; released may be every dw on the way. The number of examples n is taken as public. The gradient reaches
the optimiser in units of C, so that learning rate and clip norm are chosen apart.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import Tree, is_stopping, progress_bar, require, trees, whole_number
from tangent_jax.models.predict import Predictor
from tangent_jax.privacy.clipping import ClippedSum, check_per_example, clipped_sum
from tangent_jax.privacy.ledger import open_ledger
from tangent_jax.privacy.mechanism import Mechanism, Spent
from tangent_jax.privacy.noise import noise_key, noisy_mean
from tangent_jax.privacy.norms import clipped_sum_closed_form
from tangent_jax.train.batches import Batches, Chunk, check_labels
from tangent_jax.train.checkpoints import run_identity
from tangent_jax.train.fit import State
from tangent_jax.train.labels import check_start
from tangent_jax.train.objective import Objective, Predict, make_objective
from tangent_jax.train.optimizers import Optimizer, apply, as_data, momentum

SAVE_SECONDS = 1.0  # at most as much is lost, though paid, when a run is killed
Row = dict[str, float]


def default_objective() -> Objective:
    """The paper's private runs': cross entropy without penalty."""
    return make_objective("ce", penalty=0.0)


def clip(
    predict: Predict, dw: Tree, x: Array, y: Array, present: Array, objective: Objective, mechanism: Mechanism
) -> ClippedSum:
    """The clipped sum of one micro-batch: norms in closed form for a model of the protocol, else vmapped gradients."""
    options: Any = {"loss": objective.loss, "clip_norm": mechanism.clip_norm}
    if isinstance(predict, Predictor) and predict.linearization == "closed_form":
        return clipped_sum_closed_form(predict, dw, x, y, present, **options)
    return clipped_sum(predict, dw, x, y, present, **options)


def clip_all(
    predict: Predict, dw: Tree, chunk: tuple[Any, ...], count: Any, objective: Objective, mechanism: Mechanism
) -> ClippedSum:
    """The clipped sum over the first `count` micro-batches of a chunk, before any noise."""
    inputs, labels, order, present = chunk

    def part(i: Any) -> ClippedSum:
        rows = order[i]
        return clip(predict, dw, inputs[rows], labels[rows], present[i], objective, mechanism)

    def add(i: Array, total: ClippedSum) -> ClippedSum:
        more = part(i)
        value = jax.tree.map(jnp.add, total.value, more.value)
        norms = total.norms.at[i].set(more.norms)
        return dataclasses.replace(total, value=value, norms=norms, non_finite=total.non_finite + more.non_finite)

    if len(order) == 1:
        return part(0)
    shape = jax.eval_shape(part, 0)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    zero = dataclasses.replace(zero, norms=jnp.zeros(order.shape, shape.norms.dtype), sensitivity=mechanism.clip_norm)
    total = jax.lax.fori_loop(0, count, add, zero)
    return dataclasses.replace(total, norms=total.norms.ravel())


def private_step(
    state: State, total: ClippedSum, expected: float | Array, key: Array, objective: Objective, mechanism: Mechanism,
    optimizer: Optimizer,
) -> tuple[State, Tree]:  # fmt: skip
    """One step on the noisy mean of a clipped sum over `expected` examples, and that mean, the private gradient G.

    The one place where noise is added: for the trainer, for searches and for audits. What is computed from private
    values alone is private.
    """
    gradient = noisy_mean(total, mechanism.noise_multiplier, expected, key)
    gradient = jax.lax.optimization_barrier(gradient)  # else XLA draws the noise for the momentum and again for dw
    ridge = jax.grad(objective.ridge)(state.dw)
    scaled = jax.tree.map(lambda g, r: (g + r) / mechanism.clip_norm, gradient, ridge)
    return State(*apply(optimizer, scaled, state.optimizer_state, state.dw)), gradient


_clip_all = jax.jit(clip_all)
_squared_norm = jax.jit(trees.squared_norm)


@partial(jax.jit, donate_argnames="state")
def _private_step(state: State, *arguments: Any) -> State:
    return private_step(state, *arguments)[0]


class PrivatelyFitted(NamedTuple):
    """A privately trained step. `steps` were taken, `spent.steps_paid` paid for (more where a kill lost some).

    `history`: of each step its seconds, `non_finite`, and what `on_step` returned.
    `non_finite`: examples, summed over the steps, whose gradient was not finite. It alone is not private: no other
    number here depends on a training example but through dw.
    `run`: the identity of all that decided it, where a folder was given.
    """

    dw: Tree
    steps: int
    spent: Spent
    history: list[Row]
    seconds: float
    non_finite: int
    run: str | None


def fit_private(
    predict: Predict,
    dw: Tree,
    batches: Batches,
    mechanism: Mechanism,
    objective: Objective | None = None,
    *,
    optimizer: Optimizer | None = None,
    seed: int | None = None,
    folder: str | os.PathLike | None = None,
    on_step: Callable[[Row, Tree], Mapping[str, float] | None] | None = None,
) -> PrivatelyFitted:
    """Trains dw under differential privacy: the mechanism's steps.

    Args:       predict, dw, optimizer, on_step: as in `fit`, each row of predict's output of its own x alone; batches:
                their size is that of micro-batches, in memory only; objective: None: cross entropy without penalty;
                optimizer: None: `momentum()`; seed: None draws noise and samples from the operating system's entropy;
                a number repeats them, and then nothing is private;
                folder: holds the ledger and the last step; the same run goes on from there, or, finished, is read.
    Returns:    PrivatelyFitted.
    Guarantees: (epsilon, delta)-differentially private in dw and every dw_t before it, for adding or removing one
                example, given secret noise; a run never takes a step that `spent` does not count, killed or not.
    Edge cases: an example whose gradient is not finite counts as zero, and is counted; a Poisson sample may be empty.
    Raises:     InputError for delta >= 1 / n, an example's loss that depends on others, labels of no class, a ledger
                that is another run's or does not fit its checkpoint, a step that is not finite.
    """
    predict, objective = trees.as_pytree(predict), objective or default_objective()
    optimizer = as_data(optimizer or momentum())
    check_private(predict, dw, batches, mechanism, objective)
    state, history, ledger, run = State(dw, optimizer.init(dw)), [], None, None
    spent = Spent(mechanism, 0, seed is None)
    with ExitStack() as held:
        if folder is not None:
            run = run_identity(predict, dw, batches, objective, optimizer, mechanism, seed, on_step)
            ledger = held.enter_context(open_ledger(folder, run, spent, SAVE_SECONDS))
            (state, history), spent = ledger.saver.restore(state), ledger.spent
            left = history or spent.steps_paid < mechanism.steps
            require(left, "fit_private", f"the result of a spent budget in {folder}", "none", "It is not spent again")
        expected = mechanism.sampling_rate * len(batches)
        state = jax.tree.map(jnp.array, state)  # copies: the caller's dw is not donated
        began, before = time.perf_counter(), history[-1]["seconds"] if history else 0.0
        bar = held.enter_context(progress_bar(mechanism.steps, "step", spent.steps_paid))
        for step in range(spent.steps_paid, mechanism.steps):
            spent = spent.paid(step + 1)
            if ledger is not None:
                ledger.pay(step + 1)
            chunks = batches.chunks(*sample(batches, mechanism, seed, step))
            total = add_up(predict, state.dw, chunks, objective, mechanism)
            state = _private_step(state, total, expected, noise_key(seed, step), objective, mechanism, optimizer)
            check_step(state.dw, step)
            row: Row = {"step": step + 1, "seconds": before + time.perf_counter() - began}
            row["non_finite"] = int(total.non_finite)
            history.append({**row, **((on_step(row, state.dw) if on_step else None) or {})})
            if ledger is not None and ledger.saver.is_due(step + 1 == mechanism.steps or is_stopping()):
                ledger.save(state, history)
            bar.update()
    non_finite = int(sum(row["non_finite"] for row in history))
    return PrivatelyFitted(state.dw, len(history), spent, history, history[-1]["seconds"], non_finite, run)


def check_step(dw: Tree, step: int) -> None:
    """Raises InputError for a step that is not finite: from there on nothing is learned, only spent."""
    norm, do = float(_squared_norm(dw)), "Lower the learning rate; what was paid stays paid"
    require(np.isfinite(norm), "fit_private", "a finite step", f"a norm of {norm} after step {step + 1}", do)


def check_private(predict: Predict, dw: Tree, batches: Batches, mechanism: Mechanism, objective: Objective) -> None:
    """Raises InputError where the guarantee would not hold."""
    do = "Pass features.batches(), or Batches(inputs, labels)"
    require(isinstance(batches, Batches), "fit_private", "Batches", type(batches).__name__, do)
    require(isinstance(mechanism, Mechanism), "fit_private", "a mechanism of make_mechanism", type(mechanism).__name__)
    check_start("fit_private", dw)
    n = len(batches)
    require(n >= 2, "fit_private", "at least 2 examples", n)
    whole_number("fit_private", "the mechanism's steps", mechanism.steps, 1)
    check_labels("fit_private", predict, dw, batches)
    require(mechanism.delta < 1 / n, "fit_private", f"delta < 1 / examples = {1 / n:.2g}", mechanism.delta)
    rows = batches.rows[:4]
    x, y = jnp.asarray(batches.inputs[rows]), jnp.asarray(batches.labels[rows])
    check_per_example(predict, dw, x, y, loss=objective.loss)


def sample(batches: Batches, mechanism: Mechanism, seed: int | None, step: int) -> tuple[np.ndarray, np.ndarray]:
    """(order, present), "k b": all rows, or those that n independent coins of chance q chose, padded to micro-batches.

    At least one micro-batch, which may be empty: every sample, of any size, is taken whole.
    """
    if mechanism.sampling_rate == 1:
        return batches.in_order()
    coins = np.random.default_rng(None if seed is None else [seed, step])
    return batches.padded(batches.rows[coins.random(len(batches)) < mechanism.sampling_rate])


def add_up(
    predict: Predict, dw: Tree, chunks: Iterator[Chunk], objective: Objective, mechanism: Mechanism
) -> ClippedSum:
    """The clipped sum over all micro-batches of all chunks, before any noise."""
    total = None
    for inputs, labels, order, present in chunks:
        length = 1 << (len(order) - 1).bit_length()  # few shapes to compile, whatever the sample's size
        more = ((0, length - len(order)), (0, 0))
        chunk = (inputs, labels, np.pad(order, more), np.pad(present, more))
        part = _clip_all(predict, dw, chunk, len(order), objective, mechanism)
        total = part if total is None else total + part
    assert total is not None
    return total
