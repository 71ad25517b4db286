"""The privacy account of a run on disk, written before each step, so that no kill can hide a step.

    ledger.json           the run, its mechanism, the steps paid; the hash of the last checkpoint
    RUN/checkpoint.json   the state after a step, and the hash of the ledger then (io/checkpoints.py)

The file written last holds the hash of the other. So a missing, altered or older file is detected, and training stops.
Not detected: both files restored from one backup (the steps since then run again, and each run counts its own); both
files forged, with correct hashes, by a person with access to the disk; a deleted folder. A job of several processes has
one ledger, that of process 0, and no process starts a step before it is paid there.

The ledger is one record that is rewritten as a whole, not a journal (io/journal.py): only its last state counts.
"""

import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io import hosts
from tangent_jax.io.checkpoints import Saver, checkpoints_in
from tangent_jax.io.files import Lock, expand_path, fingerprint, hold_lock, write_whole
from tangent_jax.io.records import convert, read_sealed, seal_fields
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.train.run import History

SAVE_SECONDS = 1.0  # between checkpoints: a kill loses the steps since, though they are paid
ADVICE = "Count this run as spent, and choose another folder"


@dataclasses.dataclass(frozen=True)
class Content:
    """The fields of ledger.json.

    Attributes:
        spent: The fields of a `Spent`.
        checkpoint: The hash of checkpoint.json at the time of writing, None before the first.
    """

    run: str
    spent: dict[str, Any]
    checkpoint: str | None = None


@dataclasses.dataclass(frozen=True)
class Ledger:
    """Keeps the ledger and the checkpoints of one private run in a folder, from which the same run resumes.

    >>> mechanism, ledger = tj.make_mechanism(epsilon=8.0, delta=1e-2, steps=5), tj.Ledger(demo.folder() / "run")
    >>> fitted = tj.fit_private(demo.predict, demo.train, mechanism=mechanism, ledger=ledger)
    >>> sorted(path.name for path in ledger.folder.iterdir() if path.is_file())
    ['ledger.json', 'ledger.lock']
    """

    folder: str | os.PathLike

    @contextmanager
    def open(self, run: str, spent: Spent) -> "Iterator[Account]":
        """Opens the account of the run with this identity, for one process at a time.

        Args:
            spent: The run's account before its first step.

        Raises:
            InputError: If another process holds it, or it is damaged, another run's, or disagrees with its checkpoint.
        """
        root = expand_path(self.folder)
        with ExitStack() as held:
            lock = hosts.in_writer(lambda: held.enter_context(hold_lock(root / "ledger.lock", wait=False)))
            yield Account(root, spent, Saver(root, run, SAVE_SECONDS), lock)


class Account:
    """The steps that one run has paid for, with the run's checkpoints; `Ledger.open` makes it.

    A step is paid before it runs. If a kill loses it, it stays paid, and it does not run again.
    """

    def __init__(self, folder: Path, spent: Spent, saver: Saver, lock: Lock | None) -> None:
        self.path = folder / "ledger.json"
        self.saver = saver
        self.lock = lock
        self.spent = spent
        self.spent: Spent = hosts.from_writer(self.read)

    def read(self) -> Spent:
        """The account on disk; InputError unless it is complete, this run's, and agrees with its checkpoint."""
        if not self.path.exists():
            checkpoints = checkpoints_in(self.path.parent)
            if checkpoints:
                raise InputError(f"{self.path} must exist beside {checkpoints[0]}; it is missing. {ADVICE}")
            return self.spent
        content: Content = read_sealed(Content, self.path, ADVICE)
        if content.run != self.saver.run:
            raise InputError(
                f"{self.path} must be the ledger of this run; it is that of another data set or setting. Choose "
                "another folder; both runs have spent"
            )
        spent = convert(Spent, content.spent, self.path)
        if spent.pay(self.spent.steps_paid) != self.spent:
            raise InputError(f"{self.path} must state the mechanism of this run; it states another. {ADVICE}")
        self.check_checkpoint(content, spent)
        return spent

    def check_checkpoint(self, content: Content, spent: Spent) -> None:
        """Raises InputError unless the checkpoint is that of the ledger on disk, or a step before or after it.

        The file written last holds the hash of the other. Neither has one before the first save.
        """
        checkpoint = self.saver.checkpoint
        written_first = content.checkpoint == self.saver.fingerprint()
        written_last = checkpoint is not None and checkpoint.ledger == fingerprint(self.path.read_bytes())
        if not written_first and not written_last:
            raise InputError(
                f"{self.path} and {self.saver.path} must be of one run; one is missing, altered, or older than the "
                f"other. {ADVICE}"
            )
        steps_taken = 0 if checkpoint is None else len(checkpoint.history)
        if steps_taken > spent.steps_paid:
            raise InputError(
                f"{self.path} must have paid the {steps_taken} steps taken; it has paid {spent.steps_paid}. {ADVICE}"
            )

    @property
    def run(self) -> str:
        """The run's identity."""
        return self.saver.run

    @property
    def steps(self) -> int:
        """The rows of the last save."""
        return self.saver.steps

    def restore(self, state: Any, history: History) -> Any:
        """Returns the last saved state, and adds its rows to the history; prints how many paid steps a kill lost."""
        state = self.saver.restore(state, history)
        paid = self.spent.steps_paid
        lost = paid - len(history)
        if lost > 0:
            print(f"{self.path}: a kill lost {lost} of {paid} paid steps, which stay paid", file=sys.stderr)
        return state

    def is_due(self, last: bool) -> bool:
        """True, in all processes, if the state is to be saved now."""
        return self.saver.is_due(last)

    def pay(self, steps: int) -> None:
        """Pays for `steps` in total; on disk, for every process, when this returns."""
        self.spent = self.spent.pay(steps)
        hosts.in_writer(self.write)

    def write(self) -> None:
        """Writes the present account."""
        self.check_lock()
        content = Content(self.saver.run, dataclasses.asdict(self.spent), self.saver.fingerprint())
        write_whole(self.path, seal_fields(dataclasses.asdict(content)))

    def save(self, state: Any, history: History) -> None:
        """Writes a checkpoint with the ledger's hash, then the ledger with the checkpoint's hash."""
        self.saver.save(state, history, hosts.from_writer(self.fingerprint))
        self.pay(self.spent.steps_paid)

    def fingerprint(self) -> str:
        """The fingerprint of ledger.json."""
        self.check_lock()
        return fingerprint(self.path.read_bytes())

    def check_lock(self) -> None:
        """Raises InputError if this process no longer holds the ledger."""
        assert self.lock is not None
        self.lock.check()
