"""The last finished epoch of a run on disk, by Orbax, in a folder that the run's identity names.

    RUN/checkpoint.json   the run, the folder of its state and that folder's hash, the history: the commit
    RUN/STATE/            Orbax's files

A save writes a new folder, then checkpoint.json, then deletes the old folder: a kill leaves the last save whole. What
was altered or is missing is refused: nothing is trained on it, and nothing of it is returned.
"""

import dataclasses
import os
import shutil
import time
from pathlib import Path
from typing import Any

import jax

from tangent_jax._version import __version__
from tangent_jax.core import Tree, identity, refusal, require
from tangent_jax.core.files import allocate, expanded, file_digest, folder_digest, write_whole, write_whole_folder
from tangent_jax.core.records import sealed, unsealed
from tangent_jax.core.rows import Rows
from tangent_jax.train.batches import Batches

CHECKPOINT_SECONDS = 10.0
SLACK = 1 << 18  # bytes that Orbax writes besides the leaves
FORMAT = 2  # of checkpoints and ledgers: part of every run's identity


def run_identity(predict: Any, dw: Tree, batches: Batches, *others: Any) -> str:
    """A name for all that decides a run: model, start, order, every row that trains and its label, `others`.

    Raises: InputError where a function or setting among them cannot be told from another (`core.identity`).
    """
    data = Rows(batches.inputs, batches.rows), batches.labels[batches.rows], batches.key, batches.batch_size
    return identity(predict, dw, data, others, FORMAT, __version__)[:32]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What checkpoint.json says; `ledger`: the hash of the ledger at that time, where a run keeps one."""

    run: str
    state: str
    state_digest: str
    history: tuple[dict[str, Any], ...]
    ledger: str | None = None


class Saver:
    """The last finished epoch of one run on disk; `folder` is the run's own."""

    def __init__(self, folder: str | os.PathLike, run: str, seconds: float = CHECKPOINT_SECONDS) -> None:
        self.run, self.folder = run, expanded("checkpoints", folder).absolute() / run
        self.path, self.checkpoint = self.folder / "checkpoint.json", None
        if self.path.exists():
            self.checkpoint = unsealed(Checkpoint, "checkpoints", self.path, self.advice())
            got = f"that of {self.checkpoint.run}"
            require(self.checkpoint.run == run, "checkpoints", f"the checkpoint of {run}", got, self.advice())
        self.saved, self.seconds, self.epochs = time.perf_counter(), seconds, 0

    def advice(self) -> str:
        return f"Delete {self.folder} to train anew"

    def restore(self, state: Tree) -> tuple[Tree, list[dict[str, float]]]:
        """The state and history of the last save, or those given where there is none."""
        import orbax.checkpoint as ocp  # a second to import, and only runs that are saved need it

        if self.checkpoint is None:
            return state, []
        folder, said = self.folder / self.checkpoint.state, self.checkpoint.state_digest
        whole = folder.is_dir() and folder_digest(folder) == said
        require(whole, "checkpoints", f"an unaltered {folder}", "one that is missing or altered", self.advice())
        leaves, structure = jax.tree.flatten(state)
        target = {str(i): leaf for i, leaf in enumerate(leaves)}
        try:
            with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
                restored = checkpointer.restore(folder / "state", args=ocp.args.StandardRestore(target))
        except Exception as error:
            got = f"{type(error).__name__} in {folder}"
            raise refusal("checkpoints", "a state of this run", got, self.advice()) from error
        self.epochs = len(self.checkpoint.history)
        return jax.tree.unflatten(structure, [restored[name] for name in target]), [*self.checkpoint.history]

    def is_due(self, last: bool) -> bool:
        """Whether the last save was long enough ago, or this is the run's end."""
        return last or time.perf_counter() - self.saved >= self.seconds

    def save(self, state: Tree, history: list[dict[str, float]], ledger: str | None = None) -> None:
        """The state is on disk when this returns.

        Raises: OSError where it cannot be written; the last save is still there.
        """
        import orbax.checkpoint as ocp

        named = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(state))}
        folder = self.folder / f"{len(history)}-{time.time_ns():x}"
        try:
            with write_whole_folder(folder) as partial:
                # Orbax's threads print a traceback each on a full disk: the space is asked for before
                allocate(partial / "reserved", sum(leaf.nbytes for leaf in named.values()) + SLACK)
                (partial / "reserved").unlink()
                with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
                    checkpointer.save(partial / "state", args=ocp.args.StandardSave(named))
                state_digest = folder_digest(partial)
        except OSError:
            raise
        except Exception as error:  # Orbax's and tensorstore's own, as on a full disk
            raise OSError(f"cannot write a checkpoint to {self.folder}: {str(error).splitlines()[0]}") from error
        self.checkpoint = Checkpoint(self.run, folder.name, state_digest, tuple(history), ledger)
        write_whole(self.path, sealed(dataclasses.asdict(self.checkpoint)))
        for other in self.folder.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other, ignore_errors=True)
        self.saved, self.epochs = time.perf_counter(), len(history)

    def digest(self) -> str | None:
        """The hash of checkpoint.json, None before the first save."""
        return file_digest(self.path) if self.path.exists() else None


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of all runs that a folder holds."""
    return sorted(folder.glob("*/checkpoint.json"))
