"""Erases cached rows of removed images, and lists the places that a removal does not reach.

    `erase_cached`   overwrites the rows of removed images in one folder of a cache, and deletes their index entries
    `files_of`       the store's own files that a removal deletes
    `unreached`      other places that the provenance names, exports, and neighbouring stores: listed, and not opened

A place is a `Trace`. A link in a cache is not followed.
"""

import os
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from tangent_jax.core.checks import InputError
from tangent_jax.data.identifiers import forget, index_paths, kept_of
from tangent_jax.features.row_store import erase, rows_of
from tangent_jax.io.files import expand_path
from tangent_jax.store.lines import partial_of
from tangent_jax.store.receipts import Trace, Traces
from tangent_jax.store.store import Store


def erase_cached(folder: Path, is_removed: Callable[[str], bool], names: Set[str], only_look: bool = False) -> Traces:
    """Erases what a cache and the index keep of removed images, in whatever run they were cached.

    Args:
        is_removed: True for the identifier of a removed image.
        names: The names of the images, by which an index knows members of tars.
        only_look: Erase nothing; the traces are those that a call without it would give.
    """
    deleted: list[Trace] = []
    not_reached: list[Trace] = []
    count = 0
    try:
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        inside = []
        not_reached.append(Trace("rows", str(folder), why=error.strerror))
    for cached in inside:
        try:
            if not cached.is_symlink() and (cached / "rows.bin").exists() and not (cached / "examples.txt").exists():
                why = "no list of their images, examples.txt; delete the folder"
                not_reached.append(Trace("rows", str(folder), why=why))
            rows = rows_of(cached, is_removed)
            if rows and not only_look:
                erase(cached, is_removed)
            count += len(rows)
        except InputError:  # the name of the folder may hash its images, in a cache of 0.5
            why = "a folder of an older version or behind a link, which may hold removed images; delete it"
            not_reached.append(Trace("rows", str(folder), why=why))
        except OSError as error:
            not_reached.append(Trace("rows", str(folder), why=error.strerror))
    if count:
        deleted.append(Trace("rows", str(folder), rows=count))
    for index in index_paths([folder]):
        place = Trace("index", str(expand_path(index)))
        try:
            if kept_of(index, is_removed, names):
                if not only_look:
                    forget(index, is_removed, names)
                deleted.append(place)
        except (InputError, OSError) as error:
            not_reached.append(Trace("index", place.path, why=str(getattr(error, "strerror", None) or error)))
    return Traces(*(tuple(dict.fromkeys(traces)) for traces in (deleted, not_reached)))


def files_of(store: Store, names: Sequence[str]) -> tuple[Trace, ...]:
    """The store's own files that a removal of these components deletes."""
    entries = {name: store.state.components[name] for name in names}
    traces = [Trace("component", str(store.file("components", entry)), name) for name, entry in entries.items()]
    factors = {name: entry.factors for name, entry in entries.items() if entry.factors is not None}
    return (*traces, *(Trace("factors", str(store.file("factors", entry)), name) for name, entry in factors.items()))


def unreached(store: Store, names: Sequence[str], unseen: Sequence[str], cache: Path) -> tuple[Trace, ...]:
    """Each known place that a removal does not reach, from what the store says alone: none is opened.

    Args:
        names: The removed components.
        unseen: Identifiers of removed images that no component saw: then the places of all components count.
        cache: The folder that is reached.
    """
    exports = store.state.exports_of(names)
    traces = [Trace("export", export.path) for export in exports]
    killed = [partial_of(Path(export.path), export.result) for export in exports]
    traces += [Trace("unfinished export", str(folder)) for folder in killed if os.path.isdir(folder)]
    reached = os.path.realpath(cache) if cache.is_dir() else ""
    for name in [*store] if unseen else names:
        origin = store.provenance(name)
        folders = [folder for folder in origin.training.folders if os.path.realpath(folder) != reached]
        traces += [Trace("run", folder) for folder in folders]
        if origin.recipe is not None and origin.recipe.dataset != "digits":
            traces.append(Trace("data set", origin.recipe.dataset))
    for kind, pattern in (("store", "*"), ("part", "part-*-of-*/*")):
        beside = [marker.parent for marker in sorted(store.root.parent.glob(f"{pattern}/store.json"))]
        traces += [Trace(kind, str(folder)) for folder in beside if folder != store.root]
    return tuple(dict.fromkeys(traces))
