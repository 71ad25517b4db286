"""The values of a private step that may be logged: those computed from private values and the mechanism alone.

Not logged: losses, norms before clipping, and the size of a Poisson sample (and so its time); with owners as the unit,
the number of examples.
"""

from typing import Any

from tangent_jax.privacy.mechanism import Spent
from tangent_jax.train.run import StepLog

PARTS = 20  # Poisson steps between two computations of epsilon, which take half a second each


def log_private_step(log: StepLog, spent: Spent, gradient_norm: float, examples: int) -> None:
    """Logs the last step of `spent`; gradient_norm: of the noisy gradient."""
    mechanism = spent.mechanism
    row: dict[str, Any] = {"step": spent.steps_paid, "gradient_norm": gradient_norm}
    row["noise_multiplier"] = float(mechanism.noise_multiplier)
    is_full = mechanism.sampling_rate == 1
    if is_full or spent.steps_paid % max(1, mechanism.steps // PARTS) == 0:
        row["epsilon"] = spent.compute_epsilon()
    log.add([row], examples if is_full and mechanism.unit == "example" else None)
