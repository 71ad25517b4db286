"""A composed model on its way out: the anchor and its tangent weights, under the names that others know.

    model.safetensors     w, as timm loads it
    tangent.safetensors   dw, the same names; a leaf that is absent is frozen
    provenance.json       the components that dw is a sum of, and the fingerprints of the two files

f_lin(x) = f_w(x) + J_w f(x) . dw needs both: w + dw is another model.
"""

import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from tangent_jax.core import Tree, require, trees
from tangent_jax.core.files import expanded, file_fingerprint, write_whole, write_whole_folder
from tangent_jax.core.records import parse_json
from tangent_jax.core.tensors import read_tensors
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.files import assemble
from tangent_jax.models.load import METADATA, encoded, read
from tangent_jax.models.parametrize import unwrapped
from tangent_jax.models.predict import Predictor
from tangent_jax.models.protocol import Model


def export(folder: str | os.PathLike, predict: Predictor, dw: Tree, provenance: dict[str, Any]) -> None:
    """Writes a folder that does not exist yet, whole or not at all."""
    folder = expanded("export", folder)
    require(not folder.exists(), "export", "a folder that does not exist yet", folder)
    trees.check_part("export", predict.w, dw)
    with write_whole_folder(folder) as partial:
        for name, tree in (("model", predict.w), ("tangent", dw)):
            content = encoded("export", predict.model, trees.leaves(tree), "world")
            write_whole(partial / f"{name}.safetensors", content)
        files = {path.name: file_fingerprint(path) for path in sorted(partial.iterdir())}
        write_whole(partial / "provenance.json", json.dumps({**provenance, "files": files}, indent=1) + "\n")


def load_export(folder: str | os.PathLike, model: Model | None = None) -> tuple[Pretrained, Tree]:
    """(the anchor, dw) that `export` wrote.

    Args:       model: of your own, which the files cannot name; None for every other, wrapped or not.
    Guarantees: the model is equal to the one exported; w, in f32, and dw have its numbers; where a part of a fused qkv
                was trained, the rest of it comes back with a dw of zeros.
    Raises:     InputError if the folder is no export, a file is not the one that provenance.json names, or dw
                does not fit its anchor.
    """
    folder = expanded("load_export", folder)
    paths, said = [folder / f"{name}.safetensors" for name in ("model", "tangent")], folder / "provenance.json"
    for path in (*paths, said):
        require(path.exists(), "load_export", ", ".join(p.name for p in (*paths, said)), f"no {path}")
    files = parse_json("load_export", said.read_bytes(), said).get("files")
    for path in paths:
        whole = isinstance(files, dict) and files.get(path.name) == file_fingerprint(path)
        require(whole, "load_export", f"an unaltered {path}", f"another than {said} names", "Export it again")
    if model is not None:
        check_described(model, paths[0])
    own = None if model is None else assemble(model, from_world(model, paths[0]), str(paths[0]))
    pretrained = read(paths[0]) if own is None else own
    dw = trees.nest({path: jnp.asarray(leaf) for path, leaf in from_world(pretrained.model, paths[1]).items()})
    trees.check_part("load_export", pretrained.w, dw)
    return pretrained, dw


def check_described(model: Model, path: Path) -> None:
    """Raises InputError where a file is of a model with other settings; programs count in one version of JAX alone."""
    said = parse_json("load_export", read_tensors("load_export", path)[1].get(METADATA, "{}"), path)
    settings, config = json.loads(json.dumps(unwrapped(model)[0].settings)), said.get("config") or {}
    told_apart = "family" in said and config.get("jax") == settings.get("jax")
    other = [name for name in settings if told_apart and config.get(name) != settings[name]]
    require(not other, "load_export", f"the model that {path} is of", f"one of other {', '.join(other)}")


def from_world(model: Model, path: Path) -> dict[str, Any]:
    """The leaves of the model by path, from a file under the names that others know."""
    return model.from_world(read_tensors("load_export", path)[0])
