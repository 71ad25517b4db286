"""Speed, memory and FLOPs of the plain and the tangent ViT, forward and training step, in one process.

Operations alternate, round by round, so that a noisy machine slows all alike; figures are medians with the
quartiles' distance. FLOPs, bytes and memory are the compiled program's own. The machine's peak is measured in
the same run: a large matrix product and a large copy. Weights are random: speed does not depend on them.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from tqdm import tqdm

from experiments import binary, pictures
from tangent_jax import subsets, vit
from tangent_jax.config import ViTConfig, vit_config
from tangent_jax.fit import Settings, State, scan_steps
from tangent_jax.linearize import linearize
from tangent_jax.many import scan_many, stacked
from tangent_jax.notation import Tree
from tangent_jax.predict import Predictor
from tangent_jax.tangent_vit import TangentViT

SIZES = flags.DEFINE_list("sizes", ["Ti", "S"], "ViT sizes, of Ti, S, B, L, with patches of 16 at 224 pixels.")
BATCHES = flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Examples per call.")
BLOCKS = flags.DEFINE_list("blocks", ["1", "7"], "Numbers of trained blocks.")
REPEATS = flags.DEFINE_integer("repeats", 7, "Rounds over all operations, at most.", lower_bound=1)
SECONDS = flags.DEFINE_float(
    "max_seconds", 120.0, "Time for the rounds of one size and batch; one round is always run."
)
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Compute dtype; parameters stay float32.")
OUT = flags.DEFINE_string("out", "out/bench", "Folder for result.json, bench.md and roofline.png.")

CLASSES = 200
SETTINGS = Settings(learning_rate=1e-5)


MODELS = 10  # trained at once, against one after another


class Operation(NamedTuple):
    """A compiled program, how to call it (it may replace its state), and how often one call runs it."""

    name: str
    call: Callable[[], Any]
    compiled: Any
    compile_seconds: float
    runs: int = 1


def standard(config: ViTConfig, dtype: Any, w: Tree, x: jax.Array, split: int) -> jax.Array:
    """The tail as everyone writes it: every block on every token, the class token read at the end."""
    for i in range(split, config.depth):
        x = vit.Block(config, dtype).apply({"params": w[f"block_{i}"]}, x)  # pyright: ignore[reportAssignmentType]
    return vit.ViT(config, dtype).apply({"params": w}, x[:, 0], config.depth, method="tail")  # pyright: ignore


def full_block(w: Tree, config: ViTConfig, dtype: Any, split: int, dw: Tree, x: jax.Array) -> jax.Array:
    """The tangent by jax.jvp of the standard tail: what the class query is measured against."""
    return linearize(lambda w, x: standard(config, dtype, w, x, split), w)(dw, x).total.astype(jnp.float32)


def operations(size: str, batch: int, dtype: Any) -> Iterator[Operation]:
    """Compiles one operation after another."""
    config = vit_config(f"{size}/16", classes=CLASSES)
    w = jax.block_until_ready(vit.init(config, jax.random.key(0)))
    images = jax.random.normal(jax.random.key(1), (batch, 224, 224, 3))
    labels = jnp.arange(batch) % CLASSES
    one = subsets.make_subset(config, blocks=1).zeros(w)

    def forward(name: str, f: Callable, *args: Any) -> Operation:
        started = time.perf_counter()
        compiled = jax.jit(f).lower(*args).compile()
        return Operation(name, lambda: compiled(*args), compiled, time.perf_counter() - started)

    plain: Any = vit.ViT(config, dtype)
    yield forward(
        "plain forward, full last block",
        lambda w, x: standard(config, dtype, w, plain.apply({"params": w}, x, 0, method="trunk"), 0),
        w,
        images,
    )  # pyright: ignore
    yield forward("plain forward", lambda w, x: plain.apply({"params": w}, x), w, images)
    tangent = TangentViT(config, dtype)
    yield forward("TAFT-1 forward", lambda w, dw, x: tangent.apply({"params": w, "tangent": dw}, x), w, one, images)

    for blocks in [int(n) for n in BLOCKS.value if int(n) <= config.depth]:
        subset = subsets.make_subset(config, blocks=blocks)
        tokens = jax.random.normal(jax.random.key(2), (batch, config.tokens, config.width), dtype or jnp.float32)
        x = vit.one_query_input(config, tokens)[0] if blocks == 1 else tokens
        tails = {
            f"NLFT-{blocks} step": Predictor(w, config, subset.split, "nlft", dtype=dtype),
            f"TAFT-{blocks} step": Predictor(w, config, subset.split, "taft", dtype=dtype),
            f"TAFT-{blocks} step, autodiff": Predictor(w, config, subset.split, "taft", "autodiff", dtype),
        }
        for name, predict in tails.items():
            yield step(name, predict, subset.zeros(w), x, labels)
        if blocks == 1:
            predict = jax.tree_util.Partial(_full_of(config, dtype, subset.split), w)
            yield step("TAFT-1 step, full block by jvp", predict, subset.zeros(w), tokens, labels)
            for at_once in (1, MODELS):
                yield many(tails["TAFT-1 step"], subset.zeros(w), x, labels, at_once)


_FULL: dict[Any, Callable] = {}


def _full_of(config: ViTConfig, dtype: Any, split: int) -> Callable:
    """`full_block` at a configuration, one function object each, so that jit knows it again."""
    return _FULL.setdefault((config, dtype, split), lambda w, dw, x: full_block(w, config, dtype, split, dw, x))


def step(name: str, predict: Any, dw: Tree, x: jax.Array, labels: jax.Array) -> Operation:
    """One training step on one batch of cached tail inputs, optimiser included."""
    order, present = jnp.arange(len(labels), dtype=jnp.int32)[None], jnp.ones((1, len(labels)))
    state = State(dw, SETTINGS.optimizer(1).init(dw))
    return training(name, scan_steps, predict, [state], x, labels, order, present)


def many(predict: Any, dw: Tree, x: jax.Array, labels: jax.Array, at_once: int) -> Operation:
    """One step of each of `MODELS` models that share the anchor, `at_once` of them in one program."""
    order = jnp.broadcast_to(jnp.arange(len(labels), dtype=jnp.int32), (1, at_once, len(labels)))
    state = State(dw, SETTINGS.optimizer(1).init(dw))
    states = [stacked(state, at_once) for _ in range(MODELS // at_once)]
    name = f"{MODELS} models' TAFT-1 steps, " + ("at once" if at_once > 1 else "one by one")
    return training(name, scan_many, predict, states, x, labels, order, jnp.ones(order.shape))


def training(
    name: str,
    scan: Any,
    predict: Any,
    states: list[State],
    x: jax.Array,
    labels: jax.Array,
    order: jax.Array,
    present: jax.Array,
) -> Operation:
    """The compiled `scan` applied to each of the states, which it replaces."""
    started = time.perf_counter()
    lowered = scan.lower(predict, states[0], x, labels, order, present, settings=SETTINGS, steps_per_epoch=1)
    compiled = lowered.compile()
    seconds = time.perf_counter() - started
    held = [jax.tree.map(jnp.array, state) for state in states]

    def call() -> Any:
        done = [compiled(predict, state, x, labels, order, present) for state in held]
        held[:] = [state for state, _ in done]
        return [sums for _, sums in done]

    return Operation(name, call, compiled, seconds, len(states))


def peaks(dtype: Any) -> dict[str, float]:
    """FLOP/s of a large matrix product and bytes/s (read and written) of a large copy, the best of five."""
    n = 3072 if jax.default_backend() == "cpu" else 8192
    a = jnp.ones((n, n), dtype or jnp.float32)
    long = jnp.ones((64 << 20) if jax.default_backend() == "cpu" else (1 << 29), jnp.float32)

    def best(f: Callable, *args: Any) -> float:
        jax.block_until_ready(f(*args))
        times = []
        for _ in range(5):
            started = time.perf_counter()
            jax.block_until_ready(f(*args))
            times.append(time.perf_counter() - started)
        return min(times)

    matmul = best(jax.jit(jnp.matmul), a, a)
    copy = best(jax.jit(lambda x: x + 1), long)
    return {"flops_per_second": 2 * n**3 / matmul, "bytes_per_second": 2 * long.nbytes / copy}


def measure(size: str, batch: int, dtype: Any, peak: dict[str, float]) -> list[dict[str, Any]]:
    """One row per operation: medians over alternating rounds."""
    made = []
    for operation in operations(size, batch, dtype):
        jax.block_until_ready(operation.call())
        made.append(operation)
    times: list[list[float]] = [[] for _ in made]
    began = time.perf_counter()
    for _ in tqdm(range(REPEATS.value), f"{size}/16 batch {batch}", unit="round", file=sys.stderr, mininterval=0.5):
        for operation, taken in zip(made, times, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(operation.call())
            taken.append(time.perf_counter() - started)
        if time.perf_counter() - began > SECONDS.value:
            break
    return [describe(size, batch, operation, taken, peak) for operation, taken in zip(made, times, strict=True)]


def describe(size: str, batch: int, operation: Operation, taken: list[float], peak: dict[str, float]) -> dict[str, Any]:
    cost, memory = operation.compiled.cost_analysis(), operation.compiled.memory_analysis()
    seconds, flops, nbytes = float(np.median(taken)), *(operation.runs * cost[k] for k in ("flops", "bytes accessed"))
    limits = {"compute": flops / peak["flops_per_second"], "memory": nbytes / peak["bytes_per_second"]}
    bound = max(limits, key=lambda name: limits[name])
    return {
        "size": size,
        "batch": batch,
        "operation": operation.name,
        "seconds": seconds,
        "rounds": len(taken),
        "spread": float(np.subtract(*np.percentile(taken, [75, 25]))),
        "gflop": flops / 1e9,
        "gbyte": nbytes / 1e9,
        "over_floor": seconds / limits[bound],
        "bound": bound,
        "fraction_of_peak": flops / seconds / peak["flops_per_second"],
        "memory_mib": (
            memory.temp_size_in_bytes
            + memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
        )
        / 2**20,
        "compile_seconds": operation.compile_seconds,
    }


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The ratios of one size and batch."""
    t = {row["operation"]: row["seconds"] for row in rows}
    pairs = {
        "tangent_inference_over_plain": ("TAFT-1 forward", "plain forward, full last block"),
        "full_block_step_over_class_query_step": ("TAFT-1 step, full block by jvp", "TAFT-1 step"),
        "taft1_step_over_nlft1_step": ("TAFT-1 step", "NLFT-1 step"),
        "taft7_step_over_nlft7_step": ("TAFT-7 step", "NLFT-7 step"),
        "closed_form_over_autodiff_1": ("TAFT-1 step", "TAFT-1 step, autodiff"),
        "closed_form_over_autodiff_7": ("TAFT-7 step", "TAFT-7 step, autodiff"),
        "ten_models_at_once_over_one_by_one": (
            f"{MODELS} models' TAFT-1 steps, at once",
            f"{MODELS} models' TAFT-1 steps, one by one",
        ),
    }
    return {name: round(t[above] / t[below], 3) for name, (above, below) in pairs.items() if above in t and below in t}


def as_markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| model | batch | operation | ms | ± | GFLOP | MiB | of peak | over its floor |", "|---" * 9 + "|"]
    for r in rows:
        cells = [f"{r['size']}/16", r["batch"], r["operation"], f"{r['seconds'] * 1e3:.1f}", f"{r['spread'] * 1e3:.1f}"]
        cells += [f"{r['gflop']:.2f}", f"{r['memory_mib']:.0f}", f"{r['fraction_of_peak']:.0%}"]
        cells += [f"{r['over_floor']:.1f} ({r['bound']})"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    dtype = None if DTYPE.value == "float32" else jnp.bfloat16
    peak = peaks(dtype)
    groups = [measure(size, int(batch), dtype, peak) for size in SIZES.value for batch in BATCHES.value]
    rows = [row for group in groups for row in group]
    markdown = as_markdown(rows)
    (out / "bench.md").write_text(markdown)
    pictures.roofline(out / "roofline.png", rows, peak)
    print(markdown)
    machine = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "dtype": DTYPE.value, **peak}
    binary.finish(out, {"ratios": ratios(groups[-1]), "machine": machine}, rows=rows)


if __name__ == "__main__":
    binary.run(main)
