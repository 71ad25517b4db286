"""The paper's Table 1: FC, NLFT-n and TAFT-n on given data sets, settings chosen on a validation split.

For each method, learning rate, reset (PT) and class token (CLS) are searched on images held out of train,
with --search_epochs; the best is trained on all of train, over --seeds, and measured on test. Every run is
kept in runs.jsonl under --out and not repeated by the same command.
"""

import dataclasses
import itertools
import sys
from typing import Any

import numpy as np
from absl import flags

import tangent_jax as tj
from experiments import binary, common, pictures
from experiments.common import F
from experiments.runs import Runs, markdown
from tangent_jax.components.recipe import SOLVERS
from tangent_jax.core import identity
from tangent_jax.data.sources import Dataset

common.define(*common.MODEL, *common.CACHED, *common.COMPUTE, *common.TRAINING, "datasets", out="out/table1")
common.define("certificate", "passes")
flags.DEFINE_list("blocks", ["1", "7"], "Numbers of last blocks; those beyond the model's depth are left out.")
flags.DEFINE_list("lrs", ["1e-3", "1e-4"], "Learning rates searched.")
flags.DEFINE_list("solvers", ["adam"], "Of the tangents: adam, optimum (column OPTIMUM-n, penalties searched).")
flags.DEFINE_list("penalties", ["1e-3", "1e-2", "0.1"], "Ridges searched for the optimum.")
flags.DEFINE_integer("search_epochs", 30, "Epochs of each searched run.", lower_bound=1)
flags.DEFINE_bool("search_anchor", True, "Search PT and CLS too, not only the learning rate.")
flags.DEFINE_integer("seeds", 3, "Seeds of the final runs (0, 1, ...); the search uses 0.", lower_bound=1)


NAMES = {"adam": "TAFT", "optimum": "OPTIMUM"}


def candidates(method: str, blocks: int, solver: str = "adam") -> list[tj.Recipe]:
    """What is searched for one column of the table: learning rates, or for the optimum penalties."""
    anchors = itertools.product((False, True), repeat=2) if F.search_anchor and method != "fc" else [(False, False)]
    name, values = ("learning_rate", "lrs") if solver == "adam" else ("penalty", "penalties")
    fixed = {"method": method, "blocks": blocks, "solver": solver}
    return [
        common.recipe(**fixed, reset=reset, new_class_token=token, **{name: value})
        for reset, token in anchors
        for value in common.numbers(values, float)
    ]


def main() -> None:
    depth = common.pretrained(F.weights).model.stages - 2
    runs = Runs(binary.out_folder() / "runs.jsonl")
    sets = [(spec, common.open_dataset(spec)) for spec in common.listed("datasets")]
    solvers = common.listed("solvers", SOLVERS)
    columns: dict[str, tuple] = {"FC": ("fc", 0)}
    for blocks in (blocks for blocks in common.numbers("blocks", int) if blocks <= depth):
        columns[f"NLFT-{blocks}"] = ("nlft", blocks)
        columns |= {f"{NAMES[solver]}-{blocks}": ("taft", blocks, solver) for solver in solvers}
    table: dict[str, dict[str, dict]] = {}
    for spec, dataset in sets:
        # The longest tail first: a shorter one's inputs are computed from its cache, not from the images.
        cells = {name: measure(spec, dataset, name, candidates(*columns[name]), runs) for name in reversed(columns)}
        table[dataset.name] = {name: cells[name] for name in columns}
    rows = [[name, *(f"{c['mean']:.3f} ± {c['spread']:.3f}" for c in cells.values())] for name, cells in table.items()]
    text = markdown(["data set", *columns], rows)
    (binary.out_folder() / "table1.md").write_text(text)
    series = {name: [(cells[name]["mean"], cells[name]["spread"]) for cells in table.values()] for name in columns}
    pictures.bars(binary.out_folder() / "table1.png", [*table], series, f"Fine-tuning, {F.seeds} seeds")
    print(text)
    binary.finish(table | ({"gaps": gaps(table)} if "optimum" in solvers else {}))


def gaps(table: dict[str, dict[str, dict]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean accuracies: Adam's less the optimum's (optimisation), the optimum's less the non-linear (linearisation)."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, cells in table.items():
        for column in [c for c in cells if c.startswith("OPTIMUM-")]:
            mean, blocks = cells[column]["mean"], column.removeprefix("OPTIMUM-")
            gap = {"linearisation": mean - cells[f"NLFT-{blocks}"]["mean"]}
            gap |= {"optimisation": cells[f"TAFT-{blocks}"]["mean"] - mean} if f"TAFT-{blocks}" in cells else {}
            found.setdefault(name, {})[blocks] = gap
    return found


def measure(spec: str, dataset: Dataset, name: str, searched: list[tj.Recipe], runs: Runs) -> dict[str, Any]:
    """Searches on validation, trains on train, measures on test: one cell of the table."""
    recipes = [dataclasses.replace(recipe, dataset=spec) for recipe in searched]
    several = len(recipes) > 1
    search = [dataclasses.replace(recipe, epochs=F.search_epochs) for recipe in recipes]
    validated = [run(dataset, name, recipe, runs, on_test=False) for recipe in search] if several else [0.0]
    best = recipes[int(np.argmax(validated))]
    seeds = [dataclasses.replace(best, seed=seed) for seed in range(F.seeds)]
    accuracies = [run(dataset, name, recipe, runs, on_test=True) for recipe in seeds]
    mean, spread = float(np.mean(accuracies)), float(np.std(accuracies))
    print(f"{dataset.name} {name}: {mean:.4f} ± {spread:.4f}", file=sys.stderr)
    chosen = {field: getattr(best, field) for field in ("learning_rate", "penalty", "reset", "new_class_token")}
    cell = {"mean": mean, "spread": spread, "accuracies": accuracies, "chosen": chosen, "searched": len(recipes)}
    return {**cell, "validation": max(validated) if several else None}


def run(dataset: Dataset, name: str, recipe: tj.Recipe, runs: Runs, *, on_test: bool) -> float:
    """Accuracy of one training, on test or on what is held out of train."""
    key = identity(common.run_key(recipe.dataset), recipe, on_test)
    if key not in runs.done:
        predict = common.predictor(recipe, len(dataset.classes))
        train, measured = common.train_and_measured(predict, dataset, on_test)
        with tj.show_progress(f"{dataset.name} {name} lr {recipe.learning_rate:g} seed {recipe.seed}"):
            fitted = recipe.fit(predict, train)
        runs.add(key, tj.accuracy(predict, fitted.dw, measured.inputs, measured.labels))
    return runs.done[key]


if __name__ == "__main__":
    binary.run(main)
