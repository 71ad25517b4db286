"""Compares the optimum with Adam on one task, in one process: passes and time to Adam's accuracy, pass against epoch.

Both run once before, for their compilation. The last line of stdout: {"adam": {"accuracy", "seconds": without what
was compiled, "epoch_seconds"}, "optimum": {"passes_to_adam", "seconds_to_adam", "pass_seconds", "factor_seconds",
"certificate", "accuracies": after each pass}, "faster": Adam's seconds over those to its accuracy, "pass_over_epoch",
"statistics": {"exact", "place", "lda": {"accuracy", "seconds": of one pass and one solve, "faster": Adam's seconds over
them}}}.
The pass that reaches Adam's accuracy is one of a longer run: --passes=N ends with the step of pass N - 1, checked.
"""

import dataclasses
import time

import jax
import numpy as np

import tangent_jax as tj
from experiments.shared.timing import steady
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.additive import features_of
from tangent_jax.commands.shared.settings import Compute, FeatureFlags, Reading, Results, Training
from tangent_jax.core.notation import Tree
from tangent_jax.data import Examples
from tangent_jax.solver import Settings, make_statistics
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(FeatureFlags, Reading, Compute, Training, Results):
    """The flags."""

    blocks: int = Recipe.blocks
    certificate: float = Recipe.certificate
    dataset: str = Recipe.dataset
    images: int | None = None
    out: str = "out/bench_solve"
    output: str = "tangent"
    passes: int = 12
    penalty: float = 0.001


def main(config: Config) -> None:
    recipe = setup.recipe(config, solver="optimum")
    adam = setup.recipe(config, penalty=1e-5, learning_rate=1e-3)
    dataset = setup.open_dataset(recipe.dataset)
    predict = setup.predictor(recipe, len(dataset.classes))
    order = np.random.default_rng(config.seed).permutation(len(dataset.train))
    images = dataset.train.take(np.sort(order[: config.images or None]))
    tested = images if config.images else dataset.test
    train, test = (setup.features(config, predict, part, "inputs") for part in (images, tested))

    def accuracy(dw: Tree) -> float:
        return tj.evaluate(predict, dw, test)

    with tj.show_progress("Adam"):
        fitted = adam.fit(predict, train)
    with tj.show_progress("once, to compile"):
        setup.recipe(config, solver="optimum", passes=3).fit(predict, train)
    with tj.show_progress("optimum"):
        solved = recipe.fit(predict, train, on_step=lambda _, dw: {"test_accuracy": accuracy(dw)})
    factor_seconds = [seconds_of_factors(predict, train, recipe) for _ in range(2)][1]  # the first one compiles
    wanted = accuracy(fitted.dw)
    seconds = [row["seconds"] for row in solved.history]
    accuracies = [row["test_accuracy"] for row in solved.history]
    reached = next((i for i, value in enumerate(accuracies) if value >= wanted), None)
    epoch = float(np.median([row["seconds"] for row in fitted.history]))
    taken = None if reached is None else sum(seconds[: reached + 1])
    optimum = {"passes_to_adam": None if reached is None else reached + 1, "seconds_to_adam": taken}
    of_pass = float(np.median(seconds))
    optimum |= {"pass_seconds": of_pass, "factor_seconds": factor_seconds}
    optimum |= {"certificate": solved.info.certificate, "accuracies": accuracies}
    result = {"adam": {"accuracy": wanted, "seconds": steady(fitted), "epoch_seconds": epoch}, "optimum": optimum}
    result |= {"faster": None if taken is None else steady(fitted) / taken, "examples": len(train)}
    result["statistics"] = {
        name: of_statistics(config, name, predict, dataset.classes, images, tested, steady(fitted))
        for name in ("exact", "place", "lda")
    }
    command.finish(config, {**result, "pass_over_epoch": of_pass / epoch, "trained": predict.subset.size})


def of_statistics(
    config: Config,
    name: str,
    predict: tj.Predictor,
    classes: tuple[str, ...],
    images: Examples,
    tested: Examples,
    adam: float,
) -> dict[str, float]:
    """The accuracy of a head of statistics at default settings, and the median seconds of three runs, after one."""
    features, how = features_of(config, name, config.feature_blocks)
    map_ = features.of(tj.Pretrained(predict.model, predict.w, ""))
    seconds = []
    head = None
    train, test = (setup.features(config, map_.predict, part, f"{name}: inputs") for part in (images, tested))
    with tj.show_progress(f"{name}, four times") as progress:
        for _ in range(4):
            began = time.perf_counter()
            statistics = make_statistics(map_, train, classes, progress=progress)
            head = statistics.of_classes(classes).solve(Settings(how))
            jax.block_until_ready(head)
            seconds.append(time.perf_counter() - began)
    median = float(np.median(seconds[1:]))
    return {"accuracy": tj.evaluate(map_, head, test), "seconds": median, "faster": adam / median}


def seconds_of_factors(predict: tj.Predictor, train: tj.Features, recipe: tj.Recipe) -> float:
    """Returns the seconds for the factors, from one random signal per image, as in `solve`."""
    began = time.perf_counter()
    jax.block_until_ready(tj.solver.make_curvature(predict, train, recipe.objective, key=jax.random.key(0)))
    return time.perf_counter() - began


if __name__ == "__main__":
    command.run(main, Config)
