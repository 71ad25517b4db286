"""runs.jsonl: the accuracies of finished runs, which a repeated command reads and does not compute again."""

import dataclasses
import json
import os
from pathlib import Path

from tangent_jax.core import placement
from tangent_jax.core.records import whole_lines


@dataclasses.dataclass(frozen=True)
class Line:
    """A finished run in runs.jsonl: its identity, its accuracy, and |dw| where it was measured."""

    key: str
    accuracy: float
    norm: float | None = None


class Runs:
    """Accuracies of finished runs by their identity; a repeated command reads them instead of training again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # the run of a torn line is trained again; of a job's processes one reads and writes
        lines: list[Line] = placement.from_writer(lambda: [*whole_lines(Line, path)])
        self.done = {line.key: line.accuracy for line in lines}
        self.norms = {line.key: line.norm for line in lines if line.norm is not None}

    def add(self, key: str, accuracy: float, norm: float | None = None) -> None:
        """Adds a run, on disk when this returns; after a line that a kill cut short, on a line of its own."""
        self.done[key] = accuracy
        if norm is not None:
            self.norms[key] = norm
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
                file.write(b"\n" * torn)
            file.write((json.dumps({"key": key, "accuracy": accuracy, "norm": norm}) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
