"""Erases the run of a removed component at a URL: its component, factors, released steps and checkpoints.

A folder is erased only if its content shows that it belongs to the removal; whole or not at all (remote/snapshots.py).
Versions that a bucket keeps stay.
"""

import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tangent_jax.core import trees
from tangent_jax.remote import urls
from tangent_jax.remote.snapshots import Remote
from tangent_jax.store.files import read_component
from tangent_jax.store.provenance import Provenance

RESULTS = ("dw.safetensors", "factors.safetensors")


class Trace(NamedTuple):
    """A place with data of a removed image: a line that names it, and a function that erases it.

    The function is None for a copy that a removal leaves alone, or cannot read.
    """

    line: str
    erase: Callable[[], object] | None = None


def run_at(url: str, origin: Provenance, fingerprint: str) -> Iterator[Trace]:
    """The component with this fingerprint, its factors, steps and checkpoints, in a folder of results at a URL."""
    remote = Remote(f"{url}/state")
    gone = {name for name in remote.files if origin.run is not None and origin.run in name.split("/")[:2]}
    sha = remote.files.get(RESULTS[0])
    if sha and is_component(remote.object_url(sha), fingerprint):
        gone |= {name for name in remote.files if name in RESULTS or name.startswith("steps/")}
    results = [f"{url}/{name}" for name in RESULTS] if is_component(f"{url}/{RESULTS[0]}", fingerprint) else []
    if gone or results or remote.dead:
        rest = {name: sha for name, sha in remote.files.items() if name not in gone}
        yield Trace(
            f"{url}: the removed component, its factors, steps and checkpoints", partial(keep, remote, rest, results)
        )
        yield Trace(still(url))


def is_component(url: str, fingerprint: str) -> bool:
    """True if a URL holds a component whose numbers have this fingerprint."""
    return urls.info_of(url) is not None and has_weights(url, fingerprint)


def has_weights(path: str | os.PathLike, fingerprint: str) -> bool:
    """True if the numbers of a component's file, or of one at a URL, have this fingerprint."""
    return trees.fingerprint(read_component(path, check=False)[0]) == fingerprint


def keep(remote: Remote, files: dict[str, str], results: Collection[str] = ()) -> None:
    """Deletes all files of a folder but these, then results, if nobody has written there since it was read.

    The component, by which a search knows the folder, is deleted last: after a kill the rest is found again.
    """
    remote.push(Path(), files)
    for result in sorted(results, key=lambda url: url.endswith(RESULTS[0])):
        urls.delete([result])


def still(url: str) -> str:
    """The line on what may stay of a URL."""
    return f"{url}: versions that its bucket keeps, and copies on other machines that used it; delete them there"
