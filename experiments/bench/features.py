"""Exact composition for each choice of features (parts, width, blocks, directions): held-out training accuracy.

Five folds of the training images, every fifth of each class; no test image is read. Each setting takes the shrinkage
and balance with the greatest held-out likelihood, as in `compose --method=exact`. LDA is solved in its dual form, by
the Gram matrices of the parts, so the cost depends on the number of images, not of features.

The last line of stdout: {"settings": {DATASET: {SETTING: {"accuracy", "nll", "shrinkage", "balance"}}}, "mean":
{SETTING: accuracy over the data sets}, "best": SETTING, "tried": how many}; a setting is named "h+ntk 1x4 4096": parts,
blocks x directions, width.
"""

import itertools
import sys
from typing import Any

import numpy as np

import tangent_jax as tj
from experiments.shared.folds import FOLDS, dual_lda, folds_of
from tangent_jax.commands.shared import command, plots, setup, titles
from tangent_jax.commands.shared.flags import CACHED, MODEL, F, define, numbers
from tangent_jax.core import check_stop
from tangent_jax.data import Dataset
from tangent_jax.models import feature_map, rows_of
from tangent_jax.solver import BALANCES, SHRINKAGES, fitted_beta

define(*MODEL, *CACHED, "seed", "images", dataset=["digits"], only=["h+ntk"], out="out/bench_features")
define(blocks=["1"], directions=["4"], width=["512", "1024", "2048", "4096", "8192"])

Setting = tuple[str, int, int, int]  # parts, blocks, directions, width


def main() -> None:
    grid = [*itertools.product(F.only, *(numbers(name, int) for name in ("blocks", "directions", "width")))]
    sets = [*setup.open_datasets().values()]
    tried = {dataset.name: {name(setting): measured(dataset, setting) for setting in grid} for dataset in sets}
    mean = {name(s): float(np.mean([tried[d][name(s)]["accuracy"] for d in tried])) for s in grid}
    best = max(mean, key=mean.__getitem__)
    rows = [[key, *(f"{tried[d][key]['accuracy']:.3f}" for d in tried), f"{mean[key]:.4f}"] for key in mean]
    text = command.markdown(["features", *tried, "mean"], rows)
    (command.out_folder() / "features.md").write_text(text)
    draw({d: {key: cell["accuracy"] for key, cell in row.items()} for d, row in tried.items()}, mean)
    print(text)
    command.finish({"settings": tried, "mean": mean, "best": best, "tried": len(grid)})


def name(setting: Setting) -> str:
    """The name of a setting in the table."""
    parts, blocks, directions, width = setting
    return f"{parts} {blocks}x{directions} {width}"


def spoken(key: str) -> str:
    """The name of a setting in the picture, in words."""
    parts, shape, width = key.split()
    blocks, directions = shape.split("x")
    each, of_blocks = parts.replace("ntk", "psi").replace("+", " + "), f"{blocks} block{'s' * (blocks != '1')}"
    said = [each, *[of_blocks, f"{directions} v"] * ("ntk" in parts), *[width] * (parts != "h")]
    return ", ".join(said)


def measured(dataset: Dataset, setting: Setting) -> dict[str, float]:
    """The accuracy of a setting on held-out training images, and its likeliest shrinkage and balance."""
    parts, blocks, directions, width = setting
    options: Any = {"blocks": blocks, "directions": directions, "width": width, "seed": F.seed}
    map_ = feature_map(setup.pretrained(F.weights), tuple(parts.split("+")), **options)
    train = setup.features(map_.predict, dataset.train, f"{dataset.name}: train inputs")
    if F.images:
        train = train.take(np.sort(np.random.default_rng(F.seed).permutation(len(train))[: F.images]))
    with tj.show_progress(f"{dataset.name}: {name(setting)}"):
        rows = np.split(rows_of(map_, train).astype(np.float64), np.cumsum(map_.sizes)[:-1], 1)
    labels, folds = train.targets, folds_of(train.targets)
    balances, held = BALANCES if len(rows) > 1 else (1.0,), {}
    for fold in range(FOLDS):
        grams = [part @ part.T for part in rows]
        for balance in balances:
            scores = dual_lda(grams, sum(map_.sizes), labels, folds == fold, balance, SHRINKAGES)
            for shrinkage, own in zip(SHRINKAGES, scores, strict=True):
                held.setdefault((shrinkage, balance), []).append(own)
            check_stop()
    targets = np.concatenate([labels[folds == fold] for fold in range(FOLDS)])
    likelihood = {key: fitted_beta(np.concatenate(own), None, targets)[1] for key, own in held.items()}
    best = min(likelihood, key=likelihood.__getitem__)
    accuracy = float(np.mean(np.concatenate(held[best]).argmax(1) == targets))
    print(f"{dataset.name}, {name(setting)}: {accuracy:.4f}", file=sys.stderr)
    return {"accuracy": accuracy, "nll": likelihood[best], "shrinkage": best[0], "balance": best[1]}


def draw(tried: dict[str, dict[str, float]], mean: dict[str, float]) -> None:
    """Draws the accuracy of every setting: the mean over data sets, and the data set with the largest differences."""
    tried = {dataset: {spoken(key): value for key, value in row.items()} for dataset, row in tried.items()}
    mean = {spoken(key): value for key, value in mean.items()}
    widest = max(tried, key=lambda dataset: np.ptp([*tried[dataset].values()]))
    groups = {"the mean of data sets": mean, widest: tried[widest]} if len(tried) > 1 else tried
    dotted = {f"{title}, held out": {key: (value, 0.0) for key, value in row.items()} for title, row in groups.items()}
    plots.dots(command.out_folder() / "features.png", dotted, titles.featured(mean))


if __name__ == "__main__":
    command.run(main)
