"""Erases removed images at URLs: their cached rows, and the run of a removed component.

    URL/TRUNK-IMAGES/       of a cache: a folder that names a removed image is emptied; its rows are computed again
    URL/state, URL/*        of a run: its component, factors, released steps and checkpoints

A folder is erased only if its content shows that it belongs to the removal; whole or not at all (remote/snapshots.py).
Versions that a bucket keeps stay.
"""

import re
from collections.abc import Callable, Collection, Iterator, Set
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tangent_jax.core import trees
from tangent_jax.data.identifiers import hidden
from tangent_jax.remote import urls
from tangent_jax.remote.snapshots import Remote
from tangent_jax.store.files import read_component
from tangent_jax.store.provenance import Provenance

REMOVE = "store remove"
ROWS = re.compile("[0-9a-f]{24}-[0-9a-f]{24}")
"""The name of a folder of cached rows (features/extract.py)."""
RESULTS = ("dw.safetensors", "factors.safetensors")


class Trace(NamedTuple):
    """A place where this library wrote data of a removed image: a line that names it, and a function that erases it."""

    line: str
    erase: Callable[[], object]


def rows_at(url: str, left: list[str], hashes: Set[str], before: Set[str]) -> Iterator[Trace]:
    """The folders of cached rows below a URL that name removed images, or hold rows that a killed writer left."""
    for name in sorted({*filter(ROWS.fullmatch, (name.partition("/")[0] for name in urls.list_files(url)))}):
        remote = Remote(f"{url}/{name}")
        whole = remote.files.get("examples.txt")
        held = {*remote.read(remote.object_url(whole)).decode(errors="replace").split()} if whole else set()
        gone = hashes & held | (hashes | before) & hidden(held)
        if remote.dead or gone:
            rest = {} if gone else remote.files
            yield Trace(f"in {remote.url}: rows of removed images", partial(keep, remote, rest))
            left.append(still(url))


def run_at(url: str, left: list[str], origin: Provenance, fingerprint: str) -> Iterator[Trace]:
    """The component with this fingerprint, its factors, steps and checkpoints, in a folder of results at a URL."""
    remote = Remote(f"{url}/state")
    gone = {name for name in remote.files if origin.run is not None and origin.run in name.split("/")[:2]}
    whole = remote.files.get(RESULTS[0])
    if whole and is_component(remote.object_url(whole), fingerprint):
        gone |= {name for name in remote.files if name in RESULTS or name.startswith("steps/")}
    results = [f"{url}/{name}" for name in RESULTS] if is_component(f"{url}/{RESULTS[0]}", fingerprint) else []
    if gone or results or remote.dead:
        rest = {name: whole for name, whole in remote.files.items() if name not in gone}
        yield Trace(
            f"{url}: the removed component, its factors, steps and checkpoints", partial(keep, remote, rest, results)
        )
        left.append(still(url))


def is_component(url: str, fingerprint: str) -> bool:
    """True if a URL holds a component whose numbers have this fingerprint."""
    if urls.info_of(url) is None:
        return False
    return trees.fingerprint(read_component(url, check=False)[0]) == fingerprint


def keep(remote: Remote, files: dict[str, str], results: Collection[str] = ()) -> None:
    """Deletes all files of a folder but these, then results, if nobody has written there since it was read."""
    remote.push(Path(), files)
    urls.delete([*results])


def still(url: str) -> str:
    """The line on what may stay of a URL."""
    return f"{url}: versions that its bucket keeps, and copies on other machines that used it; delete them there"
