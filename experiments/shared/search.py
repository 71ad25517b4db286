"""One cell of a table: settings searched on held-out images, the best trained on all of train and measured on test.

Every run is saved in runs.jsonl under --out, and the same command does not repeat it.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tangent_jax as tj
from experiments.shared import command, plots, setup, titles
from experiments.shared.flags import F
from tangent_jax.components.apart import Shards
from tangent_jax.core import identity, placement, trees
from tangent_jax.core.files import locked
from tangent_jax.core.journal import Journal
from tangent_jax.core.records import typed
from tangent_jax.data.sources import Dataset


@dataclasses.dataclass(frozen=True)
class Line:
    """A finished run in runs.jsonl: its identity, its accuracy, and |dw| where it was measured."""

    key: str
    accuracy: float
    norm: float | None = None


class Runs:
    """Accuracies of finished runs by their identity; a repeated command reads them instead of training again."""

    def __init__(self, path: Path) -> None:
        self.journal, self.lock = Journal("Runs", path), path.with_suffix(".lock")
        lines = placement.from_writer(self.read)  # of a job's processes one reads and writes
        self.done = {line.key: line.accuracy for line in lines}
        self.norms = {line.key: line.norm for line in lines if line.norm is not None}

    def read(self) -> list[Line]:
        """The runs of the file; InputError where it was altered."""
        with locked(self.lock):
            self.journal.load()
        return [typed(Line, entry, "Runs", self.journal.path) for entry in self.journal.entries]

    def add(self, key: str, accuracy: float, norm: float | None = None) -> None:
        """Adds a run, on disk when this returns, to those of the file, of which another process may have added some."""
        self.done[key] = accuracy
        if norm is not None:
            self.norms[key] = norm
        with locked(self.lock):
            self.journal.load()
            self.journal.append({"key": key, "accuracy": accuracy, "norm": norm})


def measure(
    spec: str, dataset: Dataset, name: str, searched: Sequence[tj.Recipe], runs: Runs, shards: int = 1
) -> dict[str, Any]:
    """Searches on validation, trains on train, measures on test: one cell of a table.

    shards: the number of models trained apart, on as many parts of the images, and added; 1 for one model.
    """
    recipes = [dataclasses.replace(recipe, dataset=spec) for recipe in searched]
    several = len(recipes) > 1
    search = [dataclasses.replace(recipe, epochs=F.search_epochs) for recipe in recipes]
    held = {"on_test": False, "shards": shards}
    validated = [run(dataset, name, recipe, runs, **held)[0] for recipe in search] if several else [0.0]
    best = recipes[int(np.argmax(validated))]
    seeds = [dataclasses.replace(best, seed=seed) for seed in range(F.seeds)]
    final = [run(dataset, name, recipe, runs, on_test=True, shards=shards) for recipe in seeds]
    accuracies = [accuracy for accuracy, _ in final]
    mean, spread = float(np.mean(accuracies)), float(np.std(accuracies))
    print(f"{dataset.name} {name}: {mean:.4f} ± {spread:.4f}", file=sys.stderr)
    chosen = {field: getattr(best, field) for field in ("learning_rate", "penalty", "reset", "new_class_token")}
    cell = {"mean": mean, "spread": spread, "accuracies": accuracies, "chosen": chosen, "searched": len(recipes)}
    return {**cell, "validation": max(validated) if several else None, "step_norm": max(norm for _, norm in final)}


def run(
    dataset: Dataset, name: str, recipe: tj.Recipe, runs: Runs, *, on_test: bool, shards: int = 1
) -> tuple[float, float]:
    """Returns the accuracy of one training, on test or on held-out images of train, and |dw|."""
    key = identity(setup.run_key(recipe.dataset, recipe.weights), recipe, on_test, *([shards] if shards > 1 else []))
    if key not in runs.norms:
        predict = setup.predictor(recipe, len(dataset.classes))
        train, measured = setup.train_and_measured(predict, dataset, on_test)
        with tj.show_progress(f"{dataset.name} {name} lr {recipe.learning_rate:g} seed {recipe.seed}"):
            if shards > 1:
                parts = tj.shards.uniform(len(train), shards, recipe.seed)
                named = {f"shard {s}": rows for s, rows in enumerate(parts)}
                fitted = Shards(predict, train, recipe, named).fit()
                dw = tj.compose({part: own.dw for part, own in fitted.items()})
            else:
                dw = recipe.fit(predict, train).dw
        accuracy = tj.evaluate(predict, dw, measured)
        runs.add(key, accuracy, float(trees.squared_norm(dw)) ** 0.5)
    return runs.done[key], runs.norms[key]


def show(table: Mapping[str, Mapping[str, Mapping[str, Any]]], name: str, title: str) -> None:
    """Writes the table {data set: {column: cell}} as NAME.md and NAME.png in --out, and prints it."""
    columns = [*next(iter(table.values()))]
    rows = [[s, *(f"{row[c]['mean']:.3f} ± {row[c]['spread']:.3f}" for c in columns)] for s, row in table.items()]
    text = command.markdown(["data set", *columns], rows)
    (command.out_folder() / f"{name}.md").write_text(text)
    draw(table, name, title)
    print(text)


def draw(table: Mapping[str, Mapping[str, Mapping[str, Any]]], name: str, title: str) -> None:
    """Plots the cells of a table, a group for each data set."""
    groups = {s: {column: (cell["mean"], cell["spread"]) for column, cell in row.items()} for s, row in table.items()}
    label = f"test accuracy, mean and spread of {F.seeds} seeds"
    plots.dots(command.out_folder() / f"{name}.png", groups, titles.highest(title, table), label)
