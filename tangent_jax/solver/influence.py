"""The influence of each training example on predictions, exactly, and the score of what predicts it.

With M^-1 of kernel.py, B = k(x, X) M^-1 and a_i the example's coefficients, an example's leaving changes f(x) by

    -B_i ([M^-1]_ii)^-1 a_i

and a set's by KernelSolution.without. The estimates that the field uses are in expansion.py.
"""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from tangent_jax.core import require
from tangent_jax.solver.kernel import KernelSolution


def changes(solution: KernelSolution, cross: np.ndarray) -> np.ndarray:
    """The changes of the outputs of other examples when each training example leaves, "m c n".

    Args:   cross: the kernel of the others with the training examples, "mc nc".
    """
    n, c = solution.a.shape
    b = (cross @ solution.inverse).reshape(-1, c, n, c)
    return -np.einsum("mknc,nc->mkn", b, solution.residuals(), optimize=True)


def margin_directions(targets: np.ndarray, classes: int) -> np.ndarray:
    """u, "n c", with u . f the output of the label less the mean of the others."""
    truth = np.eye(classes)[targets]
    return truth - (1 - truth) / (classes - 1)


def datamodeling_score(predicted: np.ndarray, truth: np.ndarray) -> float:
    """The linear datamodeling score: Spearman's correlation over subsets, "s m", averaged over the m outputs.

    Source: Park et al. 2023.
    """
    predicted, truth = np.asarray(predicted), np.asarray(truth)
    good = (
        truth.ndim == 2 and len(truth) > 1 and truth.shape[1] and {truth.dtype.kind, predicted.dtype.kind} <= {*"biuf"}
    )
    require(good, "datamodeling_score", 'numbers "s m", of two subsets or more', f"{truth.dtype} of {truth.shape}")
    require(predicted.shape == truth.shape, "datamodeling_score", f"shape {truth.shape}", predicted.shape)
    varies = (np.ptp(predicted, 0) > 0) & (np.ptp(truth, 0) > 0)
    require(varies.any(), "datamodeling_score", "scores that differ between subsets", "the same for all")
    scores: list[Any] = [spearmanr(predicted[:, z], truth[:, z]) for z in np.flatnonzero(varies)]
    return float(np.nanmean([score.statistic for score in scores]))
