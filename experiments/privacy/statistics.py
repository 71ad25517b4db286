"""Accuracy of one private release of statistics: by epsilon, features and whitening.

    h        the features before the head, at length 1
    h+ntk    the same, and NTK features psi of the last --blocks in --width numbers, each part at length 1
    h+place  h, and where features of a middle block lie in the image, in --width numbers

Each is released plain, whitened by the last layer norm ("norm") and, with --public, by public images ("images"). Rows
are computed once, and released for every epsilon and seed. Noise comes from --seed, so that the table can be made
again: nothing here is private. The settings of the release are those of the library. --held_out tests on a fifth of the
training images, with as much less noise as there are fewer images: so settings may be chosen.

The last line of stdout: {DATASET: {FEATURES: {"plain", "norm" or "images": {EPSILON: {"mean", "spread",
"accuracies"}}}}}; FEATURES is "h", "h+place 256": width, or "h+ntk 4 256": blocks, width.
"""

import dataclasses
import itertools
import sys
from typing import Any, Literal

import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.search import Tabled, cell_of, mean_and_spread
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Model, Reading
from tangent_jax.data import Dataset
from tangent_jax.models import FeatureMap
from tangent_jax.solver import map_once, rows_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Reading, Tabled):
    """The flags."""

    blocks: tuple[str, ...] = ("1",)
    clip_norm: float = 1.0
    dataset: tuple[str, ...] = ("digits",)
    delta: float = 1e-5
    epsilon: tuple[str, ...] = ("1", "3", "8")
    held_out: bool = False
    noise: Literal["gaussian", "discrete"] = "gaussian"
    only: tuple[str, ...] = ("h",)
    out: str = "out/statistics"
    public: str | None = None
    width: tuple[str, ...] = ("256",)


FEATURES = ("h", "h+ntk", "h+place")
MEASURED = ("mean", "spread")


def main(config: Config) -> None:
    sets = [*setup.open_datasets(config).values()]
    epsilons = config.numbers("epsilon", float)
    seeds = config.numbers("seed", int)
    result: dict[str, Any] = {}
    for dataset in sets:
        result[dataset.name] = {
            name: of_map(config, map_, dataset, epsilons, seeds) for name, map_ in maps(config).items()
        }
        print(dataset.name, result[dataset.name], file=sys.stderr)
    cells = {
        f"{dataset}, {name}, {way}": row
        for dataset, table in result.items()
        for name, ways in table.items()
        for way, row in ways.items()
    }
    rows = [[name, *map(mean_and_spread, row.values())] for name, row in cells.items()]
    command.write_table(config, "statistics", ["data set, features", *(f"epsilon {e:g}" for e in epsilons)], rows)
    draw(config, result, cells, epsilons)
    command.finish(config, result)


def maps(config: Config) -> dict[str, FeatureMap]:
    """The feature maps of the table, by name."""
    pretrained = setup.pretrained(config)
    made = {}
    for parts in config.listed("only", FEATURES):
        every_blocks = config.numbers("blocks", int) if "ntk" in parts else [0]
        widths = config.numbers("width", int) if parts != "h" else [4]  # of no sketch
        for blocks, width in itertools.product(every_blocks, widths):
            name = " ".join([parts, *[str(blocks)] * ("ntk" in parts), *[str(width)] * (parts != "h")])
            made[name] = tj.models.feature_map(pretrained, tuple(parts.split("+")), blocks=blocks, width=width)
    return made


def of_map(
    config: Config, built: FeatureMap, dataset: Dataset, epsilons: list[float], seeds: list[int]
) -> dict[str, Any]:
    """The cells of one feature map on one data set, by whitening and epsilon."""
    train = setup.features(config, built.predict, dataset.train, f"{dataset.name}: train inputs")
    test = setup.features(config, built.predict, dataset.test, "test inputs")
    train, test = train.hold_out() if config.held_out else (train, test)
    ways = {"plain": tj.privacy.on_sphere(built, whiten=False), "norm": tj.privacy.on_sphere(built)}
    if config.public:
        public = setup.features(
            config, built.predict, setup.public_images(config.public, dataset.train), "public inputs"
        )
        ways["images"] = tj.privacy.on_sphere(built, public, train)
    cells = {}
    for way, map_ in ways.items():
        trained = map_once(map_, train)
        measured = map_once(map_, test)
        cells[way] = {f"{e:g}": of_seeds(config, map_, trained, measured, dataset.classes, e, seeds) for e in epsilons}
    return cells


def draw(
    config: Config, result: dict[str, Any], cells: dict[str, dict[str, dict[str, Any]]], epsilons: list[float]
) -> None:
    """Plots the test accuracy of one release by epsilon: a panel for each data set, a line for each way."""
    panels = []
    axes = {"xlabel": "epsilon", "ylabel": "test accuracy", "ticks": epsilons, "log": "x"}
    for dataset, table in result.items():
        lines = {
            way if len(table) == 1 else f"{name}, {way}": tuple([cell[k] for cell in row.values()] for k in MEASURED)
            for name, ways in table.items()
            for way, row in ways.items()
        }
        panels.append({"x": epsilons, "lines": lines, "title": dataset, **axes})
    plots.curves(command.out_folder(config) / "statistics.png", panels, titles.released_once(cells))


def of_seeds(
    config: Config,
    map_: FeatureMap,
    train: tj.Features,
    test: tj.Features,
    classes: tuple[str, ...],
    epsilon: float,
    seeds: list[int],
) -> dict[str, Any]:
    """The test accuracy of the head of each seed's noise; of four fifths of the images, four fifths of the noise."""
    mechanism = tj.make_mechanism(epsilon, config.delta, 1, config.clip_norm, noise=config.noise)
    if config.held_out:
        less = mechanism.noise_multiplier * len(train) / (len(train) + len(test))
        mechanism = tj.privacy.Mechanism(config.clip_norm, less, 1, config.delta, noise=config.noise)
    step = tj.privacy.Contribution(len(classes), sum(map_.sizes))
    accuracies = []
    with tj.show_progress(f"epsilon {epsilon:g}") as progress:
        rows = rows_of(map_, test, progress=progress)
        for seed in seeds:
            noised, _ = tj.privacy.release_statistics(
                map_, train, classes, mechanism=mechanism, seed=seed, progress=progress
            )
            head = step.head(noised, classes, mechanism)
            scores = (rows - np.asarray(head.get("center", 0))) @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
            accuracies.append(float(np.mean(scores.argmax(1) == test.targets)))
    return cell_of(accuracies)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
