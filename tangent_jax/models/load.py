"""Pre-trained weights by name: `load(source)`, and `save`.

`load` reads .safetensors with other libraries' tensor names (a file, a folder with model.safetensors, or
hf-hub:OWNER/NAME), Google's .npz, files of `save`, the embedded weights and "random:L/16". It never loads a pickle. The
metadata of our own files describe the model (`Description`), so that `load` restores it.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from tangent_jax.core import expect, refusal, require, trees, unexpected, urls
from tangent_jax.core.boundary import public
from tangent_jax.core.files import expand_path, write_whole
from tangent_jax.core.records import convert, parse_json
from tangent_jax.core.tensors import encode, read_tensors
from tangent_jax.data.preprocessing import Preprocessing
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.architectures import architectures
from tangent_jax.models.family import Family
from tangent_jax.models.files import Tensors, assemble
from tangent_jax.models.parametrize import WRAPPERS, unwrap
from tangent_jax.models.protocol import Model, initial_weights
from tangent_jax.models.resnet import weights as resnet
from tangent_jax.models.vit import weights as vit

FAMILIES = (vit.FAMILY, resnet.FAMILY)
EMBEDDED = {name: asset for family in FAMILIES for name, asset in family.embedded.items()}
FILES = ("model.safetensors", "config.json", "preprocessor_config.json", "processor_config.json")
"""The files of a folder of weights."""
METADATA = "tangent_jax"
"""The metadata key of a Description."""


@public
def load(source: str | os.PathLike, architecture: str | None = None) -> Pretrained:
    """Reads a pre-trained model, such as a Vision Transformer or a ResNet.

    Args:       source: "builtin", "builtin-resnet", "random:ARCHITECTURE" (f32, key 0), hf-hub:OWNER/NAME, a .npz or
                .safetensors file, a folder with model.safetensors, or the URL of one of these, which is fetched once;
                architecture: our name, such as "L/16", or timm's, such as "vit_base_patch16_224"; None if the file
                states it. It decides what tensors do not show, such as heads and activation, if no config.json does.
    Returns:    Pretrained, with weights in f32 and classes = 0 if the file has no head. A file of `save` gives the
                saved model and weights.
    Raises:     InputError naming the file, and the tensor with its expected and actual shape.

    >>> pretrained = tj.load("builtin")
    >>> type(pretrained.model).__name__, pretrained.model.image_size
    ('VisionTransformer', 16)
    """
    if source not in EMBEDDED and not str(source).startswith(("random:", "hf-hub:")):
        source = os.fspath(source) if urls.is_url(source) else expand_path("load", source)
    source = os.fspath(source)
    local = urls.local_copy("load", source, FILES) if urls.is_url(source) else Path(source)
    if source in EMBEDDED:
        with resources.as_file(resources.files("tangent_jax") / "assets" / EMBEDDED[source]) as path:
            pretrained = read(path)
    elif source.startswith("random:"):
        family, config = known_architecture(source.removeprefix("random:"))
        model = family.model(config)
        pretrained = Pretrained(model, initial_weights(model, jax.random.key(0)), source)
    elif source.startswith("hf-hub:"):
        pretrained = read(download(source.removeprefix("hf-hub:")), architecture)
    else:
        kinds = f"weights: {', '.join(EMBEDDED)}, random:L/16, hf-hub:OWNER/NAME, .npz, .safetensors or a folder"
        expect(local.exists(), kinds, f"{source}, which does not exist")
        pretrained = read(local, architecture)
    if architecture is not None and not (is_of_timm(architecture) and local.exists()):  # read has checked it
        check_architecture(architecture, pretrained.model, source)
    return dataclasses.replace(pretrained, source=source)


def is_made(source: str) -> bool:
    """True for weights that need no file or hub: embedded in the package, or random."""
    return source in EMBEDDED or source.startswith("random:")


@public
def save(path: str | os.PathLike, pretrained: Pretrained) -> None:
    """Writes a model to one .safetensors file, whole or not at all; `load` restores model and weights.

    `path` may be a URL.
    Raises:     InputError for another file type, a user's own model, or weights of more than 32 bits.

    >>> path = demo.folder() / "model.safetensors"
    >>> tj.save(path, tj.load("builtin").with_head(["owl", "gull"], jax.random.key(0)))
    >>> tj.load(path).model.classes
    2
    """
    model, url = pretrained.model, os.fspath(path) if urls.is_url(path) else None
    path = expand_path("save", path) if url is None else Path(url)
    expect(path.suffix == ".safetensors", "a path that ends in .safetensors", path)
    known, own = " or ".join(family.title for family in FAMILIES), type(unwrap(model)[0]).__name__
    do = "Export a model of your own with its step, and read it by load_export(folder, model=...)"
    expect(family_of(model) is not None, f"{known}, alone or with LoRA", own, do)
    content = encode_model("save", model, trees.leaves(pretrained.w), "ours")
    write_whole(path, content) if url is None else urls.write("save", url, content)


def read(path: Path, architecture: str | None = None) -> Pretrained:
    """Reads the model in one file, or in a folder's model.safetensors."""
    if path.is_dir():
        path = path / "model.safetensors"
        expect(path.exists(), f"model.safetensors in {path.parent}", "none")
    do = "Convert it first; pickled checkpoints are never loaded"
    expect(path.suffix in (".npz", ".safetensors"), "a .npz or .safetensors file", path.name, do)
    file = read_npz(path) if path.suffix == ".npz" else read_safetensors(path)
    file = file._replace(architecture=architecture)
    do = "Leave it out: this file says what it is"
    if METADATA in file.metadata:
        expected = f"an architecture of {', '.join(known_names())}"
        expect(not is_of_timm(architecture), expected, architecture, do)
        return read_ours(file)
    for naming in (naming for family in FAMILIES for naming in family.namings):
        if naming.recognises(file.tensors):
            expected, got = f"tensors under timm's names for {architecture}", f"names of {naming.title} in {path}"
            expect(naming.of_timm or not is_of_timm(architecture), expected, got)
            return naming.read(file)
    known = ", or ".join(f"{f.title} as {', '.join(n.title for n in f.namings)} name it" for f in FAMILIES)
    raise unexpected(known, f"{', '.join([*file.tensors][:3]) or 'no tensor'} in {path}")


def read_safetensors(path: Path) -> Tensors:
    """Reads the file and the JSON beside it."""
    tensors, metadata = read_tensors("load", path)
    sidecars = {name: path.with_name(f"{name}.json") for name in ("config", "preprocessor_config", "processor_config")}
    beside = {n: parse_json("load", side.read_bytes(), side) for n, side in sidecars.items() if side.exists()}
    return Tensors(tensors, metadata, beside if METADATA not in metadata else {}, str(path))


def read_npz(path: Path) -> Tensors:
    """Reads a file of NumPy arrays, floats only."""
    try:
        with np.load(path, allow_pickle=False) as file:
            tensors = {name: file[name] for name in file.files}
    except Exception as error:
        raise unexpected("a whole .npz file of plain arrays", f"{path} ({error})", "Fetch it again") from error
    for name, value in tensors.items():
        is_float = value.dtype in (np.float16, np.float32, np.float64)
        expect(is_float, f"{name} of floats", f"{value.dtype} in {path}", "Convert it first")
    return Tensors(tensors, {}, {}, str(path))


def download(hub_id: str) -> Path:
    """Downloads a hub model and returns the path of its safetensors, with its JSON files beside it."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(hub_id, allow_patterns=["model.safetensors", "*.json"])) / "model.safetensors"
    except Exception as error:
        do = "Download model.safetensors where the network allows and pass its path"
        raise unexpected(f"the hub to answer for {hub_id}", type(error).__name__, do) from error


# Architectures by name


def family_of(model: Model) -> Family | None:
    """The family of a model, or of the model inside its wrappers; None for a user's own model."""
    base, _ = unwrap(model)
    return next((family for family in FAMILIES if type(base) is family.model), None)


def title_of(model: Model) -> str:
    """The title of a model's family, or the class of a user's own model."""
    family = family_of(model)
    return type(unwrap(model)[0]).__name__ if family is None else family.title


def known_names() -> list[str]:
    """The names of the architectures of this library."""
    return [name for family in FAMILIES for name in family.architectures]


def is_of_timm(name: str | None) -> bool:
    """True for a name of timm's that this library does not use itself."""
    return name in architectures() and name not in known_names()


def known_architecture(name: str) -> tuple[Family, Any]:
    """The family and the configuration of a named architecture, such as "L/16"."""
    for family in FAMILIES:
        if name in family.architectures:
            return family, family.architectures[name]
    raise unexpected(f"an architecture of {', '.join(known_names())}", name)


def check_architecture(expected: str, model: Model, source: str) -> None:
    """Raises InputError naming the first size that differs from the expected architecture, such as L/16."""
    family, (base, _) = family_of(model), unwrap(model)
    wanted, config = known_architecture(expected)
    expect(family is wanted, f"{expected}, {wanted.title}", f"{title_of(model)} in {source}")
    for field in wanted.sizes:
        want, got = getattr(config, field), getattr(base.config, field)
        expect(want == got, f"{expected} with {field} {want}", f"{field} {got} in {source}")


# Files of ours


@dataclasses.dataclass(frozen=True)
class Description:
    """The description of a model in the metadata of our files.

    family          its name, None for a user's own model
    config          the settings of the model without its wrappers
    wrappers        the innermost first: {its name in WRAPPERS: its fields but `base`}
    preprocessing   None for a model that does not read images
    names           of the tensors: our paths, or those of the model's `to_world`
    """

    family: str | None
    config: dict[str, Any]
    preprocessing: Preprocessing | None
    wrappers: tuple[dict[str, dict[str, Any]], ...]
    names: Literal["ours", "world"]


def encode_model(function: str, model: Model, flat: Mapping[str, Any], names: Literal["ours", "world"]) -> bytes:
    """The bytes of a safetensors file of leaves by path, with the model's description; `names`: ours or the world's.

    Raises:     InputError for leaves of more than 32 bits, and for a model that its description cannot restore.
    """
    arrays = {path: np.asarray(leaf) for path, leaf in flat.items()}
    for path, leaf in arrays.items():
        got = f"{path} in {leaf.dtype}"
        require(leaf.dtype.itemsize <= 4, function, "leaves that float32 holds", got, "Cast them to float32 first")
    (base, wrappers), family = unwrap(model), family_of(model)
    name = None if family is None else family.name
    of_images = model.preprocessing if isinstance(model.preprocessing, Preprocessing) else None
    description = dataclasses.asdict(Description(name, base.settings, of_images, wrappers, names))
    try:
        text = json.dumps(description)
    except TypeError as error:
        raise refusal(function, "a model whose settings JSON holds", f"{base.settings} ({error})") from error
    if family is not None:
        again = from_description(function, parse_json(function, text, "its settings"), "its settings")
        require(again == model, function, f"a model that its settings make again, {again}", model)
    return encode(model.to_world(arrays) if names == "world" else arrays, {METADATA: text})


def read_ours(file: Tensors) -> Pretrained:
    """Reads a file of `save` or `export`."""
    where = f"the metadata of {file.path}"
    fields = parse_json("load", file.metadata[METADATA], where)
    model = from_description("load", fields, where)
    flat = model.from_world(file.tensors) if fields["names"] == "world" else file.tensors
    return assemble(model, flat, file.path)


def from_description(function: str, fields: dict[str, Any], where: str) -> Model:
    """The model of a Description's fields."""
    description: Description = convert(Description, fields, function, where)
    family = next((family for family in FAMILIES if family.name == description.family), None)
    known, do = ", ".join(f.name for f in FAMILIES), "Read a model of your own by load_export(folder, model=...)"
    require(family is not None, function, f"a family of {known} in {where}", description.family, do)
    assert family is not None
    config = convert(family.config, description.config, function, f"config of {where}")
    require(description.preprocessing is not None, function, f"preprocessing in {where}", None)
    model = family.model(config, description.preprocessing)
    for name, own in (entry for wrapper in description.wrappers for entry in wrapper.items()):
        require(name in WRAPPERS, function, f"wrappers of {', '.join(WRAPPERS)} in {where}", name)
        model = convert(WRAPPERS[name], {**own, "base": model}, function, f"{name} of {where}")
    return model
