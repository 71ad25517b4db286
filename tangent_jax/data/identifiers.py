"""Content identifiers, and an index that stores them, so that unchanged images are not read again to be identified.

    CACHE/index.sqlite     (key, text): the key is the SHA-256 of a file's path, its state and a place in it; the text
                           an image's identifier, or the samples of a tar (tars.py)

CACHE is ~/.cache/tangent_jax, or the folder of `index_in`: commands take that of their cached features.

The place is where the bytes lie: a member of a zip, a column and row of a file, offset and size in a tar. The name of
an example does not identify it: two columns of images have the same names, and removing a row renumbers later rows.

The state of a file is its size, inode, and the times of its last write and last change. A file that was changed just
now may change again within one tick of the clock, so nothing is stored about it. Programs cannot set the time of the
last change, but a disk or a clock that is set back may show an old one. So `Examples.read_identified` checks every
decoded image against its identifier. The index only saves time: without it, images are read.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.core.placement import cores
from tangent_jax.data.workers import closing_pool, in_order
from tangent_jax.io.files import expand_path, make_private
from tangent_jax.io.paths import Place, stamp_of
from tangent_jax.io.progress import progress_bar

INDEX = "~/.cache/tangent_jax/index.sqlite"  # the default
FOLDER: ContextVar[str | os.PathLike | None] = ContextVar("FOLDER", default=None)  # of another index
TICK = 2  # seconds: the coarsest clock of a file system
TOGETHER = 500  # texts per query or write
FAULTS = (sqlite3.Error, OSError, InputError)  # of an index that cannot be read or written


@contextlib.contextmanager
def index_in(folder: str | os.PathLike) -> Iterator[None]:
    """Keeps the index in this folder within the `with` block."""
    token = FOLDER.set(folder)
    try:
        yield
    finally:
        FOLDER.reset(token)


def index_path(folder: str | os.PathLike | None = None) -> str:
    """The path of the index in a folder, by default in that of `index_in`; `~` is not resolved."""
    folder = FOLDER.get() if folder is None else folder
    return INDEX if folder is None else os.path.join(folder, "index.sqlite")


def index_paths(folders: Iterable[str | os.PathLike]) -> list[str]:
    """The paths of every index that may know an image: the default one, and those in these folders of caches."""
    return [*dict.fromkeys([INDEX, index_path(), *map(index_path, folders)])]


def content_identifier(content: bytes | np.ndarray) -> str:
    """SHA-256 (hex) of encoded bytes, or of an array's shape, dtype and bytes."""
    if isinstance(content, np.ndarray):  # uint8 images without their dtype, as in version 0.3
        kind = "" if content.dtype == np.uint8 else content.dtype.name
        content = f"{content.shape}{kind}".encode() + np.ascontiguousarray(content).tobytes()
    return hashlib.sha256(content).hexdigest()


def file_state(path: Place) -> str | None:
    """A file's path and state as text; None if it is missing, or was changed too recently."""
    if not isinstance(path, Path):
        return f"{path}\0{stamp_of(path)}"
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return None
    if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) <= TICK * 10**9:
        return None
    return f"{os.path.abspath(path)}\0{state.st_size} {state.st_ino} {state.st_mtime_ns} {state.st_ctime_ns}"


def key_of(state: str | None, place: str) -> bytes | None:
    """The index key of a place in a file of this state; None without a state."""
    text = f"{state}\0{place}".encode(errors="surrogatepass")
    return None if state is None else hashlib.sha256(text).digest()


def identify(
    count: int, read: Callable[[int], str | None], where: Callable[[int], tuple[Place, str]] | None
) -> list[str | None]:
    """The identifier of each of `count` images, from the index or by `read`, in threads; None if `read` gives None.

    Args:
        where: The file of a row's image, and the unique place of its bytes there; without it nothing is stored.
            Identifiers are stored in portions, so an interrupted call resumes.
    """
    places = [where(i) for i in range(count)] if where else []
    states = {path: file_state(path) for path in dict.fromkeys(path for path, _ in places)}
    keys = [key_of(states[path], f"bytes {place}") for path, place in places] or [None] * count
    result = look_up(keys)
    missing = [i for i, identifier in enumerate(result) if identifier is None]
    if not missing:
        return result
    new: dict[bytes, str] = {}
    with closing_pool(ThreadPoolExecutor(cores())) as pool, progress_bar(len(missing), "image") as bar:
        for i, identifier in zip(missing, in_order(pool, read, missing, TOGETHER), strict=True):
            result[i], key = identifier, keys[i] if keys else None
            if key is not None and identifier is not None:
                new[key] = identifier
            if len(new) == TOGETHER:
                keep(new)
                new = {}
            bar.update()
    keep(new)
    return result


def look_up(keys: Sequence[bytes | None]) -> list[str | None]:
    """The stored text of each key, else None."""
    texts: dict[bytes, str] = {}
    wanted = [key for key in keys if key]
    with contextlib.suppress(*FAULTS), contextlib.closing(open_index(index_path())) as index:
        for start in range(0, len(wanted), TOGETHER):
            some = wanted[start : start + TOGETHER]
            marks = ",".join("?" * len(some))
            texts |= index.execute(f"select key, text from texts where key in ({marks})", some).fetchall()
    return [texts.get(key) if key else None for key in keys]


def keep(texts: dict[bytes, str]) -> None:
    """Stores a text for each key, if the index can be written."""
    with contextlib.suppress(*FAULTS), contextlib.closing(open_index(index_path())) as index, index:
        index.executemany("insert or replace into texts values (?, ?)", texts.items())


def forget(path: str, is_removed: Callable[[str], bool], names: Set[str]) -> None:
    """Deletes removed images from an index: identifiers for which `is_removed`, and lists of tars that name them.

    Raises:
        InputError or OSError: If the index cannot be read or written: it may still hold them.
    """
    gone = kept_of(path, is_removed, names)
    if gone:
        with faults_told(), contextlib.closing(open_index(path)) as index, index:
            index.executemany("delete from texts where key = ?", [(key,) for key in gone])


def kept_of(path: str, is_removed: Callable[[str], bool], names: Set[str]) -> list[bytes]:
    """The keys that `forget` deletes; does not create an index.

    Raises:
        InputError or OSError: If there is an index that cannot be read.
    """
    try:
        is_file = stat.S_ISREG(expand_path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return []
    if not is_file:
        return []
    with faults_told(), contextlib.closing(open_index(path)) as index:
        rows = index.execute("select key, text from texts").fetchall()
    samples = {end for name in names for end in ends(name)}
    return [key for key, text in rows if is_removed(text) or not samples.isdisjoint(samples_of(text))]


@contextlib.contextmanager
def faults_told() -> Iterator[None]:
    """Raises an error of SQLite as an InputError."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(
            f"the index must be a database that can be read and written; got: {error}. End other programs that use it, "
            "or delete it, and repeat the removal"
        ) from error


def ends(name: str) -> list[str]:
    """The name, and its part after each of its folders: one of these names a tar's sample."""
    parts = name.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def samples_of(text: str) -> set[str]:
    """The names of a tar's samples, if a text is such a list."""
    with contextlib.suppress(ValueError, TypeError, LookupError):
        return {sample[0] for sample in json.loads(text)} if text[:1] == "[" else set()
    return set()


def open_index(place: str) -> sqlite3.Connection:
    """Opens or creates an index that its user alone reads. A crash may lose its last texts; deleted ones are zeros."""
    path = expand_path(place)
    if not path.parent.exists():
        make_private(path.parent)
    path.touch(mode=0o600)
    index = sqlite3.connect(path, timeout=10)
    index.execute("pragma synchronous = off")
    index.execute("pragma secure_delete = on")
    index.execute("create table if not exists texts (key blob primary key, text text) without rowid")
    return index
