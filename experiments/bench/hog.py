"""A rival without a network: histograms of oriented gradients (HOG; Dalal and Triggs 2005), composed by LDA.

    pip install scikit-image==0.26.0
    python -m experiments.bench hog --dataset=folder:signs,folder:digits

Each picture is resized to 64 x 64 pixels; its features are skimage.feature.hog with 9 orientations, cells of 8 x 8
pixels and blocks of 2 x 2 cells: 1,764 numbers of one picture, so that their sums compose exactly, as those of
`compose` do. The shrinkage is chosen on five folds of the training images, groups whole.

The last line of stdout: {"hog": {DATASET: {"accuracy": on test, "held_out": of the folds, "chosen": the settings,
"numbers": of features}}}.
"""

import dataclasses
from importlib import import_module
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Results
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data import MOST_PIXELS
from tangent_jax.data.decode import decode
from tangent_jax.data.sources import Examples
from tangent_jax.models import score_rows
from tangent_jax.solver import choose_by_folds
from tangent_jax.solver.statistics import sums_of
from tangent_jax.train.features import folds_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    dataset: tuple[str, ...] = ("digits",)
    most_pixels: int = MOST_PIXELS
    out: str = "out/bench_hog"
    skip_unreadable: bool = False


SIDE = 64
WHOLE = Preprocessing(crop=1.0, resize="exact", interpolation="bilinear")


def main(config: Config) -> None:
    try:
        hog = import_module("skimage.feature").hog
    except ImportError as error:
        raise InputError("hog needs scikit-image; pip install scikit-image") from error

    def rows_of(examples: Examples, title: str) -> np.ndarray:
        settings = {"pixels_per_cell": (8, 8), "cells_per_block": (2, 2), "transform_sqrt": True, "channel_axis": -1}
        rows = []
        with tj.show_progress(title) as progress, progress(total=len(examples), unit="image") as bar:
            for i, name in enumerate(examples.names):
                rows.append(hog(decode(examples.read(i), name, SIDE, WHOLE, config.most_pixels), **settings))
                bar.update()
        return np.array(rows)

    found: dict[str, dict[str, Any]] = {}
    for dataset in setup.open_datasets(config).values():
        train, test = dataset.train, dataset.test
        rows, count = rows_of(train, f"{dataset.name}: train"), len(dataset.classes)
        chosen = choose_by_folds(rows, train.labels, rows.shape[1:], folds_of(train.labels, train.groups))
        head = sums_of(rows, train.labels, count, rows.shape[1:]).solve(chosen.settings)
        scores = np.asarray(score_rows(head, rows_of(test, f"{dataset.name}: test")))
        accuracy = float(np.mean(scores.argmax(1) == test.labels))
        row = {"accuracy": accuracy, "held_out": chosen.accuracy, "chosen": chosen.settings._asdict()}
        found[dataset.name] = {**row, "numbers": rows.shape[1]}
    cells = [[name, f"{row['accuracy']:.3f}", f"{row['held_out']:.3f}"] for name, row in found.items()]
    print(command.markdown(["data set", "HOG + LDA", "held out"], cells))
    command.finish(config, {"hog": found})


if __name__ == "__main__":
    command.run(main, Config)
