"""Canaries: examples that an audit adds to a run, each by a secret coin; and the run's released steps.

    coins.json     a 0 or a 1 for each canary, drawn from entropy before the first step; a killed run reads them again
    steps/T.dw     dw_T, as the attacker sees it

During the run the coins are as secret as the images beside them; the trainer reads both. Afterwards they may be
published, as they say nothing about an image. Scores may not be published: with the released steps they reveal, without
noise, the images' part along each canary.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, instance, whole_number
from tangent_jax.core.notation import Tree
from tangent_jax.core.rows import Parts, Rows
from tangent_jax.io import hosts
from tangent_jax.io.files import make_private, write_whole
from tangent_jax.io.records import read_sealed, seal_fields
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.train.batches import Batches, as_batches
from tangent_jax.train.run import OnStep, Row

FEWEST = 20
"""The fewest canaries of one run: if all are guessed right, they prove an epsilon of 1."""


def make_canaries(data: Any, classes: int, count: int) -> Batches:
    """Canaries for an audit: normal draws as features, with labels of all classes in equal numbers.

    They are public and the same at every call, drawn by a seed, and come from no image. In hundreds of dimensions their
    clipped gradients are nearly orthogonal, and small beside the noise in every dimension.

    Args:
        data: Features or Batches, for the shape and dtype of an input.
        count: 20 or more.

    Raises:
        InputError: Inputs that are not floats, or too few canaries.

    >>> canaries = tj.audit.make_canaries(demo.train, classes=3, count=20)
    >>> canaries.inputs.shape
    (20, 6)
    """
    inputs, rng = as_batches(data).inputs, np.random.default_rng(0)
    whole_number("count", count, FEWEST)
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise InputError(
            f"inputs must be floats to draw canaries for them; got {inputs.dtype}. Draw canaries of your own as "
            "Batches(inputs, targets)."
        )
    x = rng.standard_normal((count, *inputs.shape[1:]), np.float32).astype(inputs.dtype)
    return Batches(x, rng.permutation(np.arange(count) % classes), batch_size=64)


def check_canaries(images: Batches, canaries: Any) -> None:
    """Raises InputError for canaries of another kind than the images, too few or too many."""
    do = "Pass Batches(inputs, targets): a canary needs a label"
    instance("canaries", canaries, Batches, do)
    n, m = len(images), len(canaries)
    if not FEWEST <= m <= n:
        raise InputError(f"canaries must be {FEWEST} to {n}, at most one for each example; got {m}.")
    kinds = [(b.inputs.shape[1:], b.inputs.dtype, b.targets.shape[1:]) for b in (images, canaries)]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"canaries must have inputs of the data's kind, {kinds[0][1]}{kinds[0][0]}; got {kinds[1][1]}{kinds[1][0]}."
        )


class Audit(NamedTuple):
    """The observations of an attacker on a private run.

    Attributes:
        scores: One for each canary, computed without the coins, "m".
        coins: True if the canary was in, "m".

    >>> tj.audit.Audit(scores=np.array([2.0, -1.0]), coins=np.array([True, False])).coins.sum()
    np.int64(1)
    """

    scores: np.ndarray
    coins: np.ndarray


class Audited(NamedTuple):
    """The account of an audited run, and what its attacker saw: `info` of what `fit_audited` returns.

    >>> canaries = tj.audit.make_canaries(demo.train, classes=3, count=20)
    >>> mechanism = tj.make_mechanism(8.0, 1e-2, steps=3)
    >>> fitted = tj.audit.fit_audited(demo.predict, demo.train, canaries, mechanism=mechanism, folder=demo.folder())
    >>> fitted.info.spent.steps_paid
    3
    """

    spent: Spent
    audit: Audit


def parts_of(images: Batches, canaries: Batches, coins: np.ndarray) -> tuple[Batches, Batches, Batches]:
    """(the images with the canaries that are in, the images, all canaries), sharing one copy on the device."""
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
    """The fair coins of a run, "m": from the file, else from the operating system's entropy, then written to the file.

    Raises:
        InputError: An altered file, or one with another number of coins.
    """

    def read() -> np.ndarray:
        if not path.exists():
            bits = np.unpackbits(np.frombuffer(os.urandom(count), np.uint8))[:count]
            write_whole(path, seal_fields({"coins": "".join(map(str, bits))}), private=True)
        do = "Choose another folder"
        content: Coins = read_sealed(Coins, path, do)
        if len(content.coins) != count:
            raise InputError(f"{path} must hold {count} coins; got {len(content.coins)}. {do}.")
        return np.array([coin == "1" for coin in content.coins])

    return hosts.from_writer(read)


@dataclasses.dataclass(frozen=True)
class Released:
    """An `on_step` that writes every released dw to a folder, and then calls another."""

    folder: Path
    then: OnStep | None

    def __call__(self, row: Row, dw: Tree) -> Mapping[str, float] | None:
        flat = placement.on_host(ravel_pytree(dw)[0])
        hosts.in_writer(lambda: write_whole(make_private(self.folder) / self.path(row).name, flat.tobytes(), True))
        return self.then(row, dw) if self.then else None

    @property
    def name(self) -> Any:
        """The other `on_step`'s name, which identifies its values."""
        return getattr(self.then, "name", None)

    def path(self, row: Row) -> Path:
        """The file of a row's step."""
        return self.folder / f"{row['step']}.dw"

    def steps(self, dw: Tree, rows: Iterable[Row]) -> Iterator[Tree]:
        """Yields the released steps of these rows, in the shapes of dw, without those that a kill undid."""
        flat, unravel = ravel_pytree(dw)

        def read(path: Path) -> np.ndarray:
            whole = path.exists() and path.stat().st_size == flat.nbytes
            if not whole:
                raise InputError(
                    f"the released step {path} must be there, and undamaged; it is not. Audit another run."
                )
            return np.frombuffer(path.read_bytes(), flat.dtype)

        for row in rows:
            yield unravel(jnp.asarray(hosts.from_writer(partial(read, self.path(row)))))
