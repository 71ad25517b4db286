"""Cached rows of one dtype and shape on disk, written chunk by chunk, each chunk with a checksum.

    FOLDER/inputs.bin      rows in order, memory-mapped
    FOLDER/examples.txt    the content identifier of each row's image, by which `erase` finds it
    FOLDER/journal.jsonl   one line per finished chunk: its number, CRC-32 and skipped rows
    FOLDER/complete        an empty file, once every chunk is finished

A chunk is journaled after its bytes are on disk, so an interrupted extraction goes on where it stopped; a chunk whose
bytes are missing or altered fails its CRC and is computed again.
"""

import dataclasses
import functools
import json
import os
import zlib
from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np

from tangent_jax.core.files import allocate, locked, synchronize, write_whole
from tangent_jax.core.records import whole_lines

CHUNK = 64  # rows per journal line


@dataclasses.dataclass(frozen=True)
class Line:
    """A finished chunk in the journal."""

    chunk: int
    crc: int
    skipped: tuple[int, ...]


class CachedRows:
    """The rows of one folder: `shape` and `dtype` of one row, the content identifier of each image."""

    def __init__(self, folder: Path, identifiers: Sequence[str], shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.folder, self.identifiers, self.count = folder, identifiers, len(identifiers)
        self.journal, self.complete = folder / "journal.jsonl", folder / "complete"
        self.path, self.shape, self.dtype = folder / "inputs.bin", (self.count, *shape), dtype
        self.skipped: set[int] = set()

    def is_sized(self) -> bool:
        """True where the file of the rows exists, with room for all of them."""
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        return self.path.exists() and self.path.stat().st_size == size

    def make(self) -> None:
        """Makes the files that do not exist yet; the caller holds the folder's lock."""
        if not self.is_sized():
            allocate(self.path, int(np.prod(self.shape)) * self.dtype.itemsize)
        if not (self.folder / "examples.txt").exists():
            write_whole(self.folder / "examples.txt", "".join(f"{name}\n" for name in self.identifiers))

    @functools.cached_property
    def inputs(self) -> np.memmap:
        """The rows, "n ...", read-only."""
        return np.memmap(self.path, self.dtype, "r", shape=self.shape)

    def rows(self, chunk: int) -> range:
        """The numbers of a chunk's rows."""
        return range(chunk * CHUNK, min(self.count, (chunk + 1) * CHUNK))

    def checksum(self, chunk: int) -> int:
        """The CRC-32 of a chunk's bytes."""
        rows = self.rows(chunk)
        return zlib.crc32(np.ascontiguousarray(self.inputs[rows.start : rows.stop]).view(np.uint8).data)

    def missing(self) -> list[int]:
        """The chunks that are not finished, or whose bytes are altered."""
        entries = {line.chunk: line for line in whole_lines(Line, self.journal)}  # a torn line's chunk is missing
        chunks = range(-(-self.count // CHUNK))
        whole = {c for c in chunks if c in entries and entries[c].crc == self.checksum(c)}
        self.skipped = {row for c in whole for row in entries[c].skipped}
        return [c for c in chunks if c not in whole]

    def write(self, chunk: int, values: np.ndarray, skipped: list[int]) -> None:
        """Writes a chunk's rows "k ...", then its line of the journal; rows at `skipped` (from 0) hold nothing."""
        rows = self.rows(chunk)
        values = np.ascontiguousarray(values, self.inputs.dtype)
        with self.path.open("r+b") as file:
            file.seek(rows.start * (values.nbytes // len(values)))
            file.write(values.view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())
        entry = {"chunk": chunk, "crc": self.checksum(chunk), "skipped": [rows.start + i for i in skipped]}
        with self.journal.open("a") as file:
            file.write("\n" * (file.tell() > 0) + json.dumps(entry))
            file.flush()
            os.fsync(file.fileno())
        self.skipped.update(entry["skipped"])


def identifiers_of(folder: Path) -> list[str]:
    """The content identifier of each row of a folder."""
    return (folder / "examples.txt").read_bytes().decode(errors="replace").split()


def erase(folder: Path, identifiers: Container[str]) -> bool:
    """Overwrites with zeros a folder's rows of images among the content identifiers; all other rows stay.

    Returns: True where there were any. Their chunks count as missing, so that the next reader computes them.
    Raises:  OSError where the folder cannot be read, or rows not be written.
    """
    path = folder / "inputs.bin"
    if not (folder / "examples.txt").exists() or not path.exists():
        return False
    names = identifiers_of(folder)
    rows = [i for i, name in enumerate(names) if name in identifiers]
    if not rows:
        return False
    with locked(folder / "lock"):
        (folder / "complete").unlink(missing_ok=True)
        nbytes = path.stat().st_size // len(names)
        with path.open("r+b") as file:
            for row in rows:
                file.seek(row * nbytes)
                file.write(bytes(nbytes))
            file.flush()
            os.fsync(file.fileno())
        synchronize(folder)
    return True
