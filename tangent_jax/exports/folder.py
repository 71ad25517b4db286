"""Exports a model to a folder, in one format of FORMATS.

    safetensors    model.safetensors    w, under other libraries' names, as timm loads it
                   tangent.safetensors  dw, under the same names, without frozen leaves; or the kernel and bias of a
                                        head on features, with settings in provenance.json
    stablehlo      model.jax, weights.safetensors, run.py, serving.json: a program without this library (serving.py)
    onnx           model.onnx, run.py, serving.json; provenance.json states the opset, too
    all formats    provenance.json      a summary of the components of dw (summary.py), the names of the outputs,
                                        whether these are the total or the tangent alone, the files' fingerprints
                   README.md            the same in words, a model card (card.py)

f_lin(x) = f_w(x) + J_w f(x) . dw needs w and dw: w + dw is another model. No file names an image, an owner or a
component, or holds a hash of one.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, one_of
from tangent_jax.core.names import check_order
from tangent_jax.core.notation import Tree
from tangent_jax.core.placement import copied
from tangent_jax.exports.card import make_card
from tangent_jax.exports.serving import OPSET, OPSETS, write_onnx, write_stablehlo
from tangent_jax.exports.summary import summarize, without_images
from tangent_jax.io.files import expand_path, file_fingerprint, write_whole, write_whole_folder
from tangent_jax.io.paths import is_url, passing_copy
from tangent_jax.io.records import convert, parse_json, plain
from tangent_jax.io.tensors import encode, read_tensors
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.models.ntk import ComponentPredictor, FeatureMap
from tangent_jax.models.parametrize import unwrap
from tangent_jax.models.protocol import Model
from tangent_jax.models.session import FirstSession
from tangent_jax.pretrained.files import assemble
from tangent_jax.pretrained.load import METADATA, encode_model, read
from tangent_jax.store.lines import partial_of
from tangent_jax.store.provenance import Provenance

SAID = "provenance.json"
FILES = ("model.safetensors", "tangent.safetensors", "weights.safetensors", "model.jax", "model.onnx", "run.py",
         "serving.json", "provenance.json", "README.md")  # fmt: skip
EXPORTED = {*FILES, *(f"{name}.partial" for name in FILES)}
"""The names of all files of an export, unfinished ones too."""


class Format(NamedTuple):
    """The function (folder, predict, dw, classes) that fills a folder, and the packages that it needs, an extra's."""

    write: Callable[..., None]
    needs: tuple[str, ...] = ()


def write_safetensors(folder: Path, predict: ComponentPredictor, dw: Tree, classes: Sequence[str]) -> None:
    """Writes w and dw under the names of the model's `to_world`; class names have no place there."""
    leaves = trees.leaves(dw)
    tangent = encode_model(predict.model, leaves, "world") if predict.features is None else encode(leaves, {})
    anchor = encode_model(predict.anchor_model, trees.leaves(predict.w), "world", predict.session)
    write_whole(folder / "model.safetensors", anchor)
    write_whole(folder / "tangent.safetensors", tangent)


FORMATS = {
    "safetensors": Format(write_safetensors),
    "stablehlo": Format(write_stablehlo, ("flatbuffers",)),
    "onnx": Format(write_onnx, ("jax2onnx", "onnxruntime")),
}
"""The formats that `tj.export` writes."""


def check_format(format: str, opset: int | None = None) -> None:
    """Raises InputError for an unknown format, one whose packages are not installed, or an opset that it lacks.

    >>> tj.exports.check_format("safetensors")
    """
    one_of("format", format, FORMATS)
    if opset is not None and format != "onnx":
        raise InputError(f"opset is of the format onnx, and this export is {format}. Leave opset out, or export onnx.")
    if opset is not None and opset not in OPSETS:
        raise InputError(f"opset must be {OPSETS[0]} to {OPSETS[-1]}; got {opset}. TensorRT 10 reads up to 20.")
    for package in FORMATS[format].needs:
        if not find_spec(package):
            raise InputError(
                f"{package}, which {format} needs, must be installed; it is not. Run pip install "
                f"'tangent-jax[{format}]'."
            )


def export(
    folder: str | os.PathLike, predict: ComponentPredictor, dw: Tree, provenance: dict[str, Any],
    format: str = "safetensors", classes: Sequence[str] = (), opset: int | None = None,
) -> None:  # fmt: skip
    """Writes an export to a new folder, whole or not at all.

    Args:
        dw: Tangent weights, or a head of a feature map.
        provenance: Any JSON; the model card uses some of its fields (`make_card`). Of the Provenance of each component
            by name in `of`, as `Store.release` gives it, a summary is written.
        classes: The names of the outputs, or ().
        opset: That of ONNX, 18 to 23; None: 18.

    Guarantees:
        No file holds a name of an image, an owner or a component of `of`, an identifier, or a hash of one.

    Raises:
        InputError: If the folder exists, the format's packages are not installed, or the format cannot hold the model.

    >>> folder = demo.folder() / "export"
    >>> tj.export(folder, demo.predict, demo.dw, {"note": "an example"}, classes=["a", "b", "c"])
    >>> sorted(path.name for path in folder.iterdir())
    ['README.md', 'model.safetensors', 'provenance.json', 'tangent.safetensors']
    """
    folder, predict = expand_path(folder), predict.bind(dw)
    check_format(format, opset)
    features, outputs = predict.features, predict.model.classes
    if folder.exists():
        raise InputError(f"folder must not exist yet; got {folder}.")
    if len(classes) not in (0, outputs):
        raise InputError(f"classes must name all {outputs} outputs, or none; got {len(classes)} names.")
    check_order(getattr(predict, "class_names", ()), classes)
    origins = origins_in(provenance)
    summary = summarize(origins) if origins else None
    provenance = {**provenance, "of": plain(summary)} if origins else provenance
    predict = with_session(predict, without_images(next((o.session for o in (predict, *origins) if o.session), None)))
    filling = partial_of(folder, trees.fingerprint(dw))
    if filling.is_dir() and not filling.is_symlink() and all(path.name in EXPORTED for path in filling.iterdir()):
        shutil.rmtree(filling)  # the partial folder of this export, after a kill
    with write_whole_folder(folder, filling) as partial:
        own = {"opset": int(opset or OPSET)} if format == "onnx" else {}
        FORMATS[format].write(partial, predict, dw, classes, **own)
        write_whole(partial / "README.md", make_card(predict, {**provenance, **own}, summary, format, classes))
        said = {"classes": list(classes) or None, "output": predict.output, **own}
        said |= {} if features is None else {"features": dataclasses.asdict(features)}
        files = {path.name: file_fingerprint(path) for path in sorted(partial.iterdir())}
        write_whole(partial / SAID, json.dumps({**provenance, **said, "files": files}, indent=1) + "\n")


def origins_in(provenance: Mapping[str, Any]) -> list[Provenance]:
    """Returns the Provenance of each component in `of`; none if `of` is any other JSON."""
    parts = provenance.get("of")
    origins = [*parts.values()] if isinstance(parts, Mapping) else []
    return origins if all(isinstance(origin, Provenance) for origin in origins) else []


def with_session(predict: ComponentPredictor, session: FirstSession | None) -> ComponentPredictor:
    """Returns the predictor with another first session."""
    if isinstance(predict, FeatureMap):
        return dataclasses.replace(predict, predict=dataclasses.replace(predict.predict, session=session))
    return dataclasses.replace(predict, session=session)


def load_export(folder: str | os.PathLike, model: Model | None = None) -> tuple[Pretrained, Tree]:
    """(the anchor, dw) of an export; for a feature map, which `FeatureSettings.of` restores, the head.

    Args:
        model: Your own model, which the files cannot describe; None for all others, wrapped or not.

    Guarantees:
        The model equals the exported one; w, in f32, and dw have the same numbers; if part of a fused qkv was trained,
        its rest has a dw of zeros.

    Raises:
        InputError: A folder that is not an export, a file that provenance.json does not name, or dw of another anchor.

    >>> folder = demo.folder() / "export"
    >>> tj.export(folder, demo.predict, demo.dw, {})
    >>> anchor, dw = tj.exports.load_export(folder, model=demo.model.model)
    >>> bool((dw["head"]["kernel"] == demo.dw["head"]["kernel"]).all())
    True
    """
    if is_url(folder):
        with passing_copy(folder) as copy:
            return load_export(copy, model)
    folder = expand_path(folder)
    paths, said = [folder / f"{name}.safetensors" for name in ("model", "tangent")], folder / SAID
    for path in (*paths, said):
        if not path.exists():
            raise InputError(f"{folder} must hold {', '.join(p.name for p in (*paths, said))}; {path.name} is missing.")
    fields = parse_json(said.read_bytes(), said)
    files = fields.get("files")
    for path in paths:
        whole = isinstance(files, dict) and files.get(path.name) == file_fingerprint(path)
        if not whole:
            raise InputError(f"{path} must be the file that {said.name} names; it was altered. Export it again.")
    own = None if model is None else assemble(model, from_world(model, paths[0]), str(paths[0]))
    if model is not None:
        check_description(model, paths[0])
    pretrained = read(paths[0]) if own is None else own
    if fields.get("features"):
        settings = convert(FeatureSettings, fields["features"], said)
        head = {name: copied(leaf) for name, leaf in read_tensors(paths[1])[0].items()}
        settings.of(pretrained).bind(head)
        return pretrained, head
    dw = trees.nest({path: copied(leaf) for path, leaf in from_world(pretrained.model, paths[1]).items()})
    trees.check_part(pretrained.w, dw)
    return pretrained, dw


def check_description(model: Model, path: Path) -> None:
    """Raises InputError for a file of a model with other settings; programs count within one version of JAX."""
    said = parse_json(read_tensors(path)[1].get(METADATA, "{}"), path)
    settings, config = json.loads(json.dumps(unwrap(model)[0].settings)), said.get("config") or {}
    is_described = "family" in said and config.get("jax") == settings.get("jax")
    other = [name for name in settings if is_described and config.get(name) != settings[name]]
    if other:
        raise InputError(f"model must be the one that {path} was exported from; it differs in {', '.join(other)}.")


def from_world(model: Model, path: Path) -> dict[str, Any]:
    """The leaves of the model by path, from a file under other libraries' names."""
    return model.from_world(read_tensors(path)[0])
