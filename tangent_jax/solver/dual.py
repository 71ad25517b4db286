"""The system of a head in its dual form: formed once, then solved for any weights of the parts and any shrinkage.

    A = D^1/2 S D^1/2 + lambda I,   D: the weight of each feature's part;   S = R^T R: the spread, R "r k", r its rank

    u^T D^1/2 A^-1 D^1/2 v = (u^T D v - (R D u)^T (K + lambda I)^-1 (R D v)) / lambda,    K = R D R^T          "r r"

by the identity of Woodbury. R is the Cholesky factor with pivots, of at most as many rows as there are images. K, R D u
and u^T D v are sums over the parts, sum_p w_p (...), of products that the weights do not change. So a further setting
costs one Cholesky factorisation "r r", and nothing of the size of the features.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float64

SMALL = 1e-10
"""Over the trace of a part's spread: the square of a direction's length that R leaves out."""


class Products(NamedTuple):
    """Of vectors z "n k" with R and with vectors m "c k", for each part: R_p z_p "p r n", z_p m_p "p n c", |z_p|^2."""

    roots: Float64[np.ndarray, "p r n"]
    means: Float64[np.ndarray, "p n c"]
    squares: Float64[np.ndarray, "p n"]


class Dual(NamedTuple):
    """R "r k", the kernels R_p R_p^T of the parts, "p r r", their sizes, and vectors m "c k" with their products."""

    root: Float64[np.ndarray, "r k"]
    kernels: Float64[np.ndarray, "p r r"]
    m: Float64[np.ndarray, "c k"]
    of_m: Products
    sizes: tuple[int, ...]

    def products(self, z: Float64[np.ndarray, "n k"]) -> Products:
        """The products of vectors."""
        return products_of(z, self.root, self.m, self.sizes)

    def at(self, weights: Float64[np.ndarray, "p"], shrinkage: float) -> "Solver":
        """The system at these weights, and lambda: `shrinkage` mean diagonals of D S over the parts of weight above 0.

        S must have the trace 1 in each part.
        """
        penalty = shrinkage * weights.sum() / sum(size for size, w in zip(self.sizes, weights, strict=True) if w > 0)
        kernel = weighted(weights, self.kernels)
        kernel[np.diag_indices(len(kernel))] += penalty
        factor = scipy.linalg.cholesky(kernel, lower=True, overwrite_a=True, check_finite=False)
        solved = scipy.linalg.cho_solve((factor, True), weighted(weights, self.of_m.roots), check_finite=False)
        return Solver(weights, penalty, factor, solved)


class Solver(NamedTuple):
    """A system: the weights of the parts, lambda, the Cholesky factor of K + lambda I, and (K + lambda I)^-1 R D m."""

    weights: Float64[np.ndarray, "p"]
    penalty: float
    factor: Float64[np.ndarray, "r r"]
    solved: Float64[np.ndarray, "r c"]

    def with_means(self, of: Products) -> Float64[np.ndarray, "n c"]:
        """z^T D^1/2 A^-1 D^1/2 m of vectors z and m."""
        products = weighted(self.weights, of.means) - weighted(self.weights, of.roots).T @ self.solved
        return products / self.penalty

    def squares(self, of: Products) -> Float64[np.ndarray, "n"]:
        """z^T D^1/2 A^-1 D^1/2 z of vectors z."""
        right = weighted(self.weights, of.roots)
        inner = scipy.linalg.solve_triangular(self.factor, right, lower=True, check_finite=False)
        return (weighted(self.weights, of.squares) - np.square(inner).sum(0)) / self.penalty


def weighted(weights: Float64[np.ndarray, "p"], of_parts: Float64[np.ndarray, "p *x"]) -> Float64[np.ndarray, "*x"]:
    """The sum over the parts, those of weight 0 left out."""
    total = np.zeros(of_parts.shape[1:])
    for weight, own in zip(weights, of_parts, strict=True):
        if weight:
            total += weight * own
    return total


def make_dual(spread: Float64[np.ndarray, "k k"], sizes: tuple[int, ...], m: Float64[np.ndarray, "c k"]) -> Dual | None:
    """The dual form of a spread of trace 1 in each part; None if it is not positive semi-definite, to rounding."""
    (factorize,) = scipy.linalg.get_lapack_funcs(("pstrf",), (spread,))
    upper, order, rank, _ = factorize(spread.T, tol=SMALL, lower=0)
    root = np.zeros((rank, len(spread)))
    root[:, order - 1] = np.triu(upper[:rank])
    if not abs(np.square(root).sum() - np.trace(spread)) <= 2 * SMALL * len(spread):
        return None
    parts = [root[:, start:end] for start, end in pairwise(np.cumsum([0, *sizes]))]
    return Dual(root, np.stack([part @ part.T for part in parts]), m, products_of(m, root, m, sizes), sizes)


def products_of(
    z: Float64[np.ndarray, "n k"],
    root: Float64[np.ndarray, "r k"],
    m: Float64[np.ndarray, "c k"],
    sizes: tuple[int, ...],
) -> Products:
    """The products of vectors z with R and m, for parts of these sizes."""
    roots, means, squares = [], [], []
    for start, end in pairwise(np.cumsum([0, *sizes])):
        own = z[:, start:end]
        roots.append(root[:, start:end] @ own.T)
        means.append(own @ m[:, start:end].T)
        squares.append(np.square(own).sum(1))
    return Products(np.stack(roots), np.stack(means), np.stack(squares))
