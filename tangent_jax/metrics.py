"""Metrics of outputs against targets: accuracy, calibration, ranking."""

from tangent_jax.train.evaluate import Measure, accuracy, squared_error
from tangent_jax.train.metrics import auc, calibration_error, entropy

__all__ = [
    "Measure",
    "accuracy",
    "auc",
    "calibration_error",
    "entropy",
    "squared_error",
]
