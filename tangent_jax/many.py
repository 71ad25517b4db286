"""Many shard models trained at once: one compiled program, vmap over dw, the anchor shared.

Each shard's run is the one that `fit` does alone with its key: the same order of examples, batches and decay.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.checks import require
from tangent_jax.fit import Fitted, Settings, State, as_pytree, epoch_order, make_step
from tangent_jax.notation import Tree
from tangent_jax.progress import progress_bar


@partial(jax.jit, static_argnames=("settings", "steps_per_epoch"), donate_argnames="states")
def scan_many(
    predict: Callable,
    states: State,
    inputs: Array,
    labels: Array,
    order: Array,
    present: Array,
    *,
    settings: Settings,
    steps_per_epoch: int,
) -> tuple[State, Array]:
    """One step of every model per row of `order` and `present`, "k s b"; returns states and sums, "k s 2"."""
    step = make_step(predict, inputs, labels, settings, steps_per_epoch)
    return jax.lax.scan(jax.vmap(step), states, (order, present))


def fit_many(
    predict: Callable[[Tree, Array], Array],
    dw: Tree,
    inputs: Any,
    labels: np.ndarray,
    shards: Sequence[np.ndarray],
    settings: Settings,
    keys: Sequence[Array],
    *,
    at_once: int = 10,
    progress: str | None = None,
) -> list[Fitted]:
    """Trains one dw per shard of the same inputs.

    Args:       predict, dw, inputs, labels, settings, progress: as in `fit`; inputs are held on the device;
                shards: rows of each; keys: one per shard; at_once: how many models are trained together
                (memory: about five times dw for each).
    Returns:    one Fitted per shard, in their order; `seconds` is its part of the time its group took.
    Guarantees: each equals `fit` on its shard alone with its key, up to rounding.
    Edge cases: shards with different numbers of steps train in different groups.
    Raises:     InputError if shards and keys differ in number, or a shard is empty.
    """
    require(len(shards) == len(keys), "fit_many", f"as many keys as shards ({len(shards)})", len(keys))
    require(min(map(len, shards), default=1) >= 1, "fit_many", "a row in every shard", "an empty one")
    predict, held, targets = as_pytree(predict), jnp.asarray(inputs), jnp.asarray(labels, jnp.int32)
    groups: dict[tuple[int, int], list[int]] = {}
    for s, rows in enumerate(shards):
        batch = min(settings.batch_size, len(rows))
        groups.setdefault((batch, -(-len(rows) // batch)), []).append(s)
    results: dict[int, Fitted] = {}
    total = len(shards) * settings.epochs
    with progress_bar(progress, total, "epoch") as bar:
        for (batch, steps), members in groups.items():
            run = partial(scan_many, settings=settings, steps_per_epoch=steps)
            for together in (members[start : start + at_once] for start in range(0, len(members), at_once)):
                states = stacked(State(dw, settings.optimizer(steps).init(dw)), len(together))
                rows = [shards[s] for s in together]
                history: list[list[dict[str, float]]] = [[] for _ in together]
                for epoch in range(settings.epochs):
                    began = time.perf_counter()
                    order, present = orders(rows, [keys[s] for s in together], epoch, batch)
                    states, sums = run(predict, states, held, targets, order, present)
                    means = np.asarray(sums, np.float64).sum(0) / np.array([[len(r)] for r in rows])
                    seconds = (time.perf_counter() - began) / len(together)
                    for mine, (loss, correct) in zip(history, means.tolist(), strict=True):
                        row = {"epoch": epoch + 1, "loss": loss, "train_accuracy": correct, "seconds": seconds}
                        mine.append(row)
                    bar.update(len(together))
                for i, s in enumerate(together):
                    final = jax.tree.map(lambda leaf, i=i: leaf[i], states.dw)
                    spent = [row["seconds"] for row in history[i]]
                    speed = len(shards[s]) / float(np.median(spent))
                    results[s] = Fitted(final, history[i], sum(spent), settings.epochs * steps, speed)
    return [results[s] for s in range(len(shards))]


def stacked(state: State, count: int) -> State:
    """`count` copies of the state along a new first axis, s."""
    return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], count, 0), state)


def orders(
    shards: Sequence[np.ndarray], keys: Sequence[Array], epoch: int, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """(order, present) of one epoch, "k s b": each shard's own permutation, as rows of the whole."""
    local = [epoch_order(jax.random.fold_in(k, epoch), len(r), batch) for r, k in zip(shards, keys, strict=True)]
    order = [np.asarray(rows, np.int32)[here] for rows, (here, _) in zip(shards, local, strict=True)]
    return np.stack(order, 1), np.stack([present for _, present in local], 1)
