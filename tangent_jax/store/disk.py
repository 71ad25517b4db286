"""The folder of a store: marker, journal, lock, and the files that the journal names.

    store.json                  the marker: the store's identity, the version of the format, the id of its key
    keys.json                   the key that hides identifiers in the journal and in receipts (keys.py); mode 0600
    journal.jsonl               one line per add, compose, remove, discard, export, and HEAD, its count
    components/ID.safetensors   dw, its provenance in the metadata (files.py)
    factors/ID.safetensors      the Kronecker factors of a component, where they are kept (factors.py)
    receipts/ID.json            what a removal did
    lock                        locked while the store is used; names the process that changes it

The journal defines the content. An operation writes its new files, then its line (the commit), then deletes the files
that the line removed. The next change deletes every file of the store that the journal does not name. So a store that
is killed at any instruction reopens as before the operation, or as after it.

The store may come from another party: opening and reading it writes nothing and follows no link.
"""

import dataclasses
import os
import re
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.io.files import Lock, expand_path, fingerprint, hold_lock, inside, write_whole
from tangent_jax.io.journal import Journal
from tangent_jax.io.progress import check_stop
from tangent_jax.io.records import parse_json, read_sealed, seal_fields
from tangent_jax.solver.curvature import Curvature
from tangent_jax.store.factors import as_tree, from_tree
from tangent_jax.store.files import encode_component, read_component, read_metadata
from tangent_jax.store.keys import Key, make_key, read_key, write_key
from tangent_jax.store.lines import Entry, Line, spell
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.state import State, replay

FORMAT = 8
OURS = re.compile(r"[0-9a-f]{16}\.(safetensors|json)(\.partial)?")  # the names of a store's files
KINDS = ("components", "factors", "receipts")
KEYS = "keys.json"
MARKS = ("store.json", KEYS, "journal.jsonl", "HEAD")


@dataclasses.dataclass(frozen=True)
class Marker:
    """The fields of store.json; key: the id of the store's key."""

    format: int
    store: str
    key: str


class Disk:
    """A folder with a journal."""

    def __init__(self, root: str | os.PathLike) -> None:
        self.root = expand_path(root).absolute()
        nearest = next(place for place in (self.root, *self.root.parents) if place.exists())
        if not nearest.is_dir():
            raise InputError(f"{self.root} must be a folder; {nearest} is a file. Choose another folder")
        self.marker = self.root / "store.json"
        self.journal = Journal(self.root / "journal.jsonl", counted=True)
        self.state = State()
        self._replayed = self.journal.entries
        self._lock: Lock | None = None
        self.identity = ""
        self.key_id = ""
        self._key: Key | None = None
        if not is_store(self.root):  # or only a part of one, of a process that was killed
            self.create()
        self.reload()

    def create(self) -> None:
        """Writes marker and journal of a new store, in an empty folder."""
        begun = {*MARKS, "lock", *(f"{name}.partial" for name in MARKS)}
        present = [*self.root.iterdir()] if self.root.is_dir() else []
        other = [p for p in present if p.name not in begun or (p == self.journal.path and p.lstat().st_size)]
        if other and not is_store(self.root):
            raise InputError(
                f"{self.root} must be a store, or an empty folder; it holds {', '.join(p.name for p in other[:3])}. "
                "Choose a new folder, or restore its store.json"
            )
        with hold_lock(self.root / "lock"):
            if is_store(self.root):
                return  # another process has made it
            self.journal.settle()
            path = self.root / KEYS
            if not path.exists():
                write_key(path, make_key())
            fields = {"format": FORMAT, "store": uuid.uuid4().hex, "key": read_key(path).id}
            write_whole(self.marker, seal_fields(fields))

    @property
    def key(self) -> Key:
        """The key that hides identifiers."""
        if self._key is None:
            self._key = read_key(self.root / KEYS, self.key_id)
        return self._key

    def has_forgotten(self, identifier: str) -> bool:
        """True if an example of this content identifier was removed from the store."""
        return bool(self.state.forgotten) and self.key.hide(identifier) in self.state.forgotten

    # Its files

    def file(self, kind: str, entry: Entry) -> Path:
        """The file that a journal entry names, in the folder of its kind."""
        return inside(self.root, kind, f"{entry.id}.safetensors")

    def read_checked(self, path: Path, entry: Entry) -> Tree:
        """The tangent weights in a file, if the file's checksum is the journal's.

        The CRC-32, at a few GB/s, detects accidents; `verify` computes the SHA-256, about ten times slower.
        """
        if not path.is_file() or not is_whole(path, entry):
            raise InputError(f"{path} is missing or altered. Run verify")
        return read_component(path, check=False)[0]

    def write(
        self, kind: str, dw: Tree, provenance: Provenance | None = None, metadata: Mapping[str, str] | None = None
    ) -> Entry:
        """Writes a file that no journal line names yet; returns its journal entry."""
        dw = jax.tree.map(np.asarray, dw)
        tree_fingerprint = trees.fingerprint(dw)
        texts = {} if provenance is None else {"provenance": provenance.to_json()}
        content = encode_component(dw, tree_fingerprint, {**texts, **(metadata or {})})
        identity = fingerprint(f"{tree_fingerprint}{time.time_ns()}{os.getpid()}".encode())[:16]
        entry = Entry(
            id=identity,
            weights=tree_fingerprint,
            file=fingerprint(content),
            origin=fingerprint(texts.get("provenance", "").encode()),
            crc=f"{zlib.crc32(content):08x}",
        )
        write_whole(self.file(kind, entry), content)
        return entry

    def factors(self, name: str) -> Curvature:
        """The Kronecker factors of a component.

        Raises:
            InputError: If it has none.
        """
        entry = self.factors_entry(name)
        if entry is None:
            raise InputError(f"{name} must have factors; it has none. Add it with its factors, or merge by mean")
        path = self.file("factors", entry)
        return from_tree(self.read_checked(path, entry), read_metadata(path), path)

    def has_factors(self, name: str) -> bool:
        """True where the store holds the Kronecker factors of a component."""
        return self.factors_entry(name) is not None

    def factors_entry(self, name: str) -> Entry | None:
        """The file of a component's factors."""
        return self.state.components[name].factors if name in self.state.components else None

    def write_factors(self, factors: Curvature | None) -> Entry | None:
        """Writes a component's factors, if there are any, and returns their journal entry."""
        if factors is None:
            return None
        numbers, metadata = as_tree(factors)
        return self.write("factors", numbers, None, metadata)

    def commit(self, line: Line) -> None:
        """Appends the line to the journal: this commits its operation."""
        check_stop()
        assert self._lock is not None
        self._lock.check()
        self.journal.append(spell(line))
        self.replay()
        self.sweep()

    def replay(self) -> None:
        """Brings the state to the journal's last line."""
        before = self.state if self._replayed is self.journal.entries else State()
        self.state = replay(self.journal.entries, before)
        self._replayed = self.journal.entries

    def leftovers(self) -> list[Path]:
        """The store's files that no line names: removed weights, and files of a writer that was killed."""
        live = {entry.id for _, entry in self.state.files()} | {*self.state.receipts}
        partial = [self.root / f"{name}.partial" for name in MARKS]
        dead = []
        for folder in (self.root / kind for kind in KINDS):
            names = [name for name in (os.listdir(folder) if folder.is_dir() else ()) if OURS.fullmatch(name)]
            dead += [folder / name for name in names if name[:16] not in live or name.endswith(".partial")]
        return [p for p in (*dead, *partial) if p.is_symlink() or p.is_file()]

    def sweep(self) -> None:
        """Deletes the store's files that no line names."""
        for path in self.leftovers():
            path.unlink()

    def settle(self) -> None:
        """Deletes the files of a writer that was killed, as the next change would."""
        with self.using(change=True):
            pass

    @contextmanager
    def using(self, change: bool = False) -> Iterator[None]:
        """Holds the lock, shared for reading or exclusive for a change, with the journal's present state."""
        for name in (*KINDS, *MARKS, "lock"):
            inside(self.root, name)
        with hold_lock(self.root / "lock", shared=not change) as lock:
            self.load()
            if change:
                self._lock = lock
                self.journal.settle()
                _ = self.key  # without it a removed image could come back
                self.sweep()
            yield

    def reload(self) -> None:
        """Reads what other processes have changed."""
        with self.using():
            pass

    def load(self) -> None:
        """Reads marker and journal; InputError if one is missing, altered or of another version."""
        if not self.marker.exists():
            raise InputError(f"{self.root} must have store.json; it is missing. Restore it from a backup")
        marker = parse_json(self.marker.read_bytes(), self.marker)
        if marker.get("format") != FORMAT:
            raise InputError(
                f"{self.root} must be a store of format {FORMAT}; got {marker.get('format')}. "
                "Use the version of tangent_jax that wrote it; nothing was changed"
            )
        fields = read_sealed(Marker, self.marker, "Restore it from a backup")
        self.identity, self.key_id, self._key = fields.store, fields.key, None
        self.journal.load()
        self.replay()


def is_store(path: Path) -> bool:
    """True for the folder of a store, which has a store.json.

    >>> tj.store.is_store(demo.store().root), tj.store.is_store(demo.folder())
    (True, False)
    """
    return (path / "store.json").exists()


def is_whole(path: Path, entry: Entry) -> bool:
    """True for a file with the checksum of its journal entry."""
    content = np.memmap(path, np.uint8, "r").data if path.stat().st_size else b""
    return f"{zlib.crc32(content):08x}" == entry.crc
