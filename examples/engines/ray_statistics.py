"""Sums of features by Ray tasks: one for each shard, and one for each block of the tree of `fold`.

pip install ray==2.60.0
python ray_statistics.py --dataset=folder:PHOTOS --weights=FILE --shards=8 --workers=2
python ray_statistics.py --kill=3          # on digits: a worker is killed, and its task repeated

With workers on several machines, all see the data set, the weights and the cache under the same names.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import ray
from fold import Accumulator, Sums, Tree, compute_and_die, parse, tell

HERE = Path(__file__).parent


def start(workers: int) -> None:
    """Starts Ray on this machine, without a dashboard, and with this folder for its workers to import from."""
    paths = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    environment = {"env_vars": {"PYTHONPATH": paths, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}}
    settings = {"include_dashboard": False, "object_store_memory": 1 << 30, "log_to_driver": False}
    ray.init(num_cpus=workers, runtime_env=environment, **settings)


@ray.remote(max_retries=3)
def compute(monoid: Tree, shard: int, mark: Path | None = None) -> Accumulator:
    """The accumulator of one shard; its worker is killed once if there is no file `mark` yet, before it answers."""
    if mark and not mark.exists():
        compute_and_die(monoid, shard, mark)
    return monoid.add(monoid.zero(), shard)


@ray.remote(max_retries=3)
def merge(monoid: Tree, a: Accumulator, b: Accumulator) -> Accumulator:
    """Both accumulators."""
    return monoid.merge(a, b)


def fold_by_ray(monoid: Tree, killed: int | None = None, mark: Path | None = None) -> Sums:
    """The sum of all shards; `start` has started Ray.

    A task takes two sums and gives one, and as many shards are under way as two for each worker: so few sums wait in
    Ray's store.
    """
    most = 2 * int(ray.cluster_resources()["CPU"])
    blocks: list[tuple[int, ray.ObjectRef]] = []  # (shards, their accumulator), the digits of a binary counter
    under_way: list[ray.ObjectRef] = []
    for shard in range(monoid.shards):
        under_way.append(compute.remote(monoid, shard, mark if shard == killed else None))
        blocks.append((1, under_way[-1]))
        while len(blocks) > 1 and blocks[-2][0] == blocks[-1][0]:
            join(monoid, blocks)
        if len(under_way) == most:
            under_way = ray.wait(under_way)[1]
    while len(blocks) > 1:
        join(monoid, blocks)
    return monoid.total(ray.get(blocks[0][1]))


def join(monoid: Tree, blocks: list[tuple[int, ray.ObjectRef]]) -> None:
    """Makes the last two accumulators one."""
    (right, b), (left, a) = blocks.pop(), blocks.pop()
    blocks.append((left + right, merge.remote(monoid, a, b)))


def main() -> None:
    monoid, workers, kill = parse(__doc__)
    start(workers)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "killed"
        total = fold_by_ray(monoid, kill, mark)
        killed = None if kill is None else mark.exists()
    seconds = time.monotonic() - began
    ray.shutdown()
    tell(monoid, total, seconds, killed)


if __name__ == "__main__":
    main()
