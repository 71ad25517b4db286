"""Losses: objects that say how they are computed, and what a solver asks of them."""

from tangent_jax.train.losses import LOSSES, CrossEntropy, Loss, MeanSquared, RescaledSquare, SquareLoss
from tangent_jax.train.objective import Keyed

__all__ = [
    "LOSSES",
    "CrossEntropy",
    "Keyed",
    "Loss",
    "MeanSquared",
    "RescaledSquare",
    "SquareLoss",
]
