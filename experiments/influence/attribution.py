"""Data attribution by the linear datamodeling score: how well estimates predict models trained on half of the images.

The score (Park et al. 2023; as in dattri, Deng et al. 2024) removes --models random halves of the training images. For
each test image the estimated effects, summed over the removed images, are compared with the models of the other halves
(Spearman correlation, mean over test images; of the label's output minus the mean of the others). The models are the
optimum solved again, the same trained by Adam, and the non-linear network trained by Adam. The row "exact" is the
optimum without the half, the upper limit for every estimate of the optimum. --network: the tangent of the
pre-trained weights, logistic regression on pixels, or the tangent of an MLP (784, 128, 64) at random weights. The
penalty is chosen among --penalty by leave-one-out accuracy, before any half leaves.

The last line of stdout: {"penalty", "accuracy", "leave_one_out_accuracy", "scores": {ESTIMATE: {MODEL: score}},
"loo_max_error": of Newton's step against 20 optima solved again, relative to the largest change, "seconds"}.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import tangent_jax as tj
from experiments.shared import networks, plots, titles
from experiments.shared.datamodeling import datamodeling_score, margin_directions
from experiments.shared.ekfac import ekfac_effects
from experiments.shared.parts import saved
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Compute, Model, Reading, Results, choice
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import progress_bar, shown
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Reading, Compute, Results):
    """The flags."""

    at_once: int = 10
    batch_size: int = Recipe.batch_size
    blocks: int = 1
    dataset: str = Recipe.dataset
    epochs: int = Recipe.epochs
    loss: str = Recipe.loss
    lr: float = 3e-3
    lr_nlft: float = 3e-3
    models: int = 50
    network: str = choice("pretrained", *networks.WIDTHS)
    out: str = "out/attribution"
    output: str = "tangent"
    penalty: tuple[str, ...] = ("1e-2", "0.1", "1")
    resolved: int = 20
    seed: int = Recipe.seed


PASSES = 400  # rounding ends most solves earlier
CHUNK = 10  # halves in one file


class Setting:
    """The predictors of --network, and their features of the training and test images."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.penalties = sorted(config.positive("penalty"), reverse=True)
        dataset = setup.open_tested(config.dataset)
        recipe = setup.recipe(config)
        if config.network == "pretrained":
            self.predict = setup.predictor(recipe, dataset.classes)
        else:
            side = config.image_size or 28
            if not isinstance(side, int):
                raise InputError(f"--image_size must be one side with --network; got {config.text('image_size')}")
            network = networks.network(config.network, side, len(dataset.classes), config.seed)
            self.predict = tj.tangent(network, blocks=len(networks.WIDTHS[config.network]), output=config.output)
        self.name = dataset.name
        self.n = len(dataset.train)
        self.key = identity(
            setup.run_key(config, config.dataset, config),
            recipe,
            config.network,
            config.image_size,
            config.seed,
        )
        self.train = setup.features(config, self.predict, dataset.train, "train inputs")
        self.test = setup.features(config, self.predict, dataset.test, "test inputs")
        if self.n < 4:
            raise InputError(f"--dataset must have 4 training images at least; got {self.n}")
        self.directions = margin_directions(self.test.targets, len(dataset.classes))

    def objective(self, penalty: float) -> tj.Objective:
        """The flags' loss with a penalty."""
        return tj.make_objective(self.config.loss, penalty)

    def solve(self, penalty: float, start: tj.Fitted | None = None, left: np.ndarray | None = None) -> tj.Fitted:
        """The optimum on all images, or on those in `left`."""
        present = None if left is None else np.isin(np.arange(self.n), left).astype(float)
        options: Any = {"start": start, "example_weights": present, "certificate": None, "passes": PASSES}
        with tj.show_progress(None):
            return tj.solve(self.predict, self.train, self.objective(penalty), **options, progress=shown)

    def margins(self, dw: Tree, predict: tj.Predictor | None = None) -> np.ndarray:
        """The linear margin of each test image, "m"."""
        return np.sum(self.directions * tj.outputs(predict or self.predict, dw, self.test.inputs), 1)

    def trained(self, predict: tj.Predictor, rate: float, halves: Sequence[np.ndarray], penalty: float) -> np.ndarray:
        """The margins of models that Adam trains on each half, "s m"; Lambda is that of all images."""
        keys = jax.random.split(jax.random.key(self.config.seed), len(halves))
        runs = [
            self.train.batches(key, rows=rows, batch_size=self.config.batch_size)
            for key, rows in zip(keys, halves, strict=True)
        ]
        settings: Any = {"optimizer": tj.adam(rate), "epochs": self.config.epochs, "at_once": self.config.at_once}
        objective = self.objective(penalty * self.n / len(halves[0]))
        fitted = tj.fit_many(predict, runs, objective, **settings, progress=shown)
        return np.stack([self.margins(fit.dw, predict) for fit in fitted])


def main(config: Config) -> None:
    began = time.perf_counter()
    setting = Setting(config)
    with tj.show_progress("rows of J, and their kernel"):
        rows = tj.solver.jacobian_rows(setting.predict, setting.train.inputs, shown)
        k = rows.gram(progress=shown)
    solved, expansion, tried = choose(setting, rows, k)
    del k
    penalty = expansion.total_penalty / setting.n
    effects = estimate(setting, expansion)
    error = checked(config, setting, solved, expansion)
    halves = [
        np.sort(np.random.default_rng([config.seed, 7, s]).permutation(setting.n)[: setting.n // 2])
        for s in range(config.models)
    ]
    truths = retrained(config, setting, solved, halves, penalty)
    predicted = {name: np.stack([leaving(effect, half) for half in halves]) for name, effect in effects.items()}
    predicted["exact"] = truths["optimum"]
    scores = {how: {m: datamodeling_score(p, t) for m, t in truths.items()} for how, p in predicted.items()}
    draw(config, scores, setting.name)
    result = {"penalty": penalty, "accuracy": tj.evaluate(setting.predict, solved.dw, setting.test)}
    result |= {"leave_one_out_accuracy": max(row["score"] for row in tried), "scores": scores, "loo_max_error": error}
    command.finish(config, {**result, "seconds": time.perf_counter() - began}, tried=tried)


def leaving(effect: np.ndarray, left: np.ndarray) -> np.ndarray:
    """The sum of effects "m n" over the removed images, "m"."""
    return effect.sum(1) - effect[:, left].sum(1)


def choose(setting: Setting, rows: Any, k: np.ndarray) -> tuple[tj.Fitted, tj.solver.Expansion, list[dict[str, float]]]:
    """The optimum and its expansion for the penalty with the best leave-one-out accuracy, the larger on ties."""
    best = None
    tried = []
    labels = setting.train.targets
    with tj.show_progress("penalties, by leave-one-out"), progress_bar(len(setting.penalties), "penalty") as bar:
        for penalty in setting.penalties:
            solved = setting.solve(penalty)
            outputs = tj.outputs(setting.predict, solved.dw, setting.train.inputs)
            expansion = tj.solver.expand(rows, k, outputs, labels, setting.objective(penalty))
            score = float(np.mean(expansion.left_out().argmax(-1) == labels))
            tried.append({"penalty": penalty, "score": score})
            if best is None or score > best[0]:
                best = score, solved, expansion
            bar.update()
    assert best is not None
    print(f"penalty {best[2].total_penalty / setting.n:g}: leave-one-out {best[0]:.4f}", file=sys.stderr)
    return best[1], best[2], tried[::-1]


def estimate(setting: Setting, expansion: tj.solver.Expansion) -> dict[str, np.ndarray]:
    """The estimated effects of removing each training image on each test image's margin, "m n", by each estimate."""
    others = tj.solver.jacobian_rows(setting.predict, setting.test.inputs, shown).along(setting.directions)
    with tj.show_progress("estimates"):
        reach = expansion.reach(others)
        return {
            "Newton": np.einsum("mnc,nc->mn", reach, expansion.pulls()),
            "first order": np.einsum("mnc,nc->mn", reach, expansion.gradients),
            "EK-FAC": ekfac_effects(expansion, others),
            "gradient product": others.gram(expansion.rows.along(expansion.gradients), shown),
        }


def checked(config: Config, setting: Setting, solved: tj.Fitted, expansion: tj.solver.Expansion) -> float | None:
    """The largest difference of Newton's leave-one-out outputs from new solves, relative to the largest change."""
    chosen = np.random.default_rng([config.seed, 5]).permutation(setting.n)[: config.resolved]
    left_out = expansion.left_out()
    errors = []
    with tj.show_progress("solved again without one"), progress_bar(len(chosen), "image") as bar:
        for i in chosen:
            again = setting.solve(expansion.total_penalty / setting.n, solved, np.delete(np.arange(setting.n), i))
            outputs = tj.outputs(setting.predict, again.dw, setting.train.take(np.array([i])).inputs)
            errors.append(np.abs(outputs[0] - left_out[i]).max())
            bar.update()
    return float(max(errors) / np.abs(left_out - expansion.outputs).max()) if errors else None


def retrained(
    config: Config, setting: Setting, solved: tj.Fitted, halves: list[np.ndarray], penalty: float
) -> dict[str, np.ndarray]:
    """The test margins of models without each half, "s m": optima, Adam's, and non-linear ones by Adam."""
    predict = setting.predict
    folder = command.out_folder(config) / "parts"

    def part(title: str, compute: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
        key = identity(
            setting.key,
            penalty,
            halves,
            title,
            config.epochs,
            config.batch_size,
            config.lr,
            config.lr_nlft,
            config.at_once,
        )
        return saved(folder, key, title, lambda: {"margins": compute(*arguments)})["margins"]

    def optima(some: list[np.ndarray]) -> np.ndarray:
        return np.stack([setting.margins(setting.solve(penalty, solved, half).dw) for half in some])

    margins = []
    with progress_bar(len(halves), "half") as bar:
        for first in range(0, len(halves), CHUNK):
            margins.append(part(f"optima of halves from {first} on", optima, halves[first : first + CHUNK]))
            bar.update(len(margins[-1]))
    truths = {"optimum": np.concatenate(margins)}
    truths["adam"] = part("halves by Adam", setting.trained, predict, config.lr, halves, penalty)
    if config.network != "logistic":  # which is linear
        network = tj.Predictor(predict.w, predict.model, predict.subset, "nlft", dtype=predict.dtype)
        truths["non-linear"] = part(
            "non-linear halves by Adam", setting.trained, network, config.lr_nlft, halves, penalty
        )
    return truths


def draw(config: Config, scores: dict[str, dict[str, float]], name: str) -> None:
    """Plots the scores: a group for each kind of model, a row for each estimate."""
    kinds = {"optimum": "solved again", "adam": "trained again", "non-linear": "non-linear, trained again"}
    models = [*next(iter(scores.values()))]
    groups = {kinds[m]: {how: (row[m], 0.0) for how, row in scores.items()} for m in models}
    path = command.out_folder(config) / "attribution.png"
    title = titles.predicted(name, scores)
    plots.dots(path, groups, title, "linear datamodeling score: rank correlation with models without a half")


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
