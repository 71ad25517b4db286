"""Stores of version 0.1, whose components are folders that Orbax wrote: one function converts them in place.

components/ID/    dw/ (Orbax), shapes.json, provenance.json, files.json
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax.components.provenance import Provenance
from tangent_jax.components.recipe import Recipe
from tangent_jax.components.store import Store
from tangent_jax.core import Tree, refusal, require, trees


def convert(root: str | os.PathLike) -> Store:
    """The store in this version's format, its journal and receipts kept; one commit, so a kill leaves the old or new.

    Every component's weights are checked against the journal. Compositions go: `compose` makes them again.
    """
    store = Store(root)  # its journal is read; nothing is swept, as it names all folders
    with store.using(change=True):
        require(any("files" in e for e in store.state.components.values()), "convert", "a store of version 0.1", root)
        entries = {}
        for name, entry in store.state.components.items():
            dw, provenance = read_component(store.root / "components" / entry["id"])
            whole = trees.fingerprint(dw) == entry["weights"]
            require(whole, "convert", f"unaltered weights of {name}", "others than the journal says")
            entries[name] = store.write("components", dw, provenance)
        store.commit({"op": "convert", "components": entries})
    return store


def read_component(folder: Path) -> tuple[Tree, Provenance]:
    """(dw, its provenance)."""
    import orbax.checkpoint as ocp

    try:
        shapes = json.loads((folder / "shapes.json").read_text())
        target = {path: np.broadcast_to(np.zeros((), kind), shape) for path, (shape, kind) in shapes.items()}
        with ocp.StandardCheckpointer() as checkpointer:
            dw = checkpointer.restore(folder / "dw", trees.nest(target))
        fields = json.loads((folder / "provenance.json").read_text())
    except (OSError, ValueError, KeyError) as error:
        raise refusal("convert", "a whole component", f"{folder} ({str(error).splitlines()[0]})") from error
    return dw, provenance_of(fields)


def provenance_of(fields: dict[str, Any]) -> Provenance:
    """The provenance that version 0.1 wrote, in this version's words."""
    config = {"eps" if name == "epsilon" else name: value for name, value in fields["config"].items()}
    privacy = fields["privacy"]
    if privacy is not None and "clip_norm" not in privacy:
        privacy = {**privacy, "clip_norm": 1.0}  # was not kept; what was spent does not depend on it
    changes = {"config": config, "recipe": recipe_of(fields["recipe"]), "privacy": privacy}
    return Provenance.from_json(json.dumps({**fields, **changes}))


def recipe_of(old: dict[str, Any]) -> dict[str, Any]:
    """The recipe that version 0.1 wrote; of a private component, its anchor's."""
    shared = ("weights", "dataset", "seed", "dtype", "cache_dtype", "image_size", "output")
    training = {*vars(Recipe())} & {*old["settings"]}
    fields = {name: old[name] for name in shared} | old["choice"] | {n: old["settings"][n] for n in training}
    return vars(Recipe(**fields, order=old["key"][1] if old["key"] else 1))
