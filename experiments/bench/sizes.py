"""What a contribution to exact composition weighs, and what each way to make it smaller costs in accuracy.

--shards contributors of equal size sum their features. A contribution of many images is the triangle of G "k k", of k
features, in float64; fewer features (--width) make it smaller, and stay exact. Two more ways are measured here alone,
as they are not exact:

    float32    G rounded to float32
    rank r     V_r^T V_r + sum_c B_c B_c^T / n_c in place of G,   V_r "r k": the r largest singular values and vectors
               of a contributor's features less their class means (a truncated factor)

The settings are chosen on five folds of the training images, groups whole, by the features of each width, and serve all
ways.

The last line of stdout: {"sizes": {DATASET: {WAY: {"accuracy": on test, "megabytes": of a contribution of many
images}}}}.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

import tangent_jax as tj
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Model, Reading, Results
from tangent_jax.data import Dataset
from tangent_jax.models import FeatureMap, FeatureSettings, score_rows
from tangent_jax.solver import choose_by_folds, rows_of
from tangent_jax.solver.statistics import sums_of
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Reading, Results):
    """The flags."""

    dataset: tuple[str, ...] = ("digits",)
    directions: int = 1
    only: tuple[str, ...] = ("h+ntk+place",)
    out: str = "out/bench_sizes"
    ranks: tuple[str, ...] = ("256", "64")
    seed: int = Recipe.seed
    shards: int = 2
    width: tuple[str, ...] = ("4096", "2025", "1024")


Shrink = Callable[[np.ndarray, np.ndarray], np.ndarray]


def main(config: Config) -> None:
    maps = [
        FeatureSettings(tuple(parts.split("+")), None, config.directions, width, config.seed)
        for parts in config.only
        for width in config.numbers("width", int)
    ]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for dataset in setup.open_datasets(config).values():
        found[dataset.name] = {}
        for features in maps:
            found[dataset.name] |= measured(config, features.of(setup.pretrained(config)), dataset)
    cells = [
        [way, f"{cell['megabytes']:.1f}", *(f"{row[way]['accuracy']:.3f}" for row in found.values())]
        for way, cell in next(iter(found.values())).items()
    ]
    print(command.markdown(["contribution", "MB", *found], cells))
    command.finish(config, {"sizes": found})


def measured(config: Config, map_: FeatureMap, dataset: Dataset) -> dict[str, dict[str, float]]:
    """The test accuracy and the megabytes of each way at one width."""
    rows = {}
    for split in ("train", "test"):
        data = setup.features(config, map_.predict, dataset.splits[split], f"{dataset.name}: {split} inputs")
        with tj.show_progress(f"{dataset.name}: {split}, width {map_.width}") as progress:
            rows[split] = rows_of(map_, data, progress=progress), data.targets, data
    (z, targets, train), (tested, wanted, _) = rows["train"], rows["test"]
    settings = choose_by_folds(z, targets, map_.sizes, train.folds()).settings
    k = z.shape[1]
    parts = tj.shards.uniform(len(z), config.shards, seed=config.seed)

    whole = sums_of(z, targets, len(dataset.classes), map_.sizes)

    def accuracy(shrink: Shrink) -> float:
        gram = sum(shrink(z[at].astype(np.float64), targets[at]) for at in parts)
        head = dataclasses.replace(whole, factor=gram).solve(settings)
        return float(np.mean(score_rows(head, tested).argmax(1) == wanted))

    ways: dict[str, tuple[Shrink, int]] = {
        "float64": (lambda x, _: x.T @ x, 8 * k * (k + 1) // 2),
        "float32": (lambda x, _: (x.T @ x).astype(np.float32).astype(np.float64), 4 * k * (k + 1) // 2),
    }
    ways |= {f"rank {rank}": (partial(truncated, rank=rank), 8 * rank * k) for rank in config.numbers("ranks", int)}
    title = f"{'+'.join(map_.parts)} {map_.width}"
    return {f"{title}, {way}": {"accuracy": accuracy(f), "megabytes": n / 1e6} for way, (f, n) in ways.items()}


def truncated(x: np.ndarray, targets: np.ndarray, rank: int) -> np.ndarray:
    """G "k k" of rows "n k", of their distances from class means the largest singular values alone."""
    _, at = np.unique(targets, return_inverse=True)
    hot = np.eye(at.max() + 1)[at]
    means = hot @ (hot.T @ x / hot.sum(0)[:, None])
    _, values, vectors = np.linalg.svd(x - means, full_matrices=False)
    kept = values[:rank, None] * vectors[:rank]
    return kept.T @ kept + means.T @ means


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
