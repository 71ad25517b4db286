"""Rows of features: computed batch by batch, and where several sums need those of one image, once.

    rows_of(map, data)                         "n k", by one pass
    rows_of(map, map_once(map, data).take(i))  the rows of these examples; those that are known are read

A row has the same bits at any place of a batch of one size.
"""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Float

from tangent_jax.core.checks import InputError, of_shape, whole_number
from tangent_jax.core.names import check_classes
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.core.rows import padded
from tangent_jax.models.ntk import FeatureMap
from tangent_jax.solver.statistics import Statistics, moments
from tangent_jax.train.features import Features
from tangent_jax.train.targets import as_labels

ComputeRows = Callable[[FeatureMap, Features, int, Progress], Float[np.ndarray, "n k"]]
"""The function (map, data, batch, progress) -> the rows of all examples."""


@dataclasses.dataclass(frozen=True, eq=False)
class MappedOnce(Features):
    """Features whose rows by a feature map are computed once, for all parts of them; made by `map_once`.

    Other inputs (`dataclasses.replace(once, inputs=x)`) get rows of their own.

    Attributes:
        rows: The rows of all examples, shared by the results of `take`.
        at: The places of these examples among them.
        mapped: The inputs that these rows are of.

    >>> once = tj.solver.map_once(demo.map, demo.train)
    >>> len(once.take(np.arange(5)))
    5
    """

    rows: Any = None
    at: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    mapped: Any = None

    def are_rows_of(self, map_: FeatureMap) -> bool:
        """True if the shared rows are by this map, of these inputs."""
        return self.mapped is self.inputs and self.rows is not None and self.rows.source == map_.identity

    def take(self, rows: np.ndarray) -> "MappedOnce":
        taken = super().take(rows)
        at = self.at[np.asarray(rows)] if len(rows) else self.at[:0]
        mapped = taken.inputs if self.mapped is self.inputs else None
        return cast(MappedOnce, dataclasses.replace(taken, at=at, mapped=mapped))


class SharedRows:
    """The rows of all examples by one feature map, each computed when it is first needed."""

    def __init__(self, map_: FeatureMap, data: Features, compute: ComputeRows) -> None:
        self.source = map_.identity
        self.map = map_
        self.data = data
        self.compute = compute
        self.values = np.zeros((len(data), sum(map_.sizes)), np.float32)
        self.is_known = np.zeros(len(data), bool)

    def read(self, at: np.ndarray, batch: int, progress: Progress = silent) -> Float[np.ndarray, "n k"]:
        """The rows of the examples at these places, "k"."""
        missing = at[~self.is_known[at]]
        if len(missing):
            self.values[missing] = self.compute(self.map, self.data.take(missing), batch, progress)
            self.is_known[missing] = True
        return self.values[at]


def map_once(map_: FeatureMap, data: Features, compute: ComputeRows | None = None) -> MappedOnce:
    """The same features, with rows by this map that stay in memory once computed.

    Args:
        compute: Gives rows that are not in memory yet (`features.keep_rows`: from disk); None computes them.

    Guarantees:
        Shards, all examples and held-out parts (`take`, `hold_out`) share one pass.

    >>> once = tj.solver.map_once(demo.map, demo.train)
    >>> tj.solver.rows_of(demo.map, once.take(np.arange(5))).shape
    (5, 6)
    """
    fields = {field.name: getattr(data, field.name) for field in dataclasses.fields(Features) if field.init}
    rows = SharedRows(map_, data, compute or compute_rows)
    return MappedOnce(**fields, rows=rows, at=np.arange(len(data)), mapped=data.inputs)


def rows_of(map_: FeatureMap, data: Features, batch: int = 32, progress: Progress = silent) -> Float[np.ndarray, "n k"]:
    """The features of all examples, "n k", f32; features of `map_once` are computed once.

    Raises:
        InputError: Features of another model, and a batch that is no whole number above 0.

    >>> tj.solver.rows_of(demo.map, demo.test).shape
    (12, 6)
    """
    whole_number("batch", batch, 1)
    shape = tuple(np.shape(data.inputs)[1:])
    of_map = tuple(map_.predict.model.input_shape(map_.predict.subset.stage))
    if shape != of_map:
        raise InputError(
            f"data must be features of this map's model, of shape {of_map}; got {shape}."
            " Make them by tj.extract(map, examples)."
        )
    if isinstance(data, MappedOnce) and data.are_rows_of(map_):
        return data.rows.read(data.at, batch, progress)
    return compute_rows(map_, data, batch, progress)


def compute_rows(map_: FeatureMap, data: Features, batch: int, progress: Progress = silent) -> Float[np.ndarray, "n k"]:
    """The features of all examples, computed now."""
    return rows_by_depth(map_, data, (map_.blocks,), batch, progress)[0]


@promotes
def rows_by_depth(
    map_: FeatureMap, data: Features, depths: tuple[int, ...], batch: int = 32, progress: Progress = silent
) -> np.ndarray:
    """The features of all examples by the last 0, 1, ... blocks, for each of `depths`, "l n k", f32, in one pass.

    >>> tj.solver.rows_by_depth(demo.map, demo.test, (0, 0)).shape
    (2, 12, 6)
    """
    n, parts = len(data), [np.zeros((len(depths), 0, sum(map_.sizes)), np.float32)]
    with progress(total=n, unit="example") as bar:
        for start in range(0, n, batch):
            x = np.asarray(data.inputs[start : start + batch])
            parts.append(np.asarray(_rows(map_, padded(x, batch), depths))[:, : len(x)])
            bar.update(len(x))
    return np.concatenate(parts, 1)


_rows = jax.jit(FeatureMap.rows_by_depth, static_argnums=2)


@promotes
def make_statistics(
    map_: FeatureMap,
    data: Features,
    classes: Sequence[str],
    rows: np.ndarray | None = None,
    progress: Progress = silent,
) -> Statistics:
    """The statistics of examples: one pass, or none if their rows are known.

    Args:
        map_: By `feature_map`.
        data: Its features.
        classes: The names that targets index.
        rows: The rows of data, "n k", such as those of one depth by `rows_by_depth`; None: they are computed.

    Raises:
        InputError: Targets that do not index the classes, features of another model, rows of another shape, and, naming
            it, the first image with features that are not finite, or all 0 in a part.

    >>> tj.solver.make_statistics(demo.map, demo.train, ["a", "b", "c"]).sums.shape
    (3, 6)
    """
    return of_rows(map_, checked_rows(map_, data, rows, progress), data.targets, classes)


def checked_rows(
    map_: FeatureMap, data: Features, rows: np.ndarray | None = None, progress: Progress = silent
) -> np.ndarray:
    """The rows of features "n k", computed unless given; InputError naming the first image that cannot be summed."""
    if rows is None:
        rows = rows_of(map_, data, progress=progress)
    rows = of_shape("rows", rows, (len(data), sum(map_.sizes)))
    good = np.isfinite(rows).all(1)
    for start, end in pairwise(np.cumsum([0, *map_.sizes])):
        good &= rows[:, start:end].any(1)
    if not good.all():
        at = int(np.argmin(good))
        name, kind = data.examples[at][1], "all 0 in a part" if np.isfinite(rows[at]).all() else "NaN or infinity"
        raise InputError(f"the features of each image must be finite and not all 0; got {kind}, of {name}. Remove it")
    return rows


def of_rows(map_: FeatureMap, rows: np.ndarray, targets: np.ndarray, classes: Sequence[str]) -> Statistics:
    """The statistics of examples with known feature rows "n k"; classes without examples are left out."""
    names = check_classes(classes)
    targets = as_labels(targets, len(names))
    order = sorted({int(c) for c in targets}, key=lambda c: names[c])
    factor, sums, counts = moments(rows, targets, len(names))
    chosen = tuple(names[c] for c in order)
    return Statistics(factor, sums[order], counts[order], chosen, map_.sizes, map_.identity)


def check_rows(rows: np.ndarray, targets: np.ndarray, k: int, count: int) -> np.ndarray:
    """The targets as indices below `count`; InputError for rows that are not finite "n k" of as many examples."""
    labels = as_labels(targets, count)
    if getattr(rows, "ndim", 0) != 2 or not 0 < len(rows) == len(labels) or rows.shape[1] != k:
        raise InputError(
            f"rows must have shape ({len(labels) or 'n'}, {k}) of one example at least, as many as targets;"
            f" got shape {np.shape(rows)}"
        )
    if not np.isfinite(rows).all():
        raise InputError("rows must be finite; got NaN or infinity")
    return labels
