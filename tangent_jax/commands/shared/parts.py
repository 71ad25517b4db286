"""Shard models trained in parts, each by a process of its own, on any machine; afterwards one process takes them over.

    --shard=I/N        train part I of N: the groups whose number is I modulo N, into STORE/part-I-of-N, and exit

The groups of all stores of a command are numbered consecutively. The shards alone decide the groups, so a component has
the same bits whichever part trains it.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tangent_jax.commands.shared.shards import Method


class Work(NamedTuple):
    """A store that a command reads, and the shards of its components."""

    method: Method
    rows: dict[str, np.ndarray]
    title: str
    with_factors: bool = False


def train_part(part: tuple[int, int], work: Sequence[Work]) -> None:
    """Trains the groups of part (I, N), and prints their number in the last line of stdout."""
    index, parts = part
    first = trained = 0
    for method, rows, title, with_factors in work:
        count = len(method.shards(rows).groups())
        own = {group for group in range(count) if (first + group) % parts == index}
        if own:
            whole = method.path(title)
            folder = whole.parent / f"part-{index}-of-{parts}" / whole.name
            method.fill(folder, rows, with_factors, only=own)
        first += count
        trained += len(own)
    print(json.dumps({"shard": index, "of": parts, "groups": trained}))
