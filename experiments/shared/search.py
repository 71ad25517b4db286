"""One cell of a table: searches settings on held-out images, trains the best on all of train, measures on test.

Every run is saved in runs.jsonl under --out, and the same command does not repeat it.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.commands.shared.settings import Model, Reading, Results
from tangent_jax.core import trees
from tangent_jax.core.identities import identity
from tangent_jax.data import Dataset
from tangent_jax.train.features import folds_of, numbered

FIELDS = ("learning_rate", "penalty", "reset", "new_class_token")
"""The fields of a recipe that tables search."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tabled(Results):
    """Results of several seeds."""

    seed: tuple[str, ...] = ("0", "1", "2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searched(Tabled, Reading):
    """The search of a table's settings."""

    dataset: tuple[str, ...] = ("digits",)
    search_epochs: int = 30
    lr: tuple[str, ...] = ("1e-3", "1e-4")


def has_class_token(config: Model) -> bool:
    """True if a network of --weights can get a new class token (CLS=T)."""
    return hasattr(setup.pretrained(config).model, "with_class_token")


def measure(
    config: Searched,
    spec: str,
    dataset: Dataset,
    name: str,
    searched: Sequence[tj.Recipe],
    runs: Runs,
    shards: int = 1,
) -> dict[str, Any]:
    """Searches on validation, trains on train, measures on test: one cell of a table.

    Args:
        searched: The recipes.
        shards: The number of models trained apart, on parts of the images, and composed; 1 for one model.
    """
    norms = [0.0]

    def accuracy(recipe: tj.Recipe, on_test: bool) -> float:
        own = dataclasses.replace(recipe, dataset=spec, **{} if on_test else {"epochs": config.search_epochs})
        value, norm = run(config, dataset, name, own, runs, on_test=on_test, shards=shards)
        norms.extend([norm] * on_test)
        return value

    cell = choose(config, searched, FIELDS, accuracy)
    print(f"{dataset.name} {name}: {mean_and_spread(cell, 4)}", file=sys.stderr)
    return {**cell, "step_norm": max(norms)}


def choose(
    config: Tabled,
    searched: Sequence[tj.Recipe],
    fields: Sequence[str],
    accuracy: Callable[[tj.Recipe, bool], float],
) -> dict[str, Any]:
    """The cell of the setting with the highest accuracy on held-out images, measured on test for each --seed.

    Args:
        fields: Those that differ between the searched settings.
        accuracy: The accuracy of a setting, on test if its second argument is true.
    """
    held = [accuracy(own, False) for own in searched] if len(searched) > 1 else [0.0]
    best = searched[int(np.argmax(held))]
    cell = cell_of([accuracy(dataclasses.replace(best, seed=seed), True) for seed in config.numbers("seed", int)])
    cell |= {"chosen": {field: getattr(best, field) for field in fields}, "searched": len(searched)}
    cell |= {"tried": {field: sorted({getattr(own, field) for own in searched}) for field in fields}}
    return cell | {"held_out": max(held) if len(searched) > 1 else None}


def run(
    config: Searched, dataset: Dataset, name: str, recipe: tj.Recipe, runs: Runs, *, on_test: bool, shards: int = 1
) -> tuple[float, float]:
    """Returns the accuracy of one training, on test or on held-out images of train, and |dw|."""
    key = identity(setup.run_key(config, recipe.dataset, recipe), recipe, on_test, *([shards] if shards > 1 else []))
    if key not in runs.norms:
        predict = setup.predictor(recipe, len(dataset.classes))
        train, measured = setup.train_and_measured(config, predict, dataset, on_test)
        rate = recipe.settings.get("learning_rate", "none")
        with tj.show_progress(f"{dataset.name} {name} lr {rate} seed {recipe.seed}"):
            if shards > 1:
                parts = tj.shards.uniform(len(train), shards, recipe.seed)
                named = {f"shard {s}": rows for s, rows in enumerate(parts)}
                fitted = tj.store.Shards(predict, train, recipe, named).fit()
                dw = tj.compose([tj.Component(shard.dw) for shard in fitted.values()])
            else:
                dw = recipe.fit(predict, train).dw
        accuracy = tj.evaluate(predict, dw, measured)
        runs.add(key, accuracy, float(trees.norm(dw)))
    return runs.done[key], runs.norms[key]


def folds_beside(train: tj.Features, training: np.ndarray) -> np.ndarray:
    """The fold of each example, "n"; -1 for those at `training` and others of their groups, which always train."""
    groups = numbered(train.whole_groups or range(len(train)))
    left = np.flatnonzero(~np.isin(groups, groups[training]))
    folds = np.full(len(train), -1)
    folds[left] = folds_of(train.targets[left], groups[left].tolist())
    return folds


def cell_of(accuracies: Sequence[float]) -> dict[str, Any]:
    """The mean, spread and values of several seeds."""
    return {"mean": float(np.mean(accuracies)), "spread": float(np.std(accuracies)), "accuracies": [*accuracies]}


def mean_and_spread(cell: Mapping[str, Any], digits: int = 3) -> str:
    """The mean of a cell, with its spread if there are several seeds."""
    mean = f"{cell['mean']:.{digits}f}"
    return f"{mean} ± {cell['spread']:.{digits}f}" if len(cell["accuracies"]) > 1 else mean


def seeds(config: Tabled) -> str:
    """The number of --seed, in words."""
    return "1 seed" if len(config.seed) == 1 else f"{len(config.seed)} seeds"


def show(config: Tabled, table: Mapping[str, Mapping[str, Mapping[str, Any]]], name: str, title: str) -> None:
    """Writes the table {data set: {column: cell}} as NAME.md and NAME.png in --out, and prints it."""
    columns = [*next(iter(table.values()))]
    rows = [[s, *(mean_and_spread(row[c]) for c in columns)] for s, row in table.items()]
    command.write_table(config, name, ["data set", *columns], rows)
    draw(config, table, name, title)


def draw(config: Tabled, table: Mapping[str, Mapping[str, Mapping[str, Any]]], name: str, title: str) -> None:
    """Plots the cells of a table, a group for each data set."""
    groups = {s: {column: (cell["mean"], cell["spread"]) for column, cell in row.items()} for s, row in table.items()}
    label = f"test accuracy, mean and spread of {seeds(config)}"
    plots.dots(command.out_folder(config) / f"{name}.png", groups, titles.highest(title, table), label)
