"""One cell of a table: settings searched on held-out images, the best trained on all of train and measured on test.

Every run is kept in runs.jsonl under --out and not repeated by the same command.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

import tangent_jax as tj
from experiments import binary, common, pictures
from experiments.common import F
from experiments.runs import Runs, markdown
from tangent_jax.components.apart import fit_apart
from tangent_jax.core import identity, trees
from tangent_jax.data.sources import Dataset

flags.DEFINE_list("lrs", ["1e-3", "1e-4"], "Learning rates searched.")
flags.DEFINE_integer("search_epochs", 30, "Epochs of each searched run.", lower_bound=1)
flags.DEFINE_integer("seeds", 3, "Seeds of the final runs (0, 1, ...); the search uses 0.", lower_bound=1)


def measure(
    spec: str, dataset: Dataset, name: str, searched: Sequence[tj.Recipe], runs: Runs, shards: int = 1
) -> dict[str, Any]:
    """Searches on validation, trains on train, measures on test: one cell of a table.

    shards: how many models are trained apart, on as many parts of the images, and added; 1 for one model.
    """
    recipes = [dataclasses.replace(recipe, dataset=spec) for recipe in searched]
    several = len(recipes) > 1
    search = [dataclasses.replace(recipe, epochs=F.search_epochs) for recipe in recipes]
    held = {"on_test": False, "shards": shards}
    validated = [run(dataset, name, recipe, runs, **held)[0] for recipe in search] if several else [0.0]
    best = recipes[int(np.argmax(validated))]
    seeds = [dataclasses.replace(best, seed=seed) for seed in range(F.seeds)]
    found = [run(dataset, name, recipe, runs, on_test=True, shards=shards) for recipe in seeds]
    accuracies = [accuracy for accuracy, _ in found]
    mean, spread = float(np.mean(accuracies)), float(np.std(accuracies))
    print(f"{dataset.name} {name}: {mean:.4f} ± {spread:.4f}", file=sys.stderr)
    chosen = {field: getattr(best, field) for field in ("learning_rate", "penalty", "reset", "new_class_token")}
    cell = {"mean": mean, "spread": spread, "accuracies": accuracies, "chosen": chosen, "searched": len(recipes)}
    return {**cell, "validation": max(validated) if several else None, "step_norm": max(norm for _, norm in found)}


def run(
    dataset: Dataset, name: str, recipe: tj.Recipe, runs: Runs, *, on_test: bool, shards: int = 1
) -> tuple[float, float]:
    """Accuracy of one training, on test or on what is held out of train, and |dw|."""
    key = identity(common.run_key(recipe.dataset, recipe.weights), recipe, on_test, *([shards] if shards > 1 else []))
    if key not in runs.norms:
        predict = common.predictor(recipe, len(dataset.classes))
        train, measured = common.train_and_measured(predict, dataset, on_test)
        with tj.show_progress(f"{dataset.name} {name} lr {recipe.learning_rate:g} seed {recipe.seed}"):
            if shards > 1:
                parts = tj.shards.uniform(len(train.labels), shards, recipe.seed)
                named = {f"shard {s}": rows for s, rows in enumerate(parts)}
                fitted = fit_apart(predict, train, recipe, named)
                dw = tj.compose({part: one.dw for part, one in fitted.items()})
            else:
                dw = recipe.fit(predict, train).dw
        accuracy = tj.accuracy(predict, dw, measured.inputs, measured.labels)
        runs.add(key, accuracy, float(trees.squared_norm(dw)) ** 0.5)
    return runs.done[key], runs.norms[key]


def show(table: Mapping[str, Mapping[str, Mapping[str, Any]]], name: str, title: str) -> None:
    """The table {data set: {column: cell}} as NAME.md and bars as NAME.png in --out, and on stdout."""
    columns = [*next(iter(table.values()))]
    rows = [[s, *(f"{row[c]['mean']:.3f} ± {row[c]['spread']:.3f}" for c in columns)] for s, row in table.items()]
    text = markdown(["data set", *columns], rows)
    (binary.out_folder() / f"{name}.md").write_text(text)
    series = {column: [(row[column]["mean"], row[column]["spread"]) for row in table.values()] for column in columns}
    pictures.bars(binary.out_folder() / f"{name}.png", [*table], series, title)
    print(text)
