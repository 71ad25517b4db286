"""Training tangents under differential privacy: clipped sums, noise, accounting, a trainer that keeps a ledger."""

from tangent_jax.privacy.accounting import NEIGHBOURING, Spent, epsilon_of, noise_multiplier_of, spent_together
from tangent_jax.privacy.clipping import ClippedSum, check_per_example, clipped_sum
from tangent_jax.privacy.ledger import Ledger
from tangent_jax.privacy.noise import noise_key, noisy_mean, standard_normal
from tangent_jax.privacy.norms import clipped_sum_closed_form
from tangent_jax.privacy.train import PrivatelyFitted, PrivateSettings, fit_private

__all__ = [
    "NEIGHBOURING",
    "ClippedSum",
    "Ledger",
    "PrivateSettings",
    "PrivatelyFitted",
    "Spent",
    "check_per_example",
    "clipped_sum",
    "clipped_sum_closed_form",
    "epsilon_of",
    "fit_private",
    "noise_key",
    "noise_multiplier_of",
    "noisy_mean",
    "spent_together",
    "standard_normal",
]
