"""Files and folders written whole or not at all, their hashes, and the one lock."""

import errno
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tangent_jax.core.checks import refusal, require


def expanded(function: str, path: str | os.PathLike) -> Path:
    """The path, `~` and `~user` resolved; InputError for what is no path, and for a user without a home."""
    try:
        text = os.fspath(path)
        require(isinstance(text, str) and text, function, "a path", repr(text))
        return Path(text).expanduser()
    except (TypeError, RuntimeError) as error:
        raise refusal(function, "a path", f"{path!r} ({error})") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """The content is on the disk under `path` when this returns; a kill before that leaves what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        synchronize(partial)
    except OSError as error:
        partial.unlink(missing_ok=True)  # a full disk: nothing half written is left
        raise OSError(error.errno, error.strerror, str(path)) from error
    os.replace(partial, path)
    synchronize(path.parent)


def allocate(path: Path, size: int) -> None:
    """A file of this size, its blocks reserved: a full disk is an OSError here, not a fault in a memory map.

    Raises: OSError naming the file, of which nothing is left.
    """
    try:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(size)
            if size:
                reserve(file.fileno(), size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def reserve(descriptor: int, size: int) -> None:
    """Reserves a file's blocks; where the system has no such call, as macOS, by writing them."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = bytes(1 << 20)
    for start in range(0, size, len(zeros)):
        os.pwrite(descriptor, zeros[: size - start], start)


@contextmanager
def write_whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the `with` ends; after an exception nothing is left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{path.name}.", suffix=".partial", dir=path.parent))
    try:
        yield partial
        for part in [*partial.rglob("*"), partial]:
            synchronize(part)
        partial.chmod(0o755)
        os.replace(partial, path)
        synchronize(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def digest(content: bytes) -> str:
    """SHA-256 (hex)."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(path: Path) -> str:
    """SHA-256 (hex) over the names and bytes of all files of a folder."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return digest("".join(f"{p.relative_to(path)} {file_digest(p)}\n" for p in files).encode())


def synchronize(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lock:
    """A held lock file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    def is_there(self) -> bool:
        """Whether the path still names the file that is held: else another process may hold a new one."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Raises InputError where the lock file was deleted: call it before every write that the lock guards."""
        do = "Run the same command again; leave lock files alone"
        require(self.is_there(), "locked", f"the lock {self.path}", "none: it was deleted while it was held", do)


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[Lock | None]:
    """Holds the lock file `path`, with other readers where `shared`; a process that must wait says for whom.

    A reader on a disk where nothing can be written holds nothing (None): there, nobody writes.
    Raises: InputError where another process holds it and `wait` is False.
    """
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
        except OSError as error:
            if shared and error.errno in (errno.EROFS, errno.EACCES):
                yield None
                return
            raise
        with file:
            lock = Lock(path, file.fileno())
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read() or "a reader"
                if not wait:
                    got = f"{holder}, which holds it"
                    raise refusal("locked", f"no other process in {path.parent}", got) from error
                print(f"waiting for {holder} to release {path.parent}", file=sys.stderr)
                fcntl.flock(file, kind)
            if not lock.is_there():
                continue  # deleted while this process waited: the next one is another file
            if not shared:
                file.truncate(0)
                file.write(f"process {os.getpid()} ({Path(sys.argv[0]).name})")
                file.flush()
            try:
                yield lock
            finally:
                if not shared:
                    file.truncate(0)
            return
