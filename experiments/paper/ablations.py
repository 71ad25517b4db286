"""The effect of each setting of a tangent model (the paper's Figure 2 and its table of projected descent).

    loss     rescaled square (RSL), cross entropy (CE), mean squared error (MSE)
    pt       linearised at the pre-trained weights (PT=T), or with the last block re-initialised (PT=F)
    cls      with the pre-trained class token (CLS=F), or a new one that is linearised too (CLS=T)
    radius   projected descent onto |dw| <= R without a penalty, CE and RSL of kappa 5

Learning rates are searched on held-out images, separately for each column.

The last line of stdout: {"loss" ...: {DATASET: {COLUMN: {"mean", "spread", "accuracies", "chosen", "step_norm": the
largest |dw| over the seeds}}}}.
"""

import dataclasses
from typing import Any

from experiments.shared import search
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.commands.shared.settings import Compute, Model, Training
from tangent_jax.core.checks import InputError
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, search.Searched, Compute, Training):
    """The flags."""

    blocks: int = Recipe.blocks
    only: tuple[str, ...] = ("loss", "pt", "cls", "radius")
    out: str = "out/ablations"
    radius: tuple[str, ...] = ("1", "10", "100")


TITLES = {
    "loss": "Loss of a tangent model",
    "pt": "Initialisation of the last block",
    "cls": "Class token",
    "radius": "Projected descent",
}


def columns(config: Config, which: str) -> dict[str, list[Recipe]]:
    """The recipes to search, for each compared column."""
    variants: dict[str, dict[str, Any]] = {
        "loss": {"RSL": {"loss": "rsl"}, "CE": {"loss": "ce"}, "MSE": {"loss": "mse"}},
        "pt": {"PT=T": {"reset": False}, "PT=F": {"reset": True}},
        "cls": {"CLS=F": {"new_class_token": False}, "CLS=T": {"new_class_token": True}},
    }
    if which == "radius":
        losses = {"CE": {"loss": "ce"}, "RSL": {"loss": "rsl:kappa=5"}}
        variants["radius"] = {
            f"{name}, R={radius:g}": {**loss, "radius": radius, "penalty": 0.0}
            for radius in config.numbers("radius", float)
            for name, loss in losses.items()
        }
    rates = config.numbers("lr", float)
    return {
        name: [setup.recipe(config, **{"loss": "rsl", **changes}, learning_rate=rate) for rate in rates]
        for name, changes in variants[which].items()
    }


def main(config: Config) -> None:
    if "cls" in config.only and not search.has_class_token(config):
        raise InputError(f"--only must be without cls for a network without a class token; got {config.weights}")
    wanted = {which: columns(config, which) for which in config.listed("only", TITLES)}
    runs = Runs(command.out_folder(config) / "runs.jsonl")
    sets = setup.open_datasets(config)
    result: dict[str, Any] = {}
    for which, searched in wanted.items():
        result[which] = {
            dataset.name: {
                name: search.measure(config, spec, dataset, name, recipes, runs) for name, recipes in searched.items()
            }
            for spec, dataset in sets.items()
        }
        search.show(config, result[which], which, TITLES[which])
    command.finish(config, result)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
