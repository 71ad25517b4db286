"""Composes in one process, of all images at once, what a federation composed, and compares the bits.

    python one_process.py OUT [CACHE]        OUT: the folder of a run; exit code 1 where the bits differ

The shards are those of the simulated contributors. The features are computed again, in CACHE, so that nothing of the
federation is read but its settings and its result.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tangent_federation.settings import Settings

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.store import Shards, fill, read_component


def errors(plain: Tree, path: Path) -> dict[str, float]:
    """The largest error of each leaf of a secure sum, over the largest number of that leaf."""
    secure, _ = read_component(path)
    return {name: float(np.abs(secure[name] - leaf).max() / np.abs(leaf).max()) for name, leaf in plain.items()}


def main(out: str, cache: str) -> int:
    """The exit code: 0 where one process has the same bits."""
    said = json.loads((Path(out) / "result.json").read_text())
    settings, names = Settings(**said["settings"]), said["names"]
    recipe, dataset = settings.recipe(), tj.open_dataset(settings.dataset)
    began = time.perf_counter()
    predict = recipe.predictor(dataset.classes)
    train = tj.extract(predict, dataset.train, tj.Cache(cache))
    rows = dict(zip(names, tj.shards.uniform(len(train), len(names), seed=0), strict=True))
    shards = Shards(predict, train, recipe, rows, dataset.classes, at_once=1)
    with tempfile.TemporaryDirectory() as folder:
        store = tj.Store(folder)
        fill(store, shards, settings.merge == "inputs")
        is_sum = settings.method != "taft"
        dw = store.statistics().solve() if is_sum else store.compose(how=settings.merge, penalty=settings.penalty)
        same = trees.fingerprint(dw) == said["fingerprint"]
        result = {"contributors": len(names), "same_bits": same, "seconds": time.perf_counter() - began}
        if settings.secure:
            result |= errors(store.statistics().tree, Path(out) / "statistics.safetensors")
    print(json.dumps(result))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "~/.cache/tangent_jax"))
