"""Exact composition for each choice of features (parts, blocks, directions, width): held-out accuracy, and time.

Five folds of the training images, every fifth of each class, groups whole; no test image is read. Each setting takes
the shrinkage and the weights of the parts with the greatest held-out likelihood, as in `compose --method=exact`. One
pass over the images gives all --feature_blocks.

The last line of stdout: {"settings": {DATASET: {SETTING: {"accuracy", "nll", "shrinkage", "weights"}}}, "mean":
{SETTING: accuracy over the data sets}, "best": SETTING, "tried": how many, "pass": {SETTING: {"milliseconds": of an
image, from the cached inputs of its first block; "forward_passes": in units of a plain pass of all blocks; "whole": the
same from the images on; "mebibytes": of the program for 32 images}}}; times are medians of alternating runs. A setting
is named "h+ntk 8x1 4096": parts, blocks x directions, width.
"""

import dataclasses
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.table import TABLE
from experiments.shared.timing import Operation, compiled, rounds
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Model, Reading, Results
from tangent_jax.data import Dataset
from tangent_jax.io.progress import check_stop
from tangent_jax.models import FeatureMap, feature_map
from tangent_jax.solver import choose_by_folds, rows_by_depth
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Reading, Results):
    """The flags."""

    dataset: tuple[str, ...] = ("digits",)
    directions: tuple[str, ...] = ("1",)
    feature_blocks: tuple[str, ...] = ("1",)
    images: int | None = None
    only: tuple[str, ...] = ("h+ntk",)
    out: str = "out/bench_features"
    repeats: int = 5
    seconds: float = 120.0
    seed: int = Recipe.seed
    width: tuple[str, ...] = ("4096",)


BATCH = 32
Setting = tuple[str, int, int, int]  # parts, blocks, directions, width


def main(config: Config) -> None:
    depths = tuple(config.numbers("feature_blocks", int))
    shapes = [*itertools.product(config.only, config.numbers("directions", int), config.numbers("width", int))]
    sets = [*setup.open_datasets(config).values()]
    tried: dict[str, dict[str, dict[str, Any]]] = {}
    for dataset in sets:
        tried[dataset.name] = {}
        for shape in shapes:
            tried[dataset.name] |= measured(config, dataset, shape, depths)
    mean = {key: float(np.mean([row[key]["accuracy"] for row in tried.values()])) for key in tried[sets[0].name]}
    best = max(mean, key=mean.__getitem__)
    times = time_passes(config, [(parts, blocks, *shape) for parts, *shape in shapes for blocks in depths])
    rows = [
        [key, *(f"{row[key]['accuracy']:.3f}" for row in tried.values()), f"{mean[key]:.4f}", *spoken_time(times[key])]
        for key in mean
    ]
    columns = ["features", *tried, "mean", "ms an image", "forward passes", "from images"]
    command.write_table(config, "features", columns, rows)
    draw(config, {d: {key: cell["accuracy"] for key, cell in row.items()} for d, row in tried.items()}, mean)
    command.finish(config, {"settings": tried, "mean": mean, "best": best, "tried": len(mean), "pass": times})


def name(setting: Setting) -> str:
    """The name of a setting in the table."""
    parts, blocks, directions, width = setting
    return f"{parts} {blocks}x{directions} {width}"


def spoken_time(row: dict[str, float]) -> list[str]:
    """The time of a pass in the table."""
    return [f"{row['milliseconds']:.1f}", f"{row['forward_passes']:.2f}", f"{row['whole']:.2f}"]


def map_of(config: Config, setting: Setting) -> FeatureMap:
    """The feature map of a setting."""
    parts, blocks, directions, width = setting
    options: Any = {"blocks": blocks, "directions": directions, "width": width, "seed": config.seed}
    return feature_map(setup.pretrained(config), tuple(parts.split("+")), **options)


def measured(
    config: Config, dataset: Dataset, shape: tuple[str, int, int], depths: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    """For each depth by its setting's name: accuracy on held-out training images, likeliest shrinkage and weights."""
    parts, directions, width = shape
    map_ = map_of(config, (parts, max(depths), directions, width))
    train = setup.features(config, map_.predict, dataset.train, f"{dataset.name}: train inputs")
    if config.images:
        train = train.take(np.sort(np.random.default_rng(config.seed).permutation(len(train))[: config.images]))
    with tj.show_progress(f"{dataset.name}: {parts}, {directions} directions, {width}") as progress:
        every = rows_by_depth(map_, train, depths, progress=progress)
    return {
        name((parts, blocks, directions, width)): cross_validated(map_, rows, train, f"{dataset.name}, {blocks} blocks")
        for blocks, rows in zip(depths, every, strict=True)
    }


def cross_validated(map_: FeatureMap, rows: np.ndarray, train: tj.Features, title: str) -> dict[str, Any]:
    """The accuracy of LDA over the folds, by the shrinkage and the weights of the greatest likelihood."""
    (_, shrinkage, weights), loss, accuracy, _ = choose_by_folds(rows, train.targets, map_.sizes, train.folds())
    check_stop()
    print(f"{title}: {accuracy:.4f}", file=sys.stderr)
    return {"accuracy": accuracy, "nll": loss, "shrinkage": shrinkage, "weights": weights}


def time_passes(config: Config, settings: list[Setting]) -> dict[str, dict[str, float]]:
    """The time and memory of each setting's pass over 32 images, beside a plain pass of all blocks."""
    pretrained = setup.pretrained(config)
    rng = np.random.default_rng(0)

    def inputs(stage: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal((BATCH, *pretrained.model.input_shape(stage))), jnp.float32)

    def operations() -> list[Operation]:
        plain = compiled("plain", lambda w, x: pretrained.model.apply(w, x, 0), pretrained.w, inputs(0))
        maps = {name(setting): map_of(config, setting) for setting in settings}
        passes = [compiled(key, FeatureMap.rows, map_, inputs(map_.predict.subset.stage)) for key, map_ in maps.items()]
        whole = [compiled(f"{key} whole", from_images, map_, inputs(0)) for key, map_ in maps.items()]
        return [plain, *passes, *whole]

    rows = {row["operation"]: row for row in rounds(operations(), "passes", config.repeats, config.seconds)}
    plain = rows["plain"]["seconds"]
    return {
        key: {
            "milliseconds": 1e3 * rows[key]["seconds"] / BATCH,
            "forward_passes": rows[key]["seconds"] / plain,
            "whole": rows[f"{key} whole"]["seconds"] / plain,
            "mebibytes": rows[key]["memory_mib"],
        }
        for key in map(name, settings)
    }


def from_images(map_: FeatureMap, images: jax.Array) -> jax.Array:
    """The features of images, with the blocks below those of the map."""
    return map_.rows(map_.anchor_model.apply(map_.w, images, 0, map_.predict.subset.stage))


def draw(config: Config, tried: dict[str, dict[str, float]], mean: dict[str, float]) -> None:
    """Draws the accuracy of every setting: the mean over data sets, and the data set with the largest differences."""
    words = titles.differing(mean)
    tried = {dataset: {words[key]: value for key, value in row.items()} for dataset, row in tried.items()}
    mean = {words[key]: value for key, value in mean.items()}
    widest = max(tried, key=lambda dataset: np.ptp([*tried[dataset].values()]))
    groups = {"the mean of data sets": mean, widest: tried[widest]} if len(tried) > 1 else tried
    dotted = {f"{title}, held out": {key: (value, 0.0) for key, value in row.items()} for title, row in groups.items()}
    plots.dots(command.out_folder(config) / "features.png", dotted, titles.featured(mean))


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
