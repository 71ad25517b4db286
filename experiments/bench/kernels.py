"""The programs of the main jobs as a GPU would run them, compiled without one: kernels, memory, seconds to compile.

XLA compiles for a GPU that is not there; only JAX's plugin is needed:

    pip install '.[cuda12]'
    JAX_PLATFORMS=cpu python -m experiments.bench kernels

Kernels of a training step are those of one round of its loop: on a GPU a step of one block is so short that their
number decides its time. Those of a private step are of its clipped sum and its update; loops of the discrete noise
count once. Two things are not as on the device: which kernels are fastest cannot be tried out, so products take other
forms; and attention forms its matrix, as JAX asks the device for cuDNN.

The last line of stdout: {"kernels": {PROGRAM: {"kernels", "mebibytes": temporary memory, "seconds": to compile}}}.
"""

import dataclasses
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec, Sharding

import tangent_jax as tj
from experiments.shared import operations, steps
from experiments.shared.steps import Step
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results
from tangent_jax.core.checks import InputError
from tangent_jax.io.progress import check_stop, progress_bar

H200 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
runtime_version { major: 12 minor: 9 patch: 0 }
dnn_version_info { major: 9 minor: 10 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  l2_cache_size: 52428800
  memory_bandwidth: 4800000000000
  device_memory_size: 150000000000
}
"""
"""The GPU, as XLA's compiler needs to know it."""
KERNEL = r"[ \]})](fusion|custom-call|copy|reduce|sort|scatter|gather|dynamic-update-slice)(-start)?\("
"""An instruction that the device runs as a kernel of its own."""
OPTIONS: Any = {"xla_gpu_autotune_level": 0}  # trying kernels out needs the device


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    batch_size: int = 32
    out: str = "out/bench_kernels"
    size: str = "L"


def programs(size: str, batch: int) -> dict[str, Callable[[], Step]]:
    """The programs by name; bfloat16 where no other dtype is named."""
    layout = tj.models.vit_config(operations.named(size), classes=operations.CLASSES)
    whole, last = (partial(operations.random_vit, config) for config in (layout, layout.replace(depth=1)))
    half = jnp.bfloat16

    def fit_step(make: Callable[..., tj.Predictor], dtype: Any) -> Step:
        predict = make(last(), 1, dtype=dtype)
        return operations.fit_step(predict, predict.zeros(), *operations.inputs_of(predict, batch, dtype), loop=2)

    def private_step(noise: Any) -> Step:
        predict = tj.tangent(last(), output="tangent")
        mechanism = dataclasses.replace(operations.MECHANISM, noise=noise)
        return operations.private_step(None, predict, predict.zeros(), *operations.inputs_of(predict, batch), mechanism)

    def trunk() -> Step:
        predict = tj.tangent(whole(), 1, dtype=half)
        return steps.trunk(predict, np.zeros((batch, *predict.model.input_shape(0)), np.uint8))

    def rows(parts: tuple[str, ...]) -> Step:
        return steps.rows(tj.models.feature_map(whole(), parts).in_dtype(half), batch)

    return {
        "trunk": trunk,
        "TAFT-1 step": partial(fit_step, tj.tangent, half),
        "TAFT-1 step, float32": partial(fit_step, tj.tangent, jnp.float32),
        "NLFT-1 step": partial(fit_step, tj.nonlinear, half),
        "private step, float32": partial(private_step, "gaussian"),
        "private step, float32, discrete noise": partial(private_step, "discrete"),
        "features of `place`": partial(rows, ("h", "place")),
        "features of `exact`, from the trunk's": partial(rows, ("h", "ntk", "place")),
    }


def without_device() -> NamedSharding:
    """The placement of arrays on the GPU that is not there; InputError without a compiler for it."""
    try:
        topology = topologies.get_topology_desc("1x1x1", "cuda", target_config=H200, topology="1x1x1")
    except Exception as error:  # of JAX or its plugin: none, or one for another version
        raise InputError(
            f"JAX must have its plugin for CUDA, and JAX_PLATFORMS must be cpu; got {type(error).__name__}. Try "
            "pip install '.[cuda12]' and JAX_PLATFORMS=cpu python -m experiments.bench kernels"
        ) from error
    return NamedSharding(topologies.make_mesh(topology, (1,), ("examples",)), PartitionSpec())


def measure(step: Step, placed: Sharding) -> dict[str, Any]:
    """The kernels, temporary MiB and seconds to compile of a program."""

    def shape_of(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array | np.ndarray)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed) if is_array else leaf

    lowered = jax.jit(step.run).lower(*jax.tree.map(shape_of, step.arguments))
    began = time.perf_counter()
    program: Any = lowered.compile(compiler_options=OPTIONS)
    seconds = time.perf_counter() - began
    memory = program.memory_analysis().temp_size_in_bytes / 2**20
    return {"kernels": kernels_of(program.as_text()), "mebibytes": round(memory), "seconds": round(seconds, 1)}


def kernels_of(text: str) -> int:
    """The kernels of a compiled program; of its loop's body alone, if that has more than the program around it."""
    bodies = {*re.findall(r"body=%?([\w.\-]+)", text)}
    counts: dict[str, int] = {}
    name = ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = head[2] if head[1] or head[2] in bodies else ""
        elif name and re.search(KERNEL, line):
            counts[name] = counts.get(name, 0) + 1
    largest = max(counts, key=lambda name: counts[name], default="")
    return counts[largest] if largest in bodies else sum(counts.values())


def main(config: Config) -> None:
    placed = without_device()
    command.out_folder(config)
    found = {}
    wanted = programs(config.size, config.batch_size)
    with tj.show_progress("compile"), progress_bar(len(wanted), "program") as bar:
        for name, make in wanted.items():
            check_stop()
            found[name] = measure(make(), placed)
            bar.update()
    cells = [[name, *row.values()] for name, row in found.items()]
    command.write_table(config, "kernels", ["program", "kernels", "MiB", "seconds to compile"], cells)
    command.finish(config, {"kernels": found})


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
