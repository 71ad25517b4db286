"""Carries out a recipe: its predictor, and the ways to train tangent weights and to sum statistics."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.io.log import current_log
from tangent_jax.io.progress import shown
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import Predictor, nonlinear, tangent
from tangent_jax.models.subsets import make_subset
from tangent_jax.pretrained.frozen_head import read_frozen_head
from tangent_jax.solver.leaves import as_tree
from tangent_jax.solver.mapped import checked_rows
from tangent_jax.solver.optimum import solve
from tangent_jax.solver.statistics import moments
from tangent_jax.store.recipe import Recipe
from tangent_jax.train.evaluate import accuracy
from tangent_jax.train.features import Features
from tangent_jax.train.fit import compile_fit, fit
from tangent_jax.train.run import Fitted
from tangent_jax.train.targets import Predict, as_labels


def predictor(recipe: Recipe, classes: int | Sequence[str], pretrained: Pretrained) -> Predictor:
    """The predictor at its anchor: the order of the changes, and the key of each, decide the anchor's bits."""
    kind, blocks = recipe.kind, recipe.blocks
    of_head, token, fresh = jax.random.split(jax.random.key(recipe.seed), 3)
    anchor = pretrained
    if recipe.new_class_token:
        anchor = anchor.with_class_token(blocks, token)
    if kind == "adapter":
        anchor = anchor.with_adapters(recipe.rank, blocks, fresh)
    match recipe.head:
        case "drawn":
            anchor = anchor.with_head(classes if isinstance(classes, int) else len(classes), of_head)
        case "named":
            anchor = anchor.with_head(names_of(classes, "named"), of_head)
        case file:
            anchor = anchor.with_frozen_head(read_frozen_head(file).of_classes(names_of(classes, file)))
    if recipe.reset:
        anchor = anchor.reset(make_subset(anchor.model, kind, blocks), fresh)
    if kind in ("lora", "lora_b"):
        anchor = anchor.with_lora(recipe.rank, blocks, fresh)
    if recipe.head_scale != 1:
        anchor = anchor.with_scaled_head(recipe.head_scale)
    dtype = None if recipe.dtype == "float32" else jnp.dtype(recipe.dtype)
    options: Any = {"linearization": recipe.linearization, "dtype": dtype}
    if not recipe.is_linear:
        return nonlinear(anchor, blocks, kind, **options)
    kind = "lora_b" if kind == "lora" else kind  # at B = 0 the tangent in A is zero
    return tangent(anchor, blocks, kind, output=recipe.output, **options)


def names_of(classes: int | Sequence[str], head: str) -> Sequence[str]:
    """The names of the classes; InputError for a number: a named or frozen head needs class names."""
    if isinstance(classes, int):
        raise InputError(f"classes must be names for the head {head}; got {classes}. Pass the names.")
    return classes


def train(
    recipe: Recipe, predict: Predict, features: Features, rows: np.ndarray | None = None, **options: Any
) -> Fitted:
    """Trains dw on the features, or on `rows` of them: by Adam from zero, or to the optimum from zero or a `start`."""
    watched: Any = {"log": current_log(), "progress": shown} | options
    if recipe.is_optimum:
        data = features if rows is None else features.take(rows)
        certificate = recipe.certificate if recipe.penalty > 0 else None
        return solve(predict, data, recipe.objective, certificate=certificate, passes=recipe.passes, **watched)
    return fit(
        predict, recipe.batches(features, rows), recipe.objective, **program(recipe), epochs=recipe.epochs, **watched
    )


def compile_training(recipe: Recipe, predict: Predict, features: Features) -> None:
    """Compiles what `train` with checkpoints runs on features of these shapes, if the solver is Adam."""
    if not recipe.is_optimum:
        compile_fit(predict, recipe.batches(features), recipe.objective, **program(recipe), has_checkpoints=True)


def program(recipe: Recipe) -> dict[str, Any]:
    """The arguments of `fit` that decide its program."""
    return {"optimizer": recipe.optimizer(), "metrics": {"train_accuracy": accuracy}}


def sum_features(map_: Any, features: Features) -> Fitted:
    """The statistics of the features as leaves, in the form of a run's result; one pass."""
    began = time.perf_counter()
    targets = as_labels(features.targets, map_.outputs)
    leaves = as_tree(*moments(checked_rows(map_, features, progress=shown), targets, map_.outputs))
    return Fitted(leaves, [], time.perf_counter() - began, 1)
