"""An append-only journal whose every byte is under a hash.

journal.jsonl   one JSON object a line; each holds the SHA-256 of the line before it
HEAD            the number of lines and the hash of the last: tells a torn line from an altered one
"""

import json
import os
import time
from pathlib import Path

from tangent_jax.core import refusal, require
from tangent_jax.core.files import digest, write_whole

START = "0" * 64


class Journal:
    """The lines of a journal. Appending one is the commit point of whoever keeps it."""

    def __init__(self, folder: Path) -> None:
        self.path, self.head = folder / "journal.jsonl", folder / "HEAD"
        self.entries: list[dict] = []
        self.load()

    def load(self) -> None:
        """Reads the lines that were committed; a last line cut short by a kill never was.

        Raises: InputError naming the file that was altered or cut short.
        """
        self.lines = (self.path.read_bytes() if self.path.exists() else b"").split(b"\n")[:-1]
        self.entries, previous = [], START
        for number, line in enumerate(self.lines, 1):
            try:
                entry = json.loads(line)
                whole = entry["previous"] == previous
            except (ValueError, KeyError, TypeError):
                entry, whole = {}, False
            if not whole:
                raise refusal("Store", "an unaltered journal", f"{self.path} altered at line {number} or before")
            previous = digest(line)
            self.entries.append(entry)
        # a line is committed before it is counted: HEAD may be one behind
        counted = [self.count(lines) for lines in (len(self.lines), max(len(self.lines) - 1, 0))]
        said = self.head.read_text(errors="replace") if self.head.exists() else self.count(0)
        agree = f"{self.path} and {self.head} to agree"
        require(said in counted, "Store", agree, "one of them altered, cut short or missing")

    def settle(self) -> None:
        """Drops a line cut short and counts the last: for the one process that may write."""
        if self.path.exists():
            os.truncate(self.path, sum(len(line) + 1 for line in self.lines))
        write_whole(self.head, self.count(len(self.lines)))

    def append(self, entry: dict) -> None:
        """The entry, the time and the chain's hash as a new last line; on disk when this returns."""
        previous = digest(self.lines[-1]) if self.lines else START
        stamped = {**entry, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "previous": previous}
        with self.path.open("ab") as file:
            file.write((json.dumps(stamped) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        self.load()
        write_whole(self.head, self.count(len(self.lines)))

    def count(self, lines: int) -> str:
        """What HEAD says of the first `lines` lines."""
        return json.dumps({"lines": lines, "hash": digest(self.lines[lines - 1]) if lines else START}) + "\n"
