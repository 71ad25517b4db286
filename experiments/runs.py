"""What the table binaries share: finished runs are not trained again, and tables as Markdown."""

import json
from collections.abc import Iterable
from pathlib import Path


class Runs:
    """Accuracies of finished runs by what decided them; a repeated command reads them instead of training again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.done = {line["key"]: line["accuracy"] for line in map(json.loads, lines)}

    def add(self, key: str, accuracy: float) -> None:
        self.done[key] = accuracy
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, "accuracy": accuracy}) + "\n")


def markdown(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table."""
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
