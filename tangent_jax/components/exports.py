"""A composed model on its way out: the anchor and its step, under the names that others know.

    model.safetensors     w, as timm loads it
    tangent.safetensors   dw, the same names; a leaf that is absent is frozen
    provenance.json       what the step is a sum of, and the hashes of the two files

f_lin(x) = f_w(x) + J_w f(x) . dw needs both: w + dw is another model.
"""

import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from tangent_jax.core import Tree, require, trees
from tangent_jax.core.files import file_digest, write_whole, write_whole_folder
from tangent_jax.core.records import parse_json
from tangent_jax.core.tensors import encode, read_tensors
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.load import describe, read
from tangent_jax.models.predict import Predictor
from tangent_jax.models.protocol import Model


def export(folder: str | os.PathLike, predict: Predictor, dw: Tree, provenance: dict[str, Any]) -> None:
    """Writes a folder that does not exist yet, whole or not at all."""
    folder = Path(folder)
    require(not folder.exists(), "export", "a folder that does not exist yet", folder)
    trees.check_part("export", predict.w, dw)
    with write_whole_folder(folder) as partial:
        for name, tree in (("model", predict.w), ("tangent", dw)):
            flat = {path: np.asarray(leaf) for path, leaf in trees.leaves(tree).items()}
            write_whole(partial / f"{name}.safetensors", encode(predict.model.to_world(flat), describe(predict.model)))
        files = {path.name: file_digest(path) for path in sorted(partial.iterdir())}
        write_whole(partial / "provenance.json", json.dumps({**provenance, "files": files}, indent=1) + "\n")


def load_export(folder: str | os.PathLike, model: Model | None = None) -> tuple[Pretrained, Tree]:
    """(the anchor, dw) that `export` wrote.

    Args:   model: what the export is of; None: a Vision Transformer, as the file says.
    Raises: InputError if the folder is no export, or its step does not fit its anchor.
    """
    folder = Path(folder)
    paths = [folder / f"{name}.safetensors" for name in ("model", "tangent")]
    for path in paths:
        require(path.exists(), "load_export", "model.safetensors and tangent.safetensors", f"no {path}")
    said = folder / "provenance.json"
    require(said.exists(), "load_export", "provenance.json, which says what the step is a sum of", f"no {said}")
    files = parse_json("load_export", said.read_bytes(), said).get("files", {})
    for path in paths if isinstance(files, dict) else []:
        whole = files.get(path.name) in (None, file_digest(path))  # None: written before 0.2
        require(whole, "load_export", f"an unaltered {path}", f"another than {said} names", "Export it again")
    pretrained = read(paths[0]) if model is None else Pretrained(model, from_world(model, paths[0]), str(paths[0]))
    dw = from_world(pretrained.model, paths[1])
    trees.check_part("load_export", pretrained.w, dw)
    return pretrained, dw


def from_world(model: Model, path: Path) -> Tree:
    """A tree of the model, from a file under the names that others know."""
    tensors, _ = read_tensors("load_export", path)
    return trees.nest({path: jnp.asarray(leaf) for path, leaf in model.from_world(tensors).items()})
