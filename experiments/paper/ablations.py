"""The effect of each setting of a tangent model (the paper's Figure 2 and its table of projected descent).

    loss     rescaled square (RSL), cross entropy (CE), mean squared error (MSE)
    pt       linearised at the pre-trained weights (PT=T), or with the last block re-initialised (PT=F)
    cls      with the pre-trained class token (CLS=F), or a new one that is linearised too (CLS=T)
    radius   projected descent onto |dw| <= R without a penalty, CE and RSL of kappa 5

Learning rates are searched on held-out images, separately for each column.

The last line of stdout: {"loss" ...: {DATASET: {COLUMN: {"mean", "spread", "accuracies", "chosen", "step_norm": the
largest |dw| over the seeds}}}}.
"""

from typing import Any

from experiments.shared import search
from experiments.shared.table import SEARCH, define
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.flags import CACHED, COMPUTE, MODEL, TRAINING, F, listed, numbers
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.core.checks import InputError

define(*MODEL, *CACHED, *COMPUTE, *TRAINING, "blocks", **SEARCH, dataset=["digits"], out="out/ablations")
define(only=["loss", "pt", "cls", "radius"], radius=["1", "10", "100"])

TITLES = {
    "loss": "Loss of a tangent model",
    "pt": "Initialisation of the last block",
    "cls": "Class token",
    "radius": "Projected descent",
}


def columns(which: str) -> dict[str, list[dict[str, Any]]]:
    """The flat settings of the recipes to search, for each compared column."""
    variants: dict[str, dict[str, Any]] = {
        "loss": {"RSL": {"loss": "rsl"}, "CE": {"loss": "ce"}, "MSE": {"loss": "mse"}},
        "pt": {"PT=T": {"reset": False}, "PT=F": {"reset": True}},
        "cls": {"CLS=F": {"new_class_token": False}, "CLS=T": {"new_class_token": True}},
    }
    if which == "radius":
        losses = {"CE": {"loss": "ce"}, "RSL": {"loss": "rsl:kappa=5"}}
        variants["radius"] = {
            f"{name}, R={radius:g}": {**loss, "radius": radius, "penalty": 0.0}
            for radius in numbers("radius", float)
            for name, loss in losses.items()
        }
    rates = numbers("lr", float)
    return {
        name: [setup.settings(**{"loss": "rsl", **changes}, learning_rate=rate) for rate in rates]
        for name, changes in variants[which].items()
    }


def main() -> None:
    if "cls" in F.only and not search.has_class_token():
        raise InputError(f"--only must be without cls for a network without a class token; got {F.weights}")
    wanted = {which: columns(which) for which in listed("only", TITLES)}
    runs = Runs(command.out_folder() / "runs.jsonl")
    sets = setup.open_datasets()
    result: dict[str, Any] = {}
    for which, searched in wanted.items():
        result[which] = {
            dataset.name: {
                name: search.measure(spec, dataset, name, recipes, runs) for name, recipes in searched.items()
            }
            for spec, dataset in sets.items()
        }
        search.show(result[which], which, TITLES[which])
    command.finish(result)


if __name__ == "__main__":
    command.run(main)
