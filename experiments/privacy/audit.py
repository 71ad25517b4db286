"""Audits private training: the epsilon that an attacker who sees every step can prove, against the claimed one.

It trains many times with and without one mislabelled image (the canary) among a few others, by `fit_private` itself;
the attacker knows all images and every step. The proved epsilon must be below the claimed one, and is close to it for a
Gaussian mechanism. --broken trains with another mechanism than the claimed one. Exit code 1 if the proof exceeds the
claim.

With --canaries=M each of --repeats trainings uses all images and is audited alone, as by `private --canaries=M`:
epsilon_lower and gaussian_epsilon_lower are lists, and "caught" counts the runs with a bound above the claim. A correct
run is caught with a probability of at most 1 - confidence. The runs are in --out; the same command resumes.

The last line of stdout: {"epsilon": claimed, "delta", "epsilon_lower": proved, "gaussian_epsilon_lower": proved were
the mechanism Gaussian, "noise_scale": the interval of the noise over the claimed one, "confidence", "repeats",
"false_positives", "false_negatives", "kept": whether the claim stands}.
"""

import dataclasses
import sys

import numpy as np

import tangent_jax as tj
from experiments.shared import drawn, plots, titles
from experiments.shared.breaks import break_mechanism
from experiments.shared.table import TABLE
from tangent_jax.commands.shared import audited as audits
from tangent_jax.commands.shared import codes, command, setup
from tangent_jax.commands.shared.settings import Compute, Model, Reading, Results, choice
from tangent_jax.core.checks import InputError
from tangent_jax.store.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Model, Reading, Compute, Results):
    """The flags."""

    broken: str = choice("nothing", "no_noise", "half_noise", "no_clipping", "noise_over_batch")
    canaries: int | None = None
    clip_norm: float = 1.0
    confidence: float = 0.95
    dataset: str = Recipe.dataset
    delta: float = 1e-5
    epsilon: float = 3.0
    images: int = 8
    loss: str = "ce"
    method: str = choice("taft", "nlft")
    out: str = "out/audit"
    output: str = "tangent"
    penalty: float = 0.0
    repeats: int = 1000
    seed: int = Recipe.seed
    steps: int = 5
    subset: str = choice("blocks", "bitfit", "layernorm", "head")


RARE = 0.9999  # the confidence at which too little noise fails the audit


def main(config: Config) -> None:
    claimed = tj.make_mechanism(config.epsilon, config.delta, config.steps, config.clip_norm)
    recipe = setup.recipe(config)
    dataset = setup.open_dataset(config.dataset)
    classes = len(dataset.classes)
    predict = setup.predictor(recipe, classes)
    train = setup.features(config, predict, dataset.train, "train inputs")
    if config.canaries is not None:
        return audit_runs(config, claimed, predict, train, recipe.objective)
    if config.repeats < 4:
        raise InputError(f"--repeats must be 4 at least without --canaries; got {config.repeats}")
    broken = break_mechanism(claimed, config.broken, config.images)
    settings = {"objective": recipe.objective}
    data = with_canary(config, train, classes)
    with tj.show_progress(f"{config.method} {config.subset}, broken: {config.broken}"):
        scores = tj.audit.canary_scores(
            predict, predict.zeros(), data, broken, config.repeats, **settings, claimed=claimed
        )
    absent, present = scores
    bound = tj.audit.epsilon_lower_bound(absent, present, config.delta, config.confidence)
    proved = max(bound.epsilon, bound.gaussian_epsilon)
    scale = tj.audit.noise_scale(absent, config.confidence)
    draw(config, absent, present, claimed, (bound.epsilon, bound.gaussian_epsilon))
    result = {
        **{name: getattr(config, name) for name in ("epsilon", "delta", "confidence", "repeats", "broken")},
        "epsilon_lower": bound.epsilon,
        "gaussian_epsilon_lower": bound.gaussian_epsilon,
        "false_positives": bound.false_positives,
        "false_negatives": bound.false_negatives,
        "noise_scale": scale,
        "kept": proved <= config.epsilon and tj.audit.noise_scale(absent, RARE)[1] >= 1,
    }
    command.finish(config, result)
    if not result["kept"]:
        got = f"a proof of {proved:.3f}, and at most {scale[1]:.3f} of the noise"
        print(
            f"audit: the claim is epsilon {config.epsilon:g} at most, and the claimed noise; the attacker has {got}",
            file=sys.stderr,
        )
        sys.exit(codes.FAILED)


def with_canary(config: Config, train: tj.Features, classes: int) -> tj.Batches:
    """--images training images, the last with a wrong label."""
    most = len(train)
    if not 2 <= config.images <= most:
        raise InputError(f"--images must be in 2..{most}, with the canary as the last; got {config.images}")
    rows = np.linspace(0, most - 1, config.images).astype(int)
    labels = train.targets[rows].copy()
    labels[-1] = (labels[-1] + classes // 2) % classes
    return tj.Batches(train.inputs[rows], labels)


def audit_runs(
    config: Config, claimed: tj.privacy.Mechanism, predict: tj.Predictor, train: tj.Features, objective: tj.Objective
) -> None:
    """Audits --repeats runs, each by its own canaries."""
    assert config.canaries is not None
    canaries = tj.audit.make_canaries(train, predict.model.classes, config.canaries)
    runs = []
    trained = break_mechanism(claimed, config.broken, len(train))
    out = command.out_folder(config)
    for i in range(config.repeats):
        folder = out / "runs" / f"{config.broken}-{i}"
        with tj.show_progress(f"run {i + 1} of {config.repeats}, broken: {config.broken}"):
            audit = tj.audit.fit_audited(
                predict, train, canaries, objective, mechanism=trained, claimed=claimed, folder=folder
            ).info.audit
        assert audit is not None
        runs.append(audits.summary(audit, claimed, config.confidence))
        drawn.audited(folder / "audit.png", audit, claimed, runs[-1])
    names = ("epsilon_lower", "gaussian_epsilon_lower")
    proved = {name: [run[name] for run in runs] for name in names}
    caught = {name: sum(bound > config.epsilon for bound in proved[name]) for name in names}
    given = {
        name: getattr(config, name) for name in ("epsilon", "delta", "confidence", "repeats", "canaries", "broken")
    }
    command.finish(config, {**given, **proved, "caught": caught, "kept": not any(caught.values())})
    if any(caught.values()):
        print(
            f"audit: the claim is epsilon {config.epsilon:g} at most; more is proved in {caught} runs", file=sys.stderr
        )
        sys.exit(codes.FAILED)


def draw(
    config: Config, absent: np.ndarray, present: np.ndarray, claimed: tj.privacy.Mechanism, proofs: tuple[float, float]
) -> None:
    """Plots the attack's ROC, up to a false-positive rate of a half, beside the largest that the claim allows."""
    from scipy.stats import norm

    rates = np.linspace(0.0, 0.5, 101)
    power = [float(np.mean(present > np.quantile(absent, 1 - rate))) for rate in rates]
    most = norm.sf(norm.isf(rates) - claimed.steps**0.5 / claimed.noise_multiplier)
    panel = {"x": rates, "lines": {"attack": power, "claimed at most": most, "chance": rates}, "dashed": ["chance"]}
    panel |= {"xlabel": "false positives", "ylabel": "true positives"}
    title = titles.proved("An attacker who sees every step", *proofs, config.epsilon)
    plots.curves(command.out_folder(config) / "audit.png", [panel], title)


if __name__ == "__main__":
    command.run(main, Config, table=TABLE)
