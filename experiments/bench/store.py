"""Time to read, compose and remove components of a ViT's last block from a store on disk (synthetic weights).

The last line of stdout: {"components", "numbers": in each, "numpy_seconds": reading the same bytes with numpy,
"compose_seconds": reading and composing, "remove_seconds": one goes, the others are summed again,
"compose_over_numpy", "remove_over_numpy"}; medians of --repeats, files in the page cache.
"""

import dataclasses
import tempfile
import time

import jax
import numpy as np
from tqdm import tqdm

import tangent_jax as tj
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.settings import Results, choice
from tangent_jax.core import trees


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Results):
    """The flags."""

    out: str = "out/bench_store"
    repeats: int = 3
    size: str = choice("L", "Ti", "S", "B")


COMPONENTS = 50


def main(config: Config) -> None:
    with tempfile.TemporaryDirectory(dir=command.out_folder(config)) as folder:
        measure(config, tj.Store(folder))


def measure(config: Config, store: tj.Store) -> None:
    """Fills the store, times what is done with it, and writes the result."""
    model = tj.models.VisionTransformer(tj.models.vit_config(f"{config.size}/16", classes=200))
    shapes = model.shapes()
    subset = tj.models.make_subset(model, blocks=1)
    rng = np.random.default_rng(0)
    dw = trees.nest({path: rng.standard_normal(shapes[path], np.float32) for path in subset.paths})
    origin = tj.store.Provenance("taft", {}, "", "", subset.paths)

    def add(name: str) -> None:
        store.add(name, jax.tree.map(lambda leaf: leaf * np.float32(rng.standard_normal()), dw), origin)

    for i in tqdm(range(COMPONENTS), "adding", unit="component"):
        add(f"shard {i:04}")
    operations = {
        "numpy": lambda: [np.fromfile(store.path(name), np.uint8).size for name in store],
        "compose": lambda: tj.compose(store),
        "remove": lambda: tj.store.remove(store, tj.store.plan_removal(store, names=[min(store)])),
    }
    times: dict[str, list[float]] = {name: [] for name in operations}
    for round_ in tqdm(range(config.repeats), "reading, composing, removing", unit="round"):
        for name, operation in operations.items():
            began = time.perf_counter()
            operation()
            times[name].append(time.perf_counter() - began)
        add(f"again {round_:04}")
    medians = {name: float(np.median(taken)) for name, taken in times.items()}
    result = {"components": COMPONENTS, "numbers": subset.size, **{f"{n}_seconds": t for n, t in medians.items()}}
    ratios = {f"{name}_over_numpy": medians[name] / medians["numpy"] for name in ("compose", "remove")}
    command.finish(config, {**result, **ratios})


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
