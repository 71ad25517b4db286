"""Accuracy of one private release of statistics, by epsilon, with and without whitening by public images.

Noise comes from --seed, so that the table can be made again: nothing here is private. The settings of the release are
those of the library. --held_out tests on a fifth of the training images, with as much less noise as there are fewer
images: so settings may be chosen.

The last line of stdout: {DATASET: {"plain" or "whitened": {EPSILON: {"mean", "spread", "accuracies"}}}}.
"""

import sys
from typing import Any

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import command, plots, setup, titles
from tangent_jax.commands.shared.flags import CACHED, MODEL, F, define, numbers

define(*MODEL, *CACHED, "delta", "public", "held_out", "clip_norm", "noise", dataset=["digits"], out="out/statistics")
define(epsilon=["1", "3", "8"], seed=["0", "1", "2"])


def main() -> None:
    epsilons, seeds = numbers("epsilon", float), numbers("seed", int)
    result: dict[str, Any] = {}
    for dataset in setup.open_datasets().values():
        built = tj.models.feature_map(setup.pretrained(F.weights), ("h",))
        train = setup.features(built.predict, dataset.train, f"{dataset.name}: train inputs")
        test = setup.features(built.predict, dataset.test, "test inputs")
        train, test = train.hold_out() if F.held_out else (train, test)
        ways = {"plain": tj.privacy.on_sphere(built, None, train)}
        if F.public:
            known = setup.features(built.predict, setup.public_images(dataset.train), "public inputs")
            ways["whitened"] = tj.privacy.on_sphere(built, known, train)
        result[dataset.name] = {
            way: {f"{e:g}": of_seeds(map_, train, test, dataset.classes, e, seeds) for e in epsilons}
            for way, map_ in ways.items()
        }
        print(dataset.name, result[dataset.name], file=sys.stderr)
    cells = {f"{d}, {way}": row for d, table in result.items() for way, row in table.items()}
    rows = [[name, *(f"{row[e]['mean']:.3f} ± {row[e]['spread']:.3f}" for e in row)] for name, row in cells.items()]
    text = command.markdown(["data set", *(f"epsilon {e:g}" for e in epsilons)], rows)
    (command.out_folder() / "statistics.md").write_text(text)
    draw(cells, epsilons)
    print(text)
    command.finish(result)


def draw(cells: dict[str, dict[str, dict[str, Any]]], epsilons: list[float]) -> None:
    """Plots the test accuracy of one release by epsilon, of each data set, plain and whitened."""
    lines = {name: [row[e]["mean"] for e in row] for name, row in cells.items()}
    panel = {"x": epsilons, "lines": lines, "xlabel": "epsilon", "ylabel": "test accuracy", "ticks": epsilons}
    plots.curves(command.out_folder() / "statistics.png", [{**panel, "log": "x"}], titles.released_once(cells))


def of_seeds(
    map_: Any, train: tj.Features, test: tj.Features, classes: tuple[str, ...], epsilon: float, seeds: list[int]
) -> dict[str, Any]:
    """The test accuracy of the head of each seed's noise; of four fifths of the images, four fifths of the noise."""
    mechanism = tj.make_mechanism(epsilon, F.delta, 1, F.clip_norm, noise=F.noise)
    if F.held_out:
        less = mechanism.noise_multiplier * len(train) / (len(train) + len(test))
        mechanism = tj.privacy.Mechanism(F.clip_norm, less, 1, F.delta, noise=F.noise)
    step, accuracies = tj.privacy.Contribution(len(classes), sum(map_.sizes)), []
    with tj.show_progress(f"epsilon {epsilon:g}"):
        for seed in seeds:
            noised, _ = tj.privacy.release_statistics(map_, train, classes, mechanism=mechanism, seed=seed)
            accuracies.append(tj.evaluate(map_, step.head(noised, classes, mechanism), test))
    return {"mean": float(np.mean(accuracies)), "spread": float(np.std(accuracies)), "accuracies": accuracies}


if __name__ == "__main__":
    command.run(main)
