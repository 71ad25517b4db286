"""Calibration of probabilities: the linearised Laplace posterior against softmax, temperature scaling, and an ensemble.

It is measured on test images, and by the detection of another data set's images. The temperatures and the noise are
chosen on the exact leave-one-out predictions of the training images. The ensemble has five models.
The last line of stdout: {"penalty", "accuracy", "methods": {name: {"nll", "ece", "brier", "auroc"}}}.
"""

import dataclasses

import numpy as np

import tangent_jax as tj
from experiments.shared import plots, titles
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import command, setup
from tangent_jax.commands.shared.settings import Optimum, Single
from tangent_jax.commands.shared.shards import make_method
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import shown
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Single, Optimum):
    """The flags."""

    batch_size: int = Recipe.batch_size
    epochs: int = Recipe.epochs
    loss: str = Recipe.loss
    lr: float = 3e-3
    models: int = 5
    other: str | None = None
    out: str = "out/uncertainty"
    penalty: tuple[str, ...] = ("1e-2", "0.1", "1")


OTHER_IMAGES = 400  # the most images of --other
SAMPLES = 200  # draws for sampled probabilities
MEASURES = {
    "nll": "mean -log p of the true class (low is good)",
    "ece": "expected calibration error (low is good)",
    "brier": "Brier score (low is good)",
    "auroc": "AUROC of the entropy on other images (high is good)",
}


def main(config: Config) -> None:
    penalties = config.positive("penalty")
    images = setup.open_tested(config.other).test if config.other else None
    method = make_method(config, "taft")
    with tj.show_progress("kernel"):
        kernel = tj.solver.make_kernel(method.predict, method.train, method.recipe.objective, progress=shown)
    solution, _ = kernel.choose(penalties)
    laplace = tj.solver.make_posterior(solution, progress=shown)
    train = method.train.targets
    test = method.test.targets
    left_out, left_out_covariance = laplace.left_out()
    beta, _ = tj.solver.fitted_beta(left_out, None, train)
    beta_laplace, _ = tj.solver.fitted_beta(left_out, left_out_covariance, train)
    penalty = solution.total_penalty / len(train)
    sets = {"test": method.test}
    if images is not None:
        chosen = np.sort(np.random.default_rng([config.seed, 8]).permutation(len(images))[:OTHER_IMAGES])
        sets["other"] = setup.features(config, method.predict, images.take(chosen), "other inputs")
    p: dict[str, dict[str, np.ndarray]] = {}
    members = [*ensemble(config, penalty, kernel.centers.shape[1])]
    for name, data in sets.items():
        with tj.show_progress(f"posterior of {name} images"):
            logits, covariance = laplace(data.inputs)
        p.setdefault("softmax", {})[name] = tj.solver.probabilities(logits, None, 1.0)
        p.setdefault("temperature", {})[name] = tj.solver.probabilities(logits, None, beta)
        several = [tj.solver.probabilities(tj.outputs(predict, dw, data.inputs), None, beta) for predict, dw in members]
        p.setdefault(f"ensemble of {config.models}", {})[name] = np.mean(several, 0)
        p.setdefault("Laplace, probit", {})[name] = tj.solver.probabilities(logits, covariance, beta_laplace)
        sampled = tj.solver.probabilities(logits, covariance, beta_laplace, SAMPLES, config.seed)
        p.setdefault("Laplace, sampled", {})[name] = sampled
    table = {name: measures(of["test"], test, of.get("other")) for name, of in p.items()}
    columns = list(next(iter(table.values())))
    rows = [[name, *(f"{row[c]:.3f}" for c in columns)] for name, row in table.items()]
    print(command.markdown(["probabilities", *columns], rows))
    groups = {MEASURES[c]: {name: (row[c], 0.0) for name, row in table.items()} for c in columns}
    path = command.out_folder(config) / "uncertainty.png"
    title = titles.likeliest(method.dataset.name, table)
    plots.dots(path, groups, title)
    accuracy = float(np.mean(p["softmax"]["test"].argmax(-1) == test))
    scales = {"beta": beta, "beta_laplace": beta_laplace, "noise": laplace.scale}
    command.finish(config, {"penalty": penalty, "accuracy": accuracy, "methods": table, **scales})


def ensemble(config: Config, penalty: float, classes: int) -> list[tuple[tj.Predictor, Tree]]:
    """Trains models to their optima, with heads from other seeds; returns (predictor, dw) of each."""
    members = []
    for seed in range(config.models):
        recipe = setup.recipe(config, seed=seed, solver="optimum", penalty=penalty)
        predict = setup.predictor(recipe, classes)
        train = setup.features(config, predict, setup.open_dataset(config.dataset).train, "train inputs")
        train = train.hold_out()[0] if config.held_out else train
        with tj.show_progress(f"member {seed}"):
            members.append(
                (
                    predict,
                    recipe.fit(
                        predict, train, checkpoints=tj.Checkpoints(command.out_folder(config) / "checkpoints")
                    ).dw,
                )
            )
    return members


def measures(p: np.ndarray, labels: np.ndarray, other: np.ndarray | None) -> dict[str, float]:
    """Mean -log p, expected calibration error over 15 bins, Brier score, and AUROC of the entropy on other images."""
    likelihoods = np.maximum(p[np.arange(len(labels)), labels], 1e-300)
    values = {"nll": float(-np.log(likelihoods).mean()), "ece": tj.metrics.calibration_error(p, labels)}
    values["brier"] = float(np.mean(np.sum((p - np.eye(p.shape[1])[labels]) ** 2, 1)))
    return values | (
        {} if other is None else {"auroc": tj.metrics.auc(tj.metrics.entropy(other), tj.metrics.entropy(p))}
    )


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
