"""Files and folders written whole or not at all, their fingerprints, and the one lock."""

import errno
import fcntl
import hashlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tangent_jax.core.checks import refusal, require


def expanded(function: str, path: str | os.PathLike) -> Path:
    """The path with `~` and `~user` resolved; InputError for a value that is no path, or a user without a home."""
    try:
        text = os.fspath(path)
        require(isinstance(text, str) and text, function, "a path", repr(text))
        return Path(text).expanduser()
    except (TypeError, RuntimeError) as error:
        raise refusal(function, "a path", f"{path!r} ({error})") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file whole: it is on the disk when this returns, and a kill before that leaves the old file."""
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
    """Makes a file of this size and reserves its blocks: a full disk is an OSError here, no fault in a memory map.

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
    """Reserves a file's blocks; on a system without such a call, such as macOS, it writes zeros."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = bytes(1 << 20)
    for start in range(0, size, len(zeros)):
        os.pwrite(descriptor, zeros[: size - start], start)


@contextmanager
def write_whole_folder(path: Path) -> Iterator[Path]:
    """Yields a folder to fill, which becomes `path` when the `with` ends; after an exception it is deleted."""
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


def fingerprint(content: bytes) -> str:
    """SHA-256 (hex) of bytes."""
    return hashlib.sha256(content).hexdigest()


def file_fingerprint(path: Path) -> str:
    """SHA-256 (hex) of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_fingerprint(path: Path) -> str:
    """SHA-256 (hex) over the names and bytes of all files of a folder."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return fingerprint("".join(f"{p.relative_to(path)} {file_fingerprint(p)}\n" for p in files).encode())


def synchronize(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lock:
    """A lock file that this process holds."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    def is_there(self) -> bool:
        """True where the path still names the file that is held; else another process may hold a new one."""
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
    """Holds the lock file `path` while the `with` runs, together with other readers where `shared`.

    A process that waits prints the name of the holder on stderr. On a disk that nobody can write a reader gets None.
    Raises: InputError where another process holds it and `wait` is False, or the file system has no locks.
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
            except OSError as error:
                do = "Mount it with locks, or keep this folder on a local disk"
                raise refusal("locked", f"a file system with locks (flock) in {path.parent}", error, do) from error
            if not lock.is_there():
                continue  # deleted while this process waited: the next one is another file
            if not shared:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()} ({Path(*sys.argv[:1]).name})")
                file.flush()
            try:
                yield lock
            finally:
                if not shared:
                    file.truncate(0)
            return


def holder_of(path: Path) -> tuple[bool, str]:
    """(True where a process holds the lock file, the process that it names: that holds it or was killed with it)."""
    try:
        file = path.open()
    except FileNotFoundError:
        return False, ""
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, file.read()
        return False, file.read()
