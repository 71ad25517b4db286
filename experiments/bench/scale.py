"""Bytes, seconds and money of each phase of a large job: TAFT-1, --images images, a ViT-L/16, --job_devices devices.

Measured here: decoding in threads and processes, hashing, writing, checking and reading the cache, and the bookkeeping
of --rows tiny rows. FLOPs are the traced programs'. What this machine cannot measure is a flag, and an assumption:
--device_flops, --fraction, --disk, --cores, --dollars, --image_bytes, --lock_share. The last line of stdout:
{"measured", "cost", "phases"}.
"""

import inspect
import io
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from PIL import Image

import tangent_jax as tj
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.flags import F, define
from tangent_jax.core import progress_bar
from tangent_jax.data.preprocessing import Preprocessing
from tangent_jax.data.sources import content_identifier
from tangent_jax.data.workers import Decoder, decode_chunks
from tangent_jax.models import layout
from tangent_jax.models.cache import CachedRows
from tangent_jax.models.filling import run_trunk
from tangent_jax.models.layout import CHUNK
from tangent_jax.models.protocol import initial_weights
from tangent_jax.train.batches import Chunk
from tangent_jax.train.fit import State, Training, train_epoch

define(out="out/bench_scale")
flags.DEFINE_integer("images", 1_000_000, "Images of the job.", 1)
flags.DEFINE_integer("job_devices", 8, "Devices of the job's one machine.", 1)
flags.DEFINE_float("device_flops", 989e12, "FLOP/s of a device as its vendor publishes them (H100 SXM, dense bf16).", 1)
flags.DEFINE_float("fraction", 0.4, "The fraction of --device_flops that the trunk reaches.", 0.0, 1.0)
flags.DEFINE_float("disk", 5e9, "Bytes/s that the machine's disks read, and write.", 1)
flags.DEFINE_integer("cores", 96, "Cores of the machine.", 1)
flags.DEFINE_float("dollars", 24.0, "Price of an hour of the machine.", 0.0)
flags.DEFINE_integer("image_bytes", 110_000, "Bytes of an encoded image of the job.", 1)
flags.DEFINE_float("lock_share", 0.09, "The share of decoding time that holds the interpreter's lock.", 0.0, 1.0)
flags.DEFINE_integer("rows", 100_000, "Tiny rows, to measure what each row costs.", 1)
flags.DEFINE_integer("large_rows", 512, "Rows of the model's size, to measure bytes a second.", CHUNK)
flags.DEFINE_integer("repeats", 3, "Alternating rounds; figures are medians.", 1)

EPOCHS, PASSES, PRIVATE_STEPS = 30, 15, 50
"""Of training; of the solver, which are products J and J^T; full-batch private steps, the paper's."""


def seconds_of(call: Callable[[], Any]) -> float:
    """The seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def medians(calls: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of what each call returns over --repeats alternating rounds."""
    values: dict[str, list[float]] = {name: [] for name in calls}
    with tj.show_progress(", ".join(calls)), progress_bar(F.repeats, "round") as bar:
        for _ in range(F.repeats):
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


def measure_decoding() -> dict[str, float]:
    """Images a second of one core, of threads and processes on all (their start apart); bytes hashed a second."""
    images, cores = [photograph(i) for i in range(32)], os.cpu_count() or 1
    chunks = [range(i, i + CHUNK) for i in range(0, (4 * cores + 8) * CHUNK, CHUNK)]
    decoder = Decoder(partial(read_in_turn, images), ("image",) * chunks[-1].stop, 224, Preprocessing())

    def rate(processes: int) -> float:
        decoded = decode_chunks(decoder, chunks, processes)
        for _ in range(2 * cores):  # while the processes start
            next(decoded)
        started = time.process_time()
        seconds, count = seconds_of(lambda: [*decoded]), (len(chunks) - 2 * cores) * CHUNK
        own.append((time.process_time() - started) / count)
        return count / seconds

    def of_a_core() -> float:
        started = time.process_time()  # other programs may run beside this
        for i in range(len(images)):
            decoder(i)
        return len(images) / (time.process_time() - started)

    own: list[float] = []  # the parent's seconds an image
    return medians(
        {
            "images_a_core": of_a_core,
            "threads": lambda: rate(0),
            "processes": lambda: rate(cores),
            "parent_us": lambda: own[-1] * 1e6,
            "hash_bytes": lambda: sum(map(len, images)) / seconds_of(lambda: [*map(content_identifier, images)]),
        }
    ) | {"encoded_bytes": sum(map(len, images)) / len(images), "cores": cores}


def filled(folder: Path, count: int, shape: tuple[int, ...], dtype: Any) -> tuple[CachedRows, float]:
    """Cached rows of random numbers, and the seconds that writing them took."""
    rows = CachedRows(folder, [f"{i:064x}" for i in range(count)], shape, np.dtype(dtype))
    folder.mkdir(parents=True)
    rows.make()
    values = np.random.default_rng(0).standard_normal((CHUNK, *shape), np.float32).astype(dtype)
    missing = rows.missing()
    seconds = seconds_of(lambda: [rows.write(c, values[: len(rows.rows(c))], []) for c in missing])
    return rows, seconds


def again(rows: CachedRows) -> float:
    """The seconds in which a next run sees what is missing."""
    return seconds_of(CachedRows(rows.folder, rows.identifiers, rows.shape[1:], rows.dtype).missing)


def measure_cache(shape: tuple[int, ...]) -> dict[str, float]:
    """Bytes a second of writing, checking and reading rows of a shape in random order, from one file and from eight."""
    with tempfile.TemporaryDirectory(dir=command.out_folder()) as folder:
        whole, written = filled(Path(folder) / "one", F.large_rows, shape, np.float32)
        nbytes, limit = whole.inputs.nbytes, layout.FILE_BYTES
        layout.FILE_BYTES = nbytes // 8
        spread, _ = filled(Path(folder) / "eight", F.large_rows, shape, np.float32)
        layout.FILE_BYTES = limit
        order = np.random.default_rng(1).permutation(F.large_rows)

        def rate(rows: CachedRows) -> float:
            batches = order[: len(order) // 32 * 32].reshape(-1, 32)
            return nbytes / seconds_of(lambda: [np.asarray(rows.inputs[batch]) for batch in batches])

        measured = medians(
            {
                "check_bytes": lambda: nbytes / again(whole),
                "read_one_file": lambda: rate(whole),
                "read_eight_files": lambda: rate(spread),
            }
        )
        return measured | {"write_bytes": nbytes / written, "files": len(spread.files())}


def measure_rows() -> dict[str, float]:
    """Microseconds and bytes that a row costs besides its numbers, from --rows rows of four numbers."""
    with tempfile.TemporaryDirectory(dir=command.out_folder()) as folder:
        rows, written = filled(Path(folder) / "tiny", F.rows, (4,), np.float32)
        checked = again(rows)
        rows.missing()
        for path in rows.folder.iterdir():
            os.utime(path, (1e9, 1e9))  # finished long ago
        rows.finish()
        complete, listed = again(rows), (rows.folder / "examples.txt").stat().st_size
    tracemalloc.start()
    examples = tuple((f"{i:064x}", f"train/class {i % 1000}/{i}.jpg") for i in range(F.rows))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    each = {"write_us": written, "check_us": checked, "start_complete_us": complete}
    measured = {name: seconds / F.rows * 1e6 for name, seconds in each.items()}
    return measured | {"listed_bytes": listed / F.rows, "held_bytes": held / len(examples)}


def trace_costs() -> dict[str, Any]:
    """FLOPs an image of the trunk and of a TAFT-1 step, and the shape of a row, of ViT-L/16; no number is computed."""
    batch, model = 32, tj.models.VisionTransformer(tj.models.vit_config("L/16", classes=1000))
    w = jax.eval_shape(lambda: initial_weights(model, jax.random.key(0)))
    predict = tj.tangent(tj.Pretrained(model, w, "shapes"), 1)
    shape, dw = model.input_shape(predict.subset.stage), predict.zeros()
    trunk = jax.jit(partial(inspect.unwrap(run_trunk), model=model, stop=predict.subset.stage, dtype=None))
    images = jax.ShapeDtypeStruct((batch, *model.input_shape(0)), jnp.uint8)
    x, y = jax.ShapeDtypeStruct((batch, *shape), jnp.float32), jax.ShapeDtypeStruct((batch,), jnp.int32)
    state = jax.eval_shape(lambda: State(dw, tj.adam().init(dw)))
    chunk = Chunk(x, y, jnp.arange(batch, dtype=jnp.int32)[None], jnp.ones((1, batch)))
    epoch, training = inspect.unwrap(train_epoch), Training(predict, tj.make_objective(), tj.adam(1e-5))
    step = jax.jit(lambda state, training, chunk: epoch(training, state, chunk, None, 0.0)[0])
    lowered = {"trunk_flops": trunk.lower(w, images), "step_flops": step.lower(state, training, chunk)}
    costs: dict[str, Any] = {name: program.cost_analysis() for name, program in lowered.items()}
    return {name: entry["flops"] / batch for name, entry in costs.items()} | {"shape": shape}


def phases(measured: dict[str, float], cost: dict[str, Any]) -> list[dict[str, Any]]:
    """Bytes and seconds of each phase, by the rate that bounds it."""
    n, flops = F.images, F.job_devices * F.device_flops * F.fraction
    images, rows = n * F.image_bytes, n * int(np.prod(cost["shape"])) * 4
    decoded = n / measured["images_a_core"]  # seconds of cores
    streamed = max(rows / F.disk, n * cost["step_flops"] / flops)
    table = [
        ("read and hash, one thread", images, max(images / measured["hash_bytes"], images / F.disk)),
        (f"decode, {F.cores} threads", images, max(decoded / F.cores, decoded * F.lock_share)),
        (f"decode, {F.cores} processes", images, max(decoded / F.cores, n * measured["parent_us"] / 1e6)),
        ("trunk", 0, n * cost["trunk_flops"] / flops),
        ("write the rows, one thread", rows, max(rows / measured["write_bytes"], rows / F.disk)),
        ("the same in bfloat16", rows // 2, max(rows / 2 / measured["write_bytes"], rows / 2 / F.disk)),
        ("start again: check every byte", rows, max(rows / measured["check_bytes"], rows / F.disk)),
        ("start again: complete", 0, n * measured["start_complete_us"] / 1e6),
        (f"TAFT-1, {EPOCHS} epochs streamed", EPOCHS * rows, EPOCHS * streamed),
        (f"{PASSES} passes of the solver", PASSES * rows, PASSES * streamed),
        (f"{PRIVATE_STEPS} private steps, full batch", PRIVATE_STEPS * rows, PRIVATE_STEPS * streamed),
    ]
    return [
        {"phase": name, "bytes": nbytes, "seconds": seconds, "dollars": seconds / 3600 * F.dollars}
        for name, nbytes, seconds in table
    ]


def main() -> None:
    cost = trace_costs()
    measured = measure_decoding() | measure_cache(cost["shape"]) | measure_rows()
    table = phases(measured, cost)
    lines = [[r["phase"], f"{r['bytes'] / 1e9:,.0f}", f"{r['seconds']:,.0f}", f"{r['dollars']:.2f}"] for r in table]
    text = command.markdown(["phase", "GB", "seconds", "dollars"], lines)
    rates = command.markdown(["measured", "value"], [[k, f"{v:,.4g}"] for k, v in measured.items()])
    (command.out_folder() / "scale.md").write_text(f"{text}\n{rates}")
    print(f"{text}\n{rates}")
    command.finish({"measured": measured, "cost": cost, "phases": table})


if __name__ == "__main__":
    command.run(main)
