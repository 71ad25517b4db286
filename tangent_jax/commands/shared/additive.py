"""Methods that compose by sums of statistics: equal to joint training, for any division of the images."""

import copy
import dataclasses
import functools
import sys
from functools import cached_property
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.flags import F
from tangent_jax.commands.shared.shards import Method, is_by_owner
from tangent_jax.core.checks import InputError, require
from tangent_jax.models import FeatureSettings, score_rows
from tangent_jax.solver import (
    MappedOnce,
    Settings,
    Statistics,
    choose_settings,
    fitted_beta,
    map_once,
    rows_by_depth,
    rows_of,
    statistics_of_rows,
)

RANPAC = 5000  # random ReLU features
DEPTHS = (0, 1, 4, 8)
"""The numbers of blocks that --feature_blocks=auto tries."""
SAMPLE = 500  # training images by which it chooses
ADDITIVE: dict[str, tuple[tuple[str, ...], str]] = {
    "exact": (("h", "ntk"), "lda"),
    "ridge": (("h",), "ridge"),
    "ranpac": (("relu",), "ridge"),
    "lda": (("h",), "lda"),
}
"""The features of each method, and how its statistics are solved."""


def check_flags(methods: list[str]) -> None:
    """Raises InputError for --settings and --feature_blocks that do not fit, before any long work."""
    if F.feature_blocks == "auto" and F.held_out:
        raise InputError("--feature_blocks=auto reads the labels of images that --held_out tests on: give a number")
    if F.settings in setup.CHOICES:
        return
    how = setup.settings_of("flags, --settings", F.settings).how
    for name in (name for name in methods if name in ADDITIVE and name != "exact"):
        own = ADDITIVE[name][1]
        require(how == own, "flags", f"--settings={own},SHRINKAGE,BALANCE beside --method={name}", F.settings)


def features_of(name: str) -> tuple[FeatureSettings, str]:
    """(the features of a method of ADDITIVE, how its statistics are solved)."""
    parts, how = ADDITIVE[name]
    width = RANPAC if parts == ("relu",) else F.width
    blocks = F.feature_blocks if "ntk" in parts else None
    return FeatureSettings(parts, blocks, F.directions, width, F.seed), how


@functools.cache
def tried_depths() -> dict[int, float]:
    """For --feature_blocks=auto: mean negative log-likelihood by the number of blocks, of training images left out.

    Each of up to SAMPLE training images is scored by the head of all others of the sample, at the likeliest settings.
    Classes with one image in the sample do not take part.
    """
    dataset, pretrained = setup.open_dataset(F.dataset), setup.pretrained(F.weights)
    depths = tuple(depth for depth in DEPTHS if depth <= pretrained.model.stages - 2)
    map_ = FeatureSettings(("h", "ntk"), max(depths), F.directions, F.width, F.seed).of(pretrained)
    order = np.random.default_rng([F.seed, 11]).permutation(len(dataset.train))
    rows = np.sort(order[:SAMPLE])
    labels = dataset.train.labels[rows]
    rows = rows[np.bincount(labels)[labels] > 1]
    if len(rows) == 0:
        raise InputError("--feature_blocks=auto needs two training images of a class; got one of each: give a number")
    sample = setup.features(map_.predict, dataset.train.take(rows), "a sample of train inputs")
    with tj.show_progress("features of several depths"):
        every = rows_by_depth(map_, sample, depths)
    losses = {}
    for depth, rows in zip(depths, every, strict=True):
        total = statistics_of_rows(map_, rows, sample.targets, dataset.classes).of_classes(dataset.classes)
        with tj.show_progress(f"{depth} blocks: settings"):
            settings, _ = choose_settings(total, rows, sample.targets, ("lda",), left_out=True)
        losses[depth] = fitted_beta(total.leave_one_out(rows, sample.targets, settings), None, sample.targets)[1]
    print("exact, blocks: " + ", ".join(f"{depth} {loss:.4f}" for depth, loss in losses.items()), file=sys.stderr)
    return losses


class Additive(Method):
    """A method of ADDITIVE on the flags' data set; its features name its stores, which keep statistics.

    `known`: features by their parts and title, shared by methods with the same parts, so that shards, all images and
    held-out images share one pass.
    """

    def __init__(self, title: str, known: dict[tuple, MappedOnce]) -> None:
        features, self.how = features_of(title)
        if features.blocks == "auto":
            tried = tried_depths()
            features = dataclasses.replace(features, blocks=min(tried, key=tried.__getitem__))
        super().__init__("taft", "-".join(features.parts), setup.recipe_of(features))
        self.title, self.known = title, known
        self.map: Any = self.predict
        self.train, self.test = self.once(self.train, "train"), self.once(self.test, "test")

    def once(self, data: tj.Features, title: str) -> MappedOnce:
        """The features of a split, with rows that are computed once."""
        return self.known.setdefault((self.map.parts, title), map_once(self.map, data))

    def rows_of(self, data: tj.Features, title: str) -> np.ndarray:
        """The features of the examples, "n k"."""
        with tj.show_progress(f"{self.title}: features, {title}"):
            return rows_of(self.map, data)

    def statistics(self, divided: dict[str, np.ndarray], title: str) -> Statistics:
        """The sum of the shards' statistics over all classes of the data set, from the store of this title."""
        return self.store(divided, title).statistics().of_classes(self.dataset.classes)

    def of_all(self, title: str) -> Statistics:
        """The statistics of all training images, from the store of this title; of owners without a store."""
        if is_by_owner():
            classes = self.dataset.classes
            return tj.solver.make_statistics(self.map, self.train, classes).of_classes(classes)
        return self.statistics(self.whole(), title)

    @cached_property
    def chosen(self) -> tuple[Settings, int]:
        """The settings of --settings, or the chosen ones, and the number tried.

        Held-out images are those of a validation split, or a fifth of the training images. With owners the settings
        are chosen without a store of all images.
        """
        if F.settings not in setup.CHOICES:
            return setup.settings_of("flags, --settings", F.settings), 0
        own, title, splits = self, "full", self.dataset.splits
        left_out = F.settings == "leave_one_out"
        data, of = own.train, "train"
        if not left_out and not F.held_out and {"validation", "test"} <= {*splits}:
            data = self.once(setup.features(self.predict, splits["validation"], "validation inputs"), "validation")
            of = "validation"
        elif not left_out:
            title = "settings" + "-twice" * self.is_held_out
            own = copy.copy(own).hold_out()
            data, of = own.test, "held out"
        total, rows = own.of_all(title), self.rows_of(data, of)
        with tj.show_progress(f"{self.title}: settings"):
            return choose_settings(total, rows, data.targets, (self.how,), left_out)

    def accuracy_of(self, divided: dict[str, np.ndarray], title: str) -> float:
        """The test accuracy of the head from the sum of the shards' statistics."""
        head = self.statistics(divided, title).solve(self.chosen[0])
        scores = score_rows(head, self.rows_of(self.test, "test"))
        return float(np.mean(scores.argmax(1) == self.test.targets))

    def facts(self) -> dict[str, Any]:
        """For the result: the chosen settings, the number tried, and the size of a contribution."""
        (settings, tried), numbers = self.chosen, self.predict.subset.size
        own = {"chosen": settings._asdict(), "searched": tried, "numbers": numbers, "bytes": 8 * numbers}
        blocks = {"feature_blocks": self.map.blocks} if "ntk" in self.map.parts else {}
        depths = {"depths": tried_depths()} if blocks and F.feature_blocks == "auto" else {}
        return own | blocks | depths
