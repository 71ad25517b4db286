"""Files and folders written whole or not at all, their hashes, and the one lock."""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tangent_jax.core.checks import refusal


def write_whole(path: Path, content: str | bytes) -> None:
    """The content is on the disk under `path` when this returns; a kill before that leaves what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    synchronize(partial)
    os.replace(partial, path)
    synchronize(path.parent)


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


def synchronize(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Holds the lock file `path`, with other readers where `shared`; a process that must wait says for whom.

    Raises: InputError where another process holds it and `wait` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read() or "a reader"
            if not wait:
                raise refusal("locked", f"no other process in {path.parent}", f"{holder}, which holds it") from error
            print(f"waiting for {holder} to release {path.parent}", file=sys.stderr)
            fcntl.flock(file, kind)
        if not shared:
            file.truncate(0)
            file.write(f"process {os.getpid()} ({Path(sys.argv[0]).name})")
            file.flush()
        try:
            yield
        finally:
            if not shared:
                file.truncate(0)
