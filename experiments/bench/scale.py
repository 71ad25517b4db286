"""The bytes, seconds and money of each phase of a large job: TAFT-1, --images images, a ViT-L/16, eight devices.

It measures decoding in a core and in processes, hashing, writing and checking the cache, and a store whose component
names all images. FLOPs come from traced programs. Values that this machine cannot measure are constants below, and
assumptions. The last line of stdout: {"measured", "cost", "phases", "component"}.
"""

import dataclasses
import io
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import tangent_jax as tj
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, plan
from tangent_jax.commands.shared.settings import Results
from tangent_jax.core import placement
from tangent_jax.core.placement import cores
from tangent_jax.data import Decoder, Preprocessing, content_identifier, decode_chunks
from tangent_jax.features import RowStore
from tangent_jax.features.row_store import CHUNK
from tangent_jax.io.progress import progress_bar
from tangent_jax.models import initial_weights
from tangent_jax.models.trunk import run_trunk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    images: int = 1_000_000
    out: str = "out/bench_scale"
    quick: bool = False
    repeats: int = 3


# the job's one machine
JOB_DEVICES = 8
DEVICE_FLOPS, FRACTION = (989e12, 0.4)  # a device's FLOP/s as published (H100 SXM, dense bf16); the trunk's share
DISK = 5e9  # bytes per second that its disks read and write
CORES, DOLLARS = 96, 24.0  # the price of an hour
IMAGE_BYTES = 110_000  # bytes of an encoded image of the job
LARGE_ROWS = 512  # rows of the model's size, for bytes a second
LOCK_SHARE = 0.09  # share of decoding time that holds the interpreter's lock

EPOCHS, PASSES, PRIVATE_STEPS = 30, 15, 50
"""Epochs of training; passes of the solver; full-batch private steps, the paper's."""


def seconds_of(call: Callable[[], Any]) -> float:
    """The seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def medians(config: Config, calls: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each call's values over --repeats alternating rounds."""
    values: dict[str, list[float]] = {name: [] for name in calls}
    with tj.show_progress(", ".join(calls)), progress_bar(config.repeats, "round") as bar:
        for _ in range(config.repeats):
            for name, call in calls.items():
                values[name].append(call())
            bar.update()
    return {name: float(np.median(taken)) for name, taken in values.items()}


def photograph(i: int) -> bytes:
    """A JPEG of 500 x 375 pixels: smooth shapes and some noise, about as large as a photograph."""
    numbers = np.random.default_rng(i)
    smooth = Image.fromarray(numbers.integers(0, 256, (24, 32, 3), np.uint8)).resize((500, 375))
    noisy = np.clip(np.asarray(smooth) + numbers.normal(0, 6, (375, 500, 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def read_in_turn(images: list[bytes], i: int) -> bytes:
    """One of a few images."""
    return images[i % len(images)]


def measure_decoding(config: Config) -> dict[str, float]:
    """Images per second of one core, the parent's seconds an image of processes, and bytes hashed per second."""
    images = [photograph(i) for i in range(32)]
    workers = cores()
    chunks = [range(i, i + CHUNK) for i in range(0, (4 * workers + 8) * CHUNK, CHUNK)]
    decoder = Decoder(partial(read_in_turn, images), ("image",) * chunks[-1].stop, 224, Preprocessing())

    def of_parent() -> float:
        decoded = decode_chunks(decoder, chunks, workers)
        for _ in range(2 * workers):  # while the processes start
            next(decoded)
        started = time.process_time()
        count = CHUNK * len([*decoded])
        return (time.process_time() - started) / count

    def of_a_core() -> float:
        started = time.process_time()  # other programs may run beside this
        for i in range(len(images)):
            decoder(i)
        return len(images) / (time.process_time() - started)

    return medians(
        config,
        {
            "images_a_core": of_a_core,
            "parent_us": lambda: of_parent() * 1e6,
            "hash_bytes": lambda: sum(map(len, images)) / seconds_of(lambda: [*map(content_identifier, images)]),
        },
    ) | {"encoded_bytes": sum(map(len, images)) / len(images), "cores": workers}


def filled(folder: Path, count: int, shape: tuple[int, ...]) -> RowStore:
    """Kept rows of random numbers."""
    rows = RowStore(folder, [f"{i:064x}" for i in range(count)], shape, np.dtype(np.float32))
    rows.create()
    write_rows(rows)
    return rows


def write_rows(rows: RowStore) -> float:
    """The seconds in which all rows are written."""
    values = np.random.default_rng(0).standard_normal((CHUNK, *rows.shape[1:]), np.float32)

    def write() -> None:
        for start in range(0, len(rows), CHUNK):
            span = [*range(start, min(len(rows), start + CHUNK))]
            rows.write(span, values[: len(span)])

    return seconds_of(write)


def check(rows: RowStore) -> float:
    """The seconds that the next run takes to see which rows are missing, if another program wrote to the rows."""
    os.utime(rows.folder / "rows.bin")
    return seconds_of(RowStore(rows.folder, rows.identifiers, rows.shape[1:], rows.dtype).create)


def measure_cache(config: Config, shape: tuple[int, ...]) -> dict[str, float]:
    """Bytes per second of writing and checking rows of a shape."""
    few = CHUNK if config.quick else LARGE_ROWS
    with tempfile.TemporaryDirectory(dir=command.out_folder(config)) as folder:
        rows = filled(Path(folder) / "rows", few, shape)
        nbytes = len(rows) * rows.nbytes
        return medians(
            config,
            {
                "write_bytes": lambda: nbytes / write_rows(rows),
                "check_bytes": lambda: nbytes / check(rows),
            },
        )


def measure_component(config: Config, folder: str) -> dict[str, float]:
    """Seconds of what a store does whose one component names all images; its bytes."""
    images = 1000 if config.quick else config.images
    identifiers = [content_identifier(b"%d" % i) for i in range(images)]
    examples = tuple((whole, f"train/class {i % 1000}/{i}.jpg") for i, whole in enumerate(identifiers))
    owners = {name: f"owner {i % 1000}" for i, (_, name) in enumerate(examples)}
    data, training = tj.store.Data(examples, owners), tj.store.Training(tj.Recipe())
    origin = tj.store.Provenance("taft", {}, "", "", ("head/kernel",), data=data, training=training)
    store = tj.Store(Path(folder) / "store")
    measured = {"images": float(images)}
    measured["add"] = seconds_of(lambda: store.add("all", {"head": {"kernel": np.ones((4, 4))}}, origin))
    measured["bytes"] = float(store.path("all").stat().st_size)
    calls = {
        "plan one": lambda: tj.store.plan_removal(store, examples=identifiers[:1]),
        "plan owner": lambda: tj.store.plan_removal(store, owner="owner 7"),
    }
    for name, call in calls.items():
        measured[name] = float(np.median([seconds_of(call) for _ in range(config.repeats)]))
    plan = tj.store.plan_removal(store, names=["all"])
    measured["remove all"] = seconds_of(lambda: tj.store.remove(store, plan, cache=tj.Cache(Path(folder) / "cache")))
    return measured


def trace_costs() -> dict[str, Any]:
    """FLOPs per image of ViT-L/16's trunk and TAFT-1 step, and the shape of a row, by tracing alone."""
    batch = 32
    model = tj.models.VisionTransformer(tj.models.vit_config("L/16", classes=1000))
    w = jax.eval_shape(lambda: initial_weights(model, jax.random.key(0)))
    predict = tj.tangent(tj.Pretrained(model, w, "shapes"), 1)
    shape = model.input_shape(predict.subset.stage)
    inputs = np.broadcast_to(np.zeros((), np.float32), (batch, *shape))
    data = tj.Batches(inputs, np.zeros(batch, np.int32), batch_size=batch)
    images = jax.ShapeDtypeStruct((batch, *model.input_shape(0)), jnp.uint8)
    options = {"model": model, "stop": predict.subset.stage, "dtype": predict.dtype}
    lowered = {"trunk_flops": run_trunk.lower(w, images, **options)}
    lowered["step_flops"] = plan.fit_phase(tj.Recipe(), predict, data, placement.mesh()).programs["step"]
    costs: dict[str, Any] = {name: program.cost_analysis() for name, program in lowered.items()}
    return {name: entry["flops"] / batch for name, entry in costs.items()} | {"shape": shape}


def phases(config: Config, measured: dict[str, float], cost: dict[str, Any]) -> list[dict[str, Any]]:
    """Bytes and seconds of each phase, by its limiting rate."""
    n = config.images
    flops = JOB_DEVICES * DEVICE_FLOPS * FRACTION
    images = n * IMAGE_BYTES
    rows = n * int(np.prod(cost["shape"])) * 4
    decoded = n / measured["images_a_core"]  # seconds of cores
    streamed = max(rows / DISK, n * cost["step_flops"] / flops)
    table = [
        ("read and hash, one thread", images, max(images / measured["hash_bytes"], images / DISK)),
        (f"decode, {CORES} threads", images, max(decoded / CORES, decoded * LOCK_SHARE)),
        (f"decode, {CORES} processes", images, max(decoded / CORES, n * measured["parent_us"] / 1e6)),
        ("trunk", 0, n * cost["trunk_flops"] / flops),
        ("write the rows, while they are computed", rows, max(rows / measured["write_bytes"], rows / DISK)),
        ("start again: check every byte", rows, max(rows / measured["check_bytes"], rows / DISK)),
        (f"TAFT-1, {EPOCHS} epochs streamed", EPOCHS * rows, EPOCHS * streamed),
        (f"{PASSES} passes of the solver", PASSES * rows, PASSES * streamed),
        (f"{PRIVATE_STEPS} private steps, full batch", PRIVATE_STEPS * rows, PRIVATE_STEPS * streamed),
    ]
    return [
        {"phase": name, "bytes": nbytes, "seconds": seconds, "dollars": seconds / 3600 * DOLLARS}
        for name, nbytes, seconds in table
    ]


def main(config: Config) -> None:
    cost = trace_costs()
    measured = measure_decoding(config) | measure_cache(config, cost["shape"])
    table = phases(config, measured, cost)
    lines = [[r["phase"], f"{r['bytes'] / 1e9:,.0f}", f"{r['seconds']:,.0f}", f"{r['dollars']:.2f}"] for r in table]
    text = command.markdown(["phase", "GB", "seconds", "dollars"], lines)
    rates = command.markdown(["measured", "value"], [[k, f"{v:,.4g}"] for k, v in measured.items()])
    with tempfile.TemporaryDirectory(dir=command.out_folder(config)) as folder:
        component = measure_component(config, folder)
    lines = [[name, f"{value:,.4g}"] for name, value in component.items()]
    stores = command.markdown(["a store of one component", ""], lines)
    page = f"{text}\n{rates}\n{stores}"
    (command.out_folder(config) / "scale.md").write_text(page)
    print(page)
    command.finish(config, {"measured": measured, "cost": cost, "phases": table, "component": component})


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
