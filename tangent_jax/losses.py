"""Losses: objects with a value, a root of the Hessian, and, for square losses, the quadratic."""

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
