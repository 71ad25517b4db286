"""The score of estimates of training examples' influence (Park et al. 2023), and the outputs that it uses."""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from tangent_jax.core.checks import InputError


def margin_directions(targets: np.ndarray, classes: int) -> np.ndarray:
    """u, "n c", with u . f the label's output minus the mean of the others."""
    truth = np.eye(classes)[targets]
    return truth - (1 - truth) / (classes - 1)


def datamodeling_score(predicted: np.ndarray, truth: np.ndarray) -> float:
    """The linear datamodeling score: Spearman's correlation over subsets, "s m", averaged over the m outputs.

    Source: Park et al. 2023.
    """
    varies = (np.ptp(predicted, 0) > 0) & (np.ptp(truth, 0) > 0)
    if not varies.any():
        raise InputError("scores must differ between subsets; got the same for all")
    scores: list[Any] = [spearmanr(predicted[:, z], truth[:, z]) for z in np.flatnonzero(varies)]
    return float(np.nanmean([score.statistic for score in scores]))
