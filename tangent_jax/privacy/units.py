"""Micro-batches of protected units: single examples, or owners, each within one micro-batch.

An owner's examples are contiguous, padded by repeats to a power of two. So owners of 1 to 100 examples make at most 8
shapes, and rows at most double. A micro-batch has at most the batch size of rows, which bounds its memory; an owner
with more examples is refused.
"""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.train.batches import Batches, Chunk, as_batches, as_owners

MICRO_BATCH = 64  # rows, unless an owner has more
READ = 1024  # rows that are read at once to look for copies


def as_units(data: Any, mechanism: Mechanism) -> tuple[Batches, Any]:
    """(the data in micro-batches, the rows of each unit: of each owner, or each row by itself).

    Raises:
        InputError: If the unit is an owner, and the owner of an example is unknown or has more examples than a
            micro-batch.
    """
    if mechanism.unit == "example":
        batches = as_batches(data, MICRO_BATCH)
        copies = most_copies(data, batches)
        if copies > 1:
            warnings.warn(f"an example has {copies} copies: epsilon protects one of them, not all.", stacklevel=4)
        return batches, batches.rows[:, None]
    if getattr(data, "owners", None) is None:
        raise InputError(
            "data must name the owner of every example; got none."
            " Pass Batches(..., owners=names), or features with owners."
        )
    owners = as_owners(data.owners, len(data.targets))
    batches = as_batches(data, max([MICRO_BATCH, *Counter(owners.tolist()).values()]))
    names, owner_of = np.unique(np.asarray(batches.owners)[batches.rows], return_inverse=True)
    order = np.argsort(owner_of, kind="stable")
    units = np.split(batches.rows[order], np.cumsum(np.bincount(owner_of))[:-1])
    largest = max(range(len(units)), key=lambda i: len(units[i]))
    count, size = len(units[largest]), batches.batch_size
    if count > size:
        raise InputError(
            f"owners must have at most {size} examples, a micro-batch; got {count} of {names[largest]}."
            f" An owner is never divided: pass batch_size={count}, or fewer examples."
        )
    return batches, units


def most_copies(data: Any, batches: Batches) -> int:
    """The most copies of one example: by the content identifiers of Features, or by the inputs of Batches."""
    if hasattr(data, "examples"):
        return max(Counter(identifier for identifier, _ in data.examples).values(), default=0)
    parts = (batches.inputs[batches.rows[start : start + READ]] for start in range(0, len(batches), READ))
    return max(Counter(digest(row) for part in parts for row in np.asarray(part)).values())


def digest(row: np.ndarray) -> bytes:
    """The SHA-256 of a row's bytes."""
    return hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest()


def sample(units: int, mechanism: Mechanism, seed: int | None, step: int) -> np.ndarray:
    """True for each unit in a step: all units, or each with probability q, independently."""
    if mechanism.sampling_rate == 1:
        return np.ones(units, bool)
    entropy = placement.agree(np.frombuffer(os.urandom(16), np.uint32)) if seed is None else [seed, step]
    return np.random.default_rng(entropy).random(units) < mechanism.sampling_rate


def sample_chunks(batches: Batches, mechanism: Mechanism, units: Any, seed: int | None, step: int) -> Iterator[Chunk]:
    """Yields the units of a step, in chunks of micro-batches."""
    for part in micro_batches(batches, mechanism, units, sample(len(units), mechanism, seed, step)):
        yield from batches.chunks(*part)


def micro_batches(
    batches: Batches, mechanism: Mechanism, units: Any, chosen: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (order, present) of the chosen units, by shape: "k b" and "k b" of examples; "k b" and "k o e" of owners.

    There is at least one micro-batch, which may be empty; chosen: True for each unit of the step.
    """
    if mechanism.unit == "example":
        yield batches.pad(batches.rows[chosen])
        return
    widths = np.array([min(1 << (len(rows) - 1).bit_length(), batches.batch_size) for rows in units])
    for width in np.unique(widths):
        members = np.flatnonzero(widths == width)
        count = min(batches.batch_size // width, len(members))  # owners of one micro-batch, for any choice of units
        taken = members[chosen[members]]
        if len(taken) or width == widths.min():
            order = np.zeros((-(-max(len(taken), 1) // count) * count, width), np.int32) + units[members[0]][0]
            present = np.zeros(order.shape, np.float32)
            for i, owner in enumerate(taken):
                order[i] = np.resize(units[owner], width)  # padding repeats the owner's rows, as others may hold NaN
                present[i, : len(units[owner])] = 1
            yield order.reshape(-1, count * width), present.reshape(-1, count, width)
