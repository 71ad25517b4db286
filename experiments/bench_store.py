"""Time to read, compose and remove components of a ViT's last block from a store on disk (synthetic weights).

The last line of stdout: {"components", "numbers": in each, "read_seconds": all of them, "compose_seconds",
"remove_seconds": one goes, the others are summed again, "compose_over_read", "remove_over_read"}; medians of --repeats.
"""

import shutil
import time
from pathlib import Path

import jax
import numpy as np
from absl import flags
from tqdm import tqdm

from experiments import binary
from tangent_jax import subsets, trees, vit
from tangent_jax.config import vit_config
from tangent_jax.provenance import Provenance
from tangent_jax.store import Store

SIZE = flags.DEFINE_enum("size", "L", ["Ti", "S", "B", "L"], "ViT size, patches of 16.")
COMPONENTS = flags.DEFINE_integer("components", 50, "Components in the store.", lower_bound=2)
REPEATS = flags.DEFINE_integer("repeats", 3, "Rounds of reading, composing and removing.", lower_bound=1)
OUT = flags.DEFINE_string("out", "out/bench_store", "Folder for result.json and the store, deleted afterwards.")


def main() -> None:
    out = Path(OUT.value)
    shutil.rmtree(out / "store", ignore_errors=True)
    config = vit_config(f"{SIZE.value}/16", classes=200)
    shapes, subset = vit.shapes(config), subsets.make_subset(config, blocks=1)
    rng = np.random.default_rng(0)
    dw = trees.nest({path: rng.standard_normal(shapes[path], np.float32) for path in subset.paths})
    origin = Provenance("taft", {}, "", "", subset.paths, (), {}, 0.0)
    store = Store(out / "store")

    def add(name: str) -> None:
        store.add(name, jax.tree.map(lambda leaf: leaf * np.float32(rng.standard_normal()), dw), origin)

    for i in tqdm(range(COMPONENTS.value), "adding", unit="component"):
        add(f"shard {i:04}")
    times: dict[str, list[float]] = {"read": [], "compose": [], "remove": []}
    for _ in tqdm(range(REPEATS.value), "reading, composing, removing", unit="round"):
        for title, run in (
            ("read", lambda: [store.read(name) is None for name in sorted(store.components)]),
            ("compose", store.compose),
            ("remove", lambda: store.remove([min(store.components)])),
        ):
            began = time.perf_counter()
            run()
            times[title].append(time.perf_counter() - began)
        add(f"again {len(times['read']):04}")
    shutil.rmtree(out / "store")
    read, composed, removed = (float(np.median(times[name])) for name in ("read", "compose", "remove"))
    result = {"components": COMPONENTS.value, "numbers": subset.size, "read_seconds": read}
    result |= {"compose_seconds": composed, "remove_seconds": removed}
    binary.finish(out, {**result, "compose_over_read": composed / read, "remove_over_read": removed / read})


if __name__ == "__main__":
    binary.run(main)
