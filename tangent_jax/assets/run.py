"""Runs the exported model beside this file: python run.py FILE ..., images, or .npy arrays of inputs "b ...".

It prints one JSON object for each example: its outputs, and the class where classes have names. It needs numpy; Pillow,
of version 11.3 or later, for images; jax and flatbuffers for model.jax, or onnxruntime for model.onnx. Another program
serves by

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
DTYPES = {"F32": np.float32, "F16": np.float16}
FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
SAVE_IT = "save it as JPEG or PNG of 8 bits"


def load(folder: str | Path) -> Run:
    """The function of the folder's program, on the device that jax or onnxruntime chooses.

    Raises:
        ValueError: In one line, for a file that serving.json does not name, and for inputs of another shape.
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

    wrote = read_serving(folder)["jax"]
    arrays = jax.device_put(read_tensors(folder / "weights.safetensors"))

    def run(inputs: np.ndarray) -> Any:
        try:
            return program(arrays, inputs)
        except Exception as error:
            if jax.__version_info__ >= tuple(int(part) for part in wrote.split(".")[:3]):
                raise
            said = f"model.jax needs jax {wrote}, which wrote it, or a newer one; this is jax {jax.__version__}"
            raise ValueError(f"{said}: install that one, or export where this one is installed") from error

    program = jax.jit(export.deserialize(bytearray((folder / "model.jax").read_bytes())).call)
    return run


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
    """One image, resized and cropped as in training, "y x 3" uint8.

    Raises:
        ValueError: In one line, for a picture that cannot be read, is animated, or has colours of other kinds.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as opened:
            picture = upright_rgb(opened, path)
    except ValueError:
        raise
    except Exception as error:  # decoders raise many kinds of errors
        raise ValueError(f"{path} must be a picture in {', '.join(FORMATS)}; {error}. Otherwise {SAVE_IT}") from error
    high, wide = size
    width, height = resized_shape(picture.size, size, preprocessing)
    interpolation = Image.Resampling[preprocessing["interpolation"].upper()]
    picture = picture.resize((width, picture.height), interpolation).resize((width, height), interpolation)  # in turn
    cropped = width - wide, height - high
    if preprocessing["centre"] == "floor":
        left, top = (pixels // 2 for pixels in cropped)
    else:
        left, top = (round(pixels / 2) if pixels > 0 else -(-pixels // 2) for pixels in cropped)
    return np.asarray(picture.crop((left, top, left + wide, top + high)))


def upright_rgb(picture: Any, path: str) -> Any:
    """The picture turned as its EXIF says, in RGB: grey of 16 bits scaled to 8, transparency on white."""
    from PIL import Image, ImageOps

    if picture.format != "MPO" and getattr(picture, "n_frames", 1) > 1:  # what follows a JPEG is its preview
        raise ValueError(f"{path} must be one picture; it has {picture.n_frames} frames: {SAVE_IT}")
    picture = ImageOps.exif_transpose(picture)
    if "transparency" in picture.info and picture.mode != "P":
        raise ValueError(f"{path} has one colour that is transparent, which is not read here: {SAVE_IT}")
    if picture.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(picture).astype(np.float32) / 257).round().astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise ValueError(f"{path} has samples whose range is not stated, which are not read here: {SAVE_IT}")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def resized_shape(picture: tuple[int, int], size: tuple[int, int], preprocessing: dict[str, Any]) -> tuple[int, int]:
    """Width and height after resizing, before the crop; without "exact" or "none" the short side decides."""
    width, height = picture
    high, wide = (int(side / preprocessing["crop"]) for side in size)
    if preprocessing["resize"] == "none":
        return width, height
    if preprocessing["resize"] == "exact":
        return wide, high
    if high != wide:
        ratio = min(height / high, width / wide)
        return round(width / ratio), round(height / ratio)
    if height >= width:
        return wide, int(wide * height / width)
    return int(high * width / height), high


def main(paths: list[str]) -> None:
    """Prints the outputs of each example of each file."""
    folder = Path(__file__).parent
    model, serving = load(folder), read_serving(folder)
    for path in paths:
        if Path(path).is_dir():
            raise ValueError(f"FILE must be an image, or arrays in a .npy file; got the folder {path}")
        if path.endswith(".npy"):
            inputs = np.load(path, allow_pickle=False)
        elif serving["preprocessing"] is None:
            raise ValueError(f"FILE must be arrays in a .npy file, as this model reads no images; got {path}")
        else:
            inputs = read_image(path, tuple(serving["inputs"]["shape"][:2]), serving["preprocessing"])[None]
        for outputs in model(inputs):
            named = {"class": serving["classes"][int(outputs.argmax())]} if serving["classes"] else {}
            print(json.dumps({"file": path, **named, "outputs": outputs.tolist()}))


if __name__ == "__main__":
    if not sys.argv[1:] or any(argument.startswith("--") for argument in sys.argv[1:]):
        sys.exit("run.py: give images, or arrays in .npy files, to be run")
    try:
        main(sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"run.py: {error}")
