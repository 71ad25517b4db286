"""Rows of one dtype and shape on disk, filled chunk by chunk, each chunk under a checksum.

    FOLDER/inputs.bin      rows in order, memory-mapped
    FOLDER/journal.jsonl   one line per finished chunk: its number, CRC-32 and skipped rows
    FOLDER/complete        there once every chunk is

A chunk is journaled after its bytes are on disk, so an interrupted extraction goes on where it stopped; a chunk whose
bytes are missing or altered fails its CRC and is computed again.
"""

import json
import os
import zlib
from pathlib import Path

import numpy as np

CHUNK = 64  # rows per journal line


class CachedRows:
    """The rows of one folder."""

    def __init__(self, folder: Path, count: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.count, self.journal, self.complete = count, folder / "journal.jsonl", folder / "complete"
        path, size = folder / "inputs.bin", count * int(np.prod(shape)) * dtype.itemsize
        if not path.exists() or path.stat().st_size != size:
            with path.open("ab") as file:
                file.truncate(size)
        self.data = np.memmap(path, dtype, "r+", shape=(count, *shape))
        self.inputs = np.memmap(path, dtype, "r", shape=(count, *shape))
        self.skipped: set[int] = set()

    def rows(self, chunk: int) -> range:
        return range(chunk * CHUNK, min(self.count, (chunk + 1) * CHUNK))

    def checksum(self, chunk: int) -> int:
        rows = self.rows(chunk)
        return zlib.crc32(np.ascontiguousarray(self.inputs[rows.start : rows.stop]).view(np.uint8).data)

    def missing(self) -> list[int]:
        """The chunks that are not there whole and unaltered."""
        entries: dict[int, dict] = {}
        for line in self.journal.read_text().splitlines() if self.journal.exists() else []:
            try:
                entry = json.loads(line)
                entries[entry["chunk"]] = entry
            except (ValueError, KeyError):
                continue  # a line cut short by a kill
        chunks = range(-(-self.count // CHUNK))
        whole = {c for c in chunks if c in entries and entries[c]["crc"] == self.checksum(c)}
        self.skipped = {row for c in whole for row in entries[c]["skipped"]}
        return [c for c in chunks if c not in whole]

    def write(self, chunk: int, values: np.ndarray, skipped: list[int]) -> None:
        """A chunk's rows, of which those at `skipped` hold nothing."""
        rows = self.rows(chunk)
        self.data[rows.start : rows.stop] = values
        self.data.flush()
        entry = {"chunk": chunk, "crc": self.checksum(chunk), "skipped": [rows.start + i for i in skipped]}
        with self.journal.open("a") as file:
            file.write("\n" * (file.tell() > 0) + json.dumps(entry))
            file.flush()
            os.fsync(file.fileno())
        self.skipped.update(entry["skipped"])
