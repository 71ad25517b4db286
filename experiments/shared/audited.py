"""The result and the picture of a run that was audited by its own canaries."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde, norm

import tangent_jax as tj
from experiments.shared import plots


def summary(audited: tj.Audited, claimed: tj.Mechanism, confidence: float) -> dict[str, Any]:
    """The bounds as JSON has them; `kept`: True where neither exceeds the claimed epsilon."""
    bound, count = tj.one_run_bound(audited.scores, audited.coins, claimed, confidence), len(audited.coins)
    proved = max(bound.epsilon, bound.gaussian_epsilon or 0.0)
    return {
        "canaries": count,
        "canaries_in": int(audited.coins.sum()),
        "epsilon_lower": bound.epsilon,
        "gaussian_epsilon_lower": bound.gaussian_epsilon,
        "confidence": confidence,
        "guesses": bound.guesses,
        "right": bound.right,
        "kept": proved <= claimed.compute_epsilon(),
    }


def draw(path: Path, audited: tj.Audited, claimed: tj.Mechanism, title: str) -> None:
    """Plots the densities of the scores of canaries in and out, beside those of the claimed mechanism."""
    mu, scores = claimed.steps**0.5 / float(claimed.noise_multiplier), audited.scores
    sides = {"out": scores[~audited.coins], "in": scores[audited.coins]}
    x = np.linspace(min(scores.min(), -4.0), max(scores.max(), 4.0), 401)
    lines = {f"canaries {side}": gaussian_kde(values)(x) for side, values in sides.items()}
    if claimed.sampling_rate == 1:
        lines |= {f"{side}, as claimed": norm.pdf(x, at, 1) for side, at in (("out", -mu / 2), ("in", mu / 2))}
    plots.curves(path, [{"x": x, "lines": lines, "xlabel": "score", "ylabel": "density"}], title)
