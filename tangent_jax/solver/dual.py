"""The system of a head in its dual form: formed once, then solved for any weights of the parts and any shrinkage.

    A = D^1/2 S D^1/2 + lambda I,   D: the weight of each feature's part;   S = R^T R: the spread, R "r k", r its rank

    D^1/2 A^-1 D^1/2 = (D - D R^T (K + lambda I)^-1 R D) / lambda,    K = R D R^T = sum_p w_p R_p R_p^T       "r r"

by the identity of Woodbury. R is the Cholesky factor with pivots, of at most as many rows as there are images; K of any
weights is a sum of the parts' own, so that a further setting costs one Cholesky factorisation "r r".
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float64

SMALL = 1e-10
"""Over the trace of a part's spread: the square of a direction's length that R leaves out."""


class Dual(NamedTuple):
    """R "r k", and of each part of the features its kernel R_p R_p^T "r r" and its size."""

    root: Float64[np.ndarray, "r k"]
    kernels: list[Float64[np.ndarray, "r r"]]
    sizes: tuple[int, ...]

    def at(self, weights: np.ndarray, shrinkage: float) -> "Solver":
        """The system at weights "p" of the parts, and lambda: `shrinkage` mean diagonals of D S, over weights above 0.

        S must have the trace 1 in each part.
        """
        penalty = shrinkage * weights.sum() / sum(size for size, w in zip(self.sizes, weights, strict=True) if w > 0)
        kernel = np.zeros((len(self.root), len(self.root)))
        for weight, own in zip(weights, self.kernels, strict=True):
            kernel += weight * own
        kernel[np.diag_indices(len(kernel))] += penalty
        factor = scipy.linalg.cholesky(kernel, lower=True, overwrite_a=True, check_finite=False)
        return Solver(self.root, factor, np.repeat(weights, self.sizes), penalty)


class Solver(NamedTuple):
    """A system: R, the Cholesky factor of K + lambda I, the weight of each feature "k", and lambda."""

    root: Float64[np.ndarray, "r k"]
    factor: Float64[np.ndarray, "r r"]
    weights: Float64[np.ndarray, "k"]
    penalty: float

    def solve(self, v: Float64[np.ndarray, "k c"]) -> Float64[np.ndarray, "k c"]:
        """D^1/2 A^-1 D^1/2 v."""
        weighted = self.weights[:, None] * v
        inner = scipy.linalg.cho_solve((self.factor, True), self.root @ weighted, check_finite=False)
        return (weighted - self.weights[:, None] * (self.root.T @ inner)) / self.penalty

    def squares(self, z: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n"]:
        """z^T D^1/2 A^-1 D^1/2 z of each row."""
        right = self.root @ (self.weights[:, None] * z.T)
        inner = scipy.linalg.solve_triangular(self.factor, right, lower=True, check_finite=False)
        return (np.square(z) @ self.weights - np.square(inner).sum(0)) / self.penalty


def make_dual(spread: Float64[np.ndarray, "k k"], sizes: tuple[int, ...]) -> Dual | None:
    """The dual form of a spread of trace 1 in each part; None if it is not positive semi-definite, to rounding."""
    (factorize,) = scipy.linalg.get_lapack_funcs(("pstrf",), (spread,))
    upper, order, rank, _ = factorize(spread.T, tol=SMALL, lower=0)
    root = np.zeros((rank, len(spread)))
    root[:, order - 1] = np.triu(upper[:rank])
    if not abs(np.square(root).sum() - np.trace(spread)) <= 2 * SMALL * len(spread):
        return None
    parts = [root[:, start:end] for start, end in pairwise(np.cumsum([0, *sizes]))]
    return Dual(root, [part @ part.T for part in parts], sizes)
