"""Training tangents under differential privacy: clipped sums, noise, accounting."""

from tangent_jax.privacy.accounting import epsilon_of, noise_multiplier_of
from tangent_jax.privacy.clipping import ClippedSum, check_per_example, clipped_sum
from tangent_jax.privacy.norms import clipped_sum_closed_form

__all__ = [
    "ClippedSum",
    "check_per_example",
    "clipped_sum",
    "clipped_sum_closed_form",
    "epsilon_of",
    "noise_multiplier_of",
]
