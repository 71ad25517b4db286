"""What a private run has paid for: written to disk before the step that it pays, so that no kill can hide a step."""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tangent_jax.core import refusal, require
from tangent_jax.core.files import locked, write_whole
from tangent_jax.privacy.mechanism import Spent


class Ledger:
    """The steps that one run has paid for, in ledger.json; `open_ledger` makes it.

    A step is paid before it is taken. One that was paid and then lost to a kill stays paid: it is not taken again.
    """

    def __init__(self, path: Path, run: str, spent: Spent) -> None:
        self.path, self.run, self.spent = path, run, spent

    def read(self) -> None:
        """Takes over what is on disk: this run's, or an InputError."""
        try:
            record = json.loads(self.path.read_text())
            run, self.spent = record["run"], Spent.from_json(record["spent"])
        except (ValueError, KeyError, TypeError) as error:
            got = f"{self.path}, which is damaged"
            raise refusal("Ledger", "a ledger", got, "Count its run as spent") from error
        do = "Choose another folder; both runs have spent"
        expected = f"the ledger of this run in {self.path.parent}"
        require(run == self.run, "Ledger", expected, "one of another data set or setting", do)

    def pay(self, steps: int) -> None:
        """On disk when this returns: `steps` in all are paid for."""
        self.spent = self.spent.paid(steps)
        fields = {**dataclasses.asdict(self.spent.mechanism), "private": self.spent.private}
        write_whole(self.path, json.dumps({"run": self.run, "spent": fields}) + "\n")


@contextmanager
def open_ledger(folder: str | os.PathLike, run: str, spent: Spent) -> Iterator[Ledger]:
    """The ledger of a run in a folder, held by one process at a time.

    Raises: InputError where another process holds it, it is damaged, or it is another run's.
    """
    ledger = Ledger(Path(folder) / "ledger.json", run, spent)
    with locked(Path(folder) / "ledger.lock", wait=False):
        if ledger.path.exists():
            ledger.read()
        yield ledger
