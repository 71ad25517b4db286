"""Joint (multi-task) training: one model on the images of all tasks, with a shared body and a head for each.

The heads are concatenated; the loss of an example reads the outputs of its own task only. So the anchor, and every
tangent, is that of the single models.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import tangent_jax as tj
from tangent_jax.core.notation import Tree
from tangent_jax.core.rows import Parts
from tangent_jax.io.log import current_log
from tangent_jax.io.progress import shown


@partial(jax.tree_util.register_dataclass, data_fields=["loss"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class OfOwnTask(tj.losses.Loss):
    """A loss over the outputs of an example's own task; targets (class index, first output, number of them), "b 3"."""

    loss: Any

    def __call__(self, outputs: Array, targets: Array | np.ndarray) -> Array:
        label, first, count = targets.T
        column = jnp.arange(outputs.shape[-1])
        of_task = (column >= first[:, None]) & (column < (first + count)[:, None])
        if not isinstance(self.loss, tj.losses.SquareLoss):
            return self.loss(jnp.where(of_task, outputs, -jnp.inf), first + label)
        t, p = self.loss.of(outputs, first + label)
        return jnp.sum(0.5 * p * of_task * jnp.square(outputs - t), -1) * outputs.shape[-1] / count


def fit_jointly(
    predicts: Mapping[str, tj.Predictor], features: Mapping[str, tj.Features], recipe: tj.Recipe
) -> dict[str, Tree]:
    """The tangent weights of each task from one model trained on all: the shared body and the task's head."""
    counts = [predict.model.classes for predict in predicts.values()]
    ends = np.cumsum(counts)
    first = next(iter(predicts.values()))
    head = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, -1), *(p.w["head"] for p in predicts.values()))
    whole = dataclasses.replace(first, w={**first.w, "head": head}, model=first.model.with_classes(int(ends[-1])))
    targets = [
        np.stack([data.targets, np.full(len(data), end - count), np.full(len(data), count)], 1)
        for data, count, end in zip(features.values(), counts, ends, strict=True)
    ]
    inputs = Parts([data.inputs for data in features.values()])
    batches = tj.Batches(inputs, np.concatenate(targets), recipe.key, batch_size=recipe.batch_size)
    objective = dataclasses.replace(recipe.objective, loss=OfOwnTask(recipe.objective.loss))
    dw = tj.fit(
        whole, batches, objective, optimizer=recipe.optimizer(), epochs=recipe.epochs, log=current_log(), progress=shown
    ).dw

    weights = {}
    for name, count, end in zip(predicts, counts, ends, strict=True):
        weights[name] = tj.models.body(dw)
        if "head" in dw:
            weights[name]["head"] = jax.tree.map(lambda leaf, n=count, end=end: leaf[..., end - n : end], dw["head"])
    return weights
