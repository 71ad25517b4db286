"""runs.jsonl: the accuracies of finished runs, which a repeated command reads instead of training."""

import dataclasses
from pathlib import Path

from tangent_jax.io import hosts
from tangent_jax.io.files import hold_lock
from tangent_jax.io.journal import Journal
from tangent_jax.io.records import convert


@dataclasses.dataclass(frozen=True)
class Line:
    """A finished run in runs.jsonl: its identity, its accuracy, and |dw| if it was measured."""

    key: str
    accuracy: float
    norm: float | None = None


class Runs:
    """Accuracies of finished runs by their identity; a repeated command reads them instead of training again."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path)
        self.lock = path.with_suffix(".lock")
        lines = hosts.from_writer(self.read)  # only one process of a job reads and writes
        self.done = {line.key: line.accuracy for line in lines}
        self.norms = {line.key: line.norm for line in lines if line.norm is not None}

    def read(self) -> list[Line]:
        """The runs in the file; InputError if it was altered."""
        with hold_lock(self.lock):
            self.journal.load()
        return [convert(Line, entry, self.journal.path) for entry in self.journal.entries]

    def add(self, key: str, accuracy: float, norm: float | None = None) -> None:
        """Adds a run to the file, on disk when this returns; other processes may add runs too."""
        self.done[key] = accuracy
        if norm is not None:
            self.norms[key] = norm
        with hold_lock(self.lock):
            self.journal.load()
            self.journal.append({"key": key, "accuracy": accuracy, "norm": norm})
