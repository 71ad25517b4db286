"""Pre-trained weights by name: `load(source)`, and `save`.

Read are Google's .npz, timm-named or Hugging Face ViT-named .safetensors (a file, a folder with model.safetensors, or
hf-hub:OWNER/NAME), files of `save`, "builtin" and "random:L/16". No pickle is ever loaded.
"""

import dataclasses
import json
import os
from importlib import resources
from pathlib import Path

import jax
import numpy as np

from tangent_jax.core import refusal, require, trees
from tangent_jax.core.files import expanded, write_whole
from tangent_jax.core.records import parse_json
from tangent_jax.core.tensors import encode, read_tensors
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.files import Tensors
from tangent_jax.models.protocol import Model, initial_weights
from tangent_jax.models.resnet import config as resnet_config
from tangent_jax.models.resnet import weights as resnet
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.resnet.names import is_resnet
from tangent_jax.models.vit import weights as vit
from tangent_jax.models.vit.config import vit_config
from tangent_jax.models.vit.model import VisionTransformer

BUILTIN = {"builtin": "vit_builtin.safetensors", "builtin-resnet": "resnet_builtin.safetensors"}


def load(source: str | os.PathLike, expected: str | None = None) -> Pretrained:
    """Reads a pre-trained Vision Transformer or ResNet.

    Args:       source: "builtin", "builtin-resnet", "random:ARCHITECTURE" (f32, key 0), hf-hub:OWNER/NAME, a .npz or
                .safetensors file, or a folder with model.safetensors;
                expected: the architecture the caller asks for, such as "L/16" or "resnet50", or None for any.
    Returns:    Pretrained; its model has classes = 0 where the file holds no head.
    Raises:     InputError naming the file, and the tensor with its expected and found shape.
    """
    if source not in BUILTIN and not str(source).startswith(("random:", "hf-hub:")):
        source = os.fspath(expanded("load", source))
    source = os.fspath(source)
    if source in BUILTIN:
        with resources.as_file(resources.files("tangent_jax") / "assets" / BUILTIN[str(source)]) as path:
            pretrained = read(path)
    elif source.startswith("random:"):
        name = source.removeprefix("random:")
        is_residual = name in resnet_config.SIZES
        model = ResNet(resnet_config.resnet_config(name)) if is_residual else VisionTransformer(vit_config(name))
        pretrained = Pretrained(model, initial_weights(model, jax.random.key(0)), source)
    elif source.startswith("hf-hub:"):
        pretrained = read(download(source.removeprefix("hf-hub:")))
    else:
        kinds = "weights: builtin, builtin-resnet, random:L/16, hf-hub:OWNER/NAME, .npz, .safetensors or a folder"
        require(Path(source).exists(), "load", kinds, f"{source}, which does not exist")
        pretrained = read(Path(source))
    if expected is not None:
        check_architecture(expected, pretrained.model, source)
    return dataclasses.replace(pretrained, source=source)


def read(path: Path) -> Pretrained:
    """The model in one file, or in a folder's model.safetensors."""
    if path.is_dir():
        path = path / "model.safetensors"
        require(path.exists(), "load", f"model.safetensors in {path.parent}", "none")
    if path.suffix == ".npz":
        return vit.from_google(read_npz(path))
    do = "Convert it first; pickled checkpoints are never loaded"
    require(path.suffix == ".safetensors", "load", "a .npz or .safetensors file", path.name, do)
    file = read_safetensors(path)
    if "config" not in file.metadata:
        return (resnet if is_resnet(file.tensors) else vit).from_torch(file)
    config = file.metadata["config"]
    return (resnet if isinstance(config, dict) and "bottleneck" in config else vit).from_ours(file)


def check_architecture(expected: str, model: Model, source: str) -> None:
    """Raises InputError unless the model is the architecture asked for, such as L/16 or resnet50."""
    kinds = {True: "a ResNet", False: "a Vision Transformer"}
    asked, found = expected in resnet_config.SIZES, isinstance(model, ResNet)
    require(asked == found, "load", f"{expected}, {kinds[asked]}", f"{kinds[found]} in {source}")
    if isinstance(model, ResNet):
        resnet.check_architecture(expected, model.config, source)
    elif isinstance(model, VisionTransformer):
        vit.check_architecture(expected, model.config, source)


def read_safetensors(path: Path) -> Tensors:
    """The file and the JSON beside it; the metadata of a file of ours is its configuration."""
    tensors, metadata = read_tensors("load", path)
    if "tangent_jax" in metadata:
        return Tensors(tensors, parse_json("load", metadata["tangent_jax"], f"the metadata of {path}"), {}, str(path))
    sidecars = {name: path.with_name(f"{name}.json") for name in ("config", "preprocessor_config")}
    beside = {n: parse_json("load", side.read_bytes(), side) for n, side in sidecars.items() if side.exists()}
    return Tensors(tensors, {**metadata}, beside, str(path))


def read_npz(path: Path) -> Tensors:
    try:
        with np.load(path, allow_pickle=False) as file:
            tensors = {name: file[name] for name in file.files}
    except Exception as error:
        raise refusal("load", "a whole .npz file of plain arrays", f"{path} ({error})", "Fetch it again") from error
    for name, value in tensors.items():
        is_float = value.dtype in (np.float16, np.float32, np.float64)
        require(is_float, "load", f"{name} of floats", f"{value.dtype} in {path}", "Convert it first")
    return Tensors(tensors, {}, {}, str(path))


def download(hub_id: str) -> Path:
    """A hub model's safetensors, with the JSON files that describe it beside it."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(hub_id, allow_patterns=["model.safetensors", "*.json"])) / "model.safetensors"
    except Exception as error:
        do = "Download model.safetensors where the network allows and pass its path"
        raise refusal("load", f"the hub to answer for {hub_id}", type(error).__name__, do) from error


def describe(model: Model) -> dict[str, str]:
    """What makes the model, as the metadata of a safetensors file."""
    meta = {"config": model.settings, "preprocessing": dataclasses.asdict(model.preprocessing)}
    return {"tangent_jax": json.dumps(meta)}


def save(path: str | os.PathLike, pretrained: Pretrained) -> None:
    """One safetensors file that `load` reads: our names, the configuration in its metadata; written whole or not."""
    tensors = {name: np.asarray(leaf) for name, leaf in trees.leaves(pretrained.w).items()}
    write_whole(Path(path), encode(tensors, describe(pretrained.model)))
