"""Methods that compose by sums of statistics: equal to joint training, for any division of the images."""

import dataclasses
import sys
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.settings import FeatureFlags, Reading, Sharded
from tangent_jax.commands.shared.shards import Method, division_of_flags, in_groups, make_method
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.progress import Progress
from tangent_jax.features import keep_rows
from tangent_jax.io.progress import shown
from tangent_jax.models import FeatureMap, FeatureSettings, score_rows
from tangent_jax.solver import (
    Chosen,
    MappedOnce,
    Settings,
    Statistics,
    choose_by_folds,
    choose_settings,
    map_once,
    rows_by_depth,
    rows_of,
)
from tangent_jax.solver.mapped import checked_rows
from tangent_jax.solver.statistics import sums_of
from tangent_jax.train.features import FOLDS

RANPAC = 5000  # random ReLU features
DEPTHS = (0, 1, 4, 8)
"""The numbers of blocks that --feature_blocks=auto tries."""
SAMPLE = 500  # training images by which it chooses
FOLDED = 5000  # of more training images, one fold chooses settings
ADDITIVE: dict[str, tuple[tuple[str, ...], str]] = {
    "place": (("h", "place"), "lda"),
    "exact": (("h", "ntk", "place"), "lda"),
    "ridge": (("h",), "ridge"),
    "ranpac": (("relu",), "ridge"),
    "lda": (("h",), "lda"),
}
"""The features of each method, and how its statistics are solved."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summed(Sharded, FeatureFlags):
    """Statistics of features, and how they are solved."""

    settings: str = "held_out"


def check_flags(config: Summed, methods: list[str]) -> None:
    """Raises InputError for --settings and --feature_blocks that do not fit, before any long work."""
    if config.feature_blocks == "auto" and config.held_out:
        raise InputError("--feature_blocks=auto reads the labels of images that --held_out tests on: give a number")
    if config.settings == "leave_one_out" and setup.open_dataset(config.dataset).train.groups is not None:
        raise InputError(
            "--settings=leave_one_out leaves out one image while others of its group train, and --dataset has groups:"
            " pass --settings=held_out"
        )
    if config.settings in setup.CHOICES:
        return
    settings = setup.settings_of(config.settings)
    for name in methods:
        if name in ADDITIVE:
            parts, how = ADDITIVE[name]
            if (name != "exact" and settings.how != how) or len(settings.weights) not in (0, len(parts)):
                wanted = ",".join([how, "SHRINKAGE", *(f"WEIGHT of {part}" for part in parts if len(parts) > 1)])
                raise InputError(f"--settings must be {wanted} beside --method={name}; got {config.settings}")


def features_of(config: FeatureFlags, name: str, blocks: int | str | None) -> tuple[FeatureSettings, str]:
    """(the features of a method of ADDITIVE, of these blocks, how its statistics are solved); InputError for auto."""
    parts, how = ADDITIVE[name]
    width = RANPAC if parts == ("relu",) else config.width
    last = None
    if blocks is not None and "ntk" in parts:
        last = whole_number("--feature_blocks", blocks, 0, setup.pretrained(config).model.stages - 2)
    return FeatureSettings(parts, last, config.directions, width, config.seed), how


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Additive(Method):
    """A method of ADDITIVE on a data set; its features name its stores, which keep statistics.

    Attributes:
        config: How images are read.
        title: Its name in ADDITIVE.
        how: Its statistics are solved.
        settings: The value of --settings.
        depths: The loss by the number of blocks if --feature_blocks=auto chose it.
        once: Features by their parts and title, shared by methods with the same parts, so that shards, all images and
            held-out images share one pass.
    """

    config: Reading
    title: str
    how: str
    settings: str
    depths: dict[int, float]
    once: dict[tuple, MappedOnce]

    @property
    def map(self) -> FeatureMap:
        """The feature map, which is the predictor."""
        return cast(FeatureMap, self.predict)

    def map_once(self, data: tj.Features, title: str) -> MappedOnce:
        """The features of a split, with rows that are computed once, and kept in the cache."""
        key = self.map.parts, title
        if key not in self.once:
            self.once[key] = map_once(self.map, data, partial(keep_rows, setup.cache(self.config)))
        return self.once[key]

    def rows_of(self, data: tj.Features, title: str) -> np.ndarray:
        """The features of the examples, "n k"."""
        with tj.show_progress(f"{self.title}: features, {title}"):
            return rows_of(self.map, data, progress=shown)

    def statistics(self, divided: dict[str, np.ndarray], title: str) -> Statistics:
        """The sum of the shards' statistics over all classes of the data set, from the store of this title."""
        store = self.store(divided, title)
        with tj.show_progress(f"{store.root.name}: total"):
            return store.statistics().of_classes(self.dataset.classes)

    @cached_property
    def chosen(self) -> Chosen | None:
        """The settings that held-out images choose, or None with those of --settings.

        Held-out images are those of a validation split, or of folds of the training images (`choose_held_out`).
        """
        if self.settings not in setup.CHOICES:
            return None
        train = self.train
        rows = self.rows_of(train, "train")
        if self.settings == "leave_one_out":
            total = sums_of(rows, train.targets, len(self.dataset.classes), self.map.sizes)
            with tj.show_progress(f"{self.title}: settings"):
                return choose_settings(total, rows, train.targets, (self.how,), True, shown)
        validation, images = None, setup.validation_images(self.dataset)
        if images is not None and not self.is_held_out:
            data = self.map_once(setup.features(self.config, self.predict, images, "validation inputs"), "validation")
            validation = self.rows_of(data, "validation"), data.targets
        with tj.show_progress(f"{self.title}: settings"):
            return choose_held_out(self.map, train, rows, validation, self.how, shown)

    @cached_property
    def solved_by(self) -> Settings:
        """The chosen settings, which a line on stderr gives as a flag for `store export`, or those of --settings."""
        if self.chosen is None:
            return setup.settings_of(self.settings)
        how, shrinkage, weights = self.chosen.settings
        flag = ",".join([how, *(f"{number:g}" for number in (shrinkage, *weights))])
        print(f"{self.title}: chose --settings={flag}, {self.chosen.accuracy:.4f} held out", file=sys.stderr)
        return self.chosen.settings

    def accuracy_of(self, divided: dict[str, np.ndarray], title: str) -> float:
        """The test accuracy of the head from the sum of the shards' statistics."""
        head = self.statistics(divided, title).solve(self.solved_by)
        scores = score_rows(head, self.rows_of(self.test, "test"))
        return float(np.mean(scores.argmax(1) == self.test.targets))

    def facts(self) -> dict[str, Any]:
        """For the result: the chosen settings, the number tried, and the size of a contribution of many images."""
        numbers, tried = self.predict.subset.size, self.chosen.tried if self.chosen else 0
        facts = {"chosen": self.solved_by._asdict(), "searched": tried, "numbers": numbers, "bytes": 8 * numbers}
        if self.chosen:
            facts["held_out"] = self.chosen.accuracy
        if "ntk" in self.map.parts:
            facts["feature_blocks"] = self.map.blocks
        if self.depths:
            facts["depths"] = self.depths
        return facts


def choose_held_out(
    map_: FeatureMap,
    train: tj.Features,
    rows: np.ndarray,
    validation: tuple[np.ndarray, np.ndarray] | None,
    how: str,
    progress: Progress,
) -> Chosen:
    """The settings that the features and targets of validation images choose, or five folds of the training images.

    Of more than FOLDED training images one fold is held out, of FOLDED images at most.

    Args:
        rows: The features of the training images.
    """
    rows = checked_rows(map_, train, rows)
    if validation is not None:
        count = int(max(train.targets.max(), validation[1].max())) + 1
        return choose_settings(sums_of(rows, train.targets, count, map_.sizes), *validation, (how,), False, progress)
    folds = train.folds()
    if len(train) > FOLDED:
        held = np.flatnonzero(folds == FOLDS - 1)
        folds = np.where(folds == FOLDS - 1, -2, -1)
        folds[held[np.linspace(0, len(held) - 1, min(FOLDED, len(held))).astype(int)]] = 0
        rows, train, folds = rows[folds > -2], train.take(np.flatnonzero(folds > -2)), folds[folds > -2]
    return choose_by_folds(rows, train.targets, map_.sizes, folds, (how,), progress)


def make_additive(config: Summed, title: str, once: dict[tuple, MappedOnce]) -> Additive:
    """The method of ADDITIVE with this title, on the flags' data set; `once`: as the field of Additive."""
    depths = try_depths(config) if config.feature_blocks == "auto" and "ntk" in ADDITIVE[title][0] else {}
    blocks = min(depths, key=depths.__getitem__) if depths else config.feature_blocks
    features, how = features_of(config, title, None if blocks == "auto" else blocks)
    method = make_method(config, "taft", "-".join(features.parts), setup.recipe_of(config, features))
    made = Additive(
        **vars(method), config=config, title=title, how=how, settings=config.settings, depths=depths, once=once
    )
    train = made.map_once(made.train, "train")
    test = made.map_once(made.test, "test")
    return dataclasses.replace(made, train=train, test=test)


def try_depths(config: Summed) -> dict[int, float]:
    """For --feature_blocks=auto: mean negative log-likelihood by the number of blocks, of training images left out.

    Each of up to SAMPLE training images is scored by the head of all others of the sample, or of other folds where
    groups are known, at the likeliest settings. Classes with one image in the sample do not take part.
    """
    dataset = setup.open_dataset(config.dataset)
    pretrained = setup.pretrained(config)
    depths = tuple(depth for depth in DEPTHS if depth <= pretrained.model.stages - 2)
    map_ = FeatureSettings(ADDITIVE["exact"][0], max(depths), config.directions, config.width, config.seed).of(
        pretrained
    )
    order = np.random.default_rng([config.seed, 11]).permutation(len(dataset.train))
    rows = np.sort(order[:SAMPLE])
    labels = dataset.train.labels[rows]
    rows = rows[np.bincount(labels)[labels] > 1]
    if len(rows) == 0:
        raise InputError("--feature_blocks=auto needs two training images of a class; got one of each: give a number")
    sample = setup.features(config, map_.predict, dataset.train.take(rows), "a sample of train inputs")
    sample = in_groups(sample, division_of_flags(config))
    with tj.show_progress("features of several depths"):
        rows_of_depths = rows_by_depth(map_, sample, depths, progress=shown)
    losses = {}
    for depth, rows in zip(depths, rows_of_depths, strict=True):
        rows = checked_rows(map_, sample, rows)
        with tj.show_progress(f"{depth} blocks: settings"):
            if sample.whole_groups is None:
                total = sums_of(rows, sample.targets, len(dataset.classes), map_.sizes)
                chosen = choose_settings(total, rows, sample.targets, ("lda",), left_out=True, progress=shown)
            else:
                chosen = choose_held_out(map_, sample, rows, None, "lda", shown)
        losses[depth] = chosen.loss
    print("exact, blocks: " + ", ".join(f"{depth} {loss:.4f}" for depth, loss in losses.items()), file=sys.stderr)
    return losses
