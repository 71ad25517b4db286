"""Canaries: examples that an audit adds to a run's own, each by a secret coin; and the steps that the run releases.

    coins.json     a 0 or a 1 for each canary, drawn of entropy before the first step: a run that was killed reads them
    steps/T.dw     dw_T, as the attacker sees it

The coins are as secret as the images beside them: the trainer reads both. Once the run is over they may be published,
and tell nothing of an image. Scores may not: with the released steps they tell, without noise, what the images add
along each canary.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tangent_jax.core import Tree, expect, instance, placement, require, whole_number
from tangent_jax.core.boundary import public
from tangent_jax.core.files import make_private, write_whole
from tangent_jax.core.records import read_sealed, seal_fields
from tangent_jax.core.rows import Parts, Rows
from tangent_jax.train.batches import Batches, as_batches
from tangent_jax.train.checkpoints import Row
from tangent_jax.train.run import OnStep

FEWEST = 20
"""The fewest canaries of one run: all guessed right, they prove an epsilon of 1."""


@public
def make_canaries(data: Any, classes: int, count: int) -> Batches:
    """Canaries for an audit: normal draws as features, and labels of all classes in equal number.

    They are public, and the same at every call: a seed draws them. They come of no image. In hundreds of dimensions
    their clipped gradients are nearly orthogonal, and their sum is little beside noise in every dimension.

    Args:   data: Features or Batches, for the shape and the dtype of an input; count: how many, 20 or more.
    Raises: InputError for inputs that are no floats, or fewer canaries.
    """
    inputs, rng = as_batches(data).inputs, np.random.default_rng(0)
    whole_number("count", count, FEWEST)
    do = "Draw canaries of your own as Batches(inputs, targets)"
    expect(jnp.issubdtype(inputs.dtype, jnp.floating), "inputs that are floats", inputs.dtype, do)
    x = rng.standard_normal((count, *inputs.shape[1:]), np.float32).astype(inputs.dtype)
    return Batches(x, rng.permutation(np.arange(count) % classes), batch_size=64)


def check_canaries(images: Batches, canaries: Any) -> None:
    """Raises InputError for canaries that cannot stand among the images, too few or too many."""
    do = "Pass Batches(inputs, targets): a canary needs a label"
    instance("canaries as Batches", canaries, Batches, do)
    n, m = len(images), len(canaries)
    expect(FEWEST <= m <= n, f"{FEWEST} to {n} canaries, at most one for each example", m)
    kinds = [(b.inputs.shape[1:], b.inputs.dtype, b.targets.shape[1:]) for b in (images, canaries)]
    expect(kinds[0] == kinds[1], f"canaries of {kinds[0][1]}{kinds[0][0]}, as the data", kinds[1])


def parts_of(images: Batches, canaries: Batches, coins: np.ndarray) -> tuple[Batches, Batches, Batches]:
    """(the images and the canaries that are in, the images, all canaries), of one copy on the device."""
    inputs = Parts([Rows(images.inputs, images.rows), Rows(canaries.inputs, canaries.rows)])
    targets = np.concatenate([images.targets[images.rows], canaries.targets[canaries.rows]])
    whole, n = Batches(inputs, targets), len(images)
    every = np.arange(n, len(whole))
    rows = np.concatenate([np.arange(n), every[coins]]), np.arange(n), every
    size: Any = {"batch_size": images.batch_size, "resident_bytes": images.resident_bytes, "device": whole.device}
    together, alone, others = (Batches(inputs, targets, rows=part, **size) for part in rows)
    return together, alone, others


@dataclasses.dataclass(frozen=True)
class Coins:
    """The record of coins.json: a 0 or a 1 for each canary."""

    coins: str


def secret_coins(path: Path, count: int) -> np.ndarray:
    """The fair coins of a run, "m": those of the file, else of the operating system's entropy, and then in the file.

    Raises: InputError for a file that was altered, or holds another number of coins.
    """

    def read() -> np.ndarray:
        if not path.exists():
            bits = np.unpackbits(np.frombuffer(os.urandom(count), np.uint8))[:count]
            write_whole(path, seal_fields({"coins": "".join(map(str, bits))}), private=True)
        do = "Choose another folder"
        content: Coins = read_sealed(Coins, "fit_audited", path, do)
        require(len(content.coins) == count, "fit_audited", f"{count} coins in {path}", len(content.coins), do)
        return np.array([coin == "1" for coin in content.coins])

    return placement.from_writer(read)


@dataclasses.dataclass(frozen=True)
class Released:
    """An `on_step` that writes every released dw to a folder, and then calls another."""

    folder: Path
    then: OnStep | None

    def __call__(self, row: Row, dw: Tree) -> Mapping[str, float] | None:
        flat = placement.on_host(ravel_pytree(dw)[0])
        placement.in_writer(lambda: write_whole(make_private(self.folder) / self.path(row).name, flat.tobytes(), True))
        return self.then(row, dw) if self.then else None

    @property
    def name(self) -> Any:
        """The other's name, by which its values are known again."""
        return getattr(self.then, "name", None)

    def path(self, row: Row) -> Path:
        """The file of a row's step."""
        return self.folder / f"{row['step']}.dw"

    def steps(self, dw: Tree, rows: Iterable[Row]) -> Iterator[Tree]:
        """Yields the released steps of these rows, of the shapes of dw: not those that a kill took back."""
        flat, unravel = ravel_pytree(dw)

        def read(path: Path) -> np.ndarray:
            whole = path.exists() and path.stat().st_size == flat.nbytes
            require(whole, "fit_audited", f"the released step {path}", "none, or a damaged one", "Audit another run")
            return np.frombuffer(path.read_bytes(), flat.dtype)

        for row in rows:
            yield unravel(jnp.asarray(placement.from_writer(partial(read, self.path(row)))))
