"""Exports of a store's composition as a program: bytes, seconds to export and load, milliseconds per image.

The last line of stdout: {"classes", "flops_over_plain": FLOPs of one image over those of the plain network, "ours" and
each of --format: {"bytes", "export_seconds", "load_seconds", "first_seconds": the first call, which compiles,
"error": relative L2 distance of its outputs from ours on images of the data set, "ms": an image by batch size, medians
over alternating rounds}}; ours is the same program, compiled here without an export.
"""

import dataclasses
import runpy
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tangent_jax as tj
from experiments.shared.table import TABLE
from experiments.shared.timing import Operation, rounds
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.exports.serving import flat, serve


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    batch_size: tuple[str, ...] = ("1", "8", "32")
    format: tuple[str, ...] = ("stablehlo", "onnx")
    out: str = "out/bench_export"
    repeats: int = 15
    store: str = "out/store"
    weights: str | None = None


def main(config: Config) -> None:
    formats = config.listed("format", ["stablehlo", "onnx"])
    sizes = config.numbers("batch_size", int)
    if min(sizes) < 1:
        raise InputError(f"--batch_size must be above 0; got {min(sizes)}")
    store = tj.Store(config.path("store"))
    if not len(store):
        raise InputError(f"--store must have a component at least; {store.root} has none")
    name = next(iter(store))
    predict = tj.store.predictor_of(store.provenance(name), name, config.weights)
    dw = store.compose()
    images = images_of(store.provenance(name), max(sizes), predict)
    root = command.out_folder(config)
    ours = jax.jit(partial(serve, predict))
    arrays = jax.device_put(flat(predict, dw))
    result: dict[str, Any] = {"classes": predict.model.classes, "flops_over_plain": flops_over_plain(predict, dw)}
    result["ours"], calls = {}, {"ours": lambda x: np.asarray(ours(arrays, x))}
    for format in formats:
        result[format], calls[format] = exported(root / format, predict, dw, format)
    for format, call in calls.items():
        began = time.perf_counter()
        outputs = call(images[: min(sizes)])
        result[format]["first_seconds"] = round(time.perf_counter() - began, 2)
        want = calls["ours"](images[: min(sizes)])
        result[format]["error"] = float(np.linalg.norm(outputs - want) / np.linalg.norm(want))
        result[format]["ms"] = {}
    for size in sizes:
        operations = [Operation(format, partial(call, images[:size])) for format, call in calls.items()]
        for row in rounds(operations, f"{size} images", config.repeats, 120.0):
            result[row["operation"]]["ms"][size] = round(1e3 * row["seconds"] / size, 2)
    command.finish(config, result)


def images_of(origin: tj.store.Provenance, count: int, predict: tj.Predictor) -> np.ndarray:
    """The first images of the test split of a component's data set, decoded, "n y x 3"."""
    if origin.recipe is None:
        raise InputError("--store must have components with a recipe; the first has none")
    test = tj.open_dataset(origin.recipe.dataset).test
    with tj.show_progress("images"):
        examples = test.take(np.arange(min(count, len(test.labels))))
        anchor = tj.Pretrained(predict.model, predict.w, "")
        inputs = tj.extract(tj.nonlinear(anchor, kind="everything"), examples).inputs
    return np.resize(np.asarray(inputs), (count, *inputs.shape[1:]))


def exported(folder: Path, predict: tj.Predictor, dw: Tree, format: str) -> tuple[dict[str, Any], Callable]:
    """The sizes and times of an export, and the function that its run.py loads."""
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    tj.export(folder, predict, dw, {}, format)
    written = time.perf_counter()
    call = runpy.run_path(str(folder / "run.py"))["load"](folder)
    seconds = {"export_seconds": written - began, "load_seconds": time.perf_counter() - written}
    nbytes = sum(path.stat().st_size for path in folder.iterdir())
    return {"bytes": nbytes, **{name: round(value, 2) for name, value in seconds.items()}}, call


def flops_over_plain(predict: tj.Predictor, dw: Tree) -> float:
    """The exported program's FLOPs relative to the plain network's, by XLA's count, for one image."""
    x = np.zeros((1, *predict.model.input_shape(0)), np.float32)
    plain = jax.jit(predict.model.apply).lower(predict.w, x).compile()
    served = jax.jit(partial(serve, predict)).lower(flat(predict, dw), x).compile()
    counts: list[Any] = [program.cost_analysis() for program in (served, plain)]
    return round(counts[0]["flops"] / counts[1]["flops"], 4)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
