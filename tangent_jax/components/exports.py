"""A composed model on its way out: the anchor and its step, under the names that others know.

    model.safetensors     w, as timm loads it
    tangent.safetensors   dw, the same names; a leaf that is absent is frozen
    provenance.json       what the step is a sum of

f_lin(x) = f_w(x) + J_w f(x) . dw needs both: w + dw is another model.
"""

import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from tangent_jax.components.steps import read_step
from tangent_jax.core import Tree, require, trees
from tangent_jax.core.files import write_whole, write_whole_folder
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
            tensors = {name: np.ascontiguousarray(value) for name, value in predict.model.to_world(flat).items()}
            write_whole(partial / f"{name}.safetensors", save(tensors, describe(predict.model)))
        write_whole(partial / "provenance.json", json.dumps(provenance, indent=1) + "\n")


def load_export(folder: str | os.PathLike, model: Model | None = None) -> tuple[Pretrained, Tree]:
    """(the anchor, dw) that `export` wrote.

    Args:   model: what the export is of; None: a Vision Transformer, as the file says.
    Raises: InputError if the folder is no export, or its step does not fit its anchor.
    """
    folder = Path(folder)
    paths = [folder / f"{name}.safetensors" for name in ("model", "tangent")]
    for path in paths:
        require(path.exists(), "load_export", "model.safetensors and tangent.safetensors", f"no {path}")
    pretrained = read(paths[0]) if model is None else Pretrained(model, from_world(model, paths[0]), str(paths[0]))
    dw = from_world(pretrained.model, paths[1])
    trees.check_part("load_export", pretrained.w, dw)
    return pretrained, dw


def from_world(model: Model, path: Path) -> Tree:
    """A tree of the model, from a file under the names that others know."""
    tensors, _ = read_step(path)
    return trees.nest({path: jnp.asarray(leaf) for path, leaf in model.from_world(trees.leaves(tensors)).items()})
