"""A cache of feature rows on disk, written chunk by chunk with checksums.

    FOLDER/inputs.bin         rows in order, memory-mapped, in files of at most FILE_BYTES,
    FOLDER/inputs-1.bin ...   alternating over the folders if there are several
    FOLDER/layout.json        rows per file and the folders; without it one file holds all rows
    FOLDER/examples.txt       the content identifier of each row's image, by which `erase` finds it
    FOLDER/journal.jsonl      one line per finished chunk (io/journal.py): its number, CRC-32 and skipped rows
    FOLDER/journal-1.jsonl    the chunks of process 1, and so on: each process appends to its own file
    FOLDER/complete           written when every chunk is finished: sizes and times of the files, skipped rows

A chunk is journaled after its bytes are on disk, so an interrupted extraction resumes; a chunk with missing or altered
bytes or line is computed again. Files that did not change since `complete` are not read again to be checked; delete
`complete` to check every byte. The first folder holds everything but rows and layout.
"""

import contextlib
import dataclasses
import functools
import json
import os
import threading
import zlib
from collections.abc import Sequence, Set
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.core.rows import Parts
from tangent_jax.data.identifiers import hash_of
from tangent_jax.features.layout import CHUNK, Layout, check_there, check_together, holds_rows, make_layout, read_layout
from tangent_jax.io.files import allocate, hold_lock, inside, make_private, open_plain, synchronize, write_whole
from tangent_jax.io.journal import Journal
from tangent_jax.io.records import convert, parse_json

TICK = 2  # seconds: the coarsest clock of a file system


@dataclasses.dataclass(frozen=True)
class Line:
    """A finished chunk in the journal."""

    chunk: int
    crc: int
    skipped: tuple[int, ...]
    reader: str = ""


@dataclasses.dataclass(frozen=True)
class Complete:
    """(size, time of the last write in ns) of every file of finished rows and their journals; skipped rows."""

    stamps: tuple[tuple[int, int], ...]
    skipped: tuple[int, ...]
    reader: str = ""


class CachedRows:
    """The cached rows of one set of images: `shape` and `dtype` of a row, the content identifier of each image.

    Existing rows stay in place; new ones are spread over `folder` and `more`. `process`: the one that writes. `reader`:
    what reads the images; a chunk with rows that another one skipped counts as missing, as this one may read them.

    >>> rows = tj.features.CachedRows(demo.folder(), ["aa", "bb"], (3,), np.dtype("float32"))
    >>> rows.make()
    >>> rows.missing(), rows.inputs.shape
    ([0], (2, 3))
    """

    CHUNK = CHUNK
    """The number of rows in a chunk."""

    def __init__(
        self, folder: Path, identifiers: Sequence[str], shape: tuple[int, ...], dtype: np.dtype,
        more: Sequence[Path] = (), process: int = 0, reader: str = "",
    ) -> None:  # fmt: skip
        self.folder, self.identifiers, self.count = folder, identifiers, len(identifiers)
        self.more, self.shape, self.dtype = more, (self.count, *shape), dtype
        self.reader = reader
        self.own_journal = folder / (f"journal-{process}.jsonl" if process else "journal.jsonl")
        self.complete, self.nbytes = folder / "complete", int(np.prod(shape)) * dtype.itemsize
        self.lines: dict[int, Line] = {}  # the finished chunks that are intact
        self.journals: dict[Path, Journal] = {}  # the lines of all processes read so far
        self.skipped: set[int] = set()
        self.writing = threading.Lock()  # of the own journal: several threads write chunks

    @functools.cached_property
    def layout(self) -> Layout:
        """The places of the rows."""
        return read_layout(self.folder, self.count)

    def files(self) -> dict[Path, int]:
        """The path and the number of rows of every file."""
        starts = range(0, max(1, self.count), self.layout.rows_per_file)
        rows = (min(self.layout.rows_per_file, self.count - start) for start in starts)
        return {self.layout.path(self.folder, number): count for number, count in enumerate(rows)}

    def is_sized(self) -> bool:
        """True if the files of the rows exist, with room for all of them."""
        try:
            return all(p.exists() and p.stat().st_size == n * self.nbytes for p, n in self.files().items())
        except InputError:  # a damaged layout
            return False

    def make(self, file_bytes: int | None = None) -> None:
        """Creates the missing files; the caller holds the lock of the first folder.

        file_bytes: the largest size of a file; None for `FILE_BYTES`.
        """
        new = [] if holds_rows(self.folder) else [folder / "layout.json" for folder in (self.folder, *self.more)]
        if new:
            self.layout = make_layout([self.folder, *self.more], self.count, self.nbytes, file_bytes)
        for folder in (self.folder, *self.more):
            make_private(folder)
        path = self.folder / "examples.txt"
        if not path.exists() or identifiers_of(self.folder) != [*self.identifiers]:  # before rows, for `erase`
            write_examples(self.folder, self.identifiers)
        try:
            for path, count in self.files().items():
                check_there(path.parent, self.folder)
                if not path.exists() or path.stat().st_size != count * self.nbytes:
                    new += [] if path.exists() else [path]
                    allocate(path, count * self.nbytes)
        except OSError:
            for path in new:  # other rows stay
                path.unlink(missing_ok=True)
            raise

    @functools.cached_property
    def inputs(self) -> Any:
        """The rows, "n ...", read-only: a memory map, or the Parts of several."""
        maps = [np.memmap(p, self.dtype, "r", shape=(n, *self.shape[1:])) for p, n in self.files().items()]
        return maps[0] if len(maps) == 1 else Parts([np.asarray(part) for part in maps])

    def rows(self, chunk: int) -> range:
        """The numbers of a chunk's rows."""
        return range(chunk * CHUNK, min(self.count, (chunk + 1) * CHUNK))

    def checksum(self, chunk: int) -> int:
        """The CRC-32 of a chunk's bytes."""
        rows = self.rows(chunk)
        return zlib.crc32(np.ascontiguousarray(self.inputs[rows.start : rows.stop]).view(np.uint8).data)

    def missing(self) -> list[int]:
        """The chunks that are unfinished or altered, in ascending order."""
        complete = self.read_complete()
        if complete is not None and self.is_valid(complete):
            self.skipped = {*complete.skipped}
            return []
        self.journals = {}
        lines: dict[int, dict[int, Line]] = {}  # several processes may have finished a chunk
        for line in self.new_lines():
            lines.setdefault(line.chunk, {})[line.crc] = line
        whole = {c: lines[c].get(self.checksum(c)) for c in range(-(-self.count // CHUNK)) if c in lines}
        self.lines = {c: line for c, line in whole.items() if line is not None and self.is_valid(line)}
        return self.missing_chunks()

    def is_valid(self, finished: Line | Complete) -> bool:
        """True unless another reader skipped rows."""
        return not finished.skipped or finished.reader == self.reader

    def refresh(self) -> list[int]:
        """The chunks that are still unfinished, after reading what other processes wrote since `missing`."""
        self.lines |= {line.chunk: line for line in self.new_lines()}
        return self.missing_chunks()

    def missing_chunks(self) -> list[int]:
        """The chunks without a line; notes the rows that the lines skip."""
        self.skipped = {row for line in self.lines.values() for row in line.skipped}
        return [chunk for chunk in range(-(-self.count // CHUNK)) if chunk not in self.lines]

    def new_lines(self) -> list[Line]:
        """The unread lines of all journals, each up to the first altered line."""
        new = []
        for path in self.journal_files():
            journal = self.journal(path)
            read = len(journal.entries)
            with contextlib.suppress(InputError):
                journal.load()
            new += [convert(Line, entry, path) for entry in journal.entries[read:]]
        return new

    def write(self, chunk: int, values: np.ndarray, skipped: list[int]) -> None:
        """Writes a chunk's rows "k ...", then its journal line; rows at `skipped` (from 0) hold nothing."""
        rows = self.rows(chunk)
        number, start = divmod(rows.start, self.layout.rows_per_file)
        write_at(self.layout.path(self.folder, number), [(start * self.nbytes, as_bytes(values, self.dtype))])
        line = Line(chunk, self.checksum(chunk), tuple(rows.start + i for i in skipped), self.reader)
        with self.writing:
            self.journal(self.own_journal).append(dataclasses.asdict(line))
            self.lines[chunk] = line
            self.skipped.update(line.skipped)

    def journal(self, path: Path) -> Journal:
        """The journal of a process, as read so far."""
        return self.journals.setdefault(path, Journal(path))

    def journal_files(self) -> list[Path]:
        """The journals of all processes."""
        return sorted(self.folder.glob("journal*.jsonl"))

    def stamps(self) -> tuple[tuple[int, int], ...]:
        """The size and the last write's time of every file of rows and every journal."""
        states = [path.stat() for path in (*self.files(), *self.journal_files())]
        return tuple((state.st_size, state.st_mtime_ns) for state in states)

    def read_complete(self) -> Complete | None:
        """The content of `finish`, if no file changed since; else None."""
        try:
            content, written = self.complete.read_bytes(), self.complete.stat().st_mtime_ns
            complete = convert(Complete, parse_json(content, self.complete), self.complete)
            stamps = self.stamps()
        except (InputError, OSError):
            return None
        last = max(when for _, when in stamps)  # a write within the same clock tick would not show
        return complete if complete.stamps == stamps and last + TICK * 10**9 < written else None

    def finish(self) -> None:
        """Marks all chunks as finished; the caller knows that none is missing."""
        if self.read_complete() is not None:
            return
        if len(self.files()) > 1:
            sleep(TICK)  # so that the next start does not read all of a large cache
        complete = Complete(self.stamps(), tuple(sorted(self.skipped)), self.reader)
        write_whole(self.complete, json.dumps(dataclasses.asdict(complete)))


def as_bytes(values: np.ndarray, dtype: np.dtype) -> memoryview:
    """The bytes of an array in a dtype."""
    return np.ascontiguousarray(values, dtype).view(np.uint8).data


def write_at(path: Path, pieces: Sequence[tuple[int, Any]]) -> None:
    """Writes (offset, bytes) pieces to a file; they are on disk when this returns."""
    with open_plain(path, "r+b") as file:
        for offset, content in pieces:
            file.seek(offset)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())


def identifiers_of(folder: Path) -> list[str]:
    """The content identifier of each row of a folder."""
    return (folder / "examples.txt").read_bytes().decode(errors="replace").split()


def rows_of(folder: Path, hashes: Set[str], before: Set[str] = frozenset()) -> list[int]:
    """The numbers of the rows, in a folder of cached rows, of images with these hashed identifiers, erased or not.

    Args:    folder: any of those that the rows are spread over; other folders have none; before: hashes of images that
             were removed before, whose rows count unless they are erased.
    Raises:  InputError for links, and unless all folders state that they hold these rows together.
    """
    if not inside(folder.parent, folder.name).is_dir() or not holds_rows(folder):
        return []
    first = folder / read_layout(folder, 0).folders[0]
    check_together(folder, first)
    if first == folder and not (folder / "examples.txt").exists():
        return []  # written before any row
    wanted = hashes | before
    return [i for i, name in enumerate(identifiers_of(first)) if name in hashes or hash_of(name) in wanted]


def erase(folder: Path, hashes: Set[str]) -> bool:
    """Overwrites with zeros, in all folders, the rows of images with these hashed identifiers (`hidden`).

    Args:    folder: any of those that the rows are spread over.
    Returns: True if there were any. Their chunks then count as missing, so that the next reader computes them; the
             identifiers are replaced by their hashes.
    Raises:  OSError or InputError if a file cannot be read or written; all others are erased.
    """
    rows = rows_of(folder, hashes)
    if not rows:
        return False
    first = folder / read_layout(folder, 0).folders[0]
    names = identifiers_of(first)
    layout = read_layout(folder, len(names))
    errors: list[OSError] = []
    with hold_lock(first / "lock"):
        (first / "complete").unlink(missing_ok=True)
        synchronize(first)
        for number in sorted({row // layout.rows_per_file for row in rows}):
            start = number * layout.rows_per_file
            inside, count = [row - start for row in rows], min(layout.rows_per_file, len(names) - start)
            try:
                zero_rows(layout.path(folder, number), [row for row in inside if 0 <= row < count], count)
            except OSError as error:
                errors.append(error)
        if not errors:  # else a later call must find it again
            write_examples(first, [own if (own := hash_of(name)) in hashes else name for name in names])
    if errors:
        raise errors[0]
    return True


def write_examples(folder: Path, identifiers: Sequence[str]) -> None:
    """Writes the content identifier of each row."""
    write_whole(folder / "examples.txt", "".join(f"{name}\n" for name in identifiers), private=True)


def zero_rows(path: Path, rows: Sequence[int], count: int) -> None:
    """Overwrites rows of a file that holds `count` rows; a truncated file is emptied."""
    nbytes, rest = divmod(path.stat().st_size, count)
    if rest:
        with open_plain(path, "r+b") as file:
            file.truncate(0)
    else:
        write_at(path, [(row * nbytes, bytes(nbytes)) for row in rows])
