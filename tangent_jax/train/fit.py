"""Training dw with optax: every epoch a compiled scan over inputs that stay on the device.

    min_dw  mean_b loss(predict(dw, x_b), y_b) + penalty / 2 |dw|^2

`predict(dw, x)` is the tangent model (convex in dw), the non-linear baseline f(w + dw, x), or any
callable pytree of the caller's. Source: Liu et al. 2024, its loss and its settings.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import Tree, progress_bar, require, trees
from tangent_jax.train.batches import Batches, Source, epoch_chunks
from tangent_jax.train.checkpoints import Saver, run_identity
from tangent_jax.train.objective import Objective, Predict, make_objective
from tangent_jax.train.optimizers import Optimizer, adam, apply, as_data

Row = dict[str, float]


class State(NamedTuple):
    """What training carries from step to step."""

    dw: Tree
    optimizer_state: Any


class Fitted(NamedTuple):
    """A trained step with its history: per epoch loss, train accuracy, seconds, and what `on_epoch` returned.

    `seconds` is the training's wall time, compilation included, `on_epoch` not; `examples_per_second` is
    the median epoch's.
    """

    dw: Tree
    history: list[Row]
    seconds: float
    steps: int
    examples_per_second: float


def train_step(
    predict: Predict, state: State, x: Array, y: Array, present: Array, objective: Objective, optimizer: Optimizer,
    progress: Any,
) -> tuple[State, Array]:  # fmt: skip
    """One step on a batch; also the sums over its examples of the loss and of correct predictions, "2"."""

    def value(dw: Tree) -> tuple[Array, Array]:
        logits = predict(dw, x)
        return objective.of_logits(logits, dw, y, present), logits

    gradient, logits = jax.grad(value, has_aux=True)(state.dw)
    sums = jnp.stack([jnp.sum(objective.loss(logits, y) * present), jnp.sum((logits.argmax(-1) == y) * present)])
    return State(*apply(optimizer, gradient, state.optimizer_state, state.dw, progress=progress)), sums


@partial(jax.jit, donate_argnames="state")
def train_epoch(
    predict: Predict, state: State, inputs: Array, labels: Array, order: Array, present: Array, objective: Objective,
    optimizer: Optimizer, progress: Any,
) -> tuple[State, Array]:  # fmt: skip
    """One step per row of `order` and `present`, "k b"; returns the state and each step's sums, "k 2"."""

    def step(state: State, batch: tuple[Array, Array]) -> tuple[State, Array]:
        rows, here = batch
        return train_step(predict, state, inputs[rows], labels[rows], here, objective, optimizer, progress)

    return jax.lax.scan(step, state, (order, present))


def fit(
    predict: Predict,
    dw: Tree,
    batches: Source,
    objective: Objective | None = None,
    *,
    optimizer: Optimizer | None = None,
    epochs: int = 30,
    on_epoch: Callable[[Row, Tree], Mapping[str, float] | None] | None = None,
    checkpoints: str | os.PathLike | None = None,
) -> Fitted:
    """Trains dw.

    Args:       predict: (dw, x) -> logits "b c", a pytree or a function;
                dw: where to start, usually zeros; batches: `Batches` with a key, which decides the order; or an
                iterable of (x, y), gone through once an epoch, or a function of the epoch that returns one;
                objective: None: the paper's rescaled square loss; optimizer: of optax; None: the paper's `adam()`;
                on_epoch: called after every epoch with its row of the history and dw, which is given up afterwards
                (copy what you keep); what it returns is added to the row;
                checkpoints: a folder; a run that was killed goes on from its last finished epoch there.
    Returns:    Fitted.
    Guarantees: on one device the result is the same bit for bit, resumed or not, streamed or resident.
    Edge cases: a last batch that is not full is padded, and the padding weighs nothing.
    Raises:     InputError for no epoch, or batches that cannot be used.
    """
    require(isinstance(epochs, int) and epochs >= 1, "fit", "epochs >= 1, a whole number", epochs)
    predict, objective = trees.as_pytree(predict), objective or make_objective()
    optimizer = as_data(optimizer or adam())
    state, history = State(dw, optimizer.init(dw)), []
    saver, do = None, "Pass features.batches(key), or Batches(inputs, labels, key)"
    kind = type(batches).__name__
    require(not isinstance(batches, tuple), "fit", "Batches, or an iterable of batches (x, y)", kind, do)
    if isinstance(batches, Batches):
        require(batches.key is not None, "fit", "batches with a key, which decides their order", "none")
    if checkpoints is not None:
        require(isinstance(batches, Batches), "fit", "Batches, where checkpoints are kept", kind, do)
        assert isinstance(batches, Batches)
        saver = Saver(checkpoints, run_identity(predict, dw, batches, objective, optimizer, epochs, on_epoch is None))
        state, history = saver.restore(state)
    state = jax.tree.map(jnp.array, state)  # copies: the caller's dw is not donated
    examples = steps = 0
    with progress_bar(epochs, "epoch", len(history)) as bar:
        for epoch in range(len(history), epochs):
            started, sums, examples, steps = time.perf_counter(), np.zeros(2), 0, 0
            for inputs, labels, order, present in epoch_chunks(batches, epoch):
                state, per_step = train_epoch(
                    predict, state, inputs, labels, order, present, objective, optimizer, epoch / epochs
                )
                sums += np.asarray(per_step, np.float64).sum(0)
                examples, steps = examples + int(present.sum()), steps + len(order)
            loss, correct = (sums / examples).tolist()
            row: Row = {"epoch": epoch + 1, "loss": loss, "train_accuracy": correct}
            row |= {"seconds": time.perf_counter() - started, "steps": steps, "examples": examples}
            row |= (on_epoch(row, state.dw) if on_epoch else None) or {}
            history.append(row)
            if saver is not None:
                saver.save(state, history, last=epoch + 1 == epochs)
            bar.update()
            bar.set_postfix(loss=f"{loss:.4g}", accuracy=f"{row.get('test_accuracy', correct):.4f}")
    if saver is not None:
        saver.close()
    return summary(state.dw, history)


def summary(dw: Tree, history: list[Row]) -> Fitted:
    """The result of a run whose epochs are done."""
    seconds = [row["seconds"] for row in history]
    speed = history[-1]["examples"] / float(np.median(seconds))
    return Fitted(dw, history, sum(seconds), int(sum(row["steps"] for row in history)), speed)


@jax.jit
def _logits(predict: Predict, dw: Tree, x: Array) -> Array:
    return predict(dw, x)


def logits(predict: Predict, dw: Tree, inputs: Any, batch_size: int = 64) -> np.ndarray:
    """predict(dw, x) of every input, "n c", in batches of one shape (the last is padded)."""
    n, size, parts = len(inputs), min(batch_size, len(inputs)), []
    for start in range(0, n, size):
        x = np.asarray(inputs[start : start + size])
        x = np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
        parts.append(_logits(trees.as_pytree(predict), dw, x))
    return np.concatenate([np.asarray(part) for part in parts])[:n]


def accuracy(predict: Predict, dw: Tree, inputs: Any, labels: Any) -> float:
    """The fraction of inputs whose largest logit is the label's."""
    return float(np.mean(logits(predict, dw, inputs).argmax(-1) == np.asarray(labels)))
