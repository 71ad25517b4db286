"""The two-minute tour, offline: fine-tunes three ways, trains shards apart, composes them, removes one."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from tangent_jax.commands.shared import codes, command, setup
from tangent_jax.commands.shared.settings import Model, Reading, Results
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Reading, Results):
    """The flags."""

    dataset: str = Recipe.dataset
    epochs: int = Recipe.epochs
    lr: float = 3e-3
    out: str = "out/quickstart"
    seed: int = Recipe.seed
    shards: int = 5


METHODS = {"FC": "fc", "NLFT-1": "nlft", "TAFT-1": "taft"}
EXPLAINED = {"FC": "the head alone", "NLFT-1": "the last block, non-linear", "TAFT-1": "the last block's tangent"}


def main(config: Config) -> None:
    dataset = setup.open_tested(config.dataset)
    n = config.shards
    if n > len(dataset.train):
        raise InputError(f"--shards must be at most {len(dataset.train)}, the number of images; got {n}")
    rows: list[tuple[str, str, float]] = []

    def fit_whole(name: str, method: str) -> tuple[Any, ...]:
        recipe = setup.recipe(config, method=method)
        predict = setup.predictor(recipe, len(dataset.classes))
        train, test = (
            setup.features(config, predict, part, f"{name} inputs") for part in (dataset.train, dataset.test)
        )
        with tj.show_progress(name):
            dw = recipe.fit(predict, train).dw
        rows.append((name, EXPLAINED[name], tj.evaluate(predict, dw, test)))
        return recipe, predict, train, test

    recipe, predict, train, test = [fit_whole(name, method) for name, method in METHODS.items()][-1]
    parts = {f"shard {s + 1}": part for s, part in enumerate(tj.shards.uniform(len(train), n, config.seed))}

    def fit_shard(name: str, title: str) -> tj.Component:
        with tj.show_progress(title):
            return tj.Component(recipe.for_shard(name).fit(predict, train, parts[name]).dw)

    gone = f"shard {n}"
    components = {name: fit_shard(name, name) for name in parts}
    survivors = tj.compose({name: component for name, component in components.items() if name != gone})
    never = tj.compose({name: fit_shard(name, f"{name} again") for name in parts if name != gone})
    exact = trees.fingerprint(survivors) == trees.fingerprint(never)
    alone = [tj.evaluate(predict, component.dw, test) for component in components.values()]
    added, left = (tj.evaluate(predict, dw, test) for dw in (tj.compose(components), survivors))
    rows += [
        ("one shard", f"mean of {n} tangents, each trained on 1/{n} of the images", float(np.mean(alone))),
        (f"{n} added", "their average: one model, the cost of one", added),
        (f"{n - 1} left", f"{gone} taken out, nothing trained again", left),
    ]
    print(f"\n{dataset.name}: {len(train)} train, {len(test)} test images\n")
    show(config, rows, titles.taken_out(dataset.name, added, left))
    same = "bit for bit the model" if exact else "NOT the model"
    print(f"\n  The model after the removal is {same} that the other {n - 1} shards alone give.\n")
    command.finish(
        config, {"accuracy": {name: value for name, _, value in rows}, "removal_is_exact": exact, "seed": config.seed}
    )
    if not exact:
        sys.exit(codes.FAILED)


def show(config: Config, rows: Sequence[tuple[str, str, float]], title: str) -> None:
    """Prints and plots the accuracies: (name, in words, value)."""
    width = max(len(text) for _, text, _ in rows)
    print("\n".join(f"  {name:<10} {text:<{width}}  {value:6.1%}" for name, text, value in rows))
    groups = {"": {f"{name}: {text}".replace(", ", ",\n", 1): (value, 0.0) for name, text, value in rows}}
    plots.dots(command.out_folder(config) / "quickstart.png", groups, title, "test accuracy")


if __name__ == "__main__":
    command.run(main, Config)
