"""Access to files at URLs (s3://, gs://, hf://, memory:// and everything that fsspec opens).

A write is one PUT, or a complete multipart upload: afterwards the whole object exists; after a kill or an error it does
not. `create` writes only if nothing exists yet, which decides between two writers: S3, Google and Azure storage and
memory:// do this atomically (If-None-Match), other file systems check and then write.

Every error of a file system becomes one line that names the URL: no credentials, no bucket, a clock that is off, ...
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import expand_path, file_fingerprint, fingerprint, inside, make_private, synchronize
from tangent_jax.remote.url_errors import check_url, explain, explain_package, is_bare, is_no_bucket, is_taken

SCRATCH = "~/.cache/tangent_jax/urls"
"""The folder of local copies of URLs."""
PIECE = 1 << 22  # bytes of an object per read
STATES = ("ETag", "etag", "generation", "md5Hash", "content_md5", "blob_id", "version_id", "created")
"""The names under which file systems report the state of an object, the surest first."""


def is_url(value: object) -> bool:
    """True for text such as s3://bucket/folder."""
    return isinstance(value, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", value) is not None


def connect(url: str) -> tuple[Any, str]:
    """(the file system of a URL, the path of the URL there).

    Raises: InputError for a file system that fsspec lacks, or whose package is missing.
    """
    import fsspec  # takes 0.2 seconds, so only for URLs

    check_url(url)
    try:
        return fsspec.url_to_fs(url.rstrip("/"))
    except ImportError as error:
        raise explain_package(url, error) from error
    except ValueError as error:
        raise InputError(
            f"a URL must be one that fsspec can open, such as s3://bucket/folder; got {url} ({error})"
        ) from error
    except Exception as error:
        raise explain(url, error) from error


@contextmanager
def explain_errors(url: str) -> Iterator[None]:
    """Converts errors of a file system, within the `with` block, to an InputError of one line that names the URL."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each file system raises its own kinds of errors
        raise explain(url, reason_of(url, error)) from error


def reason_of(url: str, error: Exception) -> Exception:
    """The error of a GET, if this one is of a HEAD, to which S3 gives no reason such as a clock that is off."""
    if not is_bare(error):
        return error
    try:
        fs, path = connect(url)
        fs.cat_file(path, 0, 1)
    except FileNotFoundError:
        return error
    except Exception as other:
        return other
    return error


# Whole objects


def list_files(url: str) -> dict[str, dict[str, Any]]:
    """The file system's present information on each file below a URL, by name; {} if there is none."""
    fs, path = connect(url)
    with explain_errors(url):
        fs.invalidate_cache()
        try:
            entries = fs.find(path, detail=True)
        except FileNotFoundError as error:
            if is_no_bucket(error):
                raise
            entries = {}
    prefix = path.strip("/") + "/"
    files = {name.lstrip("/"): info for name, info in entries.items() if info.get("type") == "file"}
    return {name.removeprefix(prefix): files[name] for name in sorted(files) if name.startswith(prefix)}


def read(url: str) -> bytes:
    """The bytes of an object."""
    fs, path = connect(url)
    with explain_errors(url):
        return fs.cat_file(path)


def write(url: str, content: bytes) -> None:
    """Writes an object as a whole; an error leaves the old one."""
    fs, path = connect(url)
    with explain_errors(url):
        fs.pipe_file(path, content)


def upload(file: Path, url: str) -> None:
    """Writes an object with the bytes of a file, as a whole; an error leaves the old one."""
    if file.stat().st_size <= PIECE:
        return write(url, file.read_bytes())
    fs, path = connect(url)
    with explain_errors(url):
        return fs.put_file(os.fspath(file), path)


def create(url: str, content: bytes) -> bool:
    """Writes an object if none exists; False if one with other bytes exists.

    If the object already has these bytes, this call is taken to have written it, with its answer lost. So the bytes
    must be unique to the caller, such as bytes with a random part.
    """
    fs, path = connect(url)
    try:
        fs.pipe_file(path, content, mode="create")
        return True
    except NotImplementedError as error:
        raise InputError(
            f"the file system of {url} must decide between two writers; {error}. Use s3://, gs:// or az://, which "
            "create an object only where there is none"
        ) from error
    except Exception as error:
        if not is_taken(error):
            raise explain(url, error) from error
    with explain_errors(url), contextlib.suppress(FileNotFoundError):
        return fs.cat_file(path) == content
    return False


def delete(urls: list[str]) -> None:
    """Deletes objects; a missing one is no error."""
    for url in urls:
        fs, path = connect(url)
        with explain_errors(url), contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)


def download(url: str, file: Path, sha256: str | None = None) -> str:
    """Writes the bytes of an object to a file, as a whole, and returns their SHA-256; `sha256`: the required one.

    Raises: InputError if it differs, or the object is missing; the file does not exist then.
    """
    fs, path = connect(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    state = hashlib.sha256()
    try:
        with explain_errors(url), fs.open(path, "rb") as content, partial.open("wb") as copy:
            while piece := content.read(PIECE):
                state.update(piece)
                write_here(copy, piece, file.parent)
        if sha256 not in (None, state.hexdigest()):
            raise InputError(
                f"{url} must have SHA-256 {sha256[:12]}...; got {state.hexdigest()[:12]}.... Copy it there again"
            )
        synchronize(partial)
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return state.hexdigest()


def write_here(file: Any, piece: bytes, folder: Path) -> None:
    """Writes a piece of a local copy; a full disk of this machine is told apart from a full remote."""
    try:
        file.write(piece)
    except OSError as error:
        raise InputError(
            f"a local copy in {folder} needs more room; {error.strerror}. Free some on this machine; the same command "
            "goes on"
        ) from error


# Local copies, for memory maps and for libraries that take paths


def state_of(url: str, info: dict[str, Any]) -> str | None:
    """The URL and state of an object as text; None if its file system cannot tell versions apart."""
    state = next((str(info[name]) for name in STATES if info.get(name)), None)
    return None if state is None else f"{url}\0{info.get('size')} {state}"


def scratch_of(url: str) -> Path:
    """The local folder of a URL's copies; the same for the same URL."""
    check_url(url)
    url = url.rstrip("/")
    folder = make_private(expand_path(SCRATCH)) / fingerprint(url.encode())[:24]
    if not (folder / "url").exists():
        make_private(folder)
        (folder / "url").write_text(url)
    return folder


def url_of(path: Path) -> str | None:
    """The URL of a local copy's folder; None for other folders."""
    with contextlib.suppress(OSError):
        return (path.parent / "url").read_text() if path.parent.parent == expand_path(SCRATCH) else None
    return None


def with_urls(folders: Iterable[str]) -> list[str]:
    """The folders, each once, and the URLs of those that are local copies."""
    return [*dict.fromkeys(place for folder in folders for place in (folder, url_of(Path(folder))) if place)]


def local_copy(path: str | os.PathLike, names: Sequence[str] = ()) -> Path:
    """The path itself, with `~` resolved; for a URL, the path of a local copy, fetched if it changed.

    `names`: only these files of a folder; for a file, these files beside it too, if they exist.
    Raises: InputError for anything else, or a URL that cannot be read.
    """
    if not is_url(path):
        return expand_path(path)
    return fetch_all(os.fspath(path).rstrip("/"), scratch_of(os.fspath(path)) / "files", names)


@contextmanager
def passing_copy(path: str | os.PathLike, names: Sequence[str] = ()) -> Iterator[Path]:
    """Yields a `local_copy` for data that a removal may cover: a URL's copy is deleted when the `with` block ends.

    Memory maps of its files stay valid.
    """
    if not is_url(path):
        yield expand_path(path)
        return
    with TemporaryDirectory(prefix="tangent_jax-") as folder:
        yield fetch_all(os.fspath(path).rstrip("/"), Path(folder), names)


def fetch_all(url: str, root: Path, names: Sequence[str]) -> Path:
    """Fetches the file or folder at a URL into a folder, as for `local_copy`, and returns the copy's path."""
    parent, _, last = url.rpartition("/")
    file = info_of(url)
    folder = url if file is None else parent
    infos = {name: info_of(f"{folder}/{name}") for name in names}
    if file is not None:
        infos[last] = file
    elif not names:
        infos = dict(list_files(url))
    existing = {name: info for name, info in infos.items() if info is not None}
    if not existing:
        raise InputError(f"{url} must be a file or folder; it does not exist")
    for name, info in existing.items():
        fetch(f"{folder}/{name}", info, inside(root, *name.split("/")))
    return root if file is None else root / last


def info_of(url: str) -> dict[str, Any] | None:
    """The file system's present information on a file; None if it does not exist."""
    fs, path = connect(url)
    with explain_errors(url):
        fs.invalidate_cache(path)
        try:
            info = fs.info(path)
        except FileNotFoundError as error:
            if is_no_bucket(error):
                raise
            return None
    return info if info.get("type") == "file" else None


def fetch(url: str, info: dict[str, Any], file: Path) -> None:
    """Downloads an object to a file, unless the file has its bytes already: its state and hash lie beside it."""
    state = state_of(url, info)
    beside = file.with_name(f".{file.name}.state")
    is_kept = state is not None and file.is_file() and beside.is_file()
    if is_kept and beside.read_text() == f"{state}\n{file_fingerprint(file)}":
        return
    beside.unlink(missing_ok=True)
    sha256 = download(url, file)
    beside.write_text(f"{state}\n{sha256}")
