"""Checkpoints: the last finished epoch of a run on disk, by Orbax, in a folder named by the run's identity.

    RUN/checkpoint.json   the run, the folder of its state with its fingerprint, the history: the commit
    RUN/STATE/            Orbax's files
    RUN.zip               both, as one object, where the folder is at a URL: Orbax 0.12 writes no s3://

A save writes a new folder, then checkpoint.json, then deletes the old folder, so a kill leaves the last save complete.
An altered or incomplete save is refused before any training. Only process 0 reads and writes; it sends the state to the
other processes, which need no common disk.
"""

import dataclasses
import os
import shutil
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, failure
from tangent_jax.core.notation import Tree
from tangent_jax.io import hosts
from tangent_jax.io.files import (
    allocate,
    expand_path,
    file_fingerprint,
    folder_fingerprint,
    write_whole,
    write_whole_folder,
)
from tangent_jax.io.paths import any_path, explaining, is_url, passing_copy, upload
from tangent_jax.io.progress import agree_to_stop, is_stopping
from tangent_jax.io.records import read_sealed, seal_fields
from tangent_jax.train.run import History

CHECKPOINT_SECONDS = 10.0
SLACK = 1 << 18  # Orbax's own bytes, besides the leaves


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The content of checkpoint.json: the rows of the history, and the `measured` values of each row.

    Attributes:
        measure: The name of the measurement; unnamed (None) values are not saved.
        ledger: The fingerprint of the ledger at that time, for private runs.
    """

    run: str
    state: str
    state_digest: str
    history: tuple[dict[str, Any], ...]
    measured: tuple[dict[str, Any], ...] = ()
    measure: str | None = None
    ledger: str | None = None


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Saves runs in a folder, each in its own, named by its identity; from there a killed run resumes.

    >>> options = {"key": jax.random.key(0), "epochs": 2, "checkpoints": tj.Checkpoints(demo.folder())}
    >>> fitted, again = (tj.fit(demo.predict, demo.train, **options) for _ in range(2))  # the second one is read
    >>> fitted.run == again.run, fitted.history == again.history
    (True, True)

    `folder` may be at a URL, where a save replaces the last one as a whole; one process at a time may write there.
    """

    folder: str | os.PathLike

    def open(self, run: str) -> "Saver":
        """The saves of the run with this identity."""
        return Saver(self.folder, run, CHECKPOINT_SECONDS)


class Saver:
    """Saves and restores the last finished epoch of one run; `folder` is the run's own."""

    def __init__(self, folder: str | os.PathLike, run: str, seconds: float) -> None:
        self.run = run
        self.url = f"{str(folder).rstrip('/')}/{run}.zip" if is_url(folder) else None
        self.scratch = TemporaryDirectory(prefix="tangent_jax-") if self.url else None
        self.folder = expand_path(folder if self.scratch is None else self.scratch.name).absolute() / run
        placement.check_alike(lambda: [np.frombuffer(run.encode(), np.uint8)])
        self.path = self.folder / "checkpoint.json"
        self.checkpoint: Checkpoint | None = hosts.from_writer(self.read)
        self.seconds = seconds
        self.saved = time.perf_counter()
        self.steps = 0

    def advice(self) -> str:
        """The advice at the end of an error message."""
        return f"Delete {self.url or self.folder} to train from the start"

    def read(self) -> Checkpoint | None:
        """The content of checkpoint.json, None before the first save."""
        if self.url is not None:
            try:
                unpack(self.url, self.folder)
            except zipfile.BadZipFile as error:
                raise InputError(f"{self.url} must be a whole zip; got {error}. {self.advice()}") from error
        if not self.path.exists():
            return None
        checkpoint = read_sealed(Checkpoint, self.path, self.advice())
        if checkpoint.run != self.run:
            raise InputError(
                f"{self.path} must be the checkpoint of run {self.run}; it is that of {checkpoint.run}. {self.advice()}"
            )
        return checkpoint

    def restore(self, state: Tree, history: History) -> Tree:
        """Returns the last saved state, and adds its rows to the history; without a save, the given state."""
        if self.checkpoint is None:
            return state
        checkpoint = self.checkpoint
        leaves, structure = jax.tree.flatten(state)
        leaves = hosts.from_writer(lambda: self.read_leaves(checkpoint, leaves))
        history.rows = [*checkpoint.history]
        self.steps = len(history)
        is_same = history.measure is not None and history.measure == checkpoint.measure
        history.measured = [*checkpoint.measured] if is_same else [{} for _ in history.rows]
        return jax.tree.unflatten(structure, leaves)

    def read_leaves(self, checkpoint: Checkpoint, leaves: list[Any]) -> list[Any]:
        """The leaves of a save, with the shapes and dtypes of the given ones; those without elements are not saved."""
        import orbax.checkpoint as ocp  # takes a second to import, and only saved runs need it

        folder = self.folder / checkpoint.state
        if not folder.is_dir() or folder_fingerprint(folder) != checkpoint.state_digest:
            raise InputError(f"{folder} must be as it was saved; it is missing or altered. {self.advice()}")
        target = by_number(leaves)
        try:
            with checkpointer() as orbax:
                restored = orbax.restore(folder / "state", args=ocp.args.StandardRestore(target))
        except Exception as error:
            raise InputError(
                f"{folder} must hold a state of this run; reading it gave {failure(error)}. {self.advice()}"
            ) from error
        return [restored.get(str(i), leaf) for i, leaf in enumerate(leaves)]

    def is_due(self, last: bool) -> bool:
        """True, in all processes, if the run ends or stops here, or the last save is at least `seconds` old."""
        agree_to_stop()
        return (
            last or is_stopping() or bool(placement.agree(np.array(time.perf_counter() - self.saved >= self.seconds)))
        )

    def save(self, state: Tree, history: History, ledger: str | None = None) -> None:
        """Writes state and history; they are on disk when this returns, for all processes.

        Raises:
            OSError: If they cannot be written; the last save remains.
        """
        leaves = jax.tree.leaves(state)
        if placement.mesh().size > 1:
            leaves = [placement.on_host(leaf) for leaf in leaves]
        hosts.in_writer(lambda: self.write(leaves, history, ledger))
        self.saved = time.perf_counter()
        self.steps = len(history)

    def write(self, leaves: list[Any], history: History, ledger: str | None) -> None:
        """Writes the leaves, then checkpoint.json, then deletes the previous save."""
        import orbax.checkpoint as ocp

        folder = self.folder / f"{len(history)}-{time.time_ns():x}"
        try:
            with write_whole_folder(folder) as partial:
                # on a full disk each of Orbax's threads prints a traceback, so the space is reserved first
                allocate(partial / "reserved", sum(leaf.nbytes for leaf in leaves) + SLACK)
                (partial / "reserved").unlink()
                with checkpointer() as orbax:
                    orbax.save(partial / "state", args=ocp.args.StandardSave(by_number(leaves)))
                state_fingerprint = folder_fingerprint(partial)
        except (OSError, InputError):
            raise
        except Exception as error:  # errors of Orbax or tensorstore, as on a full disk
            raise OSError(f"cannot write a checkpoint to {self.folder}: {str(error).splitlines()[0]}") from error
        measured = tuple(history.measured if history.measure else [{} for _ in history.rows])
        rows = tuple(history.rows)
        self.checkpoint = Checkpoint(self.run, folder.name, state_fingerprint, rows, measured, history.measure, ledger)
        write_whole(self.path, seal_fields(dataclasses.asdict(self.checkpoint)))
        for other in self.folder.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other, ignore_errors=True)
        if self.url is not None:
            pack(self.folder, self.url)

    def fingerprint(self) -> str | None:
        """The fingerprint of checkpoint.json, None before the first save."""
        return file_fingerprint(self.path) if self.path.exists() else None


def by_number(leaves: list[Any]) -> dict[str, Any]:
    """The leaves by their number, as Orbax takes them: no NumPy scalars, and no arrays without elements."""
    arrays = (np.asarray(leaf) if isinstance(leaf, np.generic) else leaf for leaf in leaves)
    return {str(i): leaf for i, leaf in enumerate(arrays) if np.size(leaf)}


def pack(folder: Path, url: str) -> None:
    """Writes the files of a folder to a URL, as one zip: whole, or not at all."""
    with TemporaryDirectory(prefix="tangent_jax-") as scratch:
        path = Path(scratch) / "packed.zip"
        with zipfile.ZipFile(path, "w") as content:
            for file in sorted(folder.rglob("*")):
                content.write(file, file.relative_to(folder))
        upload(path, url)


def unpack(url: str, folder: Path) -> None:
    """Unpacks the zip at a URL to a folder, if there is one."""
    packed = any_path(url)
    with explaining(url):
        is_there = packed.exists()
    if is_there:
        with passing_copy(url) as path, zipfile.ZipFile(path) as content:
            content.extractall(folder)


def checkpointer() -> Any:
    """Orbax's checkpointer for process 0 alone; it waits for no other process."""
    import orbax.checkpoint as ocp

    only = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="writer")
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=only)
    return ocp.Checkpointer(handler, multiprocessing_options=only)


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of all runs in a folder."""
    return sorted(folder.glob("*/checkpoint.json"))
