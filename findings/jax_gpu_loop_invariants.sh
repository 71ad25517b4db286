#!/usr/bin/env bash
# What is constant in a jax.lax.scan is computed once on a CPU; on a GPU in every round: a cast, a sum, a Cholesky factor.
#
# Versions  jax and jaxlib 0.10.2 with jax-cuda12-plugin 0.10.2 (Python 3.11); 0.12.0.1 on 3.12 is the same.
# Valid     scan of 64 rounds over c -> c + g(w) x, w "512 512" the same in all of them, for six g: a cast to bfloat16,
#           exp, w w, column sums, a Cholesky factor, and column sums of exp(w). XLA compiles for an H200 that is not there
#           (jax.experimental.topologies), and for this machine's CPU.
# Seen      XLA's CPU compiler moves all six g(w) before the loop, whose body reads the results. Its GPU compiler moves none:
#           each g(w) is in the loop's body. So a program that is timed on a CPU does not show what it repeats on a GPU.
#           (The TPU's, libtpu 0.0.52 for a v5e with jax 0.12.0.1, not run here, moves all but the Cholesky factor.)
# So        compute what is constant before the scan. A training step of ViT-L/16's last block cast its frozen weights to
#           bfloat16 in each step: 6 of 136 kernels, and 75 MB of memory traffic of about 600; now once for 64 steps.
#
#     bash findings/jax_gpu_loop_invariants.sh        a minute, 1.2 GB; exit code 0 if it is still so
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 jax-cuda12-plugin==0.10.2 \
  jax-cuda12-pjrt==0.10.2 nvidia-cuda-nvcc-cu12==12.9.86 numpy==2.4.6 2>pip.log || { cat pip.log; exit 2; }
cat > run.py <<'P'
import re

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

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
N, half = 512, jnp.bfloat16
WAYS = {  # what is made of w, and how it is used; the operation, as the compiled program names it
    "cast": (lambda w: w.astype(half), lambda w, x: x.astype(half) @ w, "convert_element_type"),
    "exp": (jnp.exp, lambda w, x: x @ w, "exp"),
    "square": (lambda w: w @ w, lambda w, x: x @ w, None),
    "column sums": (lambda w: w.sum(0), lambda w, x: x * w, "reduce_sum"),
    "sums of exp": (lambda w: jnp.exp(w).sum(0), lambda w, x: x * w, "exp"),
    "cholesky": (jnp.linalg.cholesky, lambda w, x: x @ w, "cholesky"),
}
topology = topologies.get_topology_desc("1x1x1", "cuda", target_config=H200, topology="1x1x1")
there = NamedSharding(topologies.make_mesh(topology, (1,), ("x",)), PartitionSpec())


def loop_body(make, use, placed):
    """The instructions of the compiled loop's body, and of what it calls."""

    def run(w, x):
        def step(c, i):
            return c + use(make(w), x * i).astype(c.dtype), None

        return jax.lax.scan(step, jnp.zeros((4, N)), jnp.arange(64, dtype=jnp.float32))[0]

    w, x = (jax.ShapeDtypeStruct(shape, jnp.float32, sharding=placed) for shape in ((N, N), (4, N)))
    options = {"xla_gpu_autotune_level": 0} if placed else {}
    text = jax.jit(run).lower(w, x).compile(compiler_options=options).as_text()
    called = {}
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            called[name := head[1]] = []
        elif line.startswith("  "):
            called[name].append(line)

    def lines(name):
        for line in called[name]:
            yield line
            for other in re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", line):
                yield from lines(other)

    return list(lines(re.search(r"body=%?([\w.\-]+)", text)[1]))


def is_in(body, operation):
    """Whether these instructions compute make(w)."""
    if operation is None:  # a second product "512 512"
        return any(re.search(rf"\[{N},{N}\]\S* (dot|custom-call|fusion)\(.*dot_general", line) for line in body)
    if operation == "cholesky":
        return any("cholesky" in line for line in body)
    return any(re.search(rf"\[{N},{N}\]|reduce\(", line) and f"/{operation}\"" in line for line in body)


found = {}
for name, (make, use, operation) in WAYS.items():
    for device, placed in (("GPU", there), ("CPU", None)):
        found[device, name] = is_in(loop_body(make, use, placed), operation)
    print(f"jax {jax.__version__}: {name}: in the loop's body for a GPU {found['GPU', name]}, for a CPU {found['CPU', name]}")
assert all(value == (device == "GPU") for (device, _), value in found.items()), found
P
JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=3 venv/bin/python run.py
echo "as described"
