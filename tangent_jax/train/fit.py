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

from tangent_jax.core import Tree, check_stop, is_stopping, progress_bar, require, trees, whole_number
from tangent_jax.train.batches import Batches, Source, as_inputs, check_labels, epoch_chunks
from tangent_jax.train.checkpoints import Saver, run_identity
from tangent_jax.train.labels import as_labels, called, check_start
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
    the median epoch's; `run`: the identity of all that decided it, where checkpoints were kept; `certificate`: how far
    at most, in L2, dw is from the optimum, where it was solved for (solver/), whose passes are then its steps.
    """

    dw: Tree
    history: list[Row]
    seconds: float
    steps: int
    examples_per_second: float
    run: str | None = None
    certificate: float | None = None


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
                checkpoints: a folder; a run that was killed goes on from its last finished epoch there, told from
                others by all that decides it: model, data, settings, and what `on_epoch` measures on.
    Returns:    Fitted.
    Guarantees: on one device the result is the same bit for bit, resumed or not, streamed or resident.
    Edge cases: a last batch that is not full is padded, and the padding weighs nothing.
    Raises:     InputError for no epoch, batches that cannot be used, labels of no class, a loss that is not finite;
                and with checkpoints for functions that cannot be told apart by what they hold.
    """
    whole_number("fit", "epochs", epochs, 1)
    predict, objective = trees.as_pytree(predict), objective or make_objective()
    check_start("fit", dw)
    optimizer, saver = as_data(optimizer or adam()), None
    state, history = State(dw, optimizer.init(dw)), []
    classes = check_source("fit", batches, predict, dw)
    if checkpoints is not None:
        kind, do = type(batches).__name__, "Pass features.batches(key), or Batches(inputs, labels, key)"
        require(isinstance(batches, Batches), "fit", "Batches, where checkpoints are kept", kind, do)
        assert isinstance(batches, Batches)
        saver = Saver(checkpoints, run_identity(predict, dw, batches, objective, optimizer, epochs, on_epoch))
        state, history = saver.restore(state)
    state = jax.tree.map(jnp.array, state)  # copies: the caller's dw is not donated
    with progress_bar(epochs, "epoch", len(history)) as bar:
        for epoch in range(len(history), epochs):
            started, sums, examples, steps = time.perf_counter(), np.zeros(2), 0, 0
            for inputs, labels, order, present in epoch_chunks(batches, epoch, classes):
                state, per_step = train_epoch(
                    predict, state, inputs, labels, order, present, objective, optimizer, epoch / epochs
                )
                sums += np.asarray(per_step, np.float64).sum(0)
                examples, steps = examples + int(present.sum()), steps + len(order)
                if saver is None or saver.epochs == epoch:  # else the last epoch would be lost: it ends first
                    check_stop()
            loss, correct = (sums / examples).tolist()
            check_loss("fit", loss, epoch)
            row: Row = {"epoch": epoch + 1, "loss": loss, "train_accuracy": correct}
            row |= {"seconds": time.perf_counter() - started, "steps": steps, "examples": examples}
            row |= (on_epoch(row, state.dw) if on_epoch else None) or {}
            history.append(row)
            if saver is not None and saver.is_due(epoch + 1 == epochs or is_stopping()):
                saver.save(state, history)
            bar.update()
            bar.set_postfix(loss=f"{loss:.4g}", accuracy=f"{row.get('test_accuracy', correct):.4f}")
    return summary(state.dw, history)._replace(run=None if saver is None else saver.run)


def check_source(function: str, batches: Source, predict: Predict, dw: Tree) -> int | None:
    """How many classes `predict` has, where the inputs are known before training; checks their labels against it.

    Raises: InputError for what is no source of batches, or has no key to decide their order.
    """
    do = "Pass features.batches(key), or Batches(inputs, labels, key)"
    if not isinstance(batches, Batches):
        good = callable(batches) or (hasattr(batches, "__iter__") and not isinstance(batches, (tuple, dict, str)))
        require(good, function, "Batches, or an iterable of batches (x, y)", type(batches).__name__, do)
        return None
    require(batches.key is not None, function, "batches with a key, which decides their order", "none", do)
    return check_labels(function, predict, dw, batches)


def check_loss(function: str, loss: float, epoch: int) -> None:
    """Raises InputError for a loss that is not finite: from there on nothing is learned."""
    do = "Lower the learning rate, or look for inputs that are not finite"
    require(np.isfinite(loss), function, "a finite loss", f"{loss} in epoch {epoch + 1}", do)


def summary(dw: Tree, history: list[Row]) -> Fitted:
    """The result of a run whose epochs are done."""
    seconds = [row["seconds"] for row in history]
    speed = history[-1]["examples"] / float(np.median(seconds))
    return Fitted(dw, history, sum(seconds), int(sum(row["steps"] for row in history)), speed)


def logits(predict: Predict, dw: Tree, inputs: Any, batch_size: int = 64) -> np.ndarray:
    """predict(dw, x) of every input, "n c", in batches of one shape (the last is padded)."""
    inputs = as_inputs("logits", inputs)
    require(len(inputs), "logits", "at least one input", "none")
    n, size, parts = len(inputs), min(whole_number("logits", "batch_size", batch_size, 1), len(inputs)), []
    for start in range(0, n, size):
        x = np.asarray(inputs[start : start + size])
        x = np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
        parts.append(called(trees.as_pytree(predict), dw, x))
    return np.concatenate([np.asarray(part) for part in parts])[:n]


def accuracy(predict: Predict, dw: Tree, inputs: Any, labels: Any) -> float:
    """The fraction of inputs whose largest logit is the label's.

    Raises: InputError for no inputs, another number of labels, labels of no class, logits that are not finite.
    """
    values = logits(predict, dw, inputs)
    labels = as_labels("accuracy", labels, values.shape[-1])
    require(len(labels) == len(values), "accuracy", f"as many labels as inputs ({len(values)})", len(labels))
    bad = int(np.sum(~np.isfinite(values).all(-1)))
    require(not bad, "accuracy", "finite logits", f"{bad} rows that are not", "Look for inputs that are not finite")
    return float(np.mean(values.argmax(-1) == labels))
