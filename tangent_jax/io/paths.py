"""Files at URLs: `any_path` gives a place here (pathlib) or at s3://, gs://, az:// or hf:// (etils.epath).

What etils 1.15 lacks at a URL goes by fsspec's own calls: listings in depth (its `walk` raises), sizes and checksums,
reads of a range, and writes that leave no half object (`epath` writes a file to its end on an exception, too). A write
replaces the object that is there. fsspec keeps what it listed, so that sizes, checksums and bytes are of one state: an
object that was replaced since is refused once, and listed again.
Credentials come from the environment, as the provider's own client reads them.
"""

import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from tangent_jax.core.checks import InputError, failure, without_secrets
from tangent_jax.io.files import expand_path, fingerprint, inside, make_private

if TYPE_CHECKING:
    from etils import epath

    Place = Path | epath.Path
else:
    Place = PurePath
"""A file or folder, of this machine or at a URL; `epath` is imported where a URL is opened."""

COPIES = "~/.cache/tangent_jax/urls"
"""The folder of copies of weights."""
BLOCK = 1 << 20  # bytes of a file that are read at once; the last 32 blocks are kept


def is_url(value: object) -> bool:
    """True for text such as s3://bucket/folder."""
    return isinstance(value, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", value) is not None


def any_path(text: str | os.PathLike) -> Place:
    """The path of a file or folder, which may not exist; at a URL the listing is read again.

    Raises:
        InputError: A URL of another kind, or with credentials in it.
    """
    if not is_url(text):
        return expand_path(text)
    os.environ.setdefault("EPATH_USE_TF", "false")  # else an installed TensorFlow opens s3://, in its own ways
    from etils import epath

    connect(text)[0].invalidate_cache()
    return epath.Path(os.fspath(text).rstrip("/"))


def connect(url: object) -> tuple[Any, str]:
    """(fsspec's file system of a URL, the path there)."""
    text = str(url).rstrip("/")
    if not re.match("(s3|gs|az|hf)://.", text):
        raise InputError(f"a URL must begin with s3://, gs://, az:// or hf:// and name a bucket; got {text}")
    if without_secrets(text) != text:
        raise InputError(
            f"a URL must be without credentials; got {text}. Set them in the environment, as your provider's client "
            "reads them"
        )
    import fsspec

    with explaining(text):
        return fsspec.url_to_fs(text)


@contextmanager
def explaining(place: object) -> Iterator[None]:
    """Within the `with` block, an error of a file system at a URL becomes an InputError in one line, in its words."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each file system raises its own kinds of errors
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC  # this machine's disk
        if isinstance(place, Path) or is_full:
            raise
        if isinstance(error, OSError) and error.errno == errno.EBUSY:  # s3fs's FileExpired
            connect(place)[0].invalidate_cache()
            raise InputError(f"{place} must stay as it was listed; it was replaced since. Start again") from error
        raise InputError(f"{place} must be reachable; got {failure(error)}") from error


# Places


def names_below(place: Place) -> list[str]:
    """The names of all files below a folder, relative to it; here those of its folders, too. Sorted."""
    if isinstance(place, Path):
        return [str(path.relative_to(place)) for path in sorted(place.rglob("*"))]
    fs, path = connect(place)
    with explaining(place):
        found = fs.find(path, detail=True)
    start = path.rstrip("/") + "/"
    is_marker = {name: name.endswith("/") and not info["size"] for name, info in found.items()}
    return sorted(name.removeprefix(start) for name in found if name.startswith(start) and not is_marker[name])


def absolute(place: Place) -> Place:
    """The absolute path; a URL is one."""
    return place.absolute() if isinstance(place, Path) else place


def size_of(place: Place) -> int:
    """The size of a file in bytes."""
    if isinstance(place, Path):
        return place.stat().st_size
    fs, path = connect(place)
    with explaining(place):
        return int(fs.info(path)["size"])


def stamp_of(place: Place) -> tuple[int, int]:
    """The size of a file, and the time of its last write, or at a URL its checksum: they change with the file."""
    if isinstance(place, Path):
        state = place.stat()
        return state.st_size, state.st_mtime_ns
    fs, path = connect(place)
    with explaining(place):
        return size_of(place), fs.checksum(path)


def open_file(place: Place) -> IO[bytes]:
    """Opens a file for reading; at a URL in blocks, and an object that is replaced meanwhile is an error on S3."""
    if isinstance(place, Path):
        return place.open("rb")
    fs, path = connect(place)
    with explaining(place):
        return fs.open(path, "rb", block_size=BLOCK, cache_type="blockcache")


def read_range(place: Place, offset: int, size: int) -> bytes:
    """The bytes offset to offset + size of a file, fewer at its end; at a URL by one request."""
    if isinstance(place, Path):
        with place.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    fs, path = connect(place)
    if offset >= size_of(place):
        return b""
    with explaining(place), fs.open(path, "rb", cache_type="none") as file:  # `cat_file` reads an object replaced since
        file.seek(offset)
        return file.read(size)


# Whole files


def write(url: str, content: bytes) -> None:
    """Writes an object as a whole; an error leaves the old one."""
    fs, path = connect(url)
    with explaining(url):
        fs.pipe_file(path, content)


def upload(file: Path, url: str) -> None:
    """Writes an object with the bytes of a file, as a whole; an error leaves the old one."""
    fs, path = connect(url)
    with explaining(url):
        fs.put_file(os.fspath(file), path)


def download(url: str, file: Path) -> None:
    """Writes the bytes of an object to a file, as a whole."""
    fs, path = connect(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        with explaining(url):
            fs.get_file(path, os.fspath(partial))
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def local_copy(path: str | os.PathLike, names: Sequence[str] = ()) -> Path:
    """The path itself, with `~` resolved; of weights at a URL, the path of a copy, fetched again if they changed.

    Args:
        names: Only these files of a folder; for a file, these files beside it too, if they exist.
    """
    return fetch(path, names, expand_path(COPIES)) if is_url(path) else expand_path(path)


@contextmanager
def passing_copy(path: str | os.PathLike, names: Sequence[str] = ()) -> Iterator[Path]:
    """Yields a `local_copy` that is deleted when the `with` block ends: of components, which a removal may cover.

    Memory maps of its files stay valid.
    """
    if not is_url(path):
        yield expand_path(path)
        return
    with TemporaryDirectory(prefix="tangent_jax-") as folder:
        yield fetch(path, names, Path(folder))


def fetch(path: str | os.PathLike, names: Sequence[str], copies: Path) -> Path:
    """Fetches a file or folder at a URL to a folder in `copies` that is named by its state; returns the copy's path."""
    fs, _ = connect(path)
    url = str(path).rstrip("/")
    with explaining(url):
        fs.invalidate_cache()
        is_folder = fs.isdir(url)
        folder, _, last = (url, "", "") if is_folder else url.rpartition("/")
        present = [name for name in names if fs.isfile(f"{folder}/{name}")]
        if is_folder and not names:
            present = names_below(any_path(url))
        wanted = [*present, *([] if is_folder else [last])]
        state = [folder, {name: fs.checksum(f"{folder}/{name}") for name in wanted}]
    root = make_private(make_private(copies) / fingerprint(json.dumps(state).encode())[:24])
    for name in wanted:
        file = inside(root, *name.split("/"))
        if not file.is_file():
            download(f"{folder}/{name}", file)
    return root / last if last else root
