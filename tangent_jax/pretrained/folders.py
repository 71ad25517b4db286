"""Finds the weights in a folder: one file of safetensors, or several with an index; says why others are not read."""

import fnmatch
import re
from pathlib import Path

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.io.progress import tell
from tangent_jax.io.records import convert, parse_json
from tangent_jax.io.tensors import read_tensors

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""The index of weights in several files, as transformers and diffusers write it: {"weight_map": {tensor: file}}."""
SHARDS = "model-*-of-*.safetensors"
"""The files that such an index names, on the hub."""
CONVERT = (
    "Convert it: python -c \"import torch, safetensors.torch as s; w = torch.load('{path}', map_location='cpu', "
    "weights_only=True); w = w.get('state_dict', w.get('model', w)); s.save_file({{k: v.contiguous().clone() for k, v "
    "in w.items() if torch.is_tensor(v)}}, '{folder}/model.safetensors')\""
)
"""Makes model.safetensors of a pickle: of a state dict, or of one within a checkpoint."""
CONVERT_PARTS = (
    'Convert all its parts: python -c "import pathlib, torch, safetensors.torch as s; parts = '
    "sorted(pathlib.Path('{folder}').glob('{parts}')); w = {{k: v for part in parts for k, v in torch.load(part, "
    "map_location='cpu', weights_only=True).items()}}; "
    "s.save_file({{k: v.contiguous().clone() for k, v in w.items()}}, "
    "'{folder}/model.safetensors')\""
)
"""Makes one model.safetensors of the parts of a pickle, such as pytorch_model-00001-of-00002.bin."""
PART = re.compile(r"-\d+-of-(\d+\.)")
PICKLED = "which is a pickle of PyTorch's; pickles are never loaded, for they can run any program"
OTHERS: dict[str, tuple[str, str]] = {
    "*.msgpack": ("which is Flax's format", "Save it as safetensors: transformers 4, from_pretrained(from_flax=True)"),
    "*.h5": ("which is Keras's format", "Save it as safetensors: transformers 4, from_pretrained(from_tf=True)"),
    "*.onnx": ("which is ONNX, a program without the names of weights", "Take the weights that it was made of"),
    **dict.fromkeys(("*.bin", "*.pth", "*.pt", "*.ckpt", "*.pth.tar", "*.tar", "*.pkl"), (PICKLED, CONVERT)),
}  # fmt: skip
"""Files of other formats: what they are, and what to do."""
ADAPTERS = "adapter_model.*"
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
    files = [name for name in names if name.endswith(".safetensors")]
    adapters = fnmatch.filter(names, ADAPTERS)
    if adapters:
        raise of_adapter(folder / adapters[0])
    if len(files) == 1:
        return folder / files[0]
    if files:
        raise InputError(
            f"{folder} must hold {WEIGHTS}, or {INDEX}, which says which files are parts of one model; it has "
            f"{len(files)} files, such as {', '.join(files[:3])}. Pass the path of one, or fetch the index too"
        )
    reasons = {name: why_not(folder / name) for name in names if not is_of_training(name)}
    found = [name for name, (cause, _) in reasons.items() if cause]
    if found:
        name = min(found, key=lambda name: reasons[name][0] != PICKLED)  # the pickle has a remedy that is one line
        cause, remedy = reasons[name]
        raise InputError(f"{folder} must hold {WEIGHTS}; it has {name}, {cause}. {remedy}")
    raise InputError(
        f"{folder} must hold {WEIGHTS}; it has {', '.join(names[:5]) or 'no file'}. Pass the folder of the weights"
    )


def check_format(path: Path) -> None:
    """Raises InputError for a file that is neither .npz nor .safetensors, nor the index of some."""
    if fnmatch.fnmatch(path.name, ADAPTERS):
        raise of_adapter(path)
    if path.suffix in (".npz", ".safetensors") or path.name == INDEX:
        return
    cause, remedy = why_not(path)
    raise InputError(
        f"weights must be a .npz or .safetensors file; got {path.name}{', ' if cause else ''}{cause}. "
        f"{remedy or 'Convert it first'}"
    )


def why_not(path: Path) -> tuple[str, str]:
    """(why a file of this name is not read, what to do); ("", "") for a file that is no weights."""
    for pattern, (cause, remedy) in OTHERS.items():
        if fnmatch.fnmatch(path.name.lower(), pattern):
            if remedy is not CONVERT:
                return cause, remedy
            parts = PART.sub(r"-*-of-\1", path.name)
            convert_by = CONVERT if parts == path.name else CONVERT_PARTS
            return cause, convert_by.format(path=path, folder=path.parent, parts=parts)
    return "", ""


def is_of_training(name: str) -> bool:
    """True for a file of a training's state, which holds no weights."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in OF_TRAINING)


def of_adapter(path: Path) -> InputError:
    """The error of a PEFT adapter instead of a model."""
    return InputError(
        f"weights must be those of a whole model; {path} is an adapter of PEFT, which changes one. Merge it by "
        "peft: PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(new_folder)"
    )


def read_shards(index: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns (tensors by name, metadata) of all files that an index names, as `read_tensors` does.

    Raises:
        InputError: A name that is no file beside the index, a missing file, a tensor that is missing from its file, and
            a tensor in two files.
    """
    tensors: dict[str, np.ndarray] = {}
    found_in: dict[str, str] = {}
    places = shards_of(index)
    for name in dict.fromkeys(places.values()):
        inner, _ = read_tensors(shard_path(index, name), whole_numbers=True)
        for tensor in inner.keys() & tensors.keys():
            raise InputError(f"a tensor must be in one file; {tensor} is in {found_in[tensor]} and {name} of {index}")
        tensors |= inner
        found_in |= dict.fromkeys(inner, name)
    for tensor, name in places.items():
        if found_in.get(tensor) != name:
            raise InputError(f"{name} must hold {tensor}, as {index} says; it does not. Fetch both again")
    return tensors, {}


def shards_of(index: Path) -> dict[str, str]:
    """The file of each tensor, by name."""
    where = f"weight_map of {index}"
    given = parse_json(index.read_bytes(), index).get("weight_map")
    places: dict[str, str] = convert(dict[str, str], given, where)
    if not places:
        raise InputError(f"{where} must name tensors; it has none")
    return places


def shard_path(index: Path, name: str) -> Path:
    """The path of a file that an index names: beside it, or where the hub's cache keeps the same repository's files."""
    check_shard_name(index, name)
    path = index.parent / name
    if not path.exists():
        raise InputError(f"{path} must exist, since {index.name} names it; it does not. Fetch it, too")
    folder = index.parent.resolve()
    kept = [folder]
    if folder.parent.name == "snapshots":  # of the hub's cache, whose files are links
        kept.append(folder.parent.parent / "blobs")
    if path.resolve().parent not in kept:
        raise InputError(f"{path} must be a file beside {index.name}; it is a link out of its folder")
    return path


def check_shard_name(index: Path, name: str) -> None:
    """Raises InputError for a name in an index that is no file of safetensors beside it."""
    if not name.endswith(".safetensors") or {"/", "\\", "\0"} & {*name}:
        raise InputError(f"{index} must name files of safetensors beside it; got {name!r}")
