"""DP-SGD of tangent weights: mechanism, clipped sums, noise, accounting, and a trainer with a ledger."""

from tangent_jax.privacy.accounting import epsilon_of
from tangent_jax.privacy.clipping import ClippedSum, clipped_sum
from tangent_jax.privacy.mechanism import NEIGHBOURING, Mechanism, PrivacyCost, Spent, spent_together
from tangent_jax.privacy.noise import noisy_mean, secret_key
from tangent_jax.privacy.norms import clipped_gradients, clipped_sum_closed_form
from tangent_jax.privacy.public import check_public, unwhiten, whiten
from tangent_jax.privacy.statistics import Contribution, contributions, denoise, on_sphere, release_statistics
from tangent_jax.privacy.transformation import privatizer
from tangent_jax.train.optimizers import momentum

__all__ = [
    "NEIGHBOURING",
    "ClippedSum",
    "Contribution",
    "Mechanism",
    "PrivacyCost",
    "Spent",
    "check_public",
    "clipped_gradients",
    "clipped_sum",
    "clipped_sum_closed_form",
    "contributions",
    "denoise",
    "epsilon_of",
    "momentum",
    "noisy_mean",
    "on_sphere",
    "privatizer",
    "release_statistics",
    "secret_key",
    "spent_together",
    "unwhiten",
    "whiten",
]
