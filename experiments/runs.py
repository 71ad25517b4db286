"""What the table binaries share: finished runs are not trained again, and tables as Markdown."""

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path

from tangent_jax.core.records import whole_lines


@dataclasses.dataclass(frozen=True)
class Line:
    """A finished run in runs.jsonl: the digest of all that decided it, and what it reached."""

    key: str
    accuracy: float


class Runs:
    """Accuracies of finished runs by what decided them; a repeated command reads them instead of training again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = {line.key: line.accuracy for line in whole_lines(Line, path)}  # of a torn line: made again

    def add(self, key: str, accuracy: float) -> None:
        """On disk when this returns; after a line that a kill cut short, on a line of its own."""
        self.done[key] = accuracy
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
                file.write(b"\n" * torn)
            file.write((json.dumps({"key": key, "accuracy": accuracy}) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def markdown(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table."""
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
