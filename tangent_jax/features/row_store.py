"""Rows of features on disk, one for each image that a program of features has seen.

    FOLDER/rows.bin        the rows, memory-mapped
    FOLDER/examples.txt    lines of one length: the size of a row; then, for each row, the content identifier of its
                           image, and a checksum of both (CRC-32)

A row keeps its place; those of new images follow at the end. A row's checksum is written once its bytes are on the
disk: without one the row is missing and is computed again, after a kill, and after its bytes were altered.

A removal takes the checksum away, overwrites the row, then the identifier. A reader copies a row, then looks for its
checksum, so it never takes zeros for a row that is removed meanwhile.

The lock is held while the files are written, never while rows are computed, read or compared with their checksums. They
are compared only if rows.bin was written to after examples.txt: a kill between a row and its line leaves it so.
"""

import errno
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Shaped

from tangent_jax.core.checks import InputError
from tangent_jax.core.rows import Rows
from tangent_jax.io.files import allocate, hold_lock, inside, make_private, open_plain

CHUNK = 64
"""The number of rows that are written at once."""
LINE = np.dtype([("identifier", "S64"), ("space", "S1"), ("checksum", "S8"), ("end", "S1")])
"""A line of examples.txt; identifiers are padded with spaces."""
MISSING = b"--------"
"""The checksum of a row that is not there."""
ERASED = "erased"
"""The identifier of a row that was erased."""
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)  # of a folder that this user cannot write


class RowStore:
    """The rows of a set of images: `shape` and `dtype` of a row, the content identifier of each image.

    The folder may hold rows of other images, too. Images of one content share a row.

    >>> rows = tj.features.RowStore(demo.folder(), ["aa", "bb"], (3,), np.dtype("float32"))
    >>> rows.create()
    >>> rows.write([1], np.ones((1, 3)))
    >>> rows.missing(), rows.open()[[1]].tolist()
    ([0], [[1.0, 1.0, 1.0]])
    """

    def __init__(self, folder: Path, identifiers: Sequence[str], shape: Sequence[int], dtype: np.dtype) -> None:
        self.folder = folder
        self.identifiers = identifiers
        self.shape = (len(identifiers), *shape)
        self.dtype = dtype
        self.nbytes = int(np.prod(shape)) * dtype.itemsize  # of a row
        self.wanted = [padded(identifier) for identifier in identifiers]
        self.lines = np.zeros(0, LINE)  # of the folder
        self.places = np.zeros(0, int)  # of these images in the folder

    def __len__(self) -> int:
        return len(self.identifiers)

    # Opening

    def create(self) -> None:
        """Gives each image a place in the folder. Rows that were altered are missing from now on.

        Raises:
            OSError: If the disk has no room for new rows.
            InputError: If this user cannot write the folder, and images have no place in it.
        """
        try:
            make_private(self.folder)
            compared_at = written_at(self.folder / "rows.bin")
            altered = None if is_settled(self.folder) else self.altered()
            with hold_lock(self.folder / "lock", quiet=True):
                self.erase_damaged()
                if altered is not None:
                    self.forget(self.altered(altered), compared_at)
                self.find_places()
                if (self.places < 0).any():
                    self.add_places()
        except OSError as error:
            self.find_places()
            if error.errno not in READ_ONLY:
                raise
            if (self.places < 0).any() or not self.is_unaltered():
                raise InputError(
                    f"the folder of a cache must be one that this user can write; got {self.folder}: {error.strerror}."
                    " Name another one, as by tj.Cache(FOLDER)"
                ) from error

    def erase_damaged(self) -> None:
        """Erases the rows whose lines cannot be read, as a removal could not find them."""
        nbytes, lines = read_lines(self.folder)
        is_damaged = (lines["space"] != b" ") | (lines["end"] != b"\n") | (nbytes != self.nbytes)
        if is_damaged.any():
            overwrite(self.folder, np.flatnonzero(is_damaged).tolist(), self.nbytes)

    def altered(self, places: Sequence[int] | np.ndarray | None = None) -> list[int]:
        """The places, among these (None: all), of rows that have not the bytes of their checksums."""
        _, lines = read_lines(self.folder)
        size = (self.folder / "rows.bin").stat().st_size if (self.folder / "rows.bin").exists() else 0
        rows = map_rows(self.folder, (size // self.nbytes, self.nbytes), np.uint8)
        kept = np.flatnonzero(lines["checksum"] != MISSING)
        kept = kept if places is None else np.intersect1d(kept, np.asarray(places, int))
        names, checksums = (lines[field][kept].tolist() for field in ("identifier", "checksum"))
        found = zip(kept.tolist(), names, checksums, strict=True)
        return [i for i, name, crc in found if i >= len(rows) or checksum(name, rows[i]) != crc]

    def forget(self, altered: list[int], compared_at: int) -> None:
        """Takes the checksums of altered rows away; the others need no comparison if none was written since then."""
        _, lines = read_lines(self.folder)
        are_all_compared = written_at(self.folder / "rows.bin") == compared_at
        allocate(self.folder / "rows.bin", len(lines) * self.nbytes)
        write_lines(self.folder, {place: line_of(lines["identifier"][place]) for place in altered})
        if are_all_compared:
            os.utime(self.folder / "examples.txt")

    def is_unaltered(self) -> bool:
        """True if the rows of these images that are there have the bytes of their checksums."""
        return is_settled(self.folder) or not self.altered(self.places)

    def read_again(self) -> None:
        """Reads the lines again after rows were written.

        Raises:
            InputError: If images were removed since `create`.
        """
        self.find_places()
        if (self.places < 0).any():
            raise of_removed(self.folder, "computed")

    def find_places(self) -> None:
        """Finds the place of each image in the folder; -1 for one that has none."""
        _, self.lines = read_lines(self.folder)
        places = {name: place for place, name in enumerate(self.lines["identifier"].tolist())}
        self.places = np.array([places.get(name, -1) for name in self.wanted], int)

    def add_places(self) -> None:
        """Adds the lines of images that have none, and room for their rows."""
        new = [*dict.fromkeys(self.wanted[image] for image in np.flatnonzero(self.places < 0))]
        end = len(self.lines)
        allocate(self.folder / "rows.bin", (end + len(new)) * self.nbytes)
        size = {-1: line_of(padded(f"{self.nbytes} bytes a row"))}
        write_lines(self.folder, size | {end + i: line_of(name) for i, name in enumerate(new)})
        self.find_places()

    # Reading

    def missing(self) -> list[int]:
        """The images without a row, by the lines as they are now, in ascending order; of copies the first."""
        is_first = np.zeros(len(self), bool)
        is_first[np.unique(self.places, return_index=True)[1]] = True
        return np.flatnonzero(is_first & (self.lines["checksum"][self.places] == MISSING)).tolist()

    def open(self) -> Rows:
        """The rows, "n ...", read from the disk when they are indexed."""
        base = map_rows(self.folder, (len(self.lines), *self.shape[1:]), self.dtype)
        return Rows(OpenRows(base, self.lines["checksum"], self.folder), self.places)

    # Writing

    def write(
        self, images: Sequence[int], values: Shaped[np.ndarray | Array, "k ..."], skipped: Collection[int] = ()
    ) -> None:
        """Writes the rows of these images.

        Args:
            values: Waited for if a device still computes them.
            skipped: Places among them that hold nothing.

        Raises:
            InputError: If one of the images was removed since `create`.
        """
        values = np.ascontiguousarray(values, self.dtype)
        written = {image: values[i] for i, image in enumerate(images) if i not in skipped}
        if not written:
            return
        at = [*written]
        with hold_lock(self.folder / "lock", quiet=True):
            if self.lines["identifier"][self.places[at]].tolist() != [self.wanted[image] for image in at]:
                raise of_removed(self.folder, "computed")
            lines, rows = {}, {}
            for image, value in written.items():
                place, row = int(self.places[image]), value.reshape(-1).view(np.uint8).data
                rows[place * self.nbytes] = row
                lines[place] = line_of(self.wanted[image], checksum(self.wanted[image], row))
            write_at(self.folder / "rows.bin", rows)
            write_lines(self.folder, lines, wait=False)  # after a power cut, a row without its line is computed again


class OpenRows:
    """All rows of a folder as one array, "n ...", memory-mapped; reads are copies of rows that are there.

    Raises:
        InputError: When indexed, for a row that was removed or altered.

    >>> rows = tj.extract(demo.predict, demo.examples(5, seed=2), tj.Cache(demo.folder())).inputs
    >>> type(rows.base).__name__, rows[1:3].shape
    ('OpenRows', (2, 6))
    """

    def __init__(self, base: Shaped[np.ndarray, "n ..."], checksums: Shaped[np.ndarray, "n"], folder: Path) -> None:
        self.base = base
        self.checksums = checksums
        self.folder = folder
        self.shape = base.shape
        self.dtype = base.dtype

    def __getitem__(self, index: Any) -> Any:
        values = self.base[index]
        values = values.copy() if np.may_share_memory(values, self.base) else values
        rows = index[0] if isinstance(index, tuple) else index
        if np.any(self.checksums[rows] == MISSING):
            raise of_removed(self.folder, "in use")
        return values


def of_removed(folder: Path, what: str) -> InputError:
    """The error where rows were removed or altered while they were computed, or in use."""
    return InputError(
        f"the images of {folder} must stay while their features are {what}; some were removed, or their rows altered. "
        "Run it again without removed images"
    )


# Files


def padded(identifier: str) -> bytes:
    """An identifier as it stands in a line."""
    return identifier.encode().ljust(64)


def line_of(identifier: bytes, checksum: bytes = MISSING) -> bytes:
    """The line of a padded identifier."""
    return b"%s %s\n" % (identifier, checksum)


def checksum(identifier: bytes, row: Any) -> bytes:
    """The checksum of a row of an image."""
    return b"%08x" % zlib.crc32(row, zlib.crc32(identifier))


def read_lines(folder: Path) -> tuple[int, Shaped[np.ndarray, "n"]]:
    """Returns (the bytes of a row, the lines of the rows, memory-mapped); (0, no line) for a folder without rows."""
    path = folder / "examples.txt"
    count = path.stat().st_size // LINE.itemsize if path.exists() else 0
    if not count:
        return 0, np.zeros(0, LINE)
    with open_plain(path, "rb") as file:
        lines = np.asarray(np.memmap(file, LINE, "r", shape=(count,)))
    size, *words = lines["identifier"][0].split()
    return int(size) if words == [b"bytes", b"a", b"row"] and size.isdigit() else 0, lines[1:]


def map_rows(folder: Path, shape: tuple[int, ...], dtype: Any) -> Shaped[np.ndarray, "n ..."]:
    """The rows of a folder, memory-mapped; a plain array, as reading a row of a memmap has an overhead."""
    if not shape[0]:
        return np.zeros(shape, dtype)
    with open_plain(folder / "rows.bin", "rb") as file:
        return np.asarray(np.memmap(file, dtype, "r", shape=shape))


def written_at(path: Path) -> int:
    """The time of the last write to a file, in nanoseconds; 0 for a missing file."""
    return path.stat().st_mtime_ns if path.exists() else 0


def is_settled(folder: Path) -> bool:
    """True if there are no rows, or rows whose file was not written to after their lines."""
    lines = written_at(folder / "examples.txt")
    return not lines or 0 < written_at(folder / "rows.bin") < lines


def write_at(path: Path, pieces: Mapping[int, Any], wait: bool = True) -> None:
    """Writes bytes by their offsets to a private file; with `wait` they are on the disk when this returns."""
    with open_plain(path, "w+b") as file:
        os.fchmod(file.fileno(), 0o600)
        for offset, content in pieces.items():
            if file.tell() != offset:
                file.seek(offset)
            file.write(content)
        if wait:
            file.flush()
            os.fsync(file.fileno())


def write_lines(folder: Path, lines: Mapping[int, bytes], wait: bool = True) -> None:
    """Writes lines by their rows' places (-1: the first line)."""
    write_at(folder / "examples.txt", {(place + 1) * LINE.itemsize: line for place, line in lines.items()}, wait)


def overwrite(folder: Path, places: Sequence[int], nbytes: int) -> None:
    """Overwrites rows and their lines. Identifiers are last: after a failure, a later call must find the rows again."""
    _, lines = read_lines(folder)
    write_lines(folder, {place: line_of(lines["identifier"][place]) for place in places})
    write_at(folder / "rows.bin", {place * nbytes: bytes(nbytes) for place in places})
    write_lines(folder, dict.fromkeys(places, line_of(padded(ERASED))))


# Erasure


def identifiers_of(folder: Path) -> list[str]:
    """The content identifier of each row of a folder."""
    return [name.decode(errors="replace").rstrip() for name in read_lines(folder)[1]["identifier"].tolist()]


def rows_of(folder: Path, is_removed: Callable[[str], bool]) -> list[int]:
    """The places of the rows of removed images, by their identifiers; none in a folder without rows.

    Raises:
        InputError: A folder that is a link, or whose list of images cannot be read.
    """
    if not inside(folder.parent, folder.name).is_dir() or not (folder / "examples.txt").exists():
        return []
    nbytes, lines = read_lines(folder)
    size = (folder / "rows.bin").stat().st_size if (folder / "rows.bin").exists() else nbytes * len(lines)
    if not nbytes or size % nbytes or size < nbytes * len(lines):
        raise InputError(
            f"{folder}/examples.txt must list the images of rows.bin; it was altered, or is of another version. Delete "
            "the folder"
        )
    return [i for i, name in enumerate(identifiers_of(folder)) if name != ERASED and is_removed(name)]


def erase(folder: Path, is_removed: Callable[[str], bool]) -> bool:
    """Overwrites the rows of removed images, by their identifiers, in one folder of a cache.

    A removal from a `Store` does it. Without a store, call it for each folder of the cache.

    Returns:
        True if there were any. Their lines then say ERASED, without the identifier.

    Guarantees:
        A program that computes these rows meanwhile does not write them; one that reads them raises.

    Raises:
        OSError or InputError: If a file cannot be read or written.

    >>> cache, images = demo.folder(), demo.examples(5, seed=2)
    >>> features = tj.extract(demo.predict, images, tj.Cache(cache))
    >>> removed = {images.identifiers()[3]}
    >>> [tj.features.erase(folder, removed.__contains__) for folder in cache.iterdir()]
    [True]
    """
    if not rows_of(folder, is_removed):
        return False
    with hold_lock(folder / "lock", quiet=True):
        overwrite(folder, rows_of(folder, is_removed), read_lines(folder)[0])
    return True
