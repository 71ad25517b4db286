"""Exports of a store's composition as a program: bytes, seconds to export and load, milliseconds per image.

The last line of stdout: {"classes", "flops_over_plain": FLOPs of one image over those of the plain network, "ours" and
each of --format: {"bytes", "export_seconds", "load_seconds", "first_seconds": the first call, which compiles,
"error": relative L2 distance of its outputs from ours on images of the data set, "ms": an image by batch size, medians
over alternating rounds}}; ours is the same program, compiled here without an export.
"""

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
from experiments.shared.timing import Operation, rounds
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.flags import F, define, listed, numbers
from tangent_jax.core.checks import require
from tangent_jax.core.notation import Tree
from tangent_jax.io.files import expand_path
from tangent_jax.programs import serving

define(out="out/bench_export", weights=None)
define("store", format=["stablehlo", "onnx"], batch_size=["1", "8", "32"], repeats=15)


def main() -> None:
    formats, sizes = listed("format", ["stablehlo", "onnx"]), numbers("batch_size", int)
    require(min(sizes) > 0, "bench export", "--batch_size above 0", min(sizes))
    store = tj.Store(expand_path(F.store))
    require(len(store), "bench export", "at least one component", f"none in {store.root}")
    name = next(iter(store))
    predict, dw = tj.store.predictor_of(store.provenance(name), name, F.weights), store.compose()
    images, root = images_of(store.provenance(name), max(sizes), predict), command.out_folder()
    program = serving(predict, dw, images)
    ours, arrays = jax.jit(program.run), jax.device_put(program.arguments[0])
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
        for row in rounds(operations, f"{size} images", F.repeats, 120.0):
            result[row["operation"]]["ms"][size] = round(1e3 * row["seconds"] / size, 2)
    command.finish(result)


def images_of(origin: tj.store.Provenance, count: int, predict: tj.Predictor) -> np.ndarray:
    """The first images of the test split of a component's data set, decoded, "n y x 3"."""
    require(origin.recipe is not None, "bench export", "a component with a recipe", "none")
    assert origin.recipe is not None
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
    counts: list[Any] = [program.cost_analysis() for program in (serving(predict, dw, x).lower().compile(), plain)]
    return round(counts[0]["flops"] / counts[1]["flops"], 4)


if __name__ == "__main__":
    command.run(main)
