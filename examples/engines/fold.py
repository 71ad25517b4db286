"""Sums over shards as a monoid that any engine folds: zero, add, merge and finish. No engine is needed here.

    zero()            no images
    add(a, shard)     a and the sums of a shard's images, which are computed now
    merge(a, b)       both; what is in both counts once
    finish(a)         the sum of all as statistics, which `solve` makes a head of

An accumulator holds sums of blocks of a fixed binary tree. Block (l, i) is the shards from i 2^l to (i + 1) 2^l:

    (2, 0) = (1, 0) + (1, 1)
    (1, 0) = (0, 0) + (0, 1)      (1, 1) = (0, 2) + (0, 3)      (0, i): shard i

A block is only ever the sum of its two halves, so the total has the same bits whatever worker computed what, in
whatever order. Two blocks are disjoint, or one holds the other and counts alone: a shard that comes twice, as after the
death of a worker, counts once.

Memory: shards that come in order leave at most one block of each level, as the digits of a binary counter. A block that
comes early waits for its other half: w workers add about w blocks to these, and shards in random order leave up to 0.4
of their number. A worker holds the features of one chunk of its images.
"""

import argparse
import dataclasses
import json
import os
import signal
import tempfile
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared.additive import ADDITIVE, RANPAC
from tangent_jax.data import Examples
from tangent_jax.features import keep_rows
from tangent_jax.models import FeatureMap, FeatureSettings, score_rows
from tangent_jax.solver import Settings, Statistics
from tangent_jax.solver.mapped import checked_rows
from tangent_jax.solver.statistics import from_tree, sums_of

CHUNK = 1024  # images whose features are in memory at once
Sums = Mapping[str, np.ndarray]
"""What is summed: of images the leaves of `Statistics.tree`, over all classes."""
Accumulator = Mapping[tuple[int, int], Sums]
"""Sums by block."""


@dataclasses.dataclass(frozen=True)
class Tree:
    """The monoid of the sums of `shards` shards, numbered from 0; a subclass gives those of one shard."""

    shards: int = 8

    def sums(self, shard: int) -> Sums:
        """The sums of one shard."""
        raise NotImplementedError

    def zero(self) -> Accumulator:
        """No shard."""
        return {}

    def add(self, accumulator: Accumulator, shard: int) -> Accumulator:
        """The accumulator with a shard, computed unless it is there."""
        if is_within((0, shard), accumulator):
            return accumulator
        return self.merge(accumulator, {(0, shard): self.sums(shard)})

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        """The blocks of both, halves joined from the leaves up; the half of a last block may have no shard."""
        blocks = {**a, **b}
        for level in range((self.shards - 1).bit_length()):
            for place in sorted({i // 2 for at, i in blocks if at == level}):
                left, right = (level, 2 * place), (level, 2 * place + 1)
                if is_within((level + 1, place), blocks):
                    blocks.pop(left, None)
                    blocks.pop(right, None)
                elif left in blocks and right in blocks:
                    blocks[level + 1, place] = added(blocks.pop(left), blocks.pop(right))
                elif left in blocks and right[1] << level >= self.shards:
                    blocks[level + 1, place] = blocks.pop(left)
        return blocks

    def total(self, accumulator: Accumulator) -> Sums:
        """The sum of all shards that came; ValueError for no shard."""
        if not accumulator:
            raise ValueError("there must be a shard at least; got none. Add one.")
        return reduce(added, (accumulator[block] for block in sorted(accumulator, key=lambda b: b[1] << b[0])))


@dataclasses.dataclass(frozen=True)
class Images(Tree):
    """The monoid of the statistics of a data set's training images. It is small, so that engines send it to workers.

    Attributes:
        dataset, weights, method, seed, cache_dir: As the flags of `tangent-jax compose`, whose shards and features
            these are; with "" as `cache_dir` a chunk's features lie in a temporary folder until it is summed.
    """

    dataset: str = "digits"
    weights: str = "builtin"
    method: str = "place"
    seed: int = 0
    cache_dir: str = "~/.cache/tangent_jax"

    def map(self) -> FeatureMap:
        """The feature map, which also evaluates a head."""
        parts = ADDITIVE[self.method][0]
        width = RANPAC if parts == ("relu",) else FeatureSettings().width
        return FeatureSettings(parts, width=width, seed=self.seed).of(tj.load(self.weights))

    def rows(self, map_: FeatureMap, images: Examples) -> tuple[tj.Features, np.ndarray]:
        """Images, and their features "n k", computed now or read from the cache."""
        with tempfile.TemporaryDirectory() as folder:
            cache = tj.Cache(self.cache_dir or folder)
            data = tj.extract(map_, images, cache)
            return data, keep_rows(cache, map_, data, 32)

    def sums(self, shard: int) -> Sums:
        """The sums of the features of a shard's images, which are read where they lie."""
        dataset, map_ = tj.open_dataset(self.dataset), self.map()
        at = tj.shards.uniform(len(dataset.train), self.shards, self.seed)[shard]
        parts = (self.rows(map_, dataset.train.take(at[start : start + CHUNK])) for start in range(0, len(at), CHUNK))
        count = len(dataset.classes)
        chunks = (sums_of(checked_rows(map_, data, rows), data.targets, count, map_.sizes) for data, rows in parts)
        return reduce(Statistics.__add__, chunks).tree

    def finish(self, total: Sums) -> Statistics:
        """Sums as statistics."""
        map_ = self.map()
        return from_tree(total, tj.open_dataset(self.dataset).classes, map_.sizes, map_.identity)

    def accuracy(self, total: Sums) -> float:
        """The test accuracy of the head of sums, by the method's default settings."""
        head = self.finish(total).solve(Settings(ADDITIVE[self.method][1]))
        data, rows = self.rows(self.map(), tj.open_dataset(self.dataset).test)
        return float(np.mean(score_rows(head, rows).argmax(1) == data.targets))


def is_within(block: tuple[int, int], blocks: Accumulator) -> bool:
    """True if one of the blocks is this one, or holds it."""
    level, place = block
    return any(place >> (above - level) == i for above, i in blocks if above >= level)


def added(a: Sums, b: Sums) -> Sums:
    """a + b."""
    return {name: a[name] + b[name] for name in a}


def same_bits(a: Sums, b: Sums) -> bool:
    """True for sums of the same bits."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def fold(monoid: Tree) -> Sums:
    """The sum of all shards in one process."""
    return monoid.total(reduce(monoid.add, range(monoid.shards), monoid.zero()))


def compute_and_die(monoid: Tree, shard: int, mark: Path) -> None:
    """Computes a shard, makes the file `mark`, and kills its own process before it answers: a worker that is lost."""
    monoid.sums(shard)
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str) -> tuple[Images, int, int | None]:
    """(what the flags say to sum, the number of workers, the shard whose worker is killed once).

    Args:
        text: About the program, for --help.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Images):
        given = {"type": type(field.default), "default": field.default, "help": f"default: {field.default}"}
        parser.add_argument(f"--{field.name}", **given, choices=[*ADDITIVE] if field.name == "method" else None)
    parser.add_argument("--workers", type=int, default=2, help="default: 2")
    parser.add_argument("--kill", type=int, help="kill the worker of this shard once, and compare with one process")
    flags = vars(parser.parse_args())
    return Images(**{name: flags[name] for name in vars(Images())}), flags["workers"], flags["kill"]


def tell(monoid: Images, total: Sums, seconds: float, killed: bool | None) -> None:
    """Prints the result as JSON; `killed`: whether a worker was killed, None without --kill."""
    facts = {"images": int(total["counts"].sum()), "seconds": round(seconds, 1), "accuracy": monoid.accuracy(total)}
    if killed is not None:
        facts |= {"killed": killed, "same_bits": same_bits(total, fold(monoid))}
    print(json.dumps(facts))
