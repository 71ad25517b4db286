"""Erases cached rows of removed images, and lists the places that a removal does not reach.

    `erase_cached`   overwrites the rows of removed images in one folder of a cache, and deletes their index entries
    `files_of`       the store's own files that a removal deletes
    `others`         other places that the provenance names, exports, and neighbouring stores: listed, and not opened

A link in a cache is not followed.
"""

import os
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from tangent_jax.core.checks import InputError, visible
from tangent_jax.data.identifiers import forget, index_paths, kept_of
from tangent_jax.features.row_store import erase, rows_of
from tangent_jax.io.files import expand_path
from tangent_jax.store.lines import partial_of
from tangent_jax.store.receipts import Traces
from tangent_jax.store.store import Store


def erase_cached(folder: Path, is_removed: Callable[[str], bool], names: Set[str], only_look: bool = False) -> Traces:
    """Erases what a cache and the index keep of removed images, in whatever run they were cached.

    Args: is_removed: of an identifier; names: of the images, by which an index knows members of tars; only_look: erase
          nothing; the lines are those that a call without it would give.
    """
    deleted: list[str] = []
    not_reached: list[str] = []
    count = 0
    try:
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        inside = []
        not_reached.append(f"{folder}: {error.strerror}")
    for cached in inside:
        try:
            if not cached.is_symlink() and (cached / "inputs.bin").exists() and not (cached / "examples.txt").exists():
                not_reached.append(f"{folder}: rows without a list of their images (examples.txt); delete the folder")
            rows = rows_of(cached, is_removed)
            if rows and not only_look:
                erase(cached, is_removed)
            count += len(rows)
        except InputError:  # its text names the folder, by a hash of its images
            not_reached.append(f"{folder}: rows behind a link")
        except OSError as error:
            not_reached.append(f"{folder}: rows of removed images ({error.strerror})")
    if count:
        deleted.append(f"{folder}: {count} rows of removed images")
    for index in index_paths([folder]):
        line = f"{expand_path(index)}: identifiers and names of removed images"
        try:
            if kept_of(index, is_removed, names):
                if not only_look:
                    forget(index, is_removed, names)
                deleted.append(line)
        except (InputError, OSError) as error:
            not_reached.append(f"{line} ({getattr(error, 'strerror', None) or error})")
    return Traces(*([*dict.fromkeys(map(visible, lines))] for lines in (deleted, not_reached)))


def files_of(store: Store, names: Sequence[str]) -> list[str]:
    """A line for each of the store's own files that a removal of these components deletes."""
    gone, state = {*names}, store.state
    entries = {name: state.components[name] for name in names}
    lines = {store.file("components", entry): f"the component {name}" for name, entry in entries.items()}
    factors = {name: entry.factors for name, entry in entries.items() if entry.factors is not None}
    lines |= {store.file("factors", entry): f"the factors of {name}" for name, entry in factors.items()}
    composed = [composed.entry for composed in state.composed.values() if gone & {*composed.names}]
    lines |= {store.file("composed", entry): "a composition of what goes" for entry in composed}
    return [visible(f"{path}: {what}") for path, what in lines.items()]


def others(store: Store, names: Sequence[str], unseen: Sequence[str], cache: Path) -> list[str]:
    """A line for each known place that a removal does not reach, from what the store says alone: none is opened.

    Args: names: the removed components; unseen: identifiers of removed images that no component saw: then the places
          of all components count; cache: the folder that is reached.
    """
    exports = store.state.exports_of(names)
    lines = [f"{export.path}: an export of a removed component" for export in exports]
    killed = [partial_of(Path(export.path), export.result) for export in exports]
    lines += [
        f"{folder}: an export of a removed component that was killed" for folder in killed if os.path.isdir(folder)
    ]
    reached = os.path.realpath(cache) if cache.is_dir() else ""
    for name in [*store] if unseen else names:
        origin = store.provenance(name)
        lines += [
            f"{folder}: a cache, or results of a run"
            for folder in origin.folders
            if os.path.realpath(folder) != reached
        ]
        if origin.recipe is not None and origin.recipe.dataset != "digits":
            lines.append(f"{origin.recipe.dataset}: the data set")
    for pattern, what in (("*", "another store"), ("part-*-of-*/*", "a part of a store")):
        beside = [marker.parent for marker in sorted(store.root.parent.glob(f"{pattern}/store.json"))]
        lines += [f"{folder}: {what}" for folder in beside if folder != store.root]
    return [*dict.fromkeys(map(visible, lines))]
