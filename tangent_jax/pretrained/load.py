"""Pre-trained weights by name: `load(source)`, and `save`.

`load` reads .safetensors with other libraries' tensor names (a file, a folder with one or with an index of several, or
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
import jax.numpy as jnp
import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import composed_name
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.io import paths
from tangent_jax.io.files import expand_path, write_whole
from tangent_jax.io.git_lfs import check_no_pointer
from tangent_jax.io.progress import tell
from tangent_jax.io.records import convert, parse_json
from tangent_jax.io.tensors import encode, read_tensors
from tangent_jax.models.anchor import Pretrained, fingerprints
from tangent_jax.models.parametrize import WRAPPERS, unwrap
from tangent_jax.models.protocol import Model, initial_weights
from tangent_jax.models.session import FirstSession
from tangent_jax.pretrained import resnet
from tangent_jax.pretrained.architectures import architectures, with_pretrained_cfg
from tangent_jax.pretrained.family import Family
from tangent_jax.pretrained.files import Tensors, assemble
from tangent_jax.pretrained.folders import (
    INDEX,
    OF_OPEN_CLIP,
    SHARDS,
    WEIGHTS,
    check_format,
    read_shards,
    shards_of,
    weights_in,
)
from tangent_jax.pretrained.left_out import left_out
from tangent_jax.pretrained.recognise import recognise
from tangent_jax.pretrained.sessions import SESSION, decode_session, encode_session
from tangent_jax.pretrained.vit import weights as vit

FAMILIES = (vit.FAMILY, resnet.FAMILY)
EMBEDDED = {name: asset for family in FAMILIES for name, asset in family.embedded.items()}
BESIDE = ("config", "preprocessor_config", "processor_config", "open_clip_config")
"""The JSON files beside weights."""
FILES = (WEIGHTS, INDEX, *(f"{name}.json" for name in BESIDE))
"""The files of a folder of weights."""
METADATA = "tangent_jax"
"""The metadata key of a Description."""


def load(source: str | os.PathLike, architecture: str | None = None) -> Pretrained:
    """Reads a pre-trained model, such as a Vision Transformer or a ResNet.

    Args:
        source: "builtin", "builtin-resnet", "random:ARCHITECTURE" (f32, key 0), hf-hub:OWNER/NAME or
            OWNER/NAME@REVISION, a .npz or .safetensors file, a folder with model.safetensors, or the URL of one of
            these, which is fetched once.
        architecture: Our name, such as "L/16", or timm's, such as "vit_base_patch16_224"; None if the file states it.
            It decides what tensors do not show, such as heads and activation, if no config.json does.

    Returns:
        Pretrained, with weights in f32 and classes = 0 if the file has no head. A file of `save` gives the saved model
        and weights.

    Raises:
        InputError: It names the file, and the tensor with its expected and actual shape.

    >>> pretrained = tj.load("builtin")
    >>> type(pretrained.model).__name__, pretrained.model.image_size
    ('VisionTransformer', 16)
    """
    source = str(source)
    if source in EMBEDDED:
        with resources.as_file(resources.files("tangent_jax") / "assets" / EMBEDDED[source]) as path:
            pretrained = read(path)
    elif source.startswith("random:"):
        family, config = known_architecture(source.removeprefix("random:"))
        model = family.model(config)
        pretrained = Pretrained(model, initial_weights(model, jax.random.key(0)), source)
    else:
        source, path = located(source)
        pretrained = read(path, architecture)
    is_made_here = source in EMBEDDED or source.startswith("random:")
    if architecture is not None and (is_made_here or not is_of_timm(architecture)):  # else read has checked it
        check_architecture(architecture, pretrained.model, source)
    return dataclasses.replace(pretrained, source=source)


def located(source: str) -> tuple[str, Path]:
    """Returns (the source without ~, the path of the file or folder), fetched from a URL or the hub."""
    if source.startswith("hf-hub:"):
        return source, download(source.removeprefix("hf-hub:"))
    if paths.is_url(source):
        return source, fetched(source)
    path = expand_path(source)
    if not path.exists():
        raise InputError(
            f"weights must be {', '.join(EMBEDDED)}, random:L/16, hf-hub:OWNER/NAME, .npz, .safetensors or a folder; "
            f"got {path}, which does not exist"
        )
    return os.fspath(path), path


def save(path: str | os.PathLike, pretrained: Pretrained) -> None:
    """Writes a model to one .safetensors file, whole or not at all; `load` restores model and weights.

    The anchor of a first session is written under timm's or torchvision's names, as exports are; others under ours.
    `path` may be a URL.

    Raises:
        InputError: Another file type, a user's own model, or weights of more than 32 bits.

    >>> path = demo.folder() / "model.safetensors"
    >>> tj.save(path, tj.load("builtin").with_head(["owl", "gull"], jax.random.key(0)))
    >>> tj.load(path).model.classes
    2
    """
    model, url = pretrained.model, os.fspath(path) if paths.is_url(path) else None
    path = expand_path(path) if url is None else Path(url)
    if path.suffix != ".safetensors":
        raise InputError(f"path must end in .safetensors; got {path}")
    known = " or ".join(family.title for family in FAMILIES)
    if family_of(model) is None:
        raise InputError(
            f"model must be {known}, alone or with LoRA; got {type(unwrap(model)[0]).__name__}. Export a model of your "
            "own with its step, and read it by load_export(folder, model=...)"
        )
    names = "ours" if pretrained.session is None else "world"
    content = encode_model(model, trees.leaves(pretrained.w), names, pretrained.session, pretrained.class_names)
    write_whole(path, content) if url is None else paths.write(url, content)


def read(path: Path, architecture: str | None = None) -> Pretrained:
    """Reads the model in one file, or in a folder."""
    path = weights_in(path) if path.is_dir() else path
    check_format(path)
    file = read_npz(path) if path.suffix.lower() == ".npz" else read_safetensors(path)
    file = file._replace(architecture=architecture)
    if METADATA in file.metadata:
        if is_of_timm(architecture):
            raise InputError(
                f"architecture must be one of {', '.join(known_names())}; got {architecture}. Leave it out: this "
                "file says what it is"
            )
        check_floats(file)
        return with_session(read_ours(file), file)
    naming, file, lines = recognise(file, [naming for family in FAMILIES for naming in family.namings])
    check_floats(file)
    if not (naming.of_timm or not is_of_timm(architecture)):
        raise InputError(f"{path} must hold tensors under timm's names for {architecture}; got names of {naming.title}")
    pretrained = with_session(naming.read(file), file)
    for line in lines:
        tell(line)
    return dataclasses.replace(pretrained, class_names=class_names(pretrained.model, file))


def class_names(model: Model, file: Tensors) -> tuple[str, ...]:
    """What config.json calls the outputs, by Hugging Face's id2label or timm's label_names; () if it does not say.

    timm's may be in its pretrained_cfg, and were `labels` before. One line says so if their number is another than the
    head's.
    """
    config = file.beside.get("config", {})
    labels = config.get("id2label") or config.get("label_names") or config.get("labels") or {}
    if not labels and isinstance(config.get("pretrained_cfg"), dict):
        labels = config["pretrained_cfg"].get("label_names") or {}
    labels = dict(enumerate(labels)) if isinstance(labels, list) else labels
    try:
        by_index = {int(key): composed_name(name) for key, name in labels.items()}
    except (AttributeError, TypeError, ValueError):
        return ()
    if sorted(by_index) != [*range(len(by_index))]:
        tell(f"config.json beside {file.path} does not name outputs 0, 1, 2, ...: its class names are not read")
        return ()
    names = tuple(by_index[i] for i in range(len(by_index)))
    if not names or model.classes == 0 or names == tuple(f"LABEL_{i}" for i in range(len(names))):  # transformers' own
        return ()
    if len(names) != model.classes:
        tell(f"config.json beside {file.path} names {len(names)} classes; the head has {model.classes}")
    return names


def read_safetensors(path: Path) -> Tensors:
    """Reads the file, or all files of an index, and the JSON beside it."""
    # whole numbers are of parts that are left out
    tensors, metadata = (read_shards(path), {}) if path.name == INDEX else read_tensors(path, whole_numbers=True)
    return Tensors(tensors, metadata, read_beside(path) if METADATA not in metadata else {}, str(path))


def read_beside(path: Path) -> dict[str, dict[str, Any]]:
    """Reads the JSON files beside a file of weights, by name."""
    sidecars = {name: path.with_name(f"{name}.json") for name in BESIDE}
    beside = {name: parse_json(side.read_bytes(), side) for name, side in sidecars.items() if side.exists()}
    if "config" in beside:
        beside["config"] = with_pretrained_cfg(beside["config"])
    return beside


def read_npz(path: Path) -> Tensors:
    """Reads a file of NumPy arrays and the JSON beside it; arrays on which no output depends are not read."""
    check_no_pointer(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            gone = left_out(file.files)
            tensors = {name: as_bfloat16(file[name]) for name in file.files if name not in gone}
    except Exception as error:
        raise InputError(
            f"{path} must be a whole .npz file of plain arrays; it is not ({error}). Fetch it again"
        ) from error
    return Tensors(tensors, {}, read_beside(path), str(path))


def as_bfloat16(value: np.ndarray) -> np.ndarray:
    """The array; one of two raw bytes a number as bfloat16, which NumPy writes so, for it has no name for it."""
    is_raw = value.dtype.kind == "V" and value.dtype.itemsize == 2 and value.dtype.names is None
    return value.view(jnp.bfloat16) if is_raw else value


def check_floats(file: Tensors) -> None:
    """Raises InputError naming a tensor of other numbers than floats of at most 64 bits."""
    for name, value in file.tensors.items():
        is_float = value.dtype == jnp.bfloat16 or (value.dtype.kind == "f" and value.dtype.itemsize <= 8)
        if not is_float:
            raise InputError(
                f"{name} must be in F64, F32, F16 or BF16; it is in {value.dtype} in {file.path}. Convert it first"
            )


def download(hub_id: str) -> Path:
    """Downloads a hub model's safetensors and JSON files, and returns their folder.

    Args:
        hub_id: OWNER/NAME, or OWNER/NAME@REVISION of a branch, tag or commit, as timm writes it.
    """
    name, _, revision = hub_id.partition("@")
    try:
        from huggingface_hub import snapshot_download

        for files in ([WEIGHTS, SHARDS, "*.json"], [OF_OPEN_CLIP]):
            folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=files))
            if any((folder / file).exists() for file in (WEIGHTS, INDEX, OF_OPEN_CLIP)):
                return folder
    except Exception as error:
        raise InputError(
            f"hf-hub:{hub_id} must be OWNER/NAME or OWNER/NAME@REVISION, reachable or in the hub's cache; got "
            f"{type(error).__name__}. Download model.safetensors where the network allows and pass its path"
        ) from error
    raise InputError(
        f"hf-hub:{hub_id} must have {WEIGHTS}, {INDEX} or {OF_OPEN_CLIP}; its weights are of another format, often a "
        "pickle such as pytorch_model.bin, which is never loaded. Download it, and convert it as "
        "docs/reference/models.md shows"
    )


def fetched(url: str) -> Path:
    """The path of a local copy of weights at a URL: a file with the JSON beside it, or a folder.

    The files that an index of the folder names are fetched, too.
    """
    is_file = url.lower().endswith((".safetensors", ".npz", ".json"))
    names = tuple(f"{name}.json" for name in BESIDE) if is_file else FILES
    local = paths.local_copy(url, names)
    index = local if local.name == INDEX else local / INDEX
    if not index.is_file() or (local / WEIGHTS).exists():
        return local
    return paths.local_copy(url, (*names, *sorted({*shards_of(index).values()})))


# Architectures by name


def family_of(model: Model) -> Family | None:
    """The family of a model, or of the model inside its wrappers; None for a user's own model."""
    base, _ = unwrap(model)
    return next((family for family in FAMILIES if type(base) is family.model), None)


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
    raise InputError(f"architecture must be one of {', '.join(known_names())}; got {name}")


def check_architecture(architecture: str, model: Model, source: str) -> None:
    """Raises InputError naming the first size that differs from those of the architecture, such as L/16."""
    family, (base, _) = family_of(model), unwrap(model)
    wanted, config = known_architecture(architecture)
    assert family is not None
    if family is not wanted:
        raise InputError(f"{source} must be {architecture}, {wanted.title}; got {family.title}")
    for field in wanted.sizes:
        want, got = getattr(config, field), getattr(base.config, field)
        if want != got:
            raise InputError(f"{field} of {source} must be {want}, as {architecture} has; got {got}")


# Files of ours


@dataclasses.dataclass(frozen=True)
class Description:
    """The description of a model in the metadata of our files.

    Attributes:
        family: Its name, None for a user's own model.
        config: The settings of the model without its wrappers.
        wrappers: The innermost first: {its name in WRAPPERS: its fields but `base`}.
        preprocessing: None for a model that does not read images.
        names: The names of the tensors: our paths, or those of the model's `to_world`.
        class_names: As in `Pretrained`.
    """

    family: str | None
    config: dict[str, Any]
    preprocessing: Preprocessing | None
    wrappers: tuple[dict[str, dict[str, Any]], ...]
    names: Literal["ours", "world"]
    class_names: tuple[str, ...] = ()


def encode_model(
    model: Model,
    flat: Mapping[str, Any],
    names: Literal["ours", "world"],
    session: FirstSession | None = None,
    class_names: tuple[str, ...] = (),
) -> bytes:
    """The bytes of a safetensors file of leaves by path, with the model's description and its first session, if any.

    Args:
        names: The names of the tensors, ours or the world's.

    Raises:
        InputError: Leaves of more than 32 bits, and a model that its description cannot restore.
    """
    arrays = {path: np.asarray(leaf) for path, leaf in flat.items()}
    for path, leaf in arrays.items():
        if leaf.dtype.itemsize > 4:
            raise InputError(f"leaves must fit float32; got {path} in {leaf.dtype}. Cast them to float32 first")
    (base, wrappers), family = unwrap(model), family_of(model)
    name = None if family is None else family.name
    of_images = model.preprocessing if isinstance(model.preprocessing, Preprocessing) else None
    description = dataclasses.asdict(Description(name, base.settings, of_images, wrappers, names, class_names))
    try:
        text = json.dumps(description)
    except TypeError as error:
        raise InputError(f"settings of the model must fit JSON; got {base.settings} ({error})") from error
    if family is not None:
        again = from_description(parse_json(text, "the model"), "the model")
        if again != model:
            raise InputError(f"model must be the one that its settings make, {again}; got {model}")
    own = {}
    if session is not None:
        read_back = trees.nest({path: np.asarray(leaf, np.float32) for path, leaf in arrays.items()})
        own[SESSION] = encode_session(session, fingerprints(read_back)[0])
    return encode(model.to_world(arrays) if names == "world" else arrays, {METADATA: text, **own})


def read_ours(file: Tensors) -> Pretrained:
    """Reads a file of `save` or `export`."""
    where = f"the metadata of {file.path}"
    fields = parse_json(file.metadata[METADATA], where)
    model = from_description(fields, where)
    flat = model.from_world(file.tensors) if fields["names"] == "world" else file.tensors
    names = convert(tuple[str, ...], fields.get("class_names", []), f"class_names of {where}")
    return dataclasses.replace(assemble(model, flat, file.path), class_names=names or class_names(model, file))


def with_session(pretrained: Pretrained, file: Tensors) -> Pretrained:
    """The model with the first session in the metadata of its file, if there is one."""
    if SESSION not in file.metadata:
        return pretrained
    session = decode_session(file.metadata[SESSION], fingerprints(pretrained.w)[0], file.path)
    return dataclasses.replace(pretrained, session=session)


def from_description(fields: dict[str, Any], where: str) -> Model:
    """The model of a Description's fields."""
    description: Description = convert(Description, fields, where)
    family = next((family for family in FAMILIES if family.name == description.family), None)
    known = ", ".join(f.name for f in FAMILIES)
    if family is None:
        raise InputError(
            f"family in {where} must be one of {known}; got {description.family}. Read a model of your own by "
            "load_export(folder, model=...)"
        )
    config = convert(family.config, description.config, f"config of {where}")
    if description.preprocessing is None:
        raise InputError(f"{where} must state preprocessing; it does not")
    model = family.model(config, description.preprocessing)
    for name, own in (entry for wrapper in description.wrappers for entry in wrapper.items()):
        if name not in WRAPPERS:
            raise InputError(f"wrappers in {where} must be of {', '.join(WRAPPERS)}; got {name}")
        model = convert(WRAPPERS[name], {**own, "base": model}, f"{name} of {where}")
    return model
