"""TAFT from several pre-trained models, alone and composed over shards (the paper's tables of ResNets and of schemes).

The last line of stdout: {DATASET: {ANCHOR: {"alone" or "10 shards": {"mean", "spread", "accuracies", "chosen"},
"parameters": of the model, "trained": numbers}}}; an anchor is named by its architecture or its file.
"""

from pathlib import Path
from typing import Any

import tangent_jax as tj
from experiments.shared import search
from experiments.shared.table import SEARCH, define
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.flags import CACHED, MODEL, TRAINING, listed, numbers
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError

define(*MODEL[1:], "blocks", *CACHED, *TRAINING, "dtype", "linearization", dataset=["digits"])
define(weights=["builtin", "builtin-resnet"], shards=["10"], **SEARCH, out="out/anchors")


def main() -> None:
    files = listed("weights")
    counts = [1, *(count for count in numbers("shards", int) if count != 1)]
    names = [Path(file).stem for file in files]
    anchors = dict(zip(names if len({*names}) == len(files) else files, files, strict=True))
    for file in files:
        setup.pretrained(file)  # raises before any long work
    runs = Runs(command.out_folder() / "runs.jsonl")
    sets = setup.open_datasets()
    most = min(len(dataset.train) for dataset in sets.values())
    if not all(1 <= count <= most for count in counts):
        raise InputError(f"--shards must be in 1..{most}; got {','.join(map(str, counts[1:]))}")
    table: dict[str, dict[str, dict]] = {}
    result: dict[str, Any] = {}
    for spec, dataset in sets.items():
        for name, weights in anchors.items():
            # f_w(x) of a random head would count once in any sum: so a sum's outputs are the tangent alone
            rates = numbers("lr", float)
            alone = [setup.settings(weights=weights, learning_rate=rate) for rate in rates]
            added = [setup.settings(weights=weights, learning_rate=rate, output="tangent") for rate in rates]
            row: dict[str, Any] = {}
            for count in counts:
                title, recipes = ("alone", alone) if count == 1 else (f"{count} shards", added)
                row[title] = search.measure(spec, dataset, f"{name} {title}", recipes, runs, count)
                table.setdefault(f"{dataset.name}, {title}", {})[name] = row[title]
            predict = setup.predictor(tj.store.recipe_of(**alone[0]), len(dataset.classes))
            row["parameters"] = sum(leaf.size for leaf in trees.leaves(predict.w).values())
            row["trained"] = predict.subset.size
            result.setdefault(dataset.name, {})[name] = row
    search.show(table, "anchors", f"Tangents of {len(anchors)} anchors")
    command.finish(result)


if __name__ == "__main__":
    command.run(main)
