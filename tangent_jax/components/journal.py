"""An append-only journal whose every byte is under a hash.

journal.jsonl   one JSON object a line; each holds the SHA-256 of the line before it
HEAD            the number of lines and the hash of the last: tells a torn line from an altered one
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from tangent_jax.core import refusal, require
from tangent_jax.core.files import fingerprint, inside, open_plain, write_whole

START = "0" * 64


class Journal:
    """The lines of a journal. Appending one is the commit point of whoever keeps it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.head = folder, folder / "journal.jsonl", folder / "HEAD"
        self.entries: list[dict[str, Any]] = []
        self.lines: list[bytes] = []

    def create(self) -> None:
        """An empty journal, where there is none."""
        if not self.path.exists():
            write_whole(self.path, b"")
        if not self.head.exists():
            write_whole(self.head, self.count(0))

    def load(self) -> None:
        """Reads the lines that were committed; a last line cut short by a kill never was.

        Raises: InputError naming the file that was altered, cut short, or is missing.
        """
        for path in (self.path, self.head):
            do = "Restore it from a backup; nothing was changed"
            require(inside(self.folder, path.name).is_file(), "Store", f"the journal {path}", "none", do)
        *self.lines, self.rest = self.path.read_bytes().split(b"\n")
        self.entries, previous = [], START
        for number, line in enumerate(self.lines, 1):
            try:
                entry = json.loads(line)
                whole = isinstance(entry, dict) and entry["previous"] == previous
            except (ValueError, KeyError, TypeError, RecursionError):
                entry, whole = {}, False
            if not whole:
                raise refusal("Store", "an unaltered journal", f"{self.path} altered at line {number} or before")
            previous = fingerprint(line)
            self.entries.append(entry)
        # a line is committed before it is counted: HEAD may be one behind
        counted = [self.count(lines) for lines in (len(self.lines), max(len(self.lines) - 1, 0))]
        agree = f"{self.path} and {self.head} to agree"
        said = self.head.read_text(errors="replace")
        require(said in counted, "Store", agree, "one of them altered, cut short or missing")

    def settle(self) -> None:
        """Drops a line cut short and counts the last: for the one process that may write."""
        if self.rest:
            with open_plain(self.path, "r+b") as file:
                file.truncate(self.size())
            self.rest = b""
        if self.head.read_text(errors="replace") != self.count(len(self.lines)):
            write_whole(self.head, self.count(len(self.lines)))

    def append(self, entry: dict[str, Any]) -> None:
        """The entry, the time and the chain's hash as a new last line; on disk when this returns.

        Raises: InputError where another process wrote meanwhile: the chain would break.
        """
        same = self.path.stat().st_size == self.size()
        require(same, "Store", f"{self.path} as it was read", "one that another process changed", "Run it again")
        stamped = {**entry, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "previous": self.last()}
        line = (json.dumps(stamped) + "\n").encode()
        try:
            with open_plain(self.path, "ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with open_plain(self.path, "r+b") as file:
                file.truncate(self.size())  # a full disk: nothing half written is left
            raise
        self.load()
        write_whole(self.head, self.count(len(self.lines)))

    def size(self) -> int:
        """The bytes of the committed lines."""
        return sum(len(line) + 1 for line in self.lines)

    def last(self) -> str:
        """The hash of the last line."""
        return fingerprint(self.lines[-1]) if self.lines else START

    def count(self, lines: int) -> str:
        """The text of HEAD after the first `lines` lines."""
        return json.dumps({"lines": lines, "hash": fingerprint(self.lines[lines - 1]) if lines else START}) + "\n"
