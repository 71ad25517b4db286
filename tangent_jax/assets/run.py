"""Runs the exported model beside this file: python run.py FILE ..., images, or .npy arrays of inputs "b ...".

It prints one JSON object for each example: its outputs, and the class where classes have names. It needs numpy; Pillow
for images; jax and flatbuffers for model.jax, or onnxruntime for model.onnx. Another program serves by

    model = load("FOLDER")      # once
    outputs = model(inputs)     # numpy arrays: "b ..." to "b c", any b; compiled once for each b
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "PPM", "TIFF")  # of images: no other decoder is started
DTYPES = {"F32": np.float32, "F16": np.float16}


def load(folder: str | Path) -> Run:
    """The function of the folder's program, on the device that jax or onnxruntime chooses.

    Raises: ValueError, in one line, for a file that serving.json does not name, and for inputs of another shape.
    """
    folder = Path(folder)
    serving = read_serving(folder)
    for name, fingerprint in serving["files"].items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != fingerprint:
            raise ValueError(f"{name} must be the file that serving.json names; it was altered. Export it again.")
    shape, dtype = tuple(serving["inputs"]["shape"]), np.dtype(serving["inputs"]["dtype"])
    run = RUNTIMES[serving["format"]](folder)

    def model(inputs: np.ndarray) -> np.ndarray:
        if inputs.shape[1:] != shape or inputs.dtype != dtype:
            raise ValueError(f"inputs must be {dtype} of shape {('b', *shape)}; got {inputs.dtype}{inputs.shape}.")
        return np.asarray(run(inputs))

    return model


def read_serving(folder: Path) -> dict[str, Any]:
    """The description of the model: its inputs, outputs, classes and files."""
    return json.loads((folder / "serving.json").read_bytes())


def by_jax(folder: Path) -> Run:
    """The program of model.jax, with its weights on the device."""
    import jax
    from jax import export

    program = jax.jit(export.deserialize(bytearray((folder / "model.jax").read_bytes())).call)
    arrays = jax.device_put(read_tensors(folder / "weights.safetensors"))
    return lambda inputs: program(arrays, inputs)


def by_onnxruntime(folder: Path) -> Run:
    """The graph of model.onnx."""
    import onnxruntime  # pyright: ignore

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=onnxruntime.get_available_providers())
    return lambda inputs: session.run(None, {"inputs": inputs})[0]


RUNTIMES = {"stablehlo": by_jax, "onnx": by_onnxruntime}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file: a header of JSON after its length in 8 bytes, then their bytes."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    entries = {name: e for name, e in json.loads(content[8:start]).items() if name != "__metadata__"}
    return {
        name: np.frombuffer(content, DTYPES[e["dtype"]], math.prod(e["shape"]), start + e["data_offsets"][0]).reshape(
            e["shape"]
        )
        for name, e in entries.items()
    }


def read_image(path: str, size: tuple[int, int], preprocessing: dict[str, Any]) -> np.ndarray:
    """One image, preprocessed as in training, "y x 3" uint8: upright RGB, resized, centre cropped."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(Image.open(path, formats=FORMATS))
    if picture.mode[0] in "IF":
        raise ValueError(f"{path} must have 8 bits a channel; got mode {picture.mode}.")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    picture, (height, width) = picture.convert("RGB"), size
    high, wide = (int(side / preprocessing["crop"]) for side in size)
    resize = preprocessing.get("resize", "short")
    if resize == "none":
        wide, high = picture.size
    elif resize == "short":  # the other side in proportion
        if wide * picture.height >= high * picture.width:
            high = int(wide * picture.height / picture.width)
        else:
            wide = int(high * picture.width / picture.height)
    picture = picture.resize((wide, high), Image.Resampling[preprocessing["interpolation"].upper()])
    left, top = (wide - width) / 2, (high - height) / 2
    rounded = math.floor if preprocessing.get("centre") == "floor" else round
    left, top = rounded(left), rounded(top)
    return np.asarray(picture.crop((left, top, left + width, top + height)))


def main(paths: list[str]) -> None:
    """Prints the outputs of each example of each file."""
    folder = Path(__file__).parent
    model, serving = load(folder), read_serving(folder)
    for path in paths:
        if path.endswith(".npy"):
            inputs = np.load(path, allow_pickle=False)
        else:
            inputs = read_image(path, tuple(serving["inputs"]["shape"][:2]), serving["preprocessing"])[None]
        for outputs in model(inputs):
            named = {"class": serving["classes"][int(outputs.argmax())]} if serving["classes"] else {}
            print(json.dumps({"file": path, **named, "outputs": outputs.tolist()}))


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("run.py: give images, or arrays in .npy files, to be run; got none")
    try:
        main(sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"run.py: {error}")
