"""Statistics folded by Ray tasks, one of which is killed and repeated, against one process.

pip install ray==2.60.0
python ray_statistics.py [WORKERS]
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import ray
from fold import Accumulator, Parts, compute_and_die, fold, same_bits

from tangent_jax.solver import Statistics

HERE = Path(__file__).parent


def start(workers: int) -> None:
    """Starts Ray on this machine, without a dashboard, and with this folder for its workers to import from."""
    paths = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    environment = {"env_vars": {"PYTHONPATH": paths, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}}
    settings = {"include_dashboard": False, "object_store_memory": 1 << 27, "log_to_driver": False}
    ray.init(num_cpus=workers, runtime_env=environment, **settings)


@ray.remote(max_retries=3)
def compute(monoid: Parts, name: str, marks: str = "", killed: str = "") -> Accumulator:
    """The accumulator of one shard; the worker of `killed` is killed once, after its work and before its answer."""
    if name == killed and not (Path(marks) / name).exists():
        compute_and_die(monoid, name, Path(marks) / name)
    return monoid.add(monoid.zero(), name)


@ray.remote
def merge(monoid: Parts, a: Accumulator, b: Accumulator) -> Accumulator:
    """Both accumulators."""
    return monoid.merge(a, b)


def fold_by_ray(monoid: Parts, names: list[str], killed: str = "", marks: str = "") -> Statistics:
    """The sum of these shards, by a tree of tasks; `start` has started Ray."""
    parts = [compute.remote(monoid, name, marks, killed) for name in names]
    while len(parts) > 1:
        pairs = [merge.remote(monoid, *parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return monoid.finish(ray.get(parts[0]))


def main() -> None:
    monoid = Parts()
    start(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    with tempfile.TemporaryDirectory() as marks:
        total = fold_by_ray(monoid, monoid.names, monoid.names[3], marks)
        was_killed = bool(os.listdir(marks))
    ray.shutdown()
    alone = fold(monoid, monoid.names)
    result = {"examples": total.counts.sum(), "killed": was_killed, "same_bits": same_bits(total, alone)}
    print(json.dumps({**result, "accuracy": monoid.accuracy(total)}))


if __name__ == "__main__":
    main()
