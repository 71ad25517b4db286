"""What a private run has paid for: written to disk before the step that it pays, so that no kill can hide a step."""

import dataclasses
import fcntl
import json
import os
from pathlib import Path
from typing import IO

from tangent_jax.checks import InputError, refusal, require
from tangent_jax.files import write_whole
from tangent_jax.privacy.accounting import Spent


class Ledger:
    """The steps that one run has paid for, in `folder`/ledger.json; held by one process at a time.

    A step is paid before it is taken. One that was paid and then lost to a kill stays paid: it is not taken again.
    """

    def __init__(self, folder: str | os.PathLike, run: str, spent: Spent) -> None:
        self.path = Path(folder) / "ledger.json"
        self.run, self.spent = run, spent
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lock: IO[str] = (self.path.parent / "ledger.lock").open("a")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.lock.close()
            raise refusal("Ledger", f"no other process in {folder}", "one that holds its ledger") from error
        if self.path.exists():
            try:
                self.spent = self.read()
            except InputError:
                self.lock.close()
                raise

    def read(self) -> Spent:
        """What is on disk: this run's, or an InputError."""
        try:
            kept = json.loads(self.path.read_text())
            run, spent = kept["run"], Spent.from_json(kept["spent"])
        except (ValueError, KeyError, TypeError) as error:
            raise refusal("Ledger", "a ledger", f"{self.path}, which is damaged", "Count its run as spent") from error
        do = "Choose another folder; both runs have spent"
        expected = f"the ledger of this run in {self.path.parent}"
        require(run == self.run, "Ledger", expected, "one of another data set or setting", do)
        return spent

    def pay(self, steps: int) -> None:
        """On disk when this returns: `steps` in all are paid for."""
        self.spent = dataclasses.replace(self.spent, steps=steps)
        write_whole(self.path, json.dumps({"run": self.run, "spent": dataclasses.asdict(self.spent)}) + "\n")

    def close(self) -> None:
        self.lock.close()
