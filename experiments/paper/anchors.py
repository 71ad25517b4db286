"""TAFT from several pre-trained models, alone and composed over shards (the paper's tables of ResNets and of schemes).

The last line of stdout: {DATASET: {ANCHOR: {"alone" or "10 shards": {"mean", "spread", "accuracies", "chosen"},
"parameters": of the model, "trained": numbers}}}; an anchor is named by its architecture or its file.
"""

import dataclasses
from pathlib import Path
from typing import Any

from experiments.shared import search
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.runs import Runs
from tangent_jax.commands.shared.settings import Training
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data import ImageSize
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(search.Searched, Training):
    """The flags."""

    architecture: str | None = Recipe.architecture
    blocks: int = Recipe.blocks
    dtype: str = Recipe.dtype
    image_size: ImageSize | None = Recipe.image_size
    linearization: str = Recipe.linearization
    out: str = "out/anchors"
    shards: tuple[str, ...] = ("10",)
    weights: tuple[str, ...] = ("builtin", "builtin-resnet")


def main(config: Config) -> None:
    files = config.listed("weights")
    counts = [1, *(count for count in config.numbers("shards", int) if count != 1)]
    names = [Path(file).stem for file in files]
    anchors = dict(zip(names if len({*names}) == len(files) else files, files, strict=True))
    for file in files:
        setup.load(file, config.architecture)  # raises before any long work
    runs = Runs(command.out_folder(config) / "runs.jsonl")
    sets = setup.open_datasets(config)
    most = min(len(dataset.train) for dataset in sets.values())
    if not all(1 <= count <= most for count in counts):
        raise InputError(f"--shards must be in 1..{most}; got {','.join(map(str, counts[1:]))}")
    table: dict[str, dict[str, dict]] = {}
    result: dict[str, Any] = {}
    for spec, dataset in sets.items():
        for name, weights in anchors.items():
            # f_w(x) of a random head would count once in any sum: so a sum's outputs are the tangent alone
            rates = config.numbers("lr", float)
            alone = [setup.recipe(config, weights=weights, learning_rate=rate) for rate in rates]
            added = [setup.recipe(config, weights=weights, learning_rate=rate, output="tangent") for rate in rates]
            row: dict[str, Any] = {}
            for count in counts:
                title, recipes = ("alone", alone) if count == 1 else (f"{count} shards", added)
                row[title] = search.measure(config, spec, dataset, f"{name} {title}", recipes, runs, count)
                table.setdefault(f"{dataset.name}, {title}", {})[name] = row[title]
            predict = setup.predictor(alone[0], len(dataset.classes))
            row["parameters"] = sum(leaf.size for leaf in trees.leaves(predict.w).values())
            row["trained"] = predict.subset.size
            result.setdefault(dataset.name, {})[name] = row
    search.show(config, table, "anchors", f"Tangents of {len(anchors)} anchors")
    command.finish(config, result)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
