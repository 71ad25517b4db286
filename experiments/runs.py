"""What the table binaries share: finished runs are not trained again, and tables as Markdown."""

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path

from tangent_jax.core.records import whole_lines


@dataclasses.dataclass(frozen=True)
class Line:
    """A finished run in runs.jsonl: the digest of all that decided it, what it reached, and |dw| where that is told."""

    key: str
    accuracy: float
    norm: float | None = None


class Runs:
    """Accuracies of finished runs by what decided them; a repeated command reads them instead of training again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = [*whole_lines(Line, path)]  # without torn ones, which are made again
        self.done = {line.key: line.accuracy for line in lines}
        self.norms = {line.key: line.norm for line in lines if line.norm is not None}

    def add(self, key: str, accuracy: float, norm: float | None = None) -> None:
        """On disk when this returns; after a line that a kill cut short, on a line of its own."""
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


def markdown(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table."""
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
