"""Private training: clipped sums, noise and a ledger, on the whole data at every step or on Poisson samples.

    S = sum of clipped g_b over the sample
    G = (S + sigma C N(0, I)) / (q n)
    v = 0.9 v + G / C,   dw = dw - lr v

The paper's private runs are 50 full-batch steps of cross entropy (q = 1: nothing is amplified). Covered is the presence
of each example; released may be every dw on the way. The number of examples n is taken as public.
Momentum, not Adam, whose second moment would be the noise's.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tangent_jax.checkpoints import Saver, run_identity
from tangent_jax.checks import require
from tangent_jax.fit import Batches, State, accuracy, as_pytree
from tangent_jax.losses import make_loss
from tangent_jax.notation import Tree
from tangent_jax.predict import Predictor
from tangent_jax.privacy.accounting import Spent, noise_multiplier_of
from tangent_jax.privacy.clipping import ClippedSum, check_clip_norm, check_per_example, clipped_sum
from tangent_jax.privacy.ledger import Ledger
from tangent_jax.privacy.noise import noise_key, noisy_mean
from tangent_jax.privacy.norms import clipped_sum_closed_form
from tangent_jax.progress import progress_bar

MOMENTUM = optax.trace(0.9)
SAVE_SECONDS = 1.0  # at most as much is lost, though paid, when a run is killed


@dataclasses.dataclass(frozen=True)
class PrivateSettings:
    """A privacy budget and how it is spent (defaults: the paper's, where it gives them).

    `epsilon`, `delta`: for adding or removing one example; `clip_norm`: C, L2 over the whole tree; `learning_rate`: in
    units of 1 / C, so that the two are chosen apart;
    `sampling_rate`: 1 takes all examples at every step, less is the rate q of Poisson samples; `penalty`: lambda of
    lambda/2 |dw|^2, which no example enters; `micro_batch`: examples at a time, in memory only.
    """

    epsilon: float
    delta: float
    steps: int = 50
    clip_norm: float = 1.0
    learning_rate: float = 0.03
    sampling_rate: float = 1.0
    loss: str = "ce"
    penalty: float = 0.0
    micro_batch: int = 64

    def __post_init__(self) -> None:
        make_loss(self.loss)
        check_clip_norm("PrivateSettings", self.clip_norm)
        require(self.learning_rate > 0, "PrivateSettings", "learning_rate > 0", self.learning_rate)
        require(self.penalty >= 0, "PrivateSettings", "penalty >= 0", self.penalty)
        require(self.micro_batch >= 1, "PrivateSettings", "micro_batch >= 1", self.micro_batch)
        require(self.noise_multiplier > 0, "PrivateSettings", "epsilon > 0", self.epsilon)

    @cached_property
    def noise_multiplier(self) -> float:
        """sigma, calibrated to the budget."""
        return noise_multiplier_of(self.epsilon, self.delta, self.steps, sampling_rate=self.sampling_rate)


class PrivatelyFitted(NamedTuple):
    """A privately trained step. `steps` were taken, `spent.steps` paid for (more where a kill lost some).

    `history`: seconds of each step and, if asked, test accuracy after some: no training example enters but through dw.
    """

    dw: Tree
    steps: int
    spent: Spent
    history: list[dict[str, float]]
    seconds: float


def fit_private(
    predict: Callable[[Tree, Array], Array],
    dw: Tree,
    inputs: Any,
    labels: np.ndarray,
    settings: PrivateSettings,
    *,
    seed: int | None = None,
    folder: str | os.PathLike | None = None,
    evaluation: tuple[Any, np.ndarray] | None = None,
    resident_bytes: int = 4 << 30,
    progress: str | None = None,
) -> PrivatelyFitted:
    """Trains dw on (inputs, labels) within a privacy budget.

    Args:       predict, dw, inputs, labels, evaluation, resident_bytes, progress: as in `fit`, each row of predict's
                output of its own x alone; seed: None draws noise and samples from the operating system's entropy; a
                number repeats them, and then nothing is private;
                folder: holds the ledger and the last step; the same run goes on from there, or, finished, is read.
    Returns:    PrivatelyFitted.
    Guarantees: (epsilon, delta)-differentially private in dw and every dw_t before it, for adding or removing one
                example, given secret noise; a run never takes a step that `spent` does not count, killed or not.
    Edge cases: an example whose gradient is not finite counts as zero; a Poisson sample may be empty.
    Raises:     InputError for delta >= 1 / n, an example's loss that depends on others, or a ledger of another run.
    """
    predict, n = as_pytree(predict), len(labels)
    require(len(inputs) == n and n >= 2, "fit_private", f"as many inputs as labels ({n}, at least 2)", len(inputs))
    require(settings.delta < 1 / n, "fit_private", f"delta < 1 / examples = {1 / n:.2g}", settings.delta)
    check_per_example(predict, dw, jnp.asarray(inputs[:4]), jnp.asarray(labels[:4]), loss=make_loss(settings.loss))
    state, history, ledger, saver = State(dw, MOMENTUM.init(dw)), [], None, None
    spent = Spent(settings.noise_multiplier, 0, settings.sampling_rate, settings.delta, seed is None)
    with ExitStack() as held:
        if folder is not None:
            run = run_identity(predict, dw, inputs, labels, settings, seed, "private")
            ledger = held.enter_context(closing(Ledger(folder, run, spent)))
            saver = held.enter_context(closing(Saver(folder, run, SAVE_SECONDS)))
            (state, history), spent = saver.restore(state), ledger.spent
            kept = history or spent.steps < settings.steps
            require(kept, "fit_private", f"the result of a spent budget in {folder}", "none", "It is not spent again")
        state = jax.tree.map(jnp.array, state)  # copies: the caller's dw is not donated
        source, began = Batches(inputs, labels, resident_bytes, settings.micro_batch), time.perf_counter()
        before, every = history[-1]["seconds"] if history else 0.0, max(1, settings.steps // 10)
        bar = held.enter_context(progress_bar(progress, settings.steps, "step", spent.steps))
        for step in range(spent.steps, settings.steps):
            spent = dataclasses.replace(spent, steps=step + 1)
            if ledger is not None:
                ledger.pay(step + 1)
            total = add_up(predict, state.dw, source.chunks(*sample(n, settings, seed, step)), settings)
            state = update(state, total, settings.sampling_rate * n, noise_key(seed, step), settings)
            row: dict[str, float] = {"step": step + 1, "seconds": before + time.perf_counter() - began}
            if evaluation is not None and (step + 1) % every == 0:
                row["test_accuracy"] = accuracy(predict, state.dw, *evaluation)
                bar.set_postfix(accuracy=f"{row['test_accuracy']:.4f}")
            history.append(row)
            if saver is not None:
                saver.save(state, history, last=step + 1 == settings.steps)
            bar.update()
    if evaluation is not None and "test_accuracy" not in history[-1]:
        history[-1]["test_accuracy"] = accuracy(predict, state.dw, *evaluation)
    return PrivatelyFitted(state.dw, len(history), spent, history, history[-1]["seconds"])


def sample(n: int, settings: PrivateSettings, seed: int | None, step: int) -> tuple[np.ndarray, np.ndarray]:
    """(order, present), "k b": all rows, or those that n independent coins of chance q chose, padded to micro-batches.

    At least one micro-batch, which may be empty: every sample, of any size, is taken whole.
    """
    rows = np.arange(n, dtype=np.int32)
    if settings.sampling_rate < 1:
        coins = np.random.default_rng(None if seed is None else [seed, step])
        rows = rows[coins.random(n) < settings.sampling_rate]
    size = min(settings.micro_batch, n)
    padding = size - len(rows) if not len(rows) else -len(rows) % size
    present = np.concatenate([np.ones(len(rows), np.float32), np.zeros(padding, np.float32)])
    return np.pad(rows, (0, padding)).reshape(-1, size), present.reshape(-1, size)


def add_up(predict: Callable, dw: Tree, chunks: Iterator[tuple], settings: PrivateSettings) -> ClippedSum:
    """The clipped sum over all micro-batches of all chunks, before any noise."""
    total = None
    for inputs, labels, order, present in chunks:
        length = 1 << (len(order) - 1).bit_length()  # few shapes to compile, whatever the sample's size
        more = ((0, length - len(order)), (0, 0))
        part = micro_batches(
            predict, dw, inputs, labels, np.pad(order, more), np.pad(present, more), len(order), settings=settings
        )
        total = part if total is None else total + part
    assert total is not None
    return total


@partial(jax.jit, static_argnames="settings")
def micro_batches(
    predict: Callable,
    dw: Tree,
    inputs: Array,
    labels: Array,
    order: Array,
    present: Array,
    count: Array,
    *,
    settings: PrivateSettings,
) -> ClippedSum:
    """The clipped sum over the first `count` rows of `order` and `present`, "k b"."""
    loss = make_loss(settings.loss)

    def part(i: Any) -> ClippedSum:
        rows = order[i]
        return clipped(predict, dw, inputs[rows], labels[rows], present[i], loss=loss, clip_norm=settings.clip_norm)

    def add(i: Array, total: ClippedSum) -> ClippedSum:
        more = part(i)
        value = jax.tree.map(jnp.add, total.value, more.value)
        norms = total.norms.at[i].set(more.norms)
        return dataclasses.replace(total, value=value, norms=norms, non_finite=total.non_finite + more.non_finite)

    if len(order) == 1:
        return part(0)
    shape = jax.eval_shape(part, 0)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    zero = dataclasses.replace(zero, norms=jnp.zeros(order.shape, shape.norms.dtype))
    total = jax.lax.fori_loop(0, count, add, zero)
    return dataclasses.replace(total, norms=total.norms.ravel())


def clipped(predict: Callable, dw: Tree, x: Array, y: Array, present: Array, **options: Any) -> ClippedSum:
    """By norms in closed form where the model is ours, else by vmapped gradients."""
    if isinstance(predict, Predictor) and predict.linearization == "closed_form":
        return clipped_sum_closed_form(predict, dw, x, y, present, **options)
    return clipped_sum(predict, dw, x, y, present, **options)


@partial(jax.jit, static_argnames="settings", donate_argnames="state")
def update(state: State, total: ClippedSum, expected: float, key: Array, settings: PrivateSettings) -> State:
    """One step on the noisy mean. What is computed from private values alone is private."""
    gradient = noisy_mean(total, settings.noise_multiplier, expected, key)
    gradient = jax.lax.optimization_barrier(gradient)  # else XLA draws the noise for the momentum and again for dw
    return descend(state, gradient, settings.clip_norm, settings.learning_rate, settings.penalty)


def descend(
    state: State, gradient: Tree, clip_norm: float, learning_rate: float | Array, penalty: float = 0.0
) -> State:
    """dw - lr v, v = 0.9 v + (G + penalty dw) / C."""
    scaled = jax.tree.map(lambda g, leaf: (g + penalty * leaf) / clip_norm, gradient, state.dw)
    velocity, moments = MOMENTUM.update(scaled, state.moments)
    return State(jax.tree.map(lambda leaf, v: leaf - learning_rate * v, state.dw, velocity), moments)
