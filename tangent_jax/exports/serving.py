"""Exports a predictor as a program, which runs without this library.

    program(inputs "b ...") -> outputs "b c",    any b;  images are uint8, normalised inside

    stablehlo    model.jax, a program of `jax.export` for CPU, CUDA and TPU in one; weights.safetensors, its arguments
    onnx         model.onnx, by jax2onnx, in f32, with its weights; run once before it is written
    both         serving.json: the settings of run.py, with the fingerprints of the files; run.py: reads images and runs
                 the program

The program takes images and uses the same closed forms: blocks below the first trained one run at the cost of the plain
network. Weights are arguments of the StableHLO, not constants. So it is small, compiles faster, fits any model size,
and also serves later compositions of the same anchor.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, export
from jax.extend.core import jaxpr_as_fun

from tangent_jax._version import __version__
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.core.promotion import promotes
from tangent_jax.io.files import file_fingerprint, write_whole
from tangent_jax.io.tensors import encode
from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.models.protocol import Model, input_dtype
from tangent_jax.models.trunk import run_trunk

PLATFORMS = ("cpu", "cuda", "tpu")
OPSETS = range(18, 24)
OPSET = 18  # no later opset changes an output, and older runtimes read it
ALIKE = 1e-4  # relative L2: rounding in f32 gives 1e-6, a wrongly converted node 1


@promotes
def write_stablehlo(folder: Path, predict: ComponentPredictor, dw: Tree, classes: Sequence[str]) -> None:
    """Writes the program for any batch size and all PLATFORMS, and its weights in a file next to it."""
    arrays = flat(predict, dw)
    specs = {path: jax.ShapeDtypeStruct(array.shape, array.dtype) for path, array in arrays.items()}
    with one_line("model must take any batch size (x.shape[0], not len(x))"), no_source_paths():
        try:
            program = export.export(jax.jit(partial(serve, predict)), platforms=PLATFORMS)(
                specs, any_batch(predict.model)
            )
        except NotImplementedError as error:  # a primitive that a platform lacks, such as eig
            first = str(error).splitlines()[0].rstrip(".")
            raise InputError(f"model must lower for {', '.join(PLATFORMS)}; got: {first}") from error
    write_whole(folder / "model.jax", bytes(program.serialize()))
    write_whole(folder / "weights.safetensors", encode(arrays, {}))
    version = {"jax": jax.__version__, "calling_convention": program.calling_convention_version}
    write_script(folder, "stablehlo", predict.model, classes, platforms=PLATFORMS, **version)


def write_onnx(folder: Path, predict: ComponentPredictor, dw: Tree, classes: Sequence[str], opset: int = OPSET) -> None:
    """Writes the predictor as ONNX in f32, after a check that onnxruntime gives the same outputs."""
    predict, x = predict.in_dtype(None), any_batch(predict.model)
    weights_in = partial(serve, predict, jax.tree.map(jnp.asarray, flat(predict, dw)))
    with one_line("model must be one that jax2onnx converts", "Export it as stablehlo"), quiet():
        from jax2onnx import to_onnx  # pyright: ignore

        # traced here: jax2onnx replaces functions of jax.numpy, which a model may use on shapes
        program = jaxpr_as_fun(jax.make_jaxpr(weights_in)(x))
        graph = to_onnx(program, [x], input_names=["inputs"], output_names=["outputs"], opset=opset)
        content = graph.SerializeToString()
        check_alike(content, weights_in, x)
    write_whole(folder / "model.onnx", content)
    write_script(folder, "onnx", predict.model, classes, opset=opset)


def serve(predict: ComponentPredictor, arrays: dict[str, Array], x: Array) -> Array:
    """The outputs "b c" for inputs "b ..." of stage 0, with the weights `flat` instead of the predictor's."""
    own = jax.tree.unflatten(jax.tree.structure(predict), [arrays[path] for path in trees.leaves(predict)])
    stage = predict.subset.stage
    if stage:
        x = run_trunk(own.w, x, model=own.model, stop=stage, dtype=own.dtype)
    return own(trees.nest(arrays).get("dw", {}), x)


def flat(predict: ComponentPredictor, dw: Tree) -> dict[str, np.ndarray]:
    """The leaves of the predictor and of dw by path, "w/..." and "dw/..."; InputError for one of more than 32 bits."""
    both = trees.leaves(predict) | trees.leaves({"dw": dw})
    arrays = {path: np.asarray(leaf) for path, leaf in both.items()}
    for path, leaf in arrays.items():
        if not leaf.dtype.itemsize <= 4:
            raise InputError(f"leaves must fit float32; got {path} in {leaf.dtype}. Cast them to float32 first.")
    return arrays


def any_batch(model: Model) -> jax.ShapeDtypeStruct:
    """The inputs of stage 0 for b examples: decoded images, or arrays of the model's dtype."""
    return jax.ShapeDtypeStruct((*export.symbolic_shape("b"), *model.input_shape(0)), input_dtype(model))


def check_alike(content: bytes, want: Callable[[Any], Array], x: jax.ShapeDtypeStruct) -> None:
    """Raises InputError unless onnxruntime gives the outputs of `want` for three examples like x."""
    import onnxruntime  # pyright: ignore

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # raises failures
    coins = np.random.default_rng(0).integers(0, 2, (3, *x.shape[1:]))  # valid token ids too, for any vocabulary
    inputs = (coins * (255 if x.dtype == np.uint8 else 1)).astype(x.dtype)
    got = onnxruntime.InferenceSession(content, options).run(None, {"inputs": inputs})[0]
    with jax.default_matmul_precision("highest"):  # as onnxruntime on a CPU
        expected = np.asarray(want(inputs))
    error, norm = np.linalg.norm(got - expected), np.linalg.norm(expected)
    if not error <= ALIKE * norm:
        raise InputError(
            f"outputs of the ONNX must be the predictor's; they are {error:.1e} away from a norm of {norm:.1e}. Export "
            "it as stablehlo."
        )


def write_script(folder: Path, format: str, model: Model, classes: Sequence[str], **more: Any) -> None:
    """Writes run.py and serving.json, which describes inputs and outputs."""
    x, own = any_batch(model), model.preprocessing
    serving = {
        "format": format,
        "inputs": {"shape": x.shape[1:], "dtype": x.dtype.name},
        "preprocessing": dataclasses.asdict(own) if isinstance(own, Preprocessing) else None,
        "outputs": model.classes,
        "classes": list(classes) or None,
        "tangent_jax": __version__,
        **more,
        "files": {path.name: file_fingerprint(path) for path in sorted(folder.iterdir())},
    }
    write_whole(folder / "serving.json", json.dumps(serving, indent=1) + "\n")
    write_whole(folder / "run.py", files("tangent_jax").joinpath("assets/run.py").read_bytes())


@contextmanager
def one_line(must: str, do: str = "") -> Iterator[None]:
    """Converts every error within the `with` block to an InputError of one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # any error of a user's model or a converter
        first = (str(error).splitlines() or [""])[0]
        got = f"{type(error).__name__}: {first[:200].rstrip('.')}."
        raise InputError(f"{must}; got {got}" + (f" {do}." if do else "")) from error


@contextmanager
def no_source_paths() -> Iterator[None]:
    """Keeps this machine's file paths out of programs lowered within the `with` block."""
    config: Any = jax.config
    limit = config.jax_traceback_in_locations_limit
    config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        config.update("jax_traceback_in_locations_limit", limit)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences log warnings, such as those about missing plugins."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
