"""The traces of removed images outside a store: caches and run folders, and what a removal must leave alone.

A component's provenance names the folders where this library wrote what it made of the component's images. There the
rows of removed images are overwritten, and the step, factors and checkpoints of the removed run deleted. Named, but
left alone: other stores beside this one, the data set itself, what is missing or cannot be written.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tangent_jax.components.provenance import Provenance
from tangent_jax.components.receipts import Traces
from tangent_jax.components.steps import read_step
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
    found, origins = Traces([], []), {name: store.provenance(name) for name in names}
    places = [*(os.fspath(cache) for cache in caches), *(p for origin in origins.values() for p in origin.kept)]
    for place in dict.fromkeys(places):
        erase_rows(Path(place).expanduser().absolute(), identifiers, place, found)
    for name, origin in origins.items():
        for place in origin.kept:
            erase_run(Path(place), origin, store.state.components[name]["weights"], found)
        if origin.recipe is not None and origin.recipe.dataset != "digits":
            found.not_reached.append(f"{origin.recipe.dataset}: the data set itself, if the images are still there")
    found.not_reached.extend(others(store, identifiers))
    return Traces([*dict.fromkeys(found.deleted)], [*dict.fromkeys(found.not_reached)])


def erase_rows(folder: Path, identifiers: set[str], place: str, found: Traces) -> None:
    """Overwrites the cached rows of removed images below a folder; what cannot be read or written is not reached."""
    if not folder.is_dir():
        found.not_reached.append(f"{place}: not there now")
        return
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        found.not_reached.append(f"{place}: {error.strerror}")
        return
    for cached in inside:
        try:
            if erase(cached, identifiers):
                found.deleted.append(f"{cached}: rows of removed images")
        except OSError as error:
            found.not_reached.append(f"{cached}: {error.strerror}")


def erase_run(folder: Path, origin: Provenance, fingerprint: str, found: Traces) -> None:
    """Deletes a removed component's step, its factors and checkpoints from the folder where it was trained."""
    step = folder / "dw.safetensors"
    try:
        if step.exists() and trees.fingerprint(read_step(step, check=False)[0]) == fingerprint:
            step.unlink()
            found.deleted.append(f"{step}: the removed step")
            factors = folder / "factors.safetensors"  # second moments of the removed images
            if factors.exists():
                factors.unlink()
                found.deleted.append(f"{factors}: the removed step's factors")
        for checkpoints in (folder / "checkpoints", folder):
            if origin.run and (checkpoints / origin.run).is_dir():
                shutil.rmtree(checkpoints / origin.run)
                found.deleted.append(f"{checkpoints / origin.run}: checkpoints")
    except (OSError, InputError) as error:
        found.not_reached.append(f"{folder}: {error}")


def others(store: Store, identifiers: set[str]) -> list[str]:
    """Other stores beside this one whose components saw the removed examples."""
    lines = []
    for marker in sorted(store.root.parent.glob("*/store.json")):
        if marker.parent == store.root:
            continue
        try:
            other = Store(marker.parent)
            holding = [name for name in other if other.provenance(name).identifiers & identifiers]
        except (InputError, OSError) as error:
            lines.append(f"{marker.parent}: another store, which cannot be read ({error})")
            continue
        if holding:
            lines.append(f"{marker.parent}: another store, whose {', '.join(holding)} saw removed images")
    return lines
