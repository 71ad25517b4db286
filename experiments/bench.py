"""Speed, memory and FLOPs of the plain and the tangent ViT, forward and training step, in one process.

Operations alternate, round by round, so that a noisy machine slows all alike; figures are medians with the
quartiles' distance. FLOPs, bytes and memory are the compiled program's own. The machine's peak is measured in
the same run: a large matrix product and a large copy. Weights are random: speed does not depend on them.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from jax.tree_util import Partial

import tangent_jax as tj
from experiments.shared import command, plots, timing
from experiments.shared.flags import F, define, numbers
from experiments.shared.timing import Operation, compiled, compiled_step
from tangent_jax.core import Tree, trees
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.forward import one_query_input
from tangent_jax.train.fit import State, Training, train_epoch
from tangent_jax.train.fit_many import repeated, train_epoch_many

define("dtype", out="out/bench")
flags.DEFINE_list("sizes", ["Ti", "S"], "ViT sizes, of Ti, S, B, L, with patches of 16 at 224 pixels.")
flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Examples per call.")
flags.DEFINE_list("blocks", ["1", "7"], "Numbers of trained blocks.")
flags.DEFINE_integer("repeats", 7, "Rounds over all operations, at most.", lower_bound=1)
flags.DEFINE_float("max_seconds", 120.0, "Time for the rounds of one size and batch; one round is always run.")

CLASSES = 200
MODELS = 10  # trained at once, against one after another
RATIOS = {  # name: (above, below)
    "tangent_inference_over_plain": ("TAFT-1 forward", "plain forward, full last block"),
    "full_block_step_over_class_query_step": ("TAFT-1 step, full block by jvp", "TAFT-1 step"),
    "taft1_step_over_nlft1_step": ("TAFT-1 step", "NLFT-1 step"),
    "taft7_step_over_nlft7_step": ("TAFT-7 step", "NLFT-7 step"),
    "closed_form_over_autodiff_1": ("TAFT-1 step", "TAFT-1 step, autodiff"),
    "closed_form_over_autodiff_7": ("TAFT-7 step", "TAFT-7 step, autodiff"),
    "ten_models_at_once_over_one_by_one": ("10 models' TAFT-1 steps, at once", "10 models' TAFT-1 steps, one by one"),
}


def full_block(config: tj.ViTConfig, w: Tree, dw: Tree, x: jax.Array) -> jax.Array:
    """The tangent by jax.jvp of the standard last block, "b c": the baseline of the class query."""
    w, dw = trees.cast(w, x.dtype), trees.cast(dw, x.dtype)
    f_lin = tj.linearize(lambda w, x: timing.standard(config, w, x, config.depth), w)
    return f_lin(dw, x).total.astype(jnp.float32)


def operations(size: str, batch: int, dtype: Any) -> Iterator[Operation]:
    """Compiles one operation after another."""
    model = tj.VisionTransformer(tj.vit_config(f"{size}/16", classes=CLASSES))
    config, labels = model.config, jnp.arange(batch) % CLASSES
    w = jax.block_until_ready(initial_weights(model, jax.random.key(0)))
    pretrained = tj.Pretrained(model, w, "random")
    images = jax.random.normal(jax.random.key(1), (batch, 224, 224, 3), dtype)
    zeros_of_one = tj.tangent(pretrained, 1).zeros()

    def plain(w: Tree, x: jax.Array) -> jax.Array:
        return model.apply(trees.cast(w, dtype), x)

    def dual(w: Tree, dw: Tree, x: jax.Array) -> Any:
        return model.dual(trees.pair(trees.cast(w, dtype), trees.cast(dw, dtype)), x)

    full = partial(timing.standard, config, start=0)
    yield compiled("plain forward, full last block", lambda w, x: full(trees.cast(w, dtype), x), w, images)
    yield compiled("plain forward", plain, w, images)
    yield compiled("TAFT-1 forward", dual, w, zeros_of_one, images)
    for blocks in [n for n in numbers("blocks", int) if n <= config.depth]:
        tokens = jax.random.normal(jax.random.key(2), (batch, config.tokens, config.width), dtype)
        x = one_query_input(config, tokens)[0] if blocks == 1 else tokens
        taft = tj.tangent(pretrained, blocks, dtype=dtype)
        zeros = taft.zeros()
        yield step(f"NLFT-{blocks} step", tj.nonlinear(pretrained, blocks, dtype=dtype), zeros, x, labels)
        yield step(f"TAFT-{blocks} step", taft, zeros, x, labels)
        autodiff = tj.tangent(pretrained, blocks, dtype=dtype, linearization="autodiff")
        yield step(f"TAFT-{blocks} step, autodiff", autodiff, zeros, x, labels)
        if blocks == 1:
            predict = Partial(partial(full_block, config), w)
            yield step("TAFT-1 step, full block by jvp", predict, zeros, tokens, labels)
            yield many("one by one", taft, zeros, x, labels, 1)
            yield many("at once", taft, zeros, x, labels, MODELS)


def step(name: str, predict: Callable, dw: Tree, x: jax.Array, labels: jax.Array) -> Operation:
    """Compiles one training step on one batch of cached features, optimiser included."""
    order, present = jnp.arange(len(labels), dtype=jnp.int32)[None], jnp.ones((1, len(labels)))
    state = State(dw, tj.adam().init(dw))
    epoch = inspect.unwrap(train_epoch)
    training = Training(predict, tj.make_objective(), tj.adam(1e-5))
    data = ((x, labels), (order, present, None), 0.0)
    return compiled_step(
        name, lambda state, training, *data: epoch(training, state, *data)[0], [state], training, *data
    )


def many(how: str, predict: Callable, dw: Tree, x: jax.Array, labels: jax.Array, at_once: int) -> Operation:
    """Compiles one step of each of `MODELS` models that share the anchor, `at_once` of them in one program."""
    order = jnp.broadcast_to(jnp.arange(len(labels), dtype=jnp.int32), (1, at_once, len(labels)))
    states = [repeated(State(dw, tj.adam().init(dw)), at_once) for _ in range(MODELS // at_once)]
    epoch = inspect.unwrap(train_epoch_many)
    training = Training(predict, tj.make_objective(), tj.adam(1e-5))
    data = ((x, labels), (order, jnp.ones(order.shape), None), 0.0)
    name = f"{MODELS} models' TAFT-1 steps, {how}"
    return compiled_step(
        name,
        lambda states, training, *data: epoch(training, states, *data)[0],
        states,
        training,
        *data,
    )


def peaks(dtype: Any) -> dict[str, float]:
    """FLOP/s of a large matrix product and bytes/s (read and written) of a large copy, the best of five."""
    n = 3072 if jax.default_backend() == "cpu" else 8192
    a = jnp.ones((n, n), dtype)
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


def describe(row: dict[str, Any], size: str, batch: int, peak: dict[str, float]) -> dict[str, Any]:
    """The row with its FLOPs, bytes and distance from the machine's floor."""
    cost, runs, seconds = row.pop("program").cost_analysis(), row.pop("runs"), row["seconds"]
    flops, nbytes = (runs * cost[k] for k in ("flops", "bytes accessed"))
    limits = {"compute": flops / peak["flops_per_second"], "memory": nbytes / peak["bytes_per_second"]}
    bound = max(limits, key=lambda name: limits[name])
    return {
        "size": size,
        "batch": batch,
        **row,
        "gflop": flops / 1e9,
        "gbyte": nbytes / 1e9,
        "over_floor": seconds / limits[bound],
        "bound": bound,
        "fraction_of_peak": flops / seconds / peak["flops_per_second"],
    }


def as_markdown(rows: list[dict[str, Any]]) -> str:
    lines = []
    for r in rows:
        cells = [f"{r['size']}/16", r["batch"], r["operation"], f"{r['seconds'] * 1e3:.1f}", f"{r['spread'] * 1e3:.1f}"]
        cells += [f"{r['gflop']:.2f}", f"{r['memory_mib']:.0f}", f"{r['fraction_of_peak']:.0%}"]
        lines.append([*cells, f"{r['over_floor']:.1f} ({r['bound']})"])
    return command.markdown(
        ["model", "batch", "operation", "ms", "±", "GFLOP", "MiB", "of peak", "over its floor"], lines
    )


def main() -> None:
    out, dtype = command.out_folder(), jnp.dtype(F.dtype)
    peak, rows = peaks(dtype), []
    for size in F.sizes:
        for batch in numbers("batch_sizes", int):
            group = timing.rounds(operations(size, batch, dtype), f"{size}/16 batch {batch}", F.repeats, F.max_seconds)
            rows += [describe(row, size, batch, peak) for row in group]
    text = as_markdown(rows)
    (out / "bench.md").write_text(text)
    plots.roofline(out / "roofline.png", rows, peak)
    print(text)
    t = {row["operation"]: row["seconds"] for row in rows}  # of the last size and batch
    ratios = {name: round(t[above] / t[below], 3) for name, (above, below) in RATIOS.items() if {above, below} <= {*t}}
    machine = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "dtype": F.dtype, **peak}
    command.finish({"ratios": ratios, "machine": machine}, rows=rows)


if __name__ == "__main__":
    command.run(main)
