"""The page of one device: the correctness, speed and memory of tangent_jax's computations on it.

    agreement   values against a CPU's: trunk, outputs, gradient, clipped sum, Hessian's product, factors
    peak        of matrix products and copies, measured: the reference of the fractions below
    steps       training and inference, TAFT and NLFT of 1 and 7 blocks, over the plain model
    private     private steps of 1 block, 7 and all over ordinary ones, and by vmapped gradients
    features    the features of `place` and `exact` over the plain model
    solver      the computations of a pass, and the factors
    models      50 shards' models at once, over one
    trunk       images a second by size, dtype and batch, and the fraction of the peak; without the kernel, too
    attention   of frozen blocks in bfloat16: the library's, with its matrix, and jax.nn's
    behaviour   the same bits in runs, batches and draws; the reach of the default precision; memory and compile time

Weights are random. Each section has its share of --seconds; a line reports each failure, also of time or memory.
Results are written after every section, and the same command resumes from there. It needs only JAX, Flax, optax, Orbax,
NumPy, SciPy, absl, safetensors, Pillow, tqdm and threadpoolctl: `make accelerator`.

The last line of stdout: {"machine", "right", "failed", "page"}.
"""

import dataclasses
import json
import platform
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp

import tangent_jax as tj
from experiments.shared import behaviour, operations, timing
from experiments.shared.agreement import relative, values
from experiments.shared.table import TABLE
from experiments.shared.timing import Row
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results
from tangent_jax.core.checks import InputError
from tangent_jax.io.files import write_whole
from tangent_jax.io.progress import check_stop
from tangent_jax.rules import multi_head
from tangent_jax.train.batches import STEPS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    batch_size: tuple[str, ...] = ("256", "16", "1")
    only: tuple[str, ...] = ()
    out: str = "out/accelerator"
    quick: bool = False
    seconds: float = 900.0
    size: tuple[str, ...] = ("L", "B", "S")


SMALL = tj.models.ViTConfig(32, 2, 4, 64, patch_size=4, image_size=8, classes=10)
PRECISIONS = {  # name: (compute dtype, JAX's precision of products, the largest accepted relative error)
    "float32, highest": (jnp.float32, "highest", 1e-5),
    "bfloat16": (jnp.bfloat16, None, 5e-2),
    "float32, as JAX has it": (jnp.float32, None, None),  # TF32 on a GPU, bfloat16 on a TPU
}
EACH = {False: 2.0, True: 0.02}  # seconds that an operation is timed for, at most; --quick


class Section(NamedTuple):
    """A table of the page: its share of the time, its columns after the name, and its rows, up to a deadline."""

    share: float
    columns: tuple[str, ...]
    rows: Callable[[Config, float, dict[str, Any]], Iterator[Row]]


# Sections


def agreement(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """Relative L2 errors of the device's results against those of the machine's CPU in float32."""
    cpu = jax.devices("cpu")[0]
    predict = tj.tangent(vit(config, "S", 3), 1 if config.quick else 2)
    key = jax.random.key(5)
    shape = (8, *predict.model.input_shape(0))
    dw = jax.tree.map(lambda leaf: 0.02 * jax.random.normal(key, leaf.shape), predict.zeros())
    arguments = dw, jax.random.normal(key, shape), operations.inputs_of(predict, 8)
    with jax.default_matmul_precision("highest"):
        reference = values(predict, *arguments, cpu)
    for name in ["bfloat16"] if config.quick else PRECISIONS:
        if time.monotonic() > deadline:
            yield {"name": name, "failed": "no time left"}
            continue
        dtype, precision, tolerance = PRECISIONS[name]
        with jax.default_matmul_precision(precision):
            results = values(dataclasses.replace(predict, dtype=dtype), *arguments)
        for what, value in results.items():
            error = relative(value, reference[what])
            right = "" if tolerance is None else "yes" if error <= tolerance else f"NO, above {tolerance:g}"
            yield {"name": f"{what}, {name}", "error": f"{error:.1e}", "right": right}


def peak(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """The device's own peak."""
    for dtype in ("float32", "bfloat16"):
        measured = operations.peaks(jnp.dtype(dtype), config.quick)
        tflops = measured["flops_per_second"] / 1e12
        gigabytes = measured["bytes_per_second"] / 1e9
        yield {"name": dtype, "TFLOP/s": f"{tflops:.4g}", "GB/s": f"{gigabytes:.4g}", **measured}


def steps(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """Training (steps in the loop of `fit`) and inference in both dtypes, over the plain model's forward pass."""
    pretrained = vit(config, config.size[0])
    blocks = [1] if config.quick else [1, 7]
    loop = 2 if config.quick else STEPS
    for dtype in ("bfloat16", "float32")[: 1 if config.quick else 2]:
        makes = operations.plain_and_tangent(pretrained, batch(config), blocks, jnp.dtype(dtype), loop)
        wanted = {name: make for name, make in makes.items() if "autodiff" not in name}
        yield from over(config, "plain forward", wanted, deadline, f", {dtype}")


def private(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """Private steps over ordinary ones."""
    depth = layout_of(config, config.size[0]).depth
    for blocks in sorted({1, min(7, depth), depth}):
        pretrained = vit(config, config.size[0], blocks)
        makes = operations.private_steps(pretrained, batch(config), blocks)
        wanted = {name: make for name, make in makes.items() if blocks == 1 or "discrete" not in name}
        yield from with_speed(config, over(config, "ordinary step", wanted, deadline, f", blocks: {blocks}"))


def features(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """The features of exact composition (of `exact` from the trunk's), over the plain model's forward pass."""
    pretrained = vit(config, config.size[0])
    for dtype in ("bfloat16", "float32")[: 1 if config.quick else 2]:
        makes = operations.feature_passes(pretrained, batch(config), jnp.dtype(dtype))
        yield from with_speed(config, over(config, "plain forward", makes, deadline, f", {dtype}"))


def with_speed(config: Config, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows with their images a second."""
    for row in rows:
        yield {**row, "images/s": f"{batch(config) / row['seconds']:.4g}"} if "seconds" in row else row


def solver(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """A pass over one batch, and the factors."""
    for dtype in ("float32", "bfloat16")[: 1 if config.quick else 2]:
        makes = operations.solver_passes(vit(config, config.size[0], 1), batch(config), jnp.dtype(dtype))
        yield from over(config, "gradient", makes, deadline, f", {dtype}")


def models(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """A step of many models at once, over one model's."""
    pretrained = vit(config, config.size[0], 1)
    names = {1: "a step of one model", 50: "a step of 50 models at once"}
    many = partial(operations.many, pretrained, batch(config), jnp.dtype("float32"))
    makes: Any = {name: partial(many, count, count, name) for count, name in names.items()}
    yield from over(config, "a step of one model", makes, deadline)


def trunk(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """Images a second, and the fraction of the measured peak."""
    measured_peaks = done.get("peak", {"rows": []})["rows"]
    peaks = {row["name"]: row["flops_per_second"] for row in measured_peaks if "flops_per_second" in row}
    for batch in config.numbers("batch_size", int):
        for size in config.size:
            pretrained: Any = vit(config, size)
            for dtype in ("bfloat16", "float32"):
                name = f"{size}, {dtype}, batch {batch}"
                layout = pretrained.model.config
                make = partial(operations.trunk, pretrained, batch, jnp.dtype(dtype))
                makes: Any = {name: make}
                if dtype == "bfloat16":  # where a kernel computes attention on CUDA
                    makes[f"{name}, attention with its matrix"] = partial(with_matrix, make)
                for row in timing.measured(makes, deadline, EACH[config.quick]):
                    if "seconds" in row:
                        speed = batch / row["seconds"]
                        row["images/s"] = f"{speed:.4g}"
                        if dtype in peaks:
                            row["of peak"] = f"{operations.trunk_flops(layout) * speed / peaks[dtype]:.0%}"
                    yield row


def with_matrix(make: Callable[[], timing.Operation]) -> timing.Operation:
    """An operation whose attention forms its matrix on every device."""
    jax.clear_caches()  # programs that were traced with the kernel
    with mock.patch.object(multi_head, "fused_attention", multi_head.plain):
        operation = make()
    jax.clear_caches()
    return operation


def attention(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """Attention without tangents in bfloat16, over the library's."""
    model: Any = vit(config, config.size[0]).model
    layout = model.config
    shape = (max(config.numbers("batch_size", int)), layout.tokens, layout.heads, layout.width // layout.heads)
    q = jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)

    def ours(q: jax.Array) -> jax.Array:
        return multi_head.attention(q, None, q, None, q, None)[0]

    def with_matrix(q: jax.Array) -> jax.Array:
        return multi_head.plain(q, q, q)

    functions = {"the library's": ours, "with its matrix": with_matrix}
    for implementation in ("xla", "cudnn") if jax.default_backend() == "gpu" else ("xla",):
        of_jax = partial(jax.nn.dot_product_attention, implementation=implementation)
        functions[f"jax.nn's, {implementation}"] = lambda q, of_jax=of_jax: of_jax(q, q, q)
    makes: Any = {name: partial(timing.compiled, name, f, q) for name, f in functions.items()}
    yield from over(config, "the library's", makes, deadline)


def behave(config: Config, deadline: float, done: dict[str, Any]) -> Iterator[Row]:
    """Whether bits are the same, the reach of JAX's default precision, memory of derivatives, time to compile."""
    yield from behaviour.answers(vit(config, "S", 8), config.quick, deadline)


TIMED = ("ms", "±", "over", "MiB")
SPEED = ("images/s", *TIMED)
SECTIONS = {
    "agreement": Section(0.3, ("error", "right"), agreement),
    "peak": Section(0.02, ("TFLOP/s", "GB/s"), peak),
    "steps": Section(0.2, TIMED, steps),
    "private": Section(0.12, SPEED, private),
    "features": Section(0.08, SPEED, features),
    "solver": Section(0.08, TIMED, solver),
    "models": Section(0.02, TIMED, models),
    "trunk": Section(0.2, ("images/s", "of peak", "ms", "MiB"), trunk),
    "attention": Section(0.05, TIMED, attention),
    "behaviour": Section(0.08, ("answer", "right"), behave),
}


# Measuring


def layout_of(config: Config, size: str) -> tj.models.ViTConfig:
    """The layout of a ViT of a size."""
    return SMALL if config.quick else tj.models.vit_config(f"{size}/16", classes=operations.CLASSES)


def vit(config: Config, size: str, depth: int | None = None) -> tj.Pretrained:
    """A ViT with random weights; depth: only its last blocks, if no others run."""
    layout = layout_of(config, size)
    return operations.random_vit(layout if depth is None or config.quick else layout.replace(depth=depth))


def over(config: Config, base: str, makes: operations.Operations, deadline: float, suffix: str = "") -> Iterator[Row]:
    """`timing.measured`, with each time over that of the operation `base`."""
    rows = timing.measured(makes, deadline, EACH[config.quick])
    seconds = next((row["seconds"] for row in rows if row["name"] == base and "seconds" in row), None)
    for row in rows:
        ratio = {"over": f"{row['seconds'] / seconds:.3g}"} if seconds and "seconds" in row else {}
        yield {**row, **ratio, "name": row["name"] + suffix}


def run_section(config: Config, section: Section, name: str, deadline: float, done: dict[str, Any]) -> dict[str, Any]:
    """The rows of a section, its seconds, and the most memory in use so far."""
    began = time.monotonic()
    rows = []
    try:
        rows.extend(section.rows(config, deadline, done))
    except tj.InputError:
        raise
    except Exception as error:  # as above; the rows before it stay
        rows.append(timing.failed(name, error))
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    return {"rows": rows, "seconds": round(time.monotonic() - began, 1), "peak_mib": round(peak / 2**20)}


# The page


def machine(config: Config) -> dict[str, str]:
    """The device, the versions, and the flags that affect the figures."""
    versions = {"jax": jax.__version__, "tangent_jax": tj.__version__, "python": platform.python_version()}
    for package in ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    setting = f"sizes {' '.join(config.size)}, batch {batch(config)}, trunk's {' '.join(config.batch_size)}"
    if config.quick:
        setting += ", small"
    return {"device": jax.devices()[0].device_kind, "devices": str(jax.device_count()), **versions, "setting": setting}


def as_page(about: dict[str, str], date: str, done: dict[str, Any]) -> str:
    """The page in Markdown."""
    lines = [f"# {about['device']}", "", "Written by `python -m experiments.bench accelerator`; times are medians.", ""]
    lines += [f"{date}. " + "; ".join(f"{name} {value}" for name, value in about.items()) + ".", ""]
    for name, result in done.items():
        section = SECTIONS[name]
        doc = SECTIONS[name].rows.__doc__ or ""
        memory = f"; at most {result['peak_mib']} MiB in use so far" if result["peak_mib"] else ""
        lines += [f"## {name.capitalize()}", "", f"{doc.splitlines()[0]} ({result['seconds']:g} s{memory})", ""]
        cells = []
        for row in result["rows"]:
            reason = {section.columns[0]: row["failed"]} if "failed" in row else {}
            cells.append([row["name"], *({**row, **reason}.get(column, "") for column in section.columns)])
        lines += [command.markdown(["", *section.columns], cells)]
    return "\n".join(lines)


def resumed(path: Path, about: dict[str, str]) -> dict[str, Any]:
    """The complete sections of this machine and setting in a file."""
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text())
        sections = stored["sections"]
        if stored["machine"] != about or not {*sections} <= {*SECTIONS}:
            return {}
        late = {n for n, s in sections.items() if any(row.get("failed") == "no time left" for row in s["rows"])}
        return {name: section for name, section in sections.items() if name not in late}
    except (ValueError, KeyError, TypeError):
        return {}  # measured again


def batch(config: Config) -> int:
    """The examples of a step, in all sections except the trunk's, which uses --batch_size."""
    return 2 if config.quick else 32


def main(config: Config) -> None:
    config.listed("size", ["Ti", "S", "B", "L"])
    least = min(config.numbers("batch_size", int))
    if least < 1:
        raise InputError(f"--batch_size must be 1 or more; got {least}")
    wanted = config.listed("only", SECTIONS) if config.only else [*SECTIONS]
    if config.quick:
        config = dataclasses.replace(config, size=("small",), batch_size=("2",))
    out = command.out_folder(config)
    about = machine(config)
    name = re.sub(r"[^a-z0-9]+", "_", about["device"].lower()).strip("_") + ".md"
    page = out / name
    file = out / "sections.json"
    began = time.monotonic()
    date = datetime.now(UTC).date().isoformat()
    done = resumed(file, about)
    wanted = [name for name in wanted if name not in done]
    for i, name in enumerate(wanted):
        left = began + config.seconds - time.monotonic()
        share = SECTIONS[name].share / sum(SECTIONS[other].share for other in wanted[i:])
        done[name] = run_section(config, SECTIONS[name], name, time.monotonic() + left * share, done)
        write_whole(file, json.dumps({"machine": about, "sections": done}, indent=1) + "\n")
        write_whole(page, as_page(about, date, {name: done[name] for name in SECTIONS if name in done}))
        check_stop()
    rows = [row for result in done.values() for row in result["rows"]]
    print(page.read_text())
    count = {"failed": sum("failed" in row for row in rows)}
    right = all(not row.get("right", "").startswith("NO") for row in rows)
    command.finish(config, {"machine": about, "right": right, **count, "page": str(page)}, sections=done)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
