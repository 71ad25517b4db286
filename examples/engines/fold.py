"""Statistics as a monoid: zero, add, merge and finish, by which any engine folds them. No engine is needed here.

    zero()            no examples
    add(a, shard)     a and the statistics of a shard's examples, which are computed now
    merge(a, b)       both; what is in both counts once
    finish(a)         the sum (`tj.solver.Statistics`), which `solve` makes a head of

An accumulator holds statistics by the names of their shards. Two ways:

    Parts     each shard's own statistics; `finish` adds them in the order of names, so that the sum has the same bits
              whatever worker computed what, in whatever order, and however often
    Totals    sums of shards, each with its names: smaller, and equal to rounding. A sum that holds some shards of
              another one, but not all, cannot be merged with it, and is refused.

A worker that is killed is repeated: its shard comes once, or twice with the same name, and counts once.
"""

import dataclasses
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

import tangent_jax as tj
from tangent_jax.models import FeatureMap, FeatureSettings
from tangent_jax.solver import Statistics, make_statistics

H = FeatureSettings(("h",))
"""The features before the head."""
Accumulator = Mapping[frozenset, Statistics]
"""Statistics by the names of the shards that they sum."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The monoid of the statistics of shards of a data set, by these features.

    `dataset`, `weights`: as `tj.open_dataset` and `tj.load`; `shards`: how many; `features`: of the model; `cache`: the
    folder of inputs. It is small, so that an engine sends it to its workers.
    """

    dataset: str = "digits"
    weights: str = "builtin"
    shards: int = 8
    features: FeatureSettings = H
    cache: str = "~/.cache/tangent_jax"

    @property
    def names(self) -> list[str]:
        """The names of the shards."""
        return [f"shard {i:0{len(str(self.shards - 1))}}" for i in range(self.shards)]

    def map(self) -> FeatureMap:
        """The feature map, which also evaluates a head."""
        return self.features.of(tj.load(self.weights))

    def statistics(self, name: str) -> Statistics:
        """The statistics of the training examples of one shard."""
        dataset, map_ = tj.open_dataset(self.dataset), self.map()
        rows = tj.shards.uniform(len(dataset.train), self.shards, seed=0)[self.names.index(name)]
        return make_statistics(map_, tj.extract(map_, dataset.train.take(rows), tj.Cache(self.cache)), dataset.classes)

    def zero(self) -> Accumulator:
        """No examples."""
        return {}

    def add(self, accumulator: Accumulator, name: str) -> Accumulator:
        """The accumulator with the examples of a shard."""
        own = frozenset([name])
        if any(name in names for names in accumulator):
            return accumulator
        return self.merge(accumulator, {own: self.statistics(name)})

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """Both; a shard that is in both counts once."""
        return {**a, **b}

    def finish(self, accumulator: Accumulator) -> Statistics:
        """The sum of all, in the order of names; ValueError for no shard."""
        if not accumulator:
            raise ValueError("finish: expected a shard at least; got none")
        return sum(accumulator[names] for names in sorted(accumulator, key=sorted))

    def accuracy(self, total: Statistics) -> float:
        """The test accuracy of the head of the sum."""
        dataset, map_ = tj.open_dataset(self.dataset), self.map()
        head = total.of_classes(dataset.classes).solve()
        return tj.evaluate(map_, head, tj.extract(map_, dataset.test, tj.Cache(self.cache)))


@dataclasses.dataclass(frozen=True)
class Totals(Parts):
    """The same, with one sum for shards that were merged."""

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        sums = {**a}
        for names, own in b.items():
            within = [other for other in sums if other & names]
            if any(names <= other for other in within):
                continue
            if any(not other <= names for other in within):
                raise ValueError(f"merge: expected sums of different shards; got {sorted(names)} beside others of them")
            sums = {other: kept for other, kept in sums.items() if other not in within} | {names: own}
        return {frozenset().union(*sums): sum(sums[names] for names in sorted(sums, key=sorted))} if sums else {}


def compute_and_die(monoid: Parts, name: str, mark: Path) -> None:
    """Computes a shard, makes the file `mark`, and kills its own process before it answers: a worker that is lost."""
    monoid.add(monoid.zero(), name)
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def same_bits(a: Statistics, b: Statistics) -> bool:
    """True for statistics of the same bits."""
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("gram", "sums", "counts"))


def fold(monoid: Parts, names: Iterable[str]) -> Statistics:
    """The sum of these shards in one process."""
    accumulator = monoid.zero()
    for name in names:
        accumulator = monoid.add(accumulator, name)
    return monoid.finish(accumulator)
