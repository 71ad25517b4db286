"""A composed model on its way out: the anchor and its step, under timm's names.

    model.safetensors     w, as timm loads it
    tangent.safetensors   dw, the same names; a leaf that is absent is frozen
    provenance.json       what the step is a sum of

f_lin(x) = f_w(x) + J_w f(x) . dw needs both: w + dw is another model.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from tangent_jax import names, trees
from tangent_jax.checks import require
from tangent_jax.notation import Tree
from tangent_jax.weights import Pretrained, load, meta_of


def export(folder: str | os.PathLike, model: Pretrained, dw: Tree, provenance: dict[str, Any]) -> None:
    """Writes a folder that does not exist yet, whole or not at all."""
    folder = Path(folder)
    require(not folder.exists(), "export", "a folder that does not exist yet", folder)
    trees.check_part("export", model.params, dw)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    meta = {"tangent_jax": json.dumps(meta_of(model))}
    for name, tree in (("model", model.params), ("tangent", dw)):
        flat = {path: np.asarray(leaf) for path, leaf in trees.leaves(tree).items()}
        save_file(names.to_timm(flat, model.config.pool), partial / f"{name}.safetensors", meta)
    (partial / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    os.replace(partial, folder)


def load_export(folder: str | os.PathLike) -> tuple[Pretrained, Tree]:
    """(the anchor, dw) that `export` wrote.

    Raises: InputError if the folder is no export, or its step does not fit its anchor.
    """
    folder = Path(folder)
    for name in ("model", "tangent"):
        path = folder / f"{name}.safetensors"
        require(path.exists(), "load_export", "model.safetensors and tangent.safetensors", f"no {path}")
    model = load(folder / "model.safetensors")
    with safe_open(folder / "tangent.safetensors", framework="numpy") as file:
        flat = names.translate({name: file.get_tensor(name) for name in file.keys()}, names.TIMM, folder)  # noqa: SIM118
    shapes = {path: leaf.shape for path, leaf in trees.leaves(model.params).items()}
    for path in flat:
        require(path in shapes, "load_export", f"a step of the model in {folder}", f"the leaf {path}")
    return model, trees.nest({path: jnp.asarray(value.reshape(shapes[path])) for path, value in flat.items()})
