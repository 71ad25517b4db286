"""Methods that compose by sums of statistics: joint training itself, however the images are divided."""

from functools import cached_property
from typing import Any, Protocol

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.flags import F
from tangent_jax.data.sources import Dataset
from tangent_jax.models.ntk import feature_map, rows_of
from tangent_jax.solver.statistics import Settings, Statistics, choose_settings, of_rows

RANPAC = 5000  # random ReLU features
ADDITIVE: dict[str, tuple[tuple[str, ...], str]] = {
    "exact": (("h", "ntk"), "lda"),
    "ridge": (("h",), "ridge"),
    "ranpac": (("relu",), "ridge"),
    "lda": (("h",), "lda"),
}
"""The features of each method, and how their statistics are solved."""


class Images(Protocol):
    """A data set, a predictor that gives its features, and those that train and that are measured."""

    dataset: Dataset
    predict: tj.Predictor
    train: tj.Features
    test: tj.Features
    is_held_out: bool


class Additive:
    """One of ADDITIVE on a data set; `method`: whose images, and whose shards, it takes.

    `known`: rows of features by their parts and title, which methods of the same features share.
    """

    def __init__(self, name: str, method: Images, known: dict[tuple, np.ndarray]) -> None:
        self.name, self.method, self.known = name, method, known
        parts, self.how = ADDITIVE[name]
        width = RANPAC if parts == ("relu",) else F.width
        self.classes = method.dataset.classes
        anchor = tj.Pretrained(method.predict.model, method.predict.w, "")
        options: Any = {"blocks": F.blocks, "directions": F.directions, "width": width, "seed": F.seed}
        self.map = feature_map(anchor, parts, **options)
        self.rows = self.rows_of(method.train, "train")
        self.tested = self.rows_of(method.test, "test")

    def rows_of(self, data: tj.Features, title: str) -> np.ndarray:
        """The features of the examples, "n k"."""
        key = self.map.parts, title
        if key not in self.known:
            with tj.show_progress(f"{self.name}: features, {title}"):
                self.known[key] = rows_of(self.map, data)
        return self.known[key]

    def statistics(self, rows: np.ndarray) -> Statistics:
        """The statistics of training examples at `rows`."""
        return of_rows(self.map, self.rows[rows], self.method.train.targets[rows], self.classes)

    @cached_property
    def chosen(self) -> tuple[Settings, int]:
        """The settings that held-out images choose, of how many: validation images, or a fifth of the training ones."""
        method, every = self.method, np.arange(len(self.rows))
        splits = method.dataset.splits
        if not method.is_held_out and {"validation", "test"} <= {*splits}:
            held = setup.features(method.predict, splits["validation"], "validation inputs")
            train, rows = self.statistics(every), self.rows_of(held, "validation")
            targets = held.targets
        else:
            is_held = method.train.held_out()
            train, rows, targets = self.statistics(every[~is_held]), self.rows[is_held], method.train.targets[is_held]
        with tj.show_progress(f"{self.name}: settings, on held-out images"):
            return choose_settings(train.of_classes(self.classes), rows, targets, (self.how,))

    def accuracy(self, divided: dict[str, np.ndarray]) -> float:
        """The test accuracy of the head that the sum of the shards' statistics has."""
        total = sum(self.statistics(rows) for rows in divided.values())
        assert isinstance(total, Statistics)
        head = total.of_classes(self.classes).solve(self.chosen[0])
        scores = self.tested @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
        return float(np.mean(scores.argmax(1) == self.method.test.targets))

    def facts(self) -> dict[str, Any]:
        """The chosen settings, how many were tried, and the size of a contribution: for the result."""
        k, (settings, tried) = self.rows.shape[1], self.chosen
        numbers = k * (k + 1) // 2 + (k + 1) * len(self.classes)
        return {"chosen": settings._asdict(), "searched": tried, "numbers": numbers, "bytes": 8 * numbers}
