"""Finds the weights in a folder: one file of safetensors, or several with an index; says why others are not read."""

import fnmatch
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.io.paths import read_range
from tangent_jax.io.progress import tell
from tangent_jax.io.records import convert, parse_json
from tangent_jax.io.tensors import read_tensors

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""The index of weights in several files, as transformers and diffusers write it: {"weight_map": {tensor: file}}."""
SHARDS = "model-*-of-*.safetensors"
"""The files that such an index names, on the hub."""
OF_OPEN_CLIP = "open_clip_model.safetensors"


class Format(NamedTuple):
    """Another format of weights: patterns of its files' names in lower case, what it is, and what to do."""

    patterns: tuple[str, ...]
    title: str
    remedy: str


CONVERT = "Convert it first, as docs/reference/models.md shows"
OTHERWISE = "Pass such a file or its folder; docs/reference/models.md shows how other formats are converted"
FORMATS = (
    Format(
        ("*.bin", "*.pth", "*.pt", "*.ckpt", "*.pth.tar", "*.tar", "*.pkl", "*.bin.index.json"),
        "a pickle of PyTorch's; pickles are never loaded, for they can run any program",
        CONVERT,
    ),
    Format(
        ("*.distcp",),
        "a part of a checkpoint of torch.distributed (FSDP)",
        "Merge the folder that holds it, by Hugging Face's accelerate: accelerate merge-weights FOLDER NEW_FOLDER; if "
        "that fails, as docs/reference/models.md shows",
    ),
    Format(("_metadata", "_checkpoint_metadata", "manifest.ocdbt"), "a part of Orbax's format", CONVERT),
    Format(("*.msgpack",), "Flax's format", CONVERT),
    Format(("tf_model.h5",), "TensorFlow's format of transformers 4", CONVERT),
    Format(
        ("*.h5", "*.keras", "saved_model.pb", "*.ckpt-*"),
        "Keras's or TensorFlow's format",
        "No program makes safetensors of it: take the same model's weights from timm or Hugging Face",
    ),
    Format(
        ("*.onnx", "*.gguf", "*.mlmodel", "*.tflite", "*.engine"),
        "a network made for one program (ONNX, GGUF, Core ML, LiteRT, TensorRT), often without names or in fewer bits",
        "Take the weights that it was made of",
    ),
)
"""Formats that are not read, the easiest to convert first."""
ZIP = b"PK\3\4"
"""The first bytes of PyTorch's pickles."""
ADAPTER_CONFIG = "adapter_config.json"
OF_TRAINING = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*", "random_states_*")
"""Files that a training of transformers or accelerate leaves beside weights."""


def weights_in(folder: Path) -> Path:
    """The path of a folder's weights: model.safetensors, an index, or its only file of safetensors.

    Raises:
        InputError: It says which other files of weights are there, and what to do with them.
    """
    for name in (WEIGHTS, INDEX):
        if (folder / name).exists():
            if (folder / ADAPTER_CONFIG).exists():
                tell(f"{folder} also holds an adapter of PEFT, which is not read: merge it first if the model needs it")
            return folder / name
    names = sorted(path.name for path in folder.iterdir())
    names += sorted(str(path.relative_to(folder)) for path in folder.glob("pytorch_model_fsdp*/*.distcp"))
    files = [name for name in names if name.lower().endswith(".safetensors")]
    if len(files) == 1:
        return folder / files[0]
    if files:
        raise InputError(
            f"{folder} must hold {WEIGHTS}, or {INDEX}, which says which files are parts of one model; it has "
            f"{len(files)} files, such as {', '.join(files[:3])}. Pass the path of one, or fetch the index too"
        )
    for kind in FORMATS:
        for name in names:
            if format_of(name) is kind:
                raise InputError(f"{folder} must hold {WEIGHTS}; it has {name}, which is {kind.title}. {kind.remedy}")
    raise InputError(
        f"{folder} must hold {WEIGHTS}; it has {', '.join(names[:5]) or 'no file'}. Pass the folder of the weights"
    )


def check_format(path: Path) -> None:
    """Raises InputError for a file that is neither .npz nor .safetensors, nor the index of some."""
    suffix, kind = path.suffix.lower(), format_of(path.name)
    if suffix == ".safetensors" and path.is_file() and read_range(path, 0, len(ZIP)) == ZIP:
        kind = FORMATS[0]  # renamed
    elif suffix in (".npz", ".safetensors") or path.name == INDEX:
        return
    got = f"{path.name}, which is {kind.title}. {kind.remedy}" if kind else f"{path.name}. {OTHERWISE}"
    raise InputError(f"weights must be a .npz or .safetensors file; got {got}")


def format_of(name: str) -> Format | None:
    """The other format of a file of this name; None for a file without weights, such as the state of a training."""
    last = name.rpartition("/")[2].lower()
    if any(fnmatch.fnmatch(last, pattern) for pattern in OF_TRAINING):
        return None
    return next((kind for kind in FORMATS if any(fnmatch.fnmatch(last, pattern) for pattern in kind.patterns)), None)


def read_shards(index: Path) -> dict[str, np.ndarray]:
    """Returns the tensors, by name, of all files that an index names.

    Raises:
        InputError: A name that is not a file next to the index, a missing file, a tensor that is missing from its file,
            and a tensor in two files.
    """
    tensors: dict[str, np.ndarray] = {}
    found_in: dict[str, str] = {}
    places = shards_of(index)
    for name in dict.fromkeys(places.values()):
        path = index.parent / name
        if not path.exists():
            raise InputError(f"{path} must exist, since {index.name} names it; it does not. Fetch it, too")
        inner, _ = read_tensors(path, whole_numbers=True)
        for tensor in inner.keys() & tensors.keys():
            raise InputError(f"a tensor must be in one file; {tensor} is in {found_in[tensor]} and {name} of {index}")
        tensors |= inner
        found_in |= dict.fromkeys(inner, name)
    for tensor, name in places.items():
        if found_in.get(tensor) != name:
            raise InputError(f"{name} must hold {tensor}, as {index} says; it does not. Fetch both again")
    return tensors


def shards_of(index: Path) -> dict[str, str]:
    """The file of each tensor, by name; InputError for a name that is not a file of safetensors beside the index."""
    where = f"weight_map of {index}"
    given = parse_json(index.read_bytes(), index).get("weight_map")
    places: dict[str, str] = convert(dict[str, str], given, where)
    if not places:
        raise InputError(f"{where} must name tensors; it has none")
    for name in places.values():
        if not name.endswith(".safetensors") or {"/", "\\", "\0"} & {*name}:
            raise InputError(f"{index} must name files of safetensors beside it; got {name!r}")
    return places
