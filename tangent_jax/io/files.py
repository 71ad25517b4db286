"""Files and folders written whole or not at all, their fingerprints, the safety of paths, and the one lock.

A file from another party may be a symbolic or hard link. `inside` gives the path of a file in such a folder, and
`open_plain` opens a file for writing; neither follows a link.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tangent_jax.core.checks import InputError, visible

COPY = "Make a plain copy of the folder, without links"


def expand_path(path: str | os.PathLike) -> Path:
    """The path with `~` and `~user` resolved.

    Raises:
        InputError: A value that is not a path, a name of more than 255 bytes, a user without a home, or a URL, such as
            gs://bucket/folder (`paths.local_copy` and `paths.any_path` take those too).
    """
    try:
        text = os.fspath(path)
        names = text.split("/")
        is_short = len(os.fsencode(text)) < 4096 and all(len(os.fsencode(name)) <= 255 for name in names)
        if not text or "\0" in text:
            raise InputError(f"a path must be text without NUL characters; got {text!r}")
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
            raise InputError(
                f"a path must be one of this machine; got {text}. Locks and renames need a file system: take a local "
                "folder, and copy it to the URL afterwards, as by aws s3 sync"
            )
        if not is_short:
            raise InputError(f"a path must have names of at most 255 bytes; got {text[:60]}...")
        return Path(text).expanduser()
    except (TypeError, RuntimeError, UnicodeError) as error:
        raise InputError(f"a path must be text; got a value of type {type(path).__name__} ({error})") from error


def inside(root: Path, *names: str) -> Path:
    """The path of a file or folder below `root`, which may not exist yet; without links below `root`.

    `root` itself comes from the caller, and may be a link.

    Raises:
        InputError: A link on the way, something other than a file or folder, or a name that leaves the folder.
    """
    path = root
    for name in names:
        if name in ("", ".", "..") or "/" in name:
            raise InputError(f"names of files in {root} must be plain; got {name!r}")
        path = path / name
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a link" if stat.S_ISLNK(mode) else "a device, pipe or socket"
            raise InputError(f"{path} must be a plain file or folder; it is {kind}. {COPY}")
    return path


MODES = {
    "r": os.O_RDONLY,
    "rb": os.O_RDONLY,
    "r+b": os.O_RDWR,
    "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    "a+": os.O_RDWR | os.O_APPEND | os.O_CREAT,
    "w+b": os.O_RDWR | os.O_CREAT,
}
"""The flags of `os.open` for the modes of `open_plain`."""


def open_plain(path: Path, mode: str) -> IO:
    """Opens a file for reading ("r", "rb"), or for writing ("r+b"; "w+b", "ab", "a+" create a missing file).

    No mode truncates the file.

    Raises:
        InputError: A symbolic or hard link, or anything else than a plain file.
        OSError: As `open`.
    """
    try:
        # O_NONBLOCK: opening a pipe must not wait for its other end
        descriptor = os.open(path, MODES[mode] | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        raise InputError(f"{path} must be a plain file; it is a link. {COPY}") from error
    state = os.fstat(descriptor)
    is_written = mode not in ("r", "rb")
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise InputError(f"{path} must be a plain file; it is not. {COPY}")
    if is_written and state.st_nlink != 1:
        os.close(descriptor)
        raise InputError(f"{path} must be a plain file; it is one of several names of a file (hard links). {COPY}")
    if "b" in mode:
        return os.fdopen(descriptor, mode)
    return os.fdopen(descriptor, mode, encoding="utf-8", errors="replace")


def make_private(folder: Path) -> Path:
    """Creates the folder if it is missing; only its user can read, write and enter it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def write_whole(path: Path, content: str | bytes, private: bool = False) -> None:
    """Writes a file whole: it is on disk when this returns, and a kill before that leaves the old file.

    A link at its path, or at the partial file's, is replaced.

    Args:
        private: Only its user can read and write it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600 if private else 0o666), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        synchronize(partial)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)  # a full disk, or a folder at `path`: deletes the partial file
        raise OSError(error.errno, error.strerror, str(path)) from error
    synchronize(path.parent)


def allocate(path: Path, size: int) -> None:
    """Creates a private file, or extends one, to this size, with its blocks, so that a full disk is an OSError here.

    Raises:
        OSError: It names the file, which then has its old size, or is deleted if it had none.
    """
    with open_plain(path, "w+b") as file:
        old = os.fstat(file.fileno()).st_size
        try:
            if size > old:
                os.fchmod(file.fileno(), 0o600)
                reserve(file.fileno(), old, size)
        except OSError as error:
            if old:
                file.truncate(old)
            else:
                path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from error


def reserve(descriptor: int, start: int, stop: int) -> None:
    """Reserves these bytes of a file; on a system without such a call, such as macOS, writes zeros."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, stop - start)
        return
    zeros = bytes(1 << 20)
    for at in range(start, stop, len(zeros)):
        os.pwrite(descriptor, zeros[: stop - at], at)


@contextmanager
def write_whole_folder(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yields a folder to fill, which becomes `path` when the `with` block ends; an exception deletes it.

    Args:
        partial: The path of that folder, which must not exist; None: a new name beside `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if partial is None:
        partial = Path(tempfile.mkdtemp(prefix=f"{path.name}.", suffix=".partial", dir=path.parent))
    else:
        partial.mkdir(mode=0o700)
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
    """SHA-256 (hex) of a file, read in pieces."""
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
    """A lock file that this process holds.

    The package filelock has no lock that several readers share, none that only reads, and no test for a lock file that
    was deleted while it was held; a store needs all three.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def is_there(self) -> bool:
        """True if the path still names the locked file; otherwise another process may hold a new one."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Raises InputError if the lock file was deleted; call it before every write that the lock protects."""
        if not self.is_there():
            raise InputError(
                f"the lock {self.path} was deleted while it was held. Run the same command again; "
                "leave lock files alone"
            )


@contextmanager
def hold_lock(path: Path, *, shared: bool = False, wait: bool = True, quiet: bool = False) -> Iterator[Lock | None]:
    """Holds the lock file `path` during the `with` block, together with other readers if `shared`.

    A waiting process prints the holder's name on stderr, unless `quiet`. A reader writes nothing: if the lock
    file is missing or unreadable it gets None.

    Raises:
        InputError: If another process holds it and `wait` is False, or the file system has no locks.
    """
    while True:
        try:
            if not shared:
                path.parent.mkdir(parents=True, exist_ok=True)
            file = open_plain(path, "r" if shared else "a+")
        except (FileNotFoundError, PermissionError):
            if not shared:
                raise
            yield None
            return
        with file:
            take_lock(file, path, shared, wait, quiet)
            lock = Lock(path, file.fileno())
            if not lock.is_there():
                continue  # deleted while this process waited: try the new file
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


def take_lock(file: IO, path: Path, shared: bool, wait: bool, quiet: bool) -> None:
    """Locks the open lock file; waits for its holder, or raises InputError if `wait` is False."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = visible(" ".join(file.read(300).split())) or "a reader"
        if not wait:
            raise InputError(f"{path.parent} must not be in use; {holder} holds it") from error
        if not quiet:
            print(f"waiting for {holder} to release {path.parent}", file=sys.stderr)
        fcntl.flock(file, kind)
    except OSError as error:
        raise InputError(
            f"{path.parent} must be on a file system with locks (flock); got {error}. Mount it with locks, or keep "
            "this folder on a local disk"
        ) from error
