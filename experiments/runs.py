"""What the table binaries share: lists of numbers as flags, and finished runs that are not trained again."""

import json
from pathlib import Path

from tangent_jax.checks import refusal


def numbers(binary: str, flag: str, values: list[str], kind: type) -> list:
    """The numbers of a comma-separated flag."""
    try:
        return [kind(value) for value in values]
    except ValueError as error:
        raise refusal(binary, f"--{flag} as numbers separated by commas", ",".join(values)) from error


class Runs:
    """Finished runs by what decided them; a repeated command reads them instead of training again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.done = {line["key"]: line["accuracy"] for line in map(json.loads, lines)}

    def get(self, key: str) -> float | None:
        return self.done.get(key)

    def add(self, key: str, accuracy: float) -> None:
        self.done[key] = accuracy
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, "accuracy": accuracy}) + "\n")
