"""Erasure of removed images outside the store: in caches and run folders; and the list of what must be left alone.

A component's provenance names the folders where this library wrote what it made of the component's images. There the
rows of removed images are overwritten, and the component, factors and checkpoints of the removed run deleted. Other
stores beside this one, the data set itself, and what is missing or cannot be written are named and left alone.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tangent_jax.components.files import read_component
from tangent_jax.components.provenance import Provenance
from tangent_jax.components.receipts import Traces
from tangent_jax.components.store import Store
from tangent_jax.core import InputError, trees
from tangent_jax.models.cache import erase


def erase_traces(
    store: Store, names: Sequence[str], identifiers: set[str], caches: Sequence[str | os.PathLike] = ()
) -> Traces:
    """Deletes what this library wrote of removed examples, outside the store.

    Args:   names: of the components that go; identifiers: of the content that does; caches: searched besides the
            folders that the components' provenance names.
    """
    traces, origins = Traces([], []), {name: store.provenance(name) for name in names}
    places = [*(os.fspath(cache) for cache in caches), *(p for origin in origins.values() for p in origin.folders)]
    for place in dict.fromkeys(places):
        erase_rows(Path(place).expanduser().absolute(), identifiers, place, traces)
    for name, origin in origins.items():
        for place in origin.folders:
            erase_run(Path(place), origin, store.state.components[name]["weights"], traces)
        if origin.recipe is not None and origin.recipe.dataset != "digits":
            traces.not_reached.append(f"{origin.recipe.dataset}: the data set itself, if the images are still there")
    traces.not_reached.extend(others(store, identifiers))
    return Traces([*dict.fromkeys(traces.deleted)], [*dict.fromkeys(traces.not_reached)])


def erase_rows(folder: Path, identifiers: set[str], place: str, traces: Traces) -> None:
    """Overwrites the cached rows of removed images below a folder; what cannot be read or written is not reached."""
    if not folder.is_dir():
        traces.not_reached.append(f"{place}: not there now")
        return
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        traces.not_reached.append(f"{place}: {error.strerror}")
        return
    for cached in inside:
        try:
            if erase(cached, identifiers):
                traces.deleted.append(f"{cached}: rows of removed images")
        except (OSError, InputError) as error:
            traces.not_reached.append(f"{cached}: {getattr(error, 'strerror', None) or error}")


def erase_run(folder: Path, origin: Provenance, fingerprint: str, traces: Traces) -> None:
    """Deletes a removed component, its factors and its checkpoints from the folder where it was trained."""
    path = folder / "dw.safetensors"
    try:
        if path.exists() and trees.fingerprint(read_component(path, check=False)[0]) == fingerprint:
            path.unlink()
            traces.deleted.append(f"{path}: the removed component")
            factors, steps = folder / "factors.safetensors", folder / "steps"
            if factors.exists():  # second moments of the removed images
                factors.unlink()
                traces.deleted.append(f"{factors}: the removed component's factors")
            if steps.is_dir():  # of a run that was audited, the last of which is the component
                shutil.rmtree(steps)
                traces.deleted.append(f"{steps}: the steps that its run released")
        for checkpoints in (folder / "checkpoints", folder):
            if origin.run and (checkpoints / origin.run).is_dir():
                shutil.rmtree(checkpoints / origin.run)
                traces.deleted.append(f"{checkpoints / origin.run}: checkpoints")
    except (OSError, InputError) as error:
        traces.not_reached.append(f"{folder}: {error}")


def others(store: Store, identifiers: set[str]) -> list[str]:
    """Other stores beside this one whose components saw the removed examples."""
    lines = []
    for marker in sorted(store.root.parent.glob("*/store.json")):
        if marker.parent == store.root:
            continue
        try:
            other = Store(marker.parent)
            holding = [name for name in other if identifiers & {i for i, _ in other.provenance(name).seen}]
        except (InputError, OSError) as error:
            lines.append(f"{marker.parent}: another store, which cannot be read ({error})")
            continue
        if holding:
            lines.append(f"{marker.parent}: another store, in which {', '.join(holding)} saw removed images")
    return lines
