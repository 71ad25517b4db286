"""The tree of `fold` over sums of random numbers: seconds, memory and bits of one merger, without images or an engine.

python simulate.py --shards=1000 --features=4288 --classes=50 --workers=16

Each shard is made when it comes: in order, and as `workers` workers end their shards at random. A line for each order:
the seconds to make all shards and to add them, the most blocks that waited at once, the most memory of the process so
far, and a digest of the total's bits.
"""

import argparse
import dataclasses
import hashlib
import json
import resource
import time
from collections.abc import Iterable

import numpy as np
from fold import Accumulator, Sums, Tree


@dataclasses.dataclass(frozen=True)
class Random(Tree):
    """Sums of the shapes of so many features and classes, of random numbers."""

    features: int = 4288
    classes: int = 50

    def sums(self, shard: int) -> Sums:
        """The random sums of a shard."""
        rng, k = np.random.default_rng(shard), self.features
        return {"gram": rng.random(k * (k + 1) // 2), "sums": rng.random((self.classes, k))}


def ended_at_random(shards: int, workers: int) -> Iterable[int]:
    """The shards as workers end them that start them in order."""
    rng, under_way = np.random.default_rng(0), list(range(min(workers, shards)))
    for later in range(workers, shards):
        at = rng.integers(workers)
        yield under_way[at]
        under_way[at] = later
    yield from rng.permutation(under_way).tolist()


def measure(tree: Tree, order: Iterable[int]) -> dict:
    """What a merger takes if shards come in this order."""
    making, waiting, began = 0.0, 0, time.monotonic()
    accumulator: Accumulator = tree.zero()
    for shard in order:
        start = time.monotonic()
        part = {(0, shard): tree.sums(shard)}
        making += time.monotonic() - start
        accumulator = tree.merge(accumulator, part)
        waiting = max(waiting, len(accumulator))
    adding = time.monotonic() - began - making
    total = tree.total(accumulator)
    digest = hashlib.sha256(b"".join(total[name].tobytes() for name in sorted(total))).hexdigest()[:16]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"making": round(making, 1), "adding": round(adding, 1), "blocks": waiting, "MiB": memory, "bits": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"shards": 1000, "features": 4288, "classes": 50, "workers": 16}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    flags = parser.parse_args()
    tree = Random(flags.shards, flags.features, flags.classes)
    orders = {"in order": range(flags.shards), "by workers": ended_at_random(flags.shards, flags.workers)}
    for name, order in orders.items():
        print(json.dumps({"order": name, **measure(tree, order)}), flush=True)


if __name__ == "__main__":
    main()
