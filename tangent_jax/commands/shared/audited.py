"""The result of a run that its own canaries audit."""

from typing import Any

import tangent_jax as tj


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
