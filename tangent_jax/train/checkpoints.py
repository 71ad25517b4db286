"""The last finished epoch of a run on disk, by Orbax, in a folder that the run's identity names."""

import hashlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tangent_jax.core import Tree, trees
from tangent_jax.train.batches import Batches

CHECKPOINT_SECONDS = 10.0


def run_identity(predict: Any, dw: Tree, batches: Batches, *others: Any) -> str:
    """A name for what decides a run: model, start, order, labels, up to 64 rows of inputs, `others` (pytrees)."""
    rows = batches.rows[np.unique(np.linspace(0, len(batches) - 1, 64).astype(int))]
    key = None if batches.key is None else jax.random.key_data(batches.key)
    others = (*others, key, batches.batch_size)
    data = {
        "rows": np.asarray(batches.inputs[rows]),
        "labels": batches.labels[batches.rows],
        "dw": dw,
        "leaves": jax.tree.leaves((predict, others)),
    }
    program = f"{jax.tree.structure(predict)} {batches.inputs.shape} {jax.tree.structure(others)}"
    program = re.sub(r" at 0x[0-9a-f]+", "", program)
    return hashlib.sha256(f"{program} {trees.fingerprint(data)}".encode()).hexdigest()[:16]


class Saver:
    """The last finished epoch of one run on disk (Orbax)."""

    def __init__(self, folder: str | os.PathLike, identity: str, seconds: float = CHECKPOINT_SECONDS) -> None:
        import orbax.checkpoint as ocp  # a second to import, and only runs that are saved need it

        self.args: Any = ocp.args
        self.folder = Path(folder).absolute() / identity
        for leftover in self.folder.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self.manager = ocp.CheckpointManager(self.folder, options=ocp.CheckpointManagerOptions(max_to_keep=1))
        self.saved, self.seconds = time.perf_counter(), seconds

    def restore(self, state: Tree) -> tuple[Tree, list[dict[str, float]]]:
        """The state and history of the last finished epoch, or those given where there is none."""
        last = self.manager.latest_step()
        if last is None:
            return state, []
        leaves, structure = jax.tree.flatten(state)
        target = {str(i): leaf for i, leaf in enumerate(leaves)}
        parts = self.args.Composite(state=self.args.StandardRestore(target), history=self.args.JsonRestore())
        restored = self.manager.restore(last, args=parts)
        leaves = [restored["state"][name] for name in target]
        return jax.tree.unflatten(structure, leaves), restored["history"]["epochs"]

    def save(self, state: Tree, history: list[dict[str, float]], last: bool) -> None:
        """Saves, unless the last save was less than `seconds` ago."""
        if not last and time.perf_counter() - self.saved < self.seconds:
            return
        named = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(state))}
        epochs = self.args.JsonSave({"epochs": history})
        parts = self.args.Composite(state=self.args.StandardSave(named), history=epochs)
        self.manager.save(len(history), args=parts)
        self.manager.wait_until_finished()
        self.saved = time.perf_counter()

    def close(self) -> None:
        self.manager.close()
