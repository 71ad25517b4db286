"""Speed, memory and FLOPs of the plain and the tangent ViT, forward and training step, in one process.

Operations alternate round by round, so that a noisy machine slows all of them alike; figures are medians with the
interquartile range. FLOPs, bytes and memory are the compiled program's. The same run measures the machine's peak, by a
large matrix product and a large copy. Weights are random, as speed does not depend on them.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import tangent_jax as tj
from experiments.shared import plots, timing, titles
from experiments.shared.operations import CLASSES, full_block, many, named, peaks, plain_and_tangent, random_vit
from experiments.shared.table import TABLE
from experiments.shared.timing import Operation
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    batch_size: tuple[str, ...] = ("1", "8", "32")
    blocks: tuple[str, ...] = ("1", "7")
    dtype: str = Recipe.dtype
    out: str = "out/bench"
    repeats: int = 7
    seconds: float = 120.0
    size: tuple[str, ...] = ("Ti", "S")


MODELS = 10  # models trained at once, compared with one after another
RATIOS = {  # name: (above, below)
    "tangent_inference_over_plain": ("TAFT-1 forward", "plain forward, full last block"),
    "full_block_step_over_class_query_step": ("TAFT-1 step, full block by jvp", "TAFT-1 step"),
    "taft1_step_over_nlft1_step": ("TAFT-1 step", "NLFT-1 step"),
    "taft7_step_over_nlft7_step": ("TAFT-7 step", "NLFT-7 step"),
    "closed_form_over_autodiff_1": ("TAFT-1 step", "TAFT-1 step, autodiff"),
    "closed_form_over_autodiff_7": ("TAFT-7 step", "TAFT-7 step, autodiff"),
    "ten_models_at_once_over_one_by_one": ("10 models' TAFT-1 steps, at once", "10 models' TAFT-1 steps, one by one"),
}


def operations(config: Config, size: str, batch: int, dtype: Any) -> Iterator[Operation]:
    """Compiles one operation after another."""
    pretrained = random_vit(tj.models.vit_config(named(size), classes=CLASSES))
    blocks = config.numbers("blocks", int)
    for make in plain_and_tangent(pretrained, batch, blocks, dtype).values():
        yield make()
    if 1 in blocks:
        yield full_block(pretrained, batch, dtype)
        for how, at_once in {"one by one": 1, "at once": MODELS}.items():
            yield many(pretrained, batch, dtype, MODELS, at_once, f"{MODELS} models' TAFT-1 steps, {how}")


def describe(row: dict[str, Any], size: str, batch: int, peak: dict[str, float]) -> dict[str, Any]:
    """The row with its FLOPs, bytes and distance from the machine's floor."""
    cost = row.pop("program").cost_analysis()
    runs = row.pop("runs")
    seconds = row["seconds"]
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


def write_table(config: Config, rows: list[dict[str, Any]]) -> None:
    """Writes bench.md."""
    lines = []
    for r in rows:
        cells = [named(r["size"]), r["batch"], r["operation"], f"{r['seconds'] * 1e3:.1f}", f"{r['spread'] * 1e3:.1f}"]
        cells += [f"{r['gflop']:.2f}", f"{r['memory_mib']:.0f}", f"{r['fraction_of_peak']:.0%}"]
        lines.append([*cells, f"{r['over_floor']:.1f} ({r['bound']})"])
    columns = ["model", "batch", "operation", "ms", "±", "GFLOP", "MiB", "of peak", "over its floor"]
    command.write_table(config, "bench", columns, lines)


def main(config: Config) -> None:
    out = command.out_folder(config)
    dtype = jnp.dtype(config.dtype)
    peak = peaks(dtype)
    rows = []
    for size in config.size:
        for batch in config.numbers("batch_size", int):
            group = timing.rounds(
                operations(config, size, batch, dtype), f"{named(size)} batch {batch}", config.repeats, config.seconds
            )
            rows += [describe(row, size, batch, peak) for row in group]
    write_table(config, rows)
    plots.roofline(out / "roofline.png", rows, peak, titles.fastest(rows))
    t = {row["operation"]: row["seconds"] for row in rows}  # of the last size and batch
    ratios = {name: round(t[above] / t[below], 3) for name, (above, below) in RATIOS.items() if {above, below} <= {*t}}
    machine = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "dtype": config.dtype, **peak}
    command.finish(config, {"ratios": ratios, "machine": machine}, rows=rows)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
