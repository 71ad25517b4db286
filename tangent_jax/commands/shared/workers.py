"""Shard models on many machines: each worker trains some groups of shards; afterwards one process composes them.

    --worker=I/N        train the groups whose number is I modulo N, and exit

The groups of all stores of a command are numbered consecutively. The shards alone decide the groups, so a component has
the same bits whichever worker trains it.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tangent_jax.commands.shared.shards import Method
from tangent_jax.core.checks import InputError


class Work(NamedTuple):
    """A store that a command reads, and the shards of its components."""

    method: Method
    rows: dict[str, np.ndarray]
    title: str
    with_factors: bool = False


def parse_worker(text: str) -> tuple[int, int]:
    """(I, N) of --worker=I/N."""
    given = re.fullmatch(r"(\d+)/(\d+)", text)
    if given is None or int(given[1]) >= int(given[2]):
        raise InputError(
            f"--worker must be I/N with I in 0..N-1; got {text}. To submit one task of an array again, set WORKERS=N, "
            "the number of all workers (job.sbatch)"
        )
    return int(given[1]), int(given[2])


def train_own(worker: tuple[int, int], work: Sequence[Work]) -> None:
    """Trains the groups of worker (I, N), and prints their number in the last line of stdout."""
    index, workers = worker
    counts = [len(part.method.groups(part.rows)) for part in work]
    if workers > sum(counts):
        raise InputError(
            f"N of --worker must be at most {sum(counts)}, the number of groups of shards; got {workers}. Start fewer "
            "workers, or lower --at_once"
        )
    first = 0
    trained = 0
    for part, count in zip(work, counts, strict=True):
        own = {group for group in range(count) if (first + group) % workers == index}
        if own:
            part.method.store(part.rows, part.title, part.with_factors, own)
        first += count
        trained += len(own)
    print(json.dumps({"worker": index, "workers": workers, "groups": trained}))
