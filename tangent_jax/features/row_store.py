"""Rows of features on disk, one for each image, written chunk by chunk with checksums.

    FOLDER/inputs.bin         the rows in order, memory-mapped
    FOLDER/examples.txt       the content identifier of each row's image, by which `erase` finds it
    FOLDER/journal.jsonl      one line per finished chunk (io/journal.py): its number, CRC-32 and skipped rows
    FOLDER/journal-1.jsonl    the chunks of process 1 of a job, and so on: each process appends to its own file
    FOLDER/complete           written when every chunk is finished: sizes and times of the files, skipped rows

A chunk is journaled after its bytes are on disk, so an interrupted extraction resumes; a chunk with missing or altered
bytes or line is missing. Several processes may fill one store: the lock is held for the write of one chunk, never while
one is computed, and a finished chunk is not written again. Files that did not change since `complete` are not read
again to be checked; delete `complete` to check every byte. Whole rows are read from a read-only disk, too.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Shaped

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import allocate, hold_lock, inside, make_private, open_plain, synchronize, write_whole
from tangent_jax.io.journal import Journal
from tangent_jax.io.records import convert, parse_json

CHUNK = 64
"""The number of rows in a chunk."""
ERASED = "erased"
"""The identifier of a row that was erased."""
TICK = 2  # seconds: the coarsest clock of a file system
LARGE = 4 << 30  # bytes: rows that take long to check again
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)  # of a folder that this user cannot write


@dataclasses.dataclass(frozen=True)
class Line:
    """A finished chunk in the journal. `reader`: what read its images."""

    chunk: int
    crc: int
    skipped: tuple[int, ...]
    reader: str = ""


@dataclasses.dataclass(frozen=True)
class Complete:
    """(size, time of the last write in ns) of the rows and their journals; skipped rows."""

    stamps: tuple[tuple[int, int], ...]
    skipped: tuple[int, ...]
    reader: str = ""


class RowStore:
    """The rows of one set of images: `shape` and `dtype` of a row, the content identifier of each image.

    `reader`: what reads the images; a chunk with rows that another one skipped counts as missing, as this one may read
    them. `process`: the number of this process in its job. `skipped`: the rows that hold nothing, as their image cannot
    be read. `is_shared`: True once another program was seen to write here.

    >>> rows = tj.features.RowStore(demo.folder(), ["aa", "bb"], (3,), np.dtype("float32"))
    >>> rows.create()
    >>> rows.missing(), rows.rows(0)
    ([0], range(0, 2))
    >>> rows.write(rows.rows(0), np.ones((2, 3)))
    >>> rows.missing(), rows.read([1]).tolist()
    ([], [[1.0, 1.0, 1.0]])
    """

    def __init__(
        self,
        folder: Path,
        identifiers: Sequence[str],
        shape: Sequence[int],
        dtype: np.dtype,
        *,
        reader: str = "",
        process: int = 0,
    ) -> None:
        self.folder = folder
        self.identifiers = identifiers
        self.shape = (len(identifiers), *shape)
        self.dtype = dtype
        self.reader = reader
        self.chunks = -(-len(identifiers) // CHUNK)
        self.nbytes = int(np.prod(shape)) * dtype.itemsize  # of a row
        self.file = folder / "inputs.bin"
        self.journal = Journal(folder / (f"journal-{process}.jsonl" if process else "journal.jsonl"))
        self.others: dict[Path, Journal] = {}  # of other processes
        self.lines: dict[int, Line] = {}  # the finished chunks
        self.skipped: set[int] = set()
        self.is_shared = False
        self.listed = (0, 0)  # the state of examples.txt when it was written or read
        self.writing = threading.Lock()

    def __len__(self) -> int:
        return len(self.identifiers)

    # Reading

    @functools.cached_property
    def inputs(self) -> np.memmap:
        """The rows, "n ...", read-only and memory-mapped."""
        return np.memmap(self.file, self.dtype, "r", shape=self.shape)

    def read(self, at: Any) -> Shaped[np.ndarray, "k ..."]:
        """The rows at these places."""
        return np.asarray(self.inputs[at])

    def missing(self) -> list[int]:
        """The chunks that are unfinished or altered, in ascending order."""
        complete = self.read_complete()
        if complete is not None and self.is_valid(complete):
            self.skipped = {*complete.skipped}
            self.lines = {chunk: Line(chunk, 0, ()) for chunk in range(self.chunks)}
            return []
        found: dict[int, dict[int, Line]] = {}  # several processes may have finished a chunk
        for line in self.new_lines():
            found.setdefault(line.chunk, {})[line.crc] = line
        has_room = self.file.exists() and self.file.stat().st_size == len(self) * self.nbytes
        for chunk in range(self.chunks) if has_room else ():
            line = found[chunk].get(self.checksum(chunk)) if chunk in found else None
            if line is not None and self.is_valid(line):
                self.lines[chunk] = line
        return self.unfinished()

    def refresh(self) -> list[int]:
        """The chunks that are still missing, after reading what other processes wrote since `missing`."""
        self.lines |= {line.chunk: line for line in self.new_lines()}
        return self.unfinished()

    def unfinished(self) -> list[int]:
        """The chunks without a line; notes the rows that the lines skip."""
        self.skipped = {row for line in self.lines.values() for row in line.skipped}
        return [chunk for chunk in range(self.chunks) if chunk not in self.lines]

    def rows(self, chunk: int) -> range:
        """The rows of a chunk."""
        return range(chunk * CHUNK, min(len(self), (chunk + 1) * CHUNK))

    def checksum(self, chunk: int) -> int:
        """The CRC-32 of a chunk's bytes on the disk."""
        rows = self.rows(chunk)
        return zlib.crc32(as_bytes(self.inputs[rows.start : rows.stop], self.dtype))

    def is_valid(self, finished: Line | Complete) -> bool:
        """True unless another reader skipped rows."""
        return not finished.skipped or finished.reader == self.reader

    def new_lines(self) -> list[Line]:
        """The unread lines of all journals, each up to the first altered line."""
        new = []
        for path in self.journal_files():
            journal = self.journal
            if path != journal.path:
                journal = self.others.setdefault(path, Journal(path))
            new += lines_since(journal)
        return new

    def journal_files(self) -> list[Path]:
        """The journals of all processes."""
        return sorted(self.folder.glob("journal*.jsonl"))

    def opened(self) -> "OpenRows":
        """The rows, "n ...", for a reader who goes on while another program may erase some of them."""
        return OpenRows(self.inputs, self.folder, self.identifiers, self.listed)

    # Writing

    def create(self) -> None:
        """Creates the files that are not there, with room for all rows; whole rows on a read-only disk need none.

        Raises: OSError if the disk has no room; new files are deleted. OSError if rows are missing on a read-only disk.
        """
        listed = self.folder / "examples.txt"
        try:
            make_private(self.folder)
            with hold_lock(self.folder / "lock", quiet=True):
                if not self.is_listed():  # before rows, for `erase`
                    write_examples(self.folder, self.identifiers)
                self.listed = state_of(listed)
                if not self.file.exists() or self.file.stat().st_size != len(self) * self.nbytes:
                    allocate(self.file, len(self) * self.nbytes)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            with hold_lock(self.folder / "lock", shared=True, quiet=True):
                if not self.is_listed() or self.missing():
                    raise
                self.listed = state_of(listed)

    def is_listed(self) -> bool:
        """True if the folder says that its rows are those of these images."""
        return (self.folder / "examples.txt").exists() and identifiers_of(self.folder) == [*self.identifiers]

    def write(self, rows: range, values: Shaped[np.ndarray | Array, "k ..."], skipped: Sequence[int] = ()) -> None:
        """Writes the rows of one or more whole chunks, then their journal lines; finished chunks stay as they are.

        Args:       values: waited for if a device still computes them; skipped: places among them that hold nothing.
        Raises:     InputError if images were erased since `create`: they may be among these.
        """
        values = np.asarray(values)
        for start in range(rows.start, rows.stop, CHUNK):
            chunk = self.rows(start // CHUNK)
            places = [rows.start + place for place in skipped if rows.start + place in chunk]
            content = as_bytes(values[chunk.start - rows.start : chunk.stop - rows.start], self.dtype)
            line = Line(start // CHUNK, zlib.crc32(content), tuple(places), self.reader)
            with self.writing, hold_lock(self.folder / "lock", quiet=True):
                self.write_chunk(line, content)

    def write_chunk(self, line: Line, content: memoryview) -> None:
        """Writes the bytes of a chunk and its line, unless it is finished by now; the caller holds the lock."""
        if state_of(self.folder / "examples.txt") != self.listed:
            raise InputError(
                f"the images of {self.folder} must stay while their features are computed; some were removed. Run it "
                "again without them"
            )
        if is_longer(self.journal):  # another program
            self.is_shared = True
            self.lines |= {new.chunk: new for new in lines_since(self.journal)}
        if line.chunk in self.lines:
            return
        write_at(self.file, [(line.chunk * CHUNK * self.nbytes, content)])
        self.journal.append(dataclasses.asdict(line))
        self.lines[line.chunk] = line
        self.skipped.update(line.skipped)

    def finish(self) -> None:
        """Marks all chunks as finished; the caller knows that none is missing."""
        if self.read_complete() is not None:
            return
        if self.inputs.nbytes > LARGE:
            sleep(TICK)  # so that the next start does not read all of a large cache
        try:
            with hold_lock(self.folder / "lock", quiet=True):
                if state_of(self.folder / "examples.txt") == self.listed:
                    complete = Complete(self.stamps(), tuple(sorted(self.skipped)), self.reader)
                    write_whole(self.folder / "complete", json.dumps(dataclasses.asdict(complete)))
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise

    def read_complete(self) -> Complete | None:
        """The content of `finish`, if no file changed since; else None."""
        path = self.folder / "complete"
        try:
            content, written = path.read_bytes(), path.stat().st_mtime_ns
            complete = convert(Complete, parse_json(content, path), path)
            stamps = self.stamps()
        except (InputError, OSError):
            return None
        last = max(when for _, when in stamps)  # a write within the same clock tick would not show
        return complete if complete.stamps == stamps and last + TICK * 10**9 < written else None

    def stamps(self) -> tuple[tuple[int, int], ...]:
        """The size and the last write's time of the rows and of every journal."""
        states = [path.stat() for path in (self.file, *self.journal_files())]
        return tuple((state.st_size, state.st_mtime_ns) for state in states)


class OpenRows:
    """The rows of a folder, "n ...", as one array; reads are copies, and raise InputError for a row that was erased.

    An erasure overwrites rows under a memory map: who holds the map would take zeros for an image's features. `listed`:
    the state of examples.txt, which an erasure replaces before it overwrites a row. So it is compared after each read.
    Other rows can still be read after an erasure.

    >>> rows = tj.extract(demo.predict, demo.examples(5, seed=2), tj.Cache(demo.folder())).inputs
    >>> rows.shape, rows[1:3].flags.owndata
    ((5, 6), True)
    """

    def __init__(self, base: np.memmap, folder: Path, identifiers: Sequence[str], listed: tuple[int, int]) -> None:
        self.base = np.asarray(base)  # reading a row of a memmap has an overhead
        self.folder = folder
        self.identifiers = identifiers
        self.listed = listed
        self.erased: np.ndarray | None = None  # a mask of the rows, "n", once one was erased
        self.shape = base.shape
        self.dtype = base.dtype
        self.ndim = base.ndim
        self.nbytes = base.nbytes

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: Any) -> Any:
        values = self.copied(index)
        path = self.folder / "examples.txt"
        if self.erased is None and path.exists() and state_of(path) == self.listed:
            return values
        with hold_lock(self.folder / "lock", shared=True, quiet=True):  # an erasure that began is over then
            names = identifiers_of(self.folder) if path.exists() else []
            values = self.copied(index)
        is_listed = len(names) == len(self)
        erased = np.array(names) != np.array(self.identifiers) if is_listed else np.ones(len(self), bool)
        self.erased = erased
        first = index[0] if isinstance(index, tuple) else index
        rows = np.unique(np.arange(len(self))[first])
        if any(erased[row] or not self.base[row].any() for row in rows):  # zeros: erased, then listed again
            raise InputError(
                f"the images of {self.folder} must stay while their features are in use; some were removed. Run it "
                "again without them"
            )
        return values

    def copied(self, index: Any) -> Any:
        """A copy of these rows."""
        picked = self.base[index]
        return picked.copy() if np.may_share_memory(picked, self.base) else picked

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)


def lines_since(journal: Journal) -> list[Line]:
    """The lines of a journal that were written since it was read, up to the first altered one."""
    read = len(journal.entries)
    with contextlib.suppress(InputError):
        journal.load()
    return [convert(Line, entry, journal.path) for entry in journal.entries[read:]]


def is_longer(journal: Journal) -> bool:
    """True if a journal has another size than it was read with."""
    size = journal.path.stat().st_size if journal.path.exists() else 0
    return size != journal.size + len(journal.rest)


def state_of(path: Path) -> tuple[int, int]:
    """The identity of a file that is only ever replaced whole: another one once it was."""
    state = path.stat()
    return state.st_ino, state.st_mtime_ns


def as_bytes(values: Shaped[np.ndarray, "..."], dtype: np.dtype) -> memoryview:
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


# Erasure


def identifiers_of(folder: Path) -> list[str]:
    """The content identifier of each row of a folder."""
    return (folder / "examples.txt").read_bytes().decode(errors="replace").split()


def write_examples(folder: Path, identifiers: Sequence[str]) -> None:
    """Writes the content identifier of each row."""
    write_whole(folder / "examples.txt", "".join(f"{name}\n" for name in identifiers), private=True)


def rows_of(folder: Path, is_removed: Callable[[str], bool]) -> list[int]:
    """The rows of removed images, by their identifiers, that are not erased yet; other folders than of rows have none.

    Raises: InputError for a folder that is a link.
    """
    if not inside(folder.parent, folder.name).is_dir() or not (folder / "examples.txt").exists():
        return []
    return [i for i, name in enumerate(identifiers_of(folder)) if name != ERASED and is_removed(name)]


def erase(folder: Path, is_removed: Callable[[str], bool]) -> bool:
    """Overwrites with zeros the rows of removed images, by their identifiers, in one folder of a cache.

    A removal from a `Store` does it. Without a store, call it for each folder of the cache.

    Returns:    True if there were any. Their chunks then count as missing, so that the next reader computes them; the
                identifiers are replaced by ERASED, which tells nothing.
    Guarantees: a program that computes these rows meanwhile does not write them.
    Raises:     OSError or InputError if a file cannot be read or written.

    >>> cache, images = demo.folder(), demo.examples(5, seed=2)
    >>> features = tj.extract(demo.predict, images, tj.Cache(cache))
    >>> removed = {images.identifiers()[3]}
    >>> [tj.features.erase(folder, removed.__contains__) for folder in cache.glob("*-*")]
    [True]
    """
    if not rows_of(folder, is_removed):
        return False
    with hold_lock(folder / "lock", quiet=True):
        names = identifiers_of(folder)
        erased = [ERASED if name == ERASED or is_removed(name) else name for name in names]
        rows = [i for i, name in enumerate(erased) if name == ERASED]
        write_examples(folder, names)  # another file: who reads rows from now on is told (OpenRows)
        (folder / "complete").unlink(missing_ok=True)
        synchronize(folder)
        if (folder / "inputs.bin").exists():  # not if a program was killed between both
            zero_rows(folder / "inputs.bin", rows, len(erased))
        write_examples(folder, erased)  # last: after a failure, a later call must find them again
    return True


def zero_rows(path: Path, rows: Sequence[int], count: int) -> None:
    """Overwrites rows of a file that holds `count` rows; a truncated file is emptied."""
    nbytes, rest = divmod(path.stat().st_size, count)
    if rest:
        with open_plain(path, "r+b") as file:
            file.truncate(0)
    else:
        write_at(path, [(row * nbytes, bytes(nbytes)) for row in rows])
