"""A folder of results at a URL: work happens in a local folder, and each committed state is copied to the URL.

    URL/result.json, ...      each result by its own name, once the command has finished; result.json last
    URL/state/                the local folder's state, from which a run resumes (snapshots.py): checkpoints, journals

Every whole write into the local folder (a checkpoint, a ledger, a journal line) is at the URL when the write returns.
So a killed run resumes from there on any machine, and a private step is paid at the URL before it runs. States are
numbered: if two runs write to one URL, the one that finds a newer state than its own is refused before its next step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import file_fingerprint, hold_lock, listening, write_whole
from tangent_jax.remote import urls
from tangent_jax.remote.snapshots import Remote

LEFT_OUT = (".partial", ".lock")  # endings of names that are not part of the state


class Mirror:
    """The local folder of a URL, `root`, and its copy there."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        scratch = urls.scratch_of(self.url)
        self.root = scratch / "out"
        self.base = scratch / "number"
        self.hashes: dict[str, tuple[tuple[int, ...], str]] = {}
        self.remote = Remote(f"{self.url}/state")
        is_newest = self.root.is_dir() and self.base.is_file() and self.base.read_text() == f"{self.remote.number}"
        if not is_newest and self.remote.number:
            self.remote.pull(self.root)
            self.keep_number()
        elif not is_newest and self.base.is_file():
            raise InputError(
                f"{self.url}/state must hold the state that this machine left there; it is gone. Delete {scratch} "
                "to begin again, or restore the bucket"
            )
        self.root.mkdir(parents=True, exist_ok=True)

    def keep_number(self) -> None:
        """Stores the number of the state that the local folder has, or continues."""
        write_whole(self.base, f"{self.remote.number}")

    def state(self) -> dict[str, str]:
        """The SHA-256 of each file of the local folder, by name; unchanged files are not read again."""
        result = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_symlink() or not path.is_file() or any(part.endswith(LEFT_OUT) for part in self.names(path)):
                continue
            name, now = "/".join(self.names(path)), path.stat()
            stamp = now.st_size, now.st_mtime_ns, now.st_ino
            if self.hashes.get(name, (None, ""))[0] != stamp:
                self.hashes[name] = stamp, file_fingerprint(path)
            result[name] = self.hashes[name][1]
        return result

    def names(self, path: Path) -> tuple[str, ...]:
        """The names of a path below the local folder."""
        return path.relative_to(self.root).parts

    def written(self, path: Path) -> None:
        """Copies the local folder's state to the URL if `path`, which was just written, is part of it."""
        if path.is_relative_to(self.root):
            self.push()

    def push(self) -> None:
        """Copies the local folder's state to the URL.

        Raises: InputError if another run has written there since, or writing fails.
        """
        self.remote.push(self.root, self.state(), grow=True)
        self.keep_number()

    def publish(self) -> None:
        """Copies the state, then each result by its own name, result.json last, while no run has a newer state."""
        self.push()
        results = [path for path in self.root.glob("*") if path.is_file() and not path.name.endswith(LEFT_OUT)]
        results += [path for path in self.root.glob("metrics/**/*") if path.is_file()]
        for path in sorted(results, key=lambda path: (path.name == "result.json", path)):
            self.remote.check_newest()
            urls.upload(path, f"{self.url}/{'/'.join(self.names(path))}")


@contextmanager
def open_mirror(url: str) -> Iterator[Mirror]:
    """Yields the mirror of a URL, which copies whole writes of the library during the `with` block.

    Raises: InputError if another process of this machine has it, or the URL cannot be read.
    """
    with hold_lock(urls.scratch_of(url) / "mirror.lock", wait=False):
        mirror = Mirror(url)
        with listening(mirror.written):
            yield mirror
