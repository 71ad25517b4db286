"""Compares the memory that --plan predicts with that of the run, on random inputs, in a new process.

The last line of stdout: {"planned_bytes", "measured_bytes": the process's peak above what it took once JAX had
started, "ratio", "process_bytes": that start, "plan": the plan's line}.
"""

import dataclasses
import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jax
import numpy as np

import tangent_jax as tj
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, plan, setup
from tangent_jax.commands.shared.settings import Compute, Model, Optimum, Results, Training
from tangent_jax.store.recipe import FLAT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Compute, Training, Optimum, Results):
    """The flags."""

    batch_size: int = 128
    blocks: int = FLAT["blocks"]
    epochs: int = 1
    lr: float = FLAT["learning_rate"]
    method: str = FLAT["method"]
    out: str = "out/bench_plan"
    rank: int = FLAT["rank"]
    seed: int = FLAT["seed"]
    steps: int = 4
    subset: str = FLAT["kind"]
    topology: str | None = None
    weights: str = "random:L/16"


CLASSES = 10  # classes of the random targets


def resident() -> int:
    """The bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def run_once(recipe: tj.Recipe, classes: int, count: int) -> tuple[int, int]:
    """Trains on random inputs; returns the process's bytes at the start and at the peak."""
    jax.block_until_ready(jax.numpy.zeros(()))
    start = resident()
    rng = np.random.default_rng(0)
    predict = recipe.predictor(classes)
    shape = (count, *predict.model.input_shape(predict.subset.stage))
    inputs = rng.standard_normal(shape, np.float32)
    targets = rng.integers(0, classes, count)
    recipe.fit(predict, tj.Features(inputs, targets, ()))
    return start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(config: Config) -> None:
    recipe = setup.recipe(config)
    count = config.steps * config.batch_size
    planned = plan.plan_of(recipe, CLASSES, count, config.topology)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        start, most = pool.submit(run_once, recipe, CLASSES, count).result()
    print(f"planned {planned['training_peak_bytes']:,} bytes, measured {most - start:,}", file=sys.stderr)
    result = {"planned_bytes": planned["training_peak_bytes"], "measured_bytes": most - start}
    result |= {"ratio": (most - start) / planned["training_peak_bytes"], "process_bytes": start, "plan": planned}
    command.finish(config, result)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
