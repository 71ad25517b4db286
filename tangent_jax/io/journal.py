"""A durable journal: an append-only file of JSON objects, one per line, that survives a kill at any moment.

    journal.load()           reads what was committed: journal.entries
    journal.append(entry)    commits one more: it is on the disk when the call returns

    journal.jsonl   each line holds "previous", the SHA-256 of the line before it
    HEAD            beside a journal that is counted: the number of lines, and the SHA-256 of the last

A kill leaves at most the start of a line, without its newline: `load` ignores it, and `append` cuts it off.

The hash in the next line detects an altered line, and HEAD an altered last line. HEAD also detects lines missing at the
end; without HEAD, those that remain form a valid shorter journal. Reading writes nothing, and no link is followed.

A journal has no lock of its own: the caller of `append` holds the lock of the content that the lines describe.
"""

import json
import os
from pathlib import Path
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import fingerprint, open_plain, write_whole

START = "0" * 64  # "previous" of the first line


class Journal:
    """The committed lines of a file, as `entries`, and the bytes that follow them, as `rest`.

    Attributes:
        counted: True if HEAD exists beside the file.

    SQLite would be shorter, but its locks are unsafe on the network file systems where clusters keep stores, and a
    reader of a store must be able to check the chain of hashes with no more than a text editor.
    """

    def __init__(self, path: Path, counted: bool = False) -> None:
        self.path = path
        self.head = path.with_name("HEAD") if counted else None
        self.entries: list[dict[str, Any]] = []
        self.hashes: list[str] = []  # of the lines
        self.lines = b""  # as they were read
        self.size = 0  # of the lines, in bytes
        self.rest = b""

    def load(self) -> None:
        """Reads the file, and parses its new lines. A missing file has no lines; a counted one must exist.

        If the lines that were read before have changed, `entries` is a new list.

        Raises:
            InputError: It names a file that was altered, cut short or is missing. If a line shows it, `entries` are the
                lines before that one, and the next `append` cuts off the others.
        """
        restore = "Restore it from a backup; nothing was changed"
        for path in (self.path, self.head) if self.head else ():
            if not path.is_file():
                raise InputError(f"the journal {path} is missing. {restore}")
        content = read_plain(self.path)
        if not content.startswith(self.lines):
            self.entries, self.hashes, self.size = [], [], 0
        *lines, self.rest = content[self.size :].split(b"\n")
        for line in lines:
            if not self.take(line):
                self.lines, self.rest = content[: self.size], content[self.size :]
                raise InputError(f"{self.path} was altered at line {len(self.entries) + 1} or before. {restore}")
        self.lines = content[: self.size]
        if self.head:
            # a line is committed before it is counted, so HEAD may be one behind
            counts = [self.count(len(self.hashes)), self.count(max(len(self.hashes) - 1, 0))]
            if read_plain(self.head) not in counts:
                raise InputError(
                    f"{self.path} and {self.head} must agree: one of them was altered, cut short or is missing. "
                    f"{restore}"
                )

    def take(self, line: bytes) -> bool:
        """Adds one more line; False if it is invalid, or does not follow the last one."""
        try:
            entry = json.loads(line)
            follows = entry.pop("previous") == self.last()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        if follows:
            self.entries.append(entry)
            self.hashes.append(fingerprint(line))
            self.size += len(line) + 1
        return follows

    def append(self, entry: dict[str, Any]) -> None:
        """Commits the entry as the last line: it is on disk when this returns.

        Raises:
            InputError: If another process has written since `load`.
            OSError: As on a full disk, with nothing half written.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self.size + len(self.rest):
            raise InputError(f"{self.path} was changed by another process since it was read. Run it again")
        self.settle()
        line = json.dumps({**entry, "previous": self.last()}).encode()
        try:
            with open_plain(self.path, "ab") as file:
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self.cut()
            raise
        self.take(line)
        self.lines += line + b"\n"
        self.settle()

    def settle(self) -> None:
        """Repairs the effects of a kill, as `append` does: cuts off the rest, counts the last line, adds missing files.

        It writes, so only the holder of the lock may call it.
        """
        if not self.path.exists():
            write_whole(self.path, b"")
        if self.rest:
            self.cut()
        if self.head and read_plain(self.head) != self.count(len(self.hashes)):
            write_whole(self.head, self.count(len(self.hashes)))

    def cut(self) -> None:
        """Cuts the file after its last line."""
        with open_plain(self.path, "r+b") as file:
            file.truncate(self.size)
        self.rest = b""

    def last(self) -> str:
        """The hash of the last line."""
        return self.hashes[-1] if self.hashes else START

    def count(self, lines: int) -> bytes:
        """The content of HEAD for this number of lines."""
        return (json.dumps({"lines": lines, "hash": self.hashes[lines - 1] if lines else START}) + "\n").encode()


def read_plain(path: Path) -> bytes:
    """The bytes of a file that is not a link; b"" for a missing file."""
    try:
        with open_plain(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
