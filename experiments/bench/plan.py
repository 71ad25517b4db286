"""Compares the memory that --plan predicts with that of the run, on random inputs, in a new process.

The last line of stdout: {"planned_bytes", "measured_bytes": the process's peak above what it took once JAX had
started, "ratio", "process_bytes": that start, "plan": the plan's line}.
"""

import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jax
import numpy as np

import tangent_jax as tj
from experiments.shared.table import define
from tangent_jax.commands.shared import command, plan, setup
from tangent_jax.commands.shared.flags import COMPUTE, MODEL, OPTIMUM, TRAINING, F

NAMES = (*MODEL, *COMPUTE, *TRAINING, *OPTIMUM, "method", "subset", "blocks", "rank", "lr", "seed", "topology")
define(*NAMES, weights="random:L/16", batch_size=128, epochs=1, out="out/bench_plan")
define(steps=4)
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


def main() -> None:
    recipe = setup.recipe()
    count = F.steps * F.batch_size
    planned = plan.plan_of(recipe, CLASSES, count)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        start, most = pool.submit(run_once, recipe, CLASSES, count).result()
    print(f"planned {planned['training_peak_bytes']:,} bytes, measured {most - start:,}", file=sys.stderr)
    result = {"planned_bytes": planned["training_peak_bytes"], "measured_bytes": most - start}
    result |= {"ratio": (most - start) / planned["training_peak_bytes"], "process_bytes": start, "plan": planned}
    command.finish(result)


if __name__ == "__main__":
    command.run(main)
