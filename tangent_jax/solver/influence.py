"""The influence of each training example on predictions: exact, and by the estimates that the field uses.

With M^-1 of kernel.py, B = k(x, X) M^-1 and a_i the example's coefficients, an example's leaving changes f(x) by

    exact          -B_i ([M^-1]_ii)^-1 a_i
    first order    -B_i Lambda W_i^-1 a_i                     the influence function: an infinitesimal part leaves
    leverage       first order / (1 - h_i)                    1 - h_i = mean_c Lambda [W^-1]_ic [M^-1]_(ic,ic)
    projection     -phi(x) (Phi^T Phi)^-1 phi_i q_i           TRAK's form: random projections phi of the gradients

and a set's, by the last three, the sum over it; exactly, KernelSolution.without. Source: Koh and Liang 2017 (first
order); Park et al. 2023 (TRAK, and the linear datamodeling score by which they are compared).
"""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from tangent_jax.core import require, whole_number
from tangent_jax.solver.jacobian import Jacobian, gram
from tangent_jax.solver.kernel import KernelSolution
from tangent_jax.train.targets import as_labels

ESTIMATES = ("exact", "first_order", "leverage")


def changes(solution: KernelSolution, cross: np.ndarray, how: str = "exact") -> np.ndarray:
    """The changes of the outputs of other examples when each training example leaves, "m c n".

    Args:   cross: the kernel of the others with the training examples, "mc nc"; how: one of ESTIMATES.
    """
    require(how in ESTIMATES, "changes", f"how in {', '.join(ESTIMATES)}", how)
    n, c = solution.a.shape
    if how == "exact":
        pull = solution.residuals()
    else:
        noise = solution.total_penalty / solution.kernel.precision
        pull = noise * solution.a
        if how == "leverage":
            own = np.einsum("ncc->nc", solution.own_inverse())
            pull = pull / np.mean(noise * own, 1, keepdims=True)
    b = (cross @ solution.inverse).reshape(-1, c, n, c)
    return -np.einsum("mknc,nc->mkn", b, pull, optimize=True)


def margin_directions(targets: np.ndarray, classes: int) -> np.ndarray:
    """u, "n c", with u . f the output of the label less the mean of the others."""
    truth = np.eye(classes)[targets]
    return truth - (1 - truth) / (classes - 1)


def projected_effects(
    solution: KernelSolution, rows: Jacobian, targets: np.ndarray, size: int, seed: int
) -> np.ndarray:
    """The change of each other example's linear margin as each training example leaves, by random projection, "m n".

    Args:   rows: J of the others; targets: their class indices; size: k, numbers that each gradient is projected to,
            below n.
    """
    kernel = solution.kernel
    n, c = solution.a.shape
    whole_number("projected_effects", "size", size, 1, n - 1)
    as_labels("projected_effects", kernel.targets, c)
    of_train, of_rest = margin_directions(kernel.targets, c), margin_directions(targets, c)
    train, rest = kernel.rows.along(of_train), rows.along(of_rest)
    between = gram(rest, train)
    joint = np.block([[gram(train), between.T], [between, gram(rest)]])
    # J P of a Gaussian P has independent columns of covariance J J^T: drawn from the kernel, no gradient formed
    values, vectors = np.linalg.eigh(joint)
    root = vectors * np.sqrt(np.maximum(values, 0))
    phi = root @ np.random.default_rng(seed).standard_normal((len(joint), size)) * size**-0.5
    error = np.einsum("nc,nc->n", of_train, kernel.centers - solution.outputs())
    return -(phi[n:] @ np.linalg.solve(phi[:n].T @ phi[:n], phi[:n].T)) * error


def datamodeling_score(predicted: np.ndarray, truth: np.ndarray) -> float:
    """The linear datamodeling score: Spearman's correlation over subsets, "s m", averaged over the m outputs."""
    require(predicted.shape == truth.shape, "datamodeling_score", f"shape {truth.shape}", predicted.shape)
    scores: list[Any] = [spearmanr(predicted[:, z], truth[:, z]) for z in range(truth.shape[1])]
    return float(np.nanmean([score.statistic for score in scores]))
