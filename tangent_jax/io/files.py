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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tangent_jax.core.checks import refusal, require, visible

COPY = "Make a plain copy of the folder, without links"
WRITTEN: list[Callable[[Path], None]] = []
"""Functions of the path of each file or folder that was written whole, called before the write returns (mirrors.py)."""


def expand_path(function: str, path: str | os.PathLike) -> Path:
    """The path with `~` and `~user` resolved.

    Raises: InputError for a value that is no path, or has a name of more than 255 bytes, a user without a home, or a
            URL, such as gs://bucket/folder (`urls.local_copy` and `url_paths.as_place` take those too).
    """
    try:
        text = os.fspath(path)
        require(isinstance(text, str) and text and "\0" not in text, function, "a path", repr(text))
        do = "This needs a file system (locks, renames): take a local folder; store push copies a store to a URL"
        require(not re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text), function, "a path of this machine", text, do)
        short = len(os.fsencode(text)) < 4096 and all(len(os.fsencode(name)) <= 255 for name in text.split("/"))
        require(short, function, "a path of names of at most 255 bytes", f"{text[:60]}...")
        return Path(text).expanduser()
    except (TypeError, RuntimeError, UnicodeError) as error:
        raise refusal(function, "a path", f"a value of type {type(path).__name__} ({error})") from error


def inside(root: Path, *names: str) -> Path:
    """The path of a file or folder below `root`, which may not exist yet; without links below `root`.

    `root` itself comes from the caller, and may be a link.
    Raises: InputError for a link on the way, something other than a file or folder, or a name that leaves the folder.
    """
    path = root
    for name in names:
        require(name not in ("", ".", "..") and "/" not in name, "inside", f"names of files in {root}", repr(name))
        path = path / name
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        kind = "a link" if stat.S_ISLNK(mode) else "a device, pipe or socket"
        require(stat.S_ISREG(mode) or stat.S_ISDIR(mode), "inside", f"a plain file or folder {path}", kind, COPY)
    return path


def open_plain(path: Path, mode: str) -> IO:
    """Opens a file for reading ("r", "rb"), or for writing ("r+b"; "w+b", "ab", "a+" create a missing file).

    No mode truncates the file.
    Raises: InputError for a symbolic or hard link, or anything else than a plain file; OSError as `open`.
    """
    ways = {"r": os.O_RDONLY, "r+b": os.O_RDWR, "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT}
    ways |= {"rb": os.O_RDONLY, "a+": os.O_RDWR | os.O_APPEND | os.O_CREAT, "w+b": os.O_RDWR | os.O_CREAT}
    try:
        descriptor = os.open(path, ways[mode] | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        raise refusal("open_plain", f"a plain file {path}", "a link", COPY) from error
    state, is_written = os.fstat(descriptor), mode not in ("r", "rb")
    good = stat.S_ISREG(state.st_mode) and (state.st_nlink == 1 or not is_written)
    if not good:
        os.close(descriptor)
    got = "one of several names of a file (hard links)" if stat.S_ISREG(state.st_mode) else "none"
    require(good, "open_plain", f"a plain file {path}", got, COPY)
    encoding, errors = (None, None) if "b" in mode else ("utf-8", "replace")
    return os.fdopen(descriptor, mode, encoding=encoding, errors=errors)


def make_private(folder: Path) -> Path:
    """Creates the folder if it is missing; only its user can read, write and enter it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def write_whole(path: Path, content: str | bytes, private: bool = False) -> None:
    """Writes a file whole: it is on disk when this returns, and a kill before that leaves the old file.

    `private`: only its user can read and write it. A link at its path, or at the partial file's, is replaced.
    """
    replace_whole(path, content, private)
    tell_written(path)


def replace_whole(path: Path, content: str | bytes, private: bool = False) -> None:
    """Writes a file as `write_whole`, but calls no function of WRITTEN: for a file that stays on this disk alone."""
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


def tell_written(path: Path) -> None:
    """Calls every function of WRITTEN: the file or folder `path` is on the disk."""
    for call in WRITTEN:
        call(path)


def allocate(path: Path, size: int) -> None:
    """Creates a private file of this size and reserves its blocks, so that a full disk is an OSError, not a crash.

    Raises: OSError naming the file, which is then deleted.
    """
    try:
        with open_plain(path, "w+b") as file:
            os.fchmod(file.fileno(), 0o600)
            file.truncate(size)
            if size:
                reserve(file.fileno(), size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def reserve(descriptor: int, size: int) -> None:
    """Reserves a file's blocks; on a system without such a call, such as macOS, writes zeros."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = bytes(1 << 20)
    for start in range(0, size, len(zeros)):
        os.pwrite(descriptor, zeros[: size - start], start)


@contextmanager
def write_whole_folder(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yields a folder to fill, which becomes `path` when the `with` block ends; an exception deletes it.

    `partial`: the path of that folder, which must not exist; None: a new name beside `path`.
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
    tell_written(path)


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
    """A lock file that this process holds."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    def is_there(self) -> bool:
        """True if the path still names the locked file; otherwise another process may hold a new one."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Raises InputError if the lock file was deleted; call it before every write that the lock protects."""
        do = "Run the same command again; leave lock files alone"
        require(self.is_there(), "hold_lock", f"the lock {self.path}", "none: it was deleted while it was held", do)


@contextmanager
def hold_lock(path: Path, *, shared: bool = False, wait: bool = True, quiet: bool = False) -> Iterator[Lock | None]:
    """Holds the lock file `path` during the `with` block, together with other readers if `shared`.

    A waiting process prints the holder's name on stderr, unless `quiet`. A reader writes nothing: if the lock
    file is missing or unreadable it gets None.
    Raises: InputError if another process holds it and `wait` is False, or the file system has no locks.
    """
    while True:
        if shared:
            try:
                file = open_plain(path, "r")
            except (FileNotFoundError, PermissionError):
                yield None
                return
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_plain(path, "a+")
        with file:
            lock = Lock(path, file.fileno())
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                holder = read_holder(file) or "a reader"
                if not wait:
                    got = f"{holder}, which holds it"
                    raise refusal("hold_lock", f"no other process in {path.parent}", got) from error
                if not quiet:
                    print(f"waiting for {holder} to release {path.parent}", file=sys.stderr)
                fcntl.flock(file, kind)
            except OSError as error:
                do = "Mount it with locks, or keep this folder on a local disk"
                raise refusal("hold_lock", f"a file system with locks (flock) in {path.parent}", error, do) from error
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


def holder_of(path: Path) -> tuple[bool, str]:
    """(True if a process holds the lock file, the process that the file names: its holder, or a killed one)."""
    try:
        file = open_plain(path, "r")
    except FileNotFoundError:
        return False, ""
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, read_holder(file)
        return False, read_holder(file)


def read_holder(file: IO) -> str:
    """The name of the holder in a lock file, as one short printable line."""
    return visible(" ".join(file.read(300).split()))
