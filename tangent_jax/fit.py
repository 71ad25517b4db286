"""Training dw with optax: every epoch a compiled scan over inputs that stay on the device.

    min_dw  mean_b loss(predict(dw, x_b), y_b) + penalty / 2 |dw|^2

`predict(dw, x)` is the tangent model (convex in dw), the non-linear baseline f(w + dw, x), or any
callable pytree of the caller's. Source: Liu et al. 2024, its loss and its settings.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tangent_jax import trees
from tangent_jax.checkpoints import Saver, run_identity
from tangent_jax.checks import require
from tangent_jax.losses import make_loss
from tangent_jax.notation import Tree
from tangent_jax.progress import progress_bar


@dataclasses.dataclass(frozen=True)
class Settings:
    """The optimisation (defaults: the paper's): Adam, learning rate x0.1 after the given fractions of epochs.

    `penalty` is the strength lambda of lambda/2 |dw|^2 (the squared norm of the paper's text; the authors'
    code has 1e-5 |dw|). alpha and kappa are the rescaled square loss's.
    """

    loss: str = "rsl"
    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 1e-3
    penalty: float = 1e-5
    decay_at: tuple[float, ...] = (15 / 30, 25 / 30)
    alpha: float = 1.0
    kappa: float = 15.0

    def __post_init__(self) -> None:
        make_loss(self.loss, self.alpha, self.kappa)
        for field in ("epochs", "batch_size"):
            require(getattr(self, field) >= 1, "Settings", f"{field} >= 1", getattr(self, field))
        require(self.learning_rate > 0, "Settings", "learning_rate > 0", self.learning_rate)
        require(self.penalty >= 0, "Settings", "penalty >= 0", self.penalty)

    def optimizer(self, steps_per_epoch: int) -> optax.GradientTransformation:
        """Adam with the step decay."""
        drops = {round(at * self.epochs) * steps_per_epoch: 0.1 for at in self.decay_at}
        return optax.adam(optax.piecewise_constant_schedule(self.learning_rate, drops))


class State(NamedTuple):
    """What training carries from step to step."""

    dw: Tree
    moments: Any


class Fitted(NamedTuple):
    """A trained step with its history: per epoch loss, train accuracy, seconds and, if asked, test accuracy.

    `seconds` is the training's wall time, compilation included, evaluation not; `examples_per_second` is
    the median epoch's.
    """

    dw: Tree
    history: list[dict[str, float]]
    seconds: float
    steps: int
    examples_per_second: float


Step = Callable[[State, tuple[Array, Array]], tuple[State, Array]]


def make_step(predict: Callable, inputs: Array, labels: Array, settings: Settings, steps_per_epoch: int) -> Step:
    """One step of Adam on a batch (rows of the inputs "b", 1 where present and 0 where padded "b").

    The step returns the state and the sums over examples of the loss and of correct predictions, "2".
    """
    optimizer = settings.optimizer(steps_per_epoch)
    loss = make_loss(settings.loss, settings.alpha, settings.kappa)

    def objective(dw: Tree, x: Array, y: Array, here: Array) -> tuple[Array, Array]:
        logits = predict(dw, x)
        losses = loss(logits, y) * here
        sums = jnp.stack([losses.sum(), jnp.sum((logits.argmax(-1) == y) * here)])
        return losses.sum() / here.sum() + 0.5 * settings.penalty * trees.squared_norm(dw), sums

    def step(state: State, batch: tuple[Array, Array]) -> tuple[State, Array]:
        rows, here = batch
        gradient, sums = jax.grad(objective, has_aux=True)(state.dw, inputs[rows], labels[rows], here)
        updates, moments = optimizer.update(gradient, state.moments, state.dw)
        return State(optax.apply_updates(state.dw, updates), moments), sums  # pyright: ignore[reportArgumentType]

    return step


@partial(jax.jit, static_argnames=("settings", "steps_per_epoch"), donate_argnames="state")
def scan_steps(
    predict: Callable,
    state: State,
    inputs: Array,
    labels: Array,
    order: Array,
    present: Array,
    *,
    settings: Settings,
    steps_per_epoch: int,
) -> tuple[State, Array]:
    """One step per row of `order` and `present`, "k b"; returns the state and each step's sums, "k 2"."""
    return jax.lax.scan(make_step(predict, inputs, labels, settings, steps_per_epoch), state, (order, present))


def fit(
    predict: Callable[[Tree, Array], Array],
    dw: Tree,
    inputs: Any,
    labels: np.ndarray,
    settings: Settings,
    key: Array,
    *,
    evaluation: tuple[Any, np.ndarray] | None = None,
    checkpoints: str | os.PathLike | None = None,
    resident_bytes: int = 4 << 30,
    progress: str | None = None,
) -> Fitted:
    """Trains dw on (inputs, labels).

    Args:       predict: (dw, x) -> logits "b c", a pytree or a hashable function;
                dw: where to start, usually zeros; inputs: "n ...", an array or memory map; labels: "n";
                key: decides the order of the examples, epoch by epoch;
                evaluation: (inputs, labels) measured after every epoch;
                checkpoints: a folder; a run that was killed goes on from its last finished epoch there;
                resident_bytes: larger inputs are streamed in chunks, the next read while one trains;
                progress: the title of the bar on stderr, or None for none.
    Returns:    Fitted.
    Guarantees: on one device the result is the same bit for bit, resumed or not, streamed or resident.
    Edge cases: a last batch that is not full is padded, and the padding weighs nothing.
    Raises:     InputError if inputs and labels differ in length or are empty, or a label is negative.
    """
    predict, n = as_pytree(predict), len(labels)
    require(len(inputs) == n and n >= 1, "fit", f"as many inputs as labels ({n}, at least 1)", len(inputs))
    require(labels.min() >= 0, "fit", "labels >= 0", labels.min())
    batch = min(settings.batch_size, n)
    steps = -(-n // batch)
    run = partial(scan_steps, settings=settings, steps_per_epoch=steps)
    state = State(dw, settings.optimizer(steps).init(dw))
    history: list[dict[str, float]] = []
    saver = None
    if checkpoints is not None:
        seed = jax.random.key_data(key).tolist()
        saver = Saver(checkpoints, run_identity(predict, dw, inputs, labels, settings, seed, evaluation is None))
        state, history = saver.restore(state)
    state = jax.tree.map(jnp.array, state)  # copies: the caller's dw is not donated
    source = Batches(inputs, labels, resident_bytes, batch)
    with progress_bar(progress, settings.epochs, "epoch", len(history)) as bar:
        for epoch in range(len(history), settings.epochs):
            started = time.perf_counter()
            order, present = epoch_order(jax.random.fold_in(key, epoch), n, batch)
            sums = np.zeros(2)
            for chunk in source.chunks(order, present):
                state, per_step = run(predict, state, *chunk)
                sums += np.asarray(per_step, np.float64).sum(0)
            row = {
                "epoch": epoch + 1,
                "loss": float(sums[0]) / n,
                "train_accuracy": float(sums[1]) / n,
                "seconds": time.perf_counter() - started,
            }
            if evaluation is not None:
                row["test_accuracy"] = accuracy(predict, state.dw, *evaluation)
            history.append(row)
            if saver is not None:
                saver.save(state, history, last=epoch + 1 == settings.epochs)
            bar.update()
            bar.set_postfix(
                loss=f"{row['loss']:.4g}", accuracy=f"{row.get('test_accuracy', row['train_accuracy']):.4f}"
            )
    if saver is not None:
        saver.close()
    seconds = [row["seconds"] for row in history]
    return Fitted(state.dw, history, sum(seconds), settings.epochs * steps, n / float(np.median(seconds)))


def distance_bound(
    predict: Callable[[Tree, Array], Array], dw: Tree, inputs: Any, labels: np.ndarray, settings: Settings
) -> float:
    """How far, in L2 over the tree, dw is at most from the optimum of `fit`'s objective on (inputs, labels).

        |dw - dw*| <= |grad L(dw)| / lambda,    L = mean loss + lambda/2 |dw|^2

    Guarantees: holds where L is lambda-strongly convex: a tangent model, any of our losses, lambda = penalty > 0.
    Raises:     InputError for a penalty of 0.
    """
    require(settings.penalty > 0, "distance_bound", "penalty > 0", settings.penalty)
    batch, n = min(64, len(labels)), len(labels)
    order, present = np.pad(np.arange(n), (0, -n % batch)), np.pad(np.ones(n, np.float32), (0, -n % batch))
    sums = jax.tree.map(lambda leaf: settings.penalty * leaf, dw)
    for start in range(0, n, batch):
        rows = order[start : start + batch]
        part = _loss_gradient(
            as_pytree(predict), dw, inputs[rows], labels[rows], present[start : start + batch], settings
        )
        sums = jax.tree.map(lambda total, leaf: total + leaf / n, sums, part)
    return float(jnp.sqrt(trees.squared_norm(sums))) / settings.penalty


@partial(jax.jit, static_argnames="settings")
def _loss_gradient(predict: Callable, dw: Tree, x: Array, y: Array, here: Array, settings: Settings) -> Tree:
    """The gradient of the summed loss of a batch, without the penalty."""
    loss = make_loss(settings.loss, settings.alpha, settings.kappa)
    return jax.grad(lambda dw: jnp.sum(loss(predict(dw, x), y) * here))(dw)


def as_pytree(predict: Callable[[Tree, Array], Array]) -> Callable[[Tree, Array], Array]:
    """`predict` as a pytree that jit takes as data; a plain function becomes one without leaves."""
    return predict if jax.tree.leaves(predict) != [predict] else jax.tree_util.Partial(predict)


def epoch_order(key: Array, n: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """A permutation of 0..n-1 as rows of `batch`, and 1 where a row's entry is real, 0 where padded."""
    order = np.asarray(jax.random.permutation(key, n), np.int32)
    padding = -n % batch
    present = np.concatenate([np.ones(n, np.float32), np.zeros(padding, np.float32)])
    return np.pad(order, (0, padding)).reshape(-1, batch), present.reshape(-1, batch)


class Batches:
    """Inputs for `scan_steps`: on the device once where they fit, else read ahead chunk by chunk."""

    def __init__(self, inputs: Any, labels: np.ndarray, resident_bytes: int, batch: int) -> None:
        self.resident = inputs.nbytes <= resident_bytes
        self.inputs = jnp.asarray(inputs) if self.resident else inputs
        self.labels = jnp.asarray(labels, jnp.int32) if self.resident else np.asarray(labels, np.int32)
        self.steps = max(1, resident_bytes // (4 * batch * max(1, inputs.nbytes // len(labels))))

    def chunks(self, order: np.ndarray, present: np.ndarray) -> Iterator[tuple[Any, Any, np.ndarray, np.ndarray]]:
        """(inputs, labels, order, present) of each chunk; a chunk's order counts from its own first row."""
        if self.resident:
            yield self.inputs, self.labels, order, present
            return

        def read(start: int) -> tuple[Any, Any, np.ndarray, np.ndarray]:
            rows = order[start : start + self.steps]
            flat = rows.ravel()
            local = np.arange(flat.size, dtype=np.int32).reshape(rows.shape)
            return jax.device_put(self.inputs[flat]), self.labels[flat], local, present[start : start + self.steps]

        starts = range(0, len(order), self.steps)
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(read, 0)
            for start in starts:
                chunk = ahead.result()
                if start + self.steps < len(order):
                    ahead = reader.submit(read, start + self.steps)
                yield chunk


@jax.jit
def _logits(predict: Callable, dw: Tree, x: Array) -> Array:
    return predict(dw, x)


def logits(predict: Callable[[Tree, Array], Array], dw: Tree, inputs: Any, batch_size: int = 64) -> np.ndarray:
    """predict(dw, x) of every input, "n c", in batches of one shape (the last is padded)."""
    n, size, parts = len(inputs), min(batch_size, len(inputs)), []
    for start in range(0, n, size):
        x = np.asarray(inputs[start : start + size])
        x = np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
        parts.append(_logits(as_pytree(predict), dw, x))
    return np.concatenate([np.asarray(part) for part in parts])[:n]


def accuracy(predict: Callable[[Tree, Array], Array], dw: Tree, inputs: Any, labels: np.ndarray) -> float:
    """The fraction of inputs whose largest logit is the label's."""
    return float(np.mean(logits(predict, dw, inputs).argmax(-1) == np.asarray(labels)))
