"""The last finished epoch of a run on disk, by Orbax, in a folder that the run's identity names."""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from tangent_jax import trees
from tangent_jax.notation import Tree

CHECKPOINT_SECONDS = 10.0


def run_identity(predict: Callable, dw: Tree, inputs: Any, labels: np.ndarray, *others: Any) -> str:
    """A name for what decides a run: model, start, settings, key, labels, and up to 64 rows of the inputs."""
    rows = np.unique(np.linspace(0, len(labels) - 1, 64).astype(int))
    data = {
        "rows": np.asarray(inputs[rows]),
        "labels": np.asarray(labels),
        "dw": dw,
        "leaves": jax.tree.leaves(predict),
    }
    program = re.sub(r" at 0x[0-9a-f]+", "", f"{jax.tree.structure(predict)} {inputs.shape} {others}")
    return hashlib.sha256(f"{program} {trees.fingerprint(data)}".encode()).hexdigest()[:16]


class Saver:
    """The last finished epoch of one run on disk (Orbax)."""

    def __init__(self, folder: str | os.PathLike, identity: str, seconds: float = CHECKPOINT_SECONDS) -> None:
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
        found = self.manager.restore(
            last,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(target),  # pyright: ignore
                history=ocp.args.JsonRestore(),
            ),
        )
        return jax.tree.unflatten(structure, [found["state"][name] for name in target]), found["history"]["epochs"]

    def save(self, state: Tree, history: list[dict[str, float]], last: bool) -> None:
        """Saves, unless the last save was less than `seconds` ago."""
        if not last and time.perf_counter() - self.saved < self.seconds:
            return
        named = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(state))}
        self.manager.save(
            len(history),
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(named),  # pyright: ignore
                history=ocp.args.JsonSave({"epochs": history}),
            ),
        )
        self.manager.wait_until_finished()
        self.saved = time.perf_counter()

    def close(self) -> None:
        self.manager.close()
