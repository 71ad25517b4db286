"""Erases removed images outside the store, in caches and run folders; lists the copies that it must leave alone.

    `find_traces`   finds the traces of a removal, so that a plan can list them
    `erase_found`   deletes them, after a line of the journal has named them

The folders come from the caller, or from provenance that this machine's user wrote (`Provenance.is_own`). A component
is deleted only if its content is that of the removed one, and only then the factors and steps beside it; a link in such
a folder is not followed. Folders at URLs, neighbouring stores, the data set itself, and files that are missing or
read-only are listed and left alone.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, visible
from tangent_jax.data.identifiers import forget, index_paths, kept_of
from tangent_jax.features.row_store import erase, rows_of
from tangent_jax.io import machine
from tangent_jax.io.checkpoints import saved_run
from tangent_jax.io.files import expand_path, inside
from tangent_jax.io.paths import is_url
from tangent_jax.store.files import read_component
from tangent_jax.store.lines import EXPORTED, Exported, partial_of, removal_text
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.receipts import Traces
from tangent_jax.store.store import Store

STEP = re.compile(r"[0-9]+\.dw(\.partial)?")
"""The files of the steps that an audited run released (privacy/canaries.py)."""
NOT_OWN = "was not made on this machine, or is damaged"
TRUST_IT = "open the store with trust if you know who made the component"
NAME_IT = f"pass its folder, or {TRUST_IT}"


class Trace(NamedTuple):
    """A place with data of a removed image: a line that names it, and a function that erases it.

    The function is None for a copy that a removal leaves alone, or cannot read.
    """

    line: str
    erase: Callable[[], object] | None = None


def has_weights(path: Path, fingerprint: str) -> bool:
    """True if the numbers of a component's file have this fingerprint."""
    return trees.fingerprint(read_component(path, check=False)[0]) == fingerprint


def erase_found(traces: Iterable[Trace], note: Callable[[str], object] = lambda line: None) -> Traces:
    """Erases traces that `find_traces` found; one that cannot be erased is listed as not reached.

    Args: note: called with the line of each trace once it is erased.
    """
    deleted: list[str] = []
    not_reached: list[str] = []
    for trace in traces:
        if trace.erase is None:
            not_reached.append(trace.line)
            continue
        try:
            trace.erase()
        except (OSError, InputError) as error:
            not_reached.append(f"{trace.line} ({reason_of(error)})")
            continue
        note(trace.line)
        deleted.append(trace.line)
    return Traces([*dict.fromkeys(deleted)], [*dict.fromkeys(not_reached)])


def find_traces(
    store: Store, names: Sequence[str], identifiers: set[str], caches: Sequence[str | os.PathLike] = (),
    unseen: Iterable[tuple[str, str]] = (), before: Iterable[str] = (),
) -> list[Trace]:  # fmt: skip
    """Data of removed examples outside the store: what this library wrote, and copies that are left alone.

    The cached rows of all images that were removed before, by this machine, are found again.
    Args:   names: the removed components; identifiers: of the removed content; caches: searched besides the folders
            that the components' provenance names; unseen: (identifier, name) of removed images that no component saw;
            before: identifiers of images that were removed before, and are asked for again.
    """
    origins = {name: store.provenance(name) for name in names}
    made_here = own_components(store, names)
    folders = {folder for name in made_here for folder in origins[name].folders}
    pairs = {pair for pair in own_images(store, made_here, unseen) if pair[0] in identifiers}
    named = {identifier for identifier, _ in pairs}
    exports = store.state.exports_of(names)
    traces = [Trace(f"{export.path}: an export of a removed component") for export in exports]
    traces += rows_everywhere(store, pairs, searched_places(store, names, made_here, caches))
    for name, origin in origins.items():
        tree_fingerprint = store.state.components[name].weights
        for place in origin.folders if name in made_here else ():
            if is_url(place):
                traces.append(Trace(f"{place}: results of a run at a URL; delete them there"))
            else:
                traces += readable(place_of(place), run_in(place, origin, tree_fingerprint))
        for place in origin.folders:
            if place not in folders:
                traces.append(Trace(f"{place}: named by {name}, which {NOT_OWN}; {NAME_IT}"))
        if name not in made_here and {i for i, _ in origin.images_seen} & identifiers - named:
            traces.append(Trace(f"cached rows of images that {name} alone names, which {NOT_OWN}; {TRUST_IT}"))
        if origin.recipe is not None and origin.recipe.dataset != "digits":
            traces.append(Trace(f"{origin.recipe.dataset}: the data set itself, if the images are still there"))
    for export in exports:
        traces += readable(export.path, partial_export(store, export))
    traces += not_searched(store, before)
    return [trace._replace(line=visible(trace.line)) for trace in traces]


def place_of(place: str | os.PathLike) -> str:
    """A URL as it is; the absolute path of a file or folder."""
    return os.fspath(place) if is_url(place) else os.fspath(expand_path(place).absolute())


def searched_places(
    store: Store, names: Iterable[str], made_here: Set[str], caches: Iterable[str | os.PathLike]
) -> list[str]:
    """The caches in which a removal searches: those of its caller, and those that this machine's components name.

    Components that stay count, too, as they name the caches of test images; of theirs, those that are there.
    """
    places = [os.fspath(cache) for cache in caches]
    places += [folder for name in sorted(made_here) for folder in store.provenance(name).folders]
    for name in {*store} - {*names}:
        with contextlib.suppress(InputError, OSError):  # a damaged component, or a folder that cannot be entered
            origin = store.provenance(name)
            if store.trust or origin.is_own:
                places += [folder for folder in origin.folders if not is_url(folder) and Path(folder).is_dir()]
    return [*dict.fromkeys(places)]


def count_rows(
    store: Store, names: Sequence[str], identifiers: set[str], caches: Sequence[str | os.PathLike],
    unseen: Iterable[tuple[str, str]],
) -> dict[str, int | None]:  # fmt: skip
    """The number of rows that a removal will erase in each cache on this machine that it searches; None if it is gone.

    Args: as `find_traces`, which names what cannot be read.
    """
    made_here = own_components(store, names)
    images = {identifier for identifier, _ in own_images(store, made_here, unseen)} & identifiers
    places = [place for place in searched_places(store, names, made_here, caches) if not is_url(place)]
    folders = [Path(place_of(place)) for place in places]
    return {str(folder): rows_below(folder, images) if folder.is_dir() else None for folder in folders}


def rows_below(folder: Path, images: Set[str]) -> int:
    """The number of cached rows of images, by identifier, below a folder."""
    count = 0
    for cached in sorted(folder.iterdir()):
        with contextlib.suppress(InputError, OSError):
            count += len(rows_of(cached, images.__contains__))
    return count


def rows_everywhere(store: Store, pairs: Iterable[tuple[str, str]], places: Iterable[str]) -> Iterator[Trace]:
    """The cached rows of images, (identifier, name), and of those removed before, and what indices keep of them."""
    identifiers = {identifier for identifier, _ in pairs}
    images = {image for _, image in pairs}
    before = removed_here(store)

    def is_removed(identifier: str) -> bool:
        return identifier in identifiers or not before.isdisjoint(store.ring.forms(identifier))

    folders = {place_of(place): place for place in places if not is_url(place)}
    for folder, place in folders.items():
        yield from readable(folder, rows_in(Path(folder), is_removed, place))
    for index in index_paths(folders):
        yield from readable(place_of(index), texts_of_index(index, is_removed, images))


def texts_of_index(index: str, is_removed: Callable[[str], bool], images: set[str]) -> Iterator[Trace]:
    """What an index keeps of removed images."""
    if kept_of(index, is_removed, images):
        line = f"in {place_of(index)}: identifiers and names of removed images"
        yield Trace(line, partial(forget, index, is_removed, images))


def removed_here(store: Store) -> set[str]:
    """The hidden identifiers of earlier removals that carry this machine's seal."""
    hashes = set[str]()
    for line in store.state.removals:
        if store.trust:
            hashes |= {*line.forgotten}
        elif machine.is_own(removal_text(store.identity, line.erased), line.seal):
            hashes |= {*line.erased}
    return hashes


def not_searched(store: Store, before: Iterable[str]) -> Iterator[Trace]:
    """A line if images that were removed before lack this machine's seal: no cache is searched for their rows."""
    sealed = removed_here(store)
    count = sum(sealed.isdisjoint(store.ring.forms(identifier)) for identifier in {*before})
    if count:
        yield Trace(f"cached rows of {count} images that were removed before: what named them {NOT_OWN}; {TRUST_IT}")


def own_components(store: Store, names: Iterable[str]) -> set[str]:
    """Those of these components that this machine's user made, undamaged, or that the store trusts."""
    return {n for n in names if store.provenance(n).is_own and (store.trust or has_its_weights(store, n))}


def own_images(store: Store, made_here: Iterable[str], unseen: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """(identifier, name) of all images whose traces a removal of components, these of which are own, may erase."""
    seen = {pair for name in made_here for pair in store.provenance(name).images_seen}
    return seen | {*unseen}


def has_its_weights(store: Store, name: str) -> bool:
    """True if a component's numbers are those of the journal, and so of its seal; False if it is damaged."""
    with contextlib.suppress(InputError):
        return trees.fingerprint(store.read_tree(name)) == store.state.components[name].weights
    return False


def readable(place: str, search: Iterator[Trace]) -> Iterator[Trace]:
    """Yields the traces of a search in a place; one that is left alone for a link or an unreadable file."""
    try:
        yield from search
    except (OSError, InputError) as error:
        yield Trace(f"{place}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """The reason of a failure, without the path that a line names already."""
    return str(getattr(error, "strerror", None) or error)


def rows_in(folder: Path, is_removed: Callable[[str], bool], place: str) -> Iterator[Trace]:
    """The cached rows of removed images below a folder."""
    if not folder.is_dir():
        yield Trace(f"{place}: not there now")
        return
    for cached in sorted(folder.iterdir()):
        yield from readable(os.fspath(cached), rows_of_folder(cached, is_removed))


def rows_of_folder(cached: Path, is_removed: Callable[[str], bool]) -> Iterator[Trace]:
    """The rows of removed images in one folder of rows; one that lost its list of images is left alone, and named."""
    if not cached.is_symlink() and (cached / "inputs.bin").exists() and not (cached / "examples.txt").exists():
        yield Trace(f"{cached}: cached rows without examples.txt, which says whose they are; delete the folder")
    if rows_of(cached, is_removed):
        yield Trace(f"in {cached}: rows of removed images, of any run", partial(erase, cached, is_removed))


def run_in(place: str, origin: Provenance, fingerprint: str) -> Iterator[Trace]:
    """A removed component, its factors, its checkpoints and its released steps in the folder where it was trained."""
    folder = Path(place)
    path = inside(folder, "dw.safetensors")
    if path.is_file() and has_weights(path, fingerprint):
        factors = inside(folder, "factors.safetensors")
        if factors.is_file():  # second moments of the removed images
            yield Trace(f"{factors}: the removed component's factors", factors.unlink)
        steps = inside(folder, "steps")
        if steps.is_dir() and all(STEP.fullmatch(file.name) and inside(steps, file.name) for file in steps.iterdir()):
            yield Trace(f"{steps}: the steps that its run released", partial(shutil.rmtree, steps))
        elif steps.is_dir():
            yield Trace(f"{steps}: the steps that its run released, beside other files; delete them")
        # last: by it the folder is known, also after a kill
        yield Trace(f"{path}: the removed component", partial(delete_component, path, fingerprint))
    elif not path.exists():
        for name in ("factors.safetensors", "steps"):
            if inside(folder, name).exists():
                yield Trace(f"{folder / name}: without its dw.safetensors; delete it if it is of a removed component")
    for checkpoints in (inside(folder, "checkpoints"), folder):
        if origin.run is not None and saved_run(inside(checkpoints, origin.run)) == origin.run:
            run = checkpoints / origin.run
            yield Trace(f"{run}: checkpoints", partial(delete_checkpoints, run))


def delete_component(path: Path, fingerprint: str) -> None:
    """Deletes a component's file; InputError if a new run has replaced it since it was found."""
    if not has_weights(path, fingerprint):
        raise InputError("another component was written there since it was found; repeat the removal")
    path.unlink()


def delete_checkpoints(run: Path) -> None:
    """Deletes the checkpoints of a run; checkpoint.json, by which the folder is known, last."""
    for path in run.iterdir():
        if path.name == "checkpoint.json":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.rmtree(run)


def partial_export(store: Store, export: Exported) -> Iterator[Trace]:
    """The folder of an export, if a kill left it unfinished: it holds weights."""
    folder = partial_of(Path(export.path), export.result)
    is_own = machine.is_own(export.text(store.identity), export.seal)
    if is_own and folder.is_dir() and not folder.is_symlink() and all(p.name in EXPORTED for p in folder.iterdir()):
        yield Trace(f"{folder}: an export that was killed", partial(shutil.rmtree, folder))


def files_of(store: Store, names: Sequence[str]) -> list[str]:
    """A line for each of the store's own files that a removal of these components deletes."""
    gone, state = {*names}, store.state
    entries = {name: state.components[name] for name in names}
    lines = {store.file("components", entry): f"the component {name}" for name, entry in entries.items()}
    factors = {name: entry.factors for name, entry in entries.items() if entry.factors is not None}
    lines |= {store.file("factors", entry): f"the factors of {name}" for name, entry in factors.items()}
    composed = [composed.entry for composed in state.composed.values() if gone & {*composed.names}]
    lines |= {store.file("composed", entry): "a composition of what goes" for entry in composed}
    lines |= dict.fromkeys(store.leftovers(), "left by a killed writer")
    return [visible(f"{path}: {what}") for path, what in lines.items()]


def others(store: Store, identifiers: set[str]) -> list[str]:
    """A line for each neighbouring store whose components saw the removed examples.

    It waits for the locks of these stores: call it without a lock of this one, or two removals may wait for each other.
    """
    lines = []
    for folder, seen in neighbours(store):
        if isinstance(seen, Exception):
            lines.append(f"{folder}: another store, which cannot be read ({seen})")
            continue
        holding = [name for name, images in seen.items() if identifiers & images]
        if holding:
            lines.append(f"{folder}: another store, in which {len(holding)} component(s) saw removed images")
    return [visible(line) for line in lines]


def neighbours(store: Store) -> Iterator[tuple[Path, dict[str, set[str]] | Exception]]:
    """(folder, the identifiers of the images of each component, by name) of each store beside this one, or its error.

    It waits for the locks of these stores, as `others` says.
    """
    for marker in sorted(store.root.parent.glob("*/store.json")):
        if marker.parent == store.root:
            continue
        try:
            other = Store(marker.parent)
            yield marker.parent, {name: {i for i, _ in other.provenance(name).images_seen} for name in other}
        except (InputError, OSError) as error:
            yield marker.parent, error
