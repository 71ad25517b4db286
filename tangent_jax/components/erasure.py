"""What a removal finds outside its store: caches and run folders of the removed images, and what it must leave alone.

A component's provenance names the folders where this library wrote what it made of the component's images. There the
rows of removed images are overwritten, and the step, factors and checkpoints of the removed run deleted. Named, but
left alone: other stores beside this one, the data set itself, what is missing or cannot be written.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from tangent_jax.components.provenance import Provenance
from tangent_jax.components.receipts import Traces
from tangent_jax.components.steps import read_step
from tangent_jax.components.store import Store
from tangent_jax.core import InputError, trees
from tangent_jax.models.cache import erase


def erase_traces(store: Store, gone: Mapping[str, Iterable[str]], caches: Iterable[str] = ()) -> Traces:
    """Deletes what this library wrote of removed examples, outside the store.

    Args:   gone: of each component that goes, the content identifiers that are removed; caches: more caches to search.
    """
    found, identifiers = Traces([], []), {i for removed in gone.values() for i in removed}
    origins = {name: store.provenance(name) for name in gone}
    folders = dict.fromkeys([*caches, *(place for origin in origins.values() for place in origin.kept)])
    for place in folders:
        folder = Path(place).expanduser().absolute()
        if not folder.is_dir():
            found.not_reached.append(f"{place}: not there now")
            continue
        try:
            rows = erase(folder, identifiers)
            found.deleted.extend(f"{cached}: rows of removed images" for cached in rows)
        except OSError as error:
            found.not_reached.append(f"{place}: {error.strerror}")
    for name, origin in origins.items():
        for place in origin.kept:
            erase_run(Path(place), origin, store.state.components[name]["weights"], found)
        if origin.recipe is not None and origin.recipe.dataset != "digits":
            found.not_reached.append(f"{origin.recipe.dataset}: the data set itself, if the images are still there")
    found.not_reached.extend(others(store, identifiers))
    return Traces([*dict.fromkeys(found.deleted)], [*dict.fromkeys(found.not_reached)])


def erase_run(folder: Path, origin: Provenance, weights: str, found: Traces) -> None:
    """Deletes a removed component's step, its factors and checkpoints from the folder where it was trained."""
    step = folder / "dw.safetensors"
    try:
        if step.exists() and trees.fingerprint(read_step(step, check=False)[0]) == weights:
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
