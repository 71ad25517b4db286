"""A store copied to a URL and back: `push` and `pull`, each whole or not at all, resumed where one was killed.

The URL holds the store's files by their SHA-256, as its journal names them, under an index (remote/snapshots.py). The
journal decides which copy is ahead: each line holds the hash of the previous one, so one copy's journal is the start of
the other's, or the copies have diverged. A push is refused if the URL has lines that this store lacks, and a pull if
this store has lines that the URL lacks. Claims and locks are not copied: they belong to one machine's processes. The
store's keys are copied (keys.py, revocation.py): whoever reads the URL can tell the removed images that the store
lists, and revoke its exports.

The next push after a removal deletes the removed files at the URL, but not the older versions that a bucket may keep.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from tangent_jax.composition.kinds import kind_of
from tangent_jax.core.checks import InputError, about
from tangent_jax.io.files import (
    expand_path,
    file_fingerprint,
    fingerprint,
    inside,
    make_private,
    write_whole,
    write_whole_folder,
)
from tangent_jax.io.journal import Journal
from tangent_jax.io.signing import join_keys
from tangent_jax.remote.snapshots import Remote
from tangent_jax.store.disk import KEYS, MARKS, PRIVATE, SIGNING, Disk, is_store
from tangent_jax.store.files import read_component
from tangent_jax.store.keys import read_key, write_key
from tangent_jax.store.provenance import Provenance

DIVERGED = (
    "has diverged: each has lines that the other lacks. Pull the URL to another folder, merge this store into that one "
    "(store merge), repeat the removals of this one there, and push that one"
)


def push(store: Disk, url: str) -> dict[str, Any]:
    """Copies the store to a URL; returns the numbers of its journal's lines, of its files, and of files copied now.

    Raises: InputError if the URL holds another store, or a later state; for an altered file of the store; and if
            writing fails. The copy at the URL stays whole in each case.

    >>> store = demo.store()
    >>> tj.store.push(store, "memory://examples/pushed")["copied"] == len([*store]) + 4  # marker, keys, journal, HEAD
    True
    """
    remote = Remote(url)
    with store.using():
        lines = store.journal.hashes
        check_same(remote, store.identity)
        theirs = remote_lines(remote)
        if lines[: len(theirs)] != theirs:
            is_ahead = theirs[: len(lines)] == lines
            raise InputError(
                f"{url} must hold a beginning of this store's journal; got a copy that "
                + (f"moved on. Pull it first: tangent-jax store pull {url}" if is_ahead else DIVERGED)
            )
        files = {str(path.relative_to(store.root)): sha for path, sha in store.fingerprints().items()}
        files |= {name: file_fingerprint(store.root / name) for name in MARKS if (store.root / name).exists()}
        new = sum(remote.places.get(sha) not in remote.objects for sha in {*files.values()})
        remote.push(store.root, files)
    return {"lines": len(lines), "files": len(files), "copied": new}


def pull(root: str | os.PathLike, url: str) -> dict[str, Any]:
    """Copies a store from a URL to a folder, a new one or one with an earlier state of the store; returns as `push`.

    Raises: InputError if the folder holds another store, or lines that the URL lacks; if an object is missing or
            altered; for a component that `Store.add` would not take; and if the URL holds no store. The folder stays
            as before, or has the URL's state.

    >>> _ = tj.store.push(demo.store(), "memory://examples/pulled")
    >>> folder = demo.folder() / "copy"
    >>> _ = tj.store.pull(folder, "memory://examples/pulled")
    >>> [*tj.Store(folder)]
    ['ann', 'bob']
    """
    root = expand_path(root).absolute()
    remote = Remote(url)
    if not {*MARKS} - {SIGNING} <= {*remote.files}:
        raise InputError(f"{url} must hold a store; it holds none. Copy one there: tangent-jax store push URL")
    before = {} if not root.is_dir() else {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    objects = root.with_name(f".{root.name}.pull")
    wanted = {name: sha for name, sha in remote.files.items() if name in MARKS or name not in before}
    remote.fetch(make_private(objects), {*wanted.values()})
    for name, sha in wanted.items():
        if name.startswith("components/"):
            check_file(objects / sha, name)
    new = sum(name not in before or file_fingerprint(root / name) != sha for name, sha in wanted.items())
    if is_store(root):
        go_on(Disk(root), remote, objects)
    else:
        is_empty = not root.exists() or (root.is_dir() and not any(root.iterdir()))
        if not is_empty:
            raise InputError(f"{root} must be a store, or an empty folder; got other files. Choose another folder")
        partial = root.with_name(f".{root.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed pull
        with write_whole_folder(root, partial):
            for name, sha in remote.files.items():
                place(objects / sha, inside(partial, *name.split("/")))
            check_whole(Disk(partial))
    shutil.rmtree(objects, ignore_errors=True)
    store = Disk(root)
    check_whole(store)
    return {"lines": len(store.journal.entries), "files": len(remote.files), "copied": new}


def go_on(store: Disk, remote: Remote, objects: Path) -> None:
    """Adds missing files and journal lines to a store."""
    check_same(remote, store.identity, objects)
    with store.using(change=True):
        theirs = remote_lines(remote, objects)
        lines = [*store.journal.hashes]
        if theirs[: len(lines)] != lines:
            is_ahead = lines[: len(theirs)] == theirs
            raise InputError(
                f"{store.root} must hold a beginning of the journal of {remote.url}; it "
                + ("moved on. Push it, or pull to another folder" if is_ahead else DIVERGED)
            )
        take_keys(store, remote, objects)
        for name, sha in remote.files.items():
            path = inside(store.root, *name.split("/"))
            if name not in MARKS and not path.exists():
                place(objects / sha, path)
        reader = Journal(objects / remote.files["journal.jsonl"])
        reader.load()
        for entry in reader.entries[len(lines) :]:
            store.journal.append(entry)
        if store.journal.hashes != theirs:
            raise InputError(f"{store.root} must have the lines of {remote.url}; got others. Pull to another folder")
        store.load()
        store.sweep()


def take_keys(store: Disk, remote: Remote, objects: Path) -> None:
    """Gives a store the keys of its copy at a URL, before the lines that need them; a kill leaves keys that fit."""
    if SIGNING in remote.files:
        join_keys(store.root / SIGNING, objects / remote.files[SIGNING])
    sha = remote.files.get(KEYS)
    if sha and sha != file_fingerprint(store.root / KEYS):
        write_key(store.root / KEYS, read_key(objects / sha))
        write_whole(store.marker, (objects / remote.files[store.marker.name]).read_bytes())
        store.load()


def place(source: Path, path: Path) -> None:
    """Copies a file to its path; keys are for their user alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600 if path.name in PRIVATE else 0o666)
    shutil.copyfile(source, path)


def remote_lines(remote: Remote, objects: Path | None = None) -> list[str]:
    """The hash of each line of the journal at a URL; none if there is no store."""
    if not remote.files:
        return []
    return [fingerprint(line) for line in content_of(remote, "journal.jsonl", objects).split(b"\n")[:-1]]


def content_of(remote: Remote, name: str, objects: Path | None) -> bytes:
    """The bytes of a file at a URL, or of its local copy, checked against the index's SHA-256."""
    sha = remote.files.get(name, "")
    if not sha:
        raise InputError(f"{remote.url} must hold {name}; it holds no store")
    copy = None if objects is None else objects / sha
    here = copy is not None and copy.is_file()
    content = copy.read_bytes() if copy and here else remote.read(remote.object_url(sha))
    if fingerprint(content) != sha:
        raise InputError(f"{remote.object_url(sha)} was altered")
    return content


def check_same(remote: Remote, identity: str, objects: Path | None = None) -> None:
    """Raises InputError if the URL holds a store with another identity."""
    if not remote.files:
        return
    if identity.encode() not in content_of(remote, "store.json", objects):
        raise InputError(f"{remote.url} must hold a copy of this store; got another store. Choose another URL")


def check_whole(store: Disk) -> None:
    """Raises InputError if a file of the store differs from its journal."""
    wrong = store.verify()
    if wrong:
        raise InputError(f"{store.root} must be a whole store; got {wrong[0]}. Push it again")


def check_file(path: Path, name: str) -> None:
    """Raises InputError naming a component's file, of another machine, that `Store.add` would not take."""
    dw, metadata = read_component(path, check=False)
    origin = Provenance.from_json(metadata.get("provenance", ""), name)
    with about(f"component {name}"):
        kind_of([origin]).check_new(dw, origin)
