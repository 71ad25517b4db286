"""The result and the picture of a run that its own canaries audit."""

from pathlib import Path
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.shared import plots, titles


def summary(audit: tj.audit.Audit, claimed: tj.privacy.Mechanism, confidence: float) -> dict[str, Any]:
    """The bounds as JSON has them; `kept`: True if neither exceeds the claimed epsilon."""
    bound = tj.audit.one_run_bound(audit.scores, audit.coins, claimed, confidence)
    count = len(audit.coins)
    proved = max(bound.epsilon, bound.gaussian_epsilon or 0.0)
    return {
        "canaries": count,
        "canaries_in": int(audit.coins.sum()),
        "epsilon_lower": bound.epsilon,
        "gaussian_epsilon_lower": bound.gaussian_epsilon,
        "confidence": confidence,
        "guesses": bound.guesses,
        "right": bound.right,
        "kept": proved <= claimed.compute_epsilon(),
    }


def draw(path: Path, audit: tj.audit.Audit, claimed: tj.privacy.Mechanism, bounds: dict[str, Any]) -> None:
    """Plots mean and standard deviation of the scores of canaries in and out, beside those of the claimed mechanism."""
    mu = claimed.steps**0.5 / float(claimed.noise_multiplier)
    groups = {}
    for side, is_in, at in (("in the run", True, mu / 2), ("left out", False, -mu / 2)):
        scores = audit.scores[audit.coins == is_in]
        rows = {"measured": (float(scores.mean()), float(scores.std()))}
        if claimed.sampling_rate == 1:
            rows["as claimed"] = (at, 1.0)
        groups[f"canaries {side}"] = rows
    proofs = bounds["epsilon_lower"], bounds["gaussian_epsilon_lower"]
    title = titles.proved(f"One run with {bounds['canaries']} canaries", *proofs, claimed.compute_epsilon())
    plots.dots(path, groups, title, "score: mean and standard deviation")
