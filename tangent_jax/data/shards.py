"""Shards: disjoint sets of rows that together hold every example."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tangent_jax.core import require
from tangent_jax.core.records import read_text


def uniform(count: int, shards: int, seed: int) -> list[np.ndarray]:
    """Equal shards of a seeded shuffle (the paper's); adding or removing an example moves others.

    Returns: `shards` sorted arrays of rows of 0..count-1; sizes differ by at most one.
    """
    require(1 <= shards <= count, "uniform", f"shards in 1..{count}", shards)
    return [np.sort(rows) for rows in np.array_split(np.random.default_rng(seed).permutation(count), shards)]


def by_identifier(identifiers: Sequence[str], shards: int) -> list[np.ndarray]:
    """Shards by the content identifier: no other example moves when one comes or goes.

    Returns: `shards` sorted arrays of rows; sizes differ by chance, and one may be empty. Copies of one content
    share a shard.
    """
    require(shards >= 1, "by_identifier", "shards >= 1", shards)
    return grouped(np.array([int(name[:16], 16) % shards for name in identifiers], np.int64), shards)


def by_class(labels: np.ndarray, shards: int) -> list[np.ndarray]:
    """Shards of whole classes: class c goes to shard c modulo `shards`.

    Args:    labels: class indices, "n".
    Returns: `shards` sorted arrays of rows.
    """
    classes = len(np.unique(labels))
    require(1 <= shards <= classes, "by_class", f"shards in 1..{classes}, the number of classes", shards)
    return grouped(np.unique(labels, return_inverse=True)[1] % shards, shards)


def by_owner(names: Sequence[str], table: str | os.PathLike) -> dict[str, np.ndarray]:
    """One shard per contributor: `table` is a CSV of file,owner (a header is skipped), owners in sorted order.

    A file is named as the data set names it, or by its last part where that is unambiguous.
    Raises: InputError for an example without an owner, or a file with two.
    """
    rows = [row for row in csv.reader(read_text("by_owner", Path(table)).splitlines()) if row]
    require(all(len(row) >= 2 for row in rows), "by_owner", f"file,owner in every line of {table}", "a shorter one")
    owners: dict[str, str] = {}
    for name, owner, *_ in rows:
        require(owners.setdefault(name, owner) == owner, "by_owner", f"one owner of {name}", f"two in {table}")
    last = [Path(name).name for name in names]
    alone = {name for name in set(last) if last.count(name) == 1} if len(set(last)) < len(last) else set(last)
    pairs = zip(names, last, strict=True)
    owner_of = [owners.get(name, owners.get(end) if end in alone else None) for name, end in pairs]
    for name, owner in zip(names, owner_of, strict=True):
        require(owner is not None, "by_owner", f"an owner of every example in {table}", f"none of {name}")
    return {owner: np.flatnonzero([o == owner for o in owner_of]) for owner in sorted({*map(str, owner_of)})}


def dirichlet(labels: np.ndarray, shards: int, concentration: float, seed: int) -> list[np.ndarray]:
    """Imbalanced shards: each class is divided in proportions Dirichlet(concentration, ..., concentration).

    Source:  Hsu et al. 2019.
    Args:    labels: class indices, "n"; concentration: small ones give shards of few classes.
    Returns: `shards` sorted arrays of rows, some perhaps empty.
    """
    require(shards >= 1, "dirichlet", "shards >= 1", shards)
    require(concentration > 0, "dirichlet", "concentration > 0", concentration)
    rng, shard = np.random.default_rng(seed), np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(rng.dirichlet([concentration] * shards))[:-1] * len(rows)).astype(int)
        for s, part in enumerate(np.split(rows, cuts)):
            shard[part] = s
    return grouped(shard, shards)


def grouped(shard: np.ndarray, shards: int) -> list[np.ndarray]:
    """The rows of each shard, sorted; shard: the shard of each row, "n"."""
    return [np.flatnonzero(shard == s) for s in range(shards)]


def check_disjoint(shards: Sequence[np.ndarray], count: int) -> None:
    """Raises InputError unless every row of 0..count-1 is in exactly one shard."""
    times = np.zeros(count, int)
    for rows in shards:
        np.add.at(times, rows, 1)
    wrong = np.flatnonzero(times != 1)
    require(not len(wrong), "check_disjoint", "every example in one shard", f"row {wrong[:1]} in {times[wrong[:1]]}")
