"""The system of a head in its dual form: formed once, then solved for any weights of the parts and any shrinkage.

    A = W^1/2 S W^1/2 + L,   W: the weight w_p of each feature's part;   L: its ridge, lambda + w_p d_p;   S = R^T R

    u^T W^1/2 A^-1 W^1/2 v = u^T D v - (R D u)^T (I + R D R^T)^-1 (R D v),    D = W / L

by the identity of Woodbury. d_p is what rounding may take from S (`Statistics.allowed`). R "r k" is S's Cholesky factor
with pivots, down to d_p: of no more rows than there are images. R D R^T, R D u and u^T D v are sums over the parts,
sum_p (w_p / l_p) (...), of products that no setting changes. So a setting costs one Cholesky factorisation "r r", and
nothing of the size of the features.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float64

SMALL = 1e-13
"""Over the trace of a part's spread: the square of a direction's length that R leaves out, if d_p is smaller."""


class Products(NamedTuple):
    """Of vectors z "n k" with R and with vectors m "c k", for each part: R_p z_p "p r n", z_p m_p "p n c", |z_p|^2."""

    roots: Float64[np.ndarray, "p r n"]
    means: Float64[np.ndarray, "p n c"]
    squares: Float64[np.ndarray, "p n"]


class Dual(NamedTuple):
    """R "r k", the kernels R_p R_p^T of the parts, "p r r", their sizes and d_p, vectors m "c k" and their products."""

    root: Float64[np.ndarray, "r k"]
    kernels: Float64[np.ndarray, "p r r"]
    m: Float64[np.ndarray, "c k"]
    of_m: Products
    sizes: tuple[int, ...]
    allowed: Float64[np.ndarray, "p"]

    def products(self, z: Float64[np.ndarray, "n k"]) -> Products:
        """The products of vectors."""
        return products_of(z, self.root, self.m, self.sizes)

    def at(self, weights: Float64[np.ndarray, "p"], shrinkage: float) -> "Solver":
        """The system at these weights, and lambda: `shrinkage` mean diagonals of W S over the parts of weight above 0.

        S must have the trace 1 in each part, d_p counted.
        """
        penalty = shrinkage * weights.sum() / sum(size for size, w in zip(self.sizes, weights, strict=True) if w > 0)
        over = weights / (penalty + weights * self.allowed)
        kernel = weighted(over, self.kernels)
        kernel[np.diag_indices(len(kernel))] += 1
        factor = scipy.linalg.cholesky(kernel, lower=True, overwrite_a=True, check_finite=False)
        solved = scipy.linalg.cho_solve((factor, True), weighted(over, self.of_m.roots), check_finite=False)
        return Solver(over, factor, solved)


class Solver(NamedTuple):
    """A system: w_p / l_p of the parts, the Cholesky factor of I + R D R^T, and (I + R D R^T)^-1 R D m."""

    over: Float64[np.ndarray, "p"]
    factor: Float64[np.ndarray, "r r"]
    solved: Float64[np.ndarray, "r c"]

    def with_means(self, of: Products) -> Float64[np.ndarray, "n c"]:
        """z^T W^1/2 A^-1 W^1/2 m of vectors z and m."""
        return weighted(self.over, of.means) - weighted(self.over, of.roots).T @ self.solved

    def squares(self, of: Products) -> Float64[np.ndarray, "n"]:
        """z^T W^1/2 A^-1 W^1/2 z of vectors z."""
        right = weighted(self.over, of.roots)
        inner = scipy.linalg.solve_triangular(self.factor, right, lower=True, check_finite=False)
        return weighted(self.over, of.squares) - np.square(inner).sum(0)


def weighted(weights: Float64[np.ndarray, "p"], of_parts: Float64[np.ndarray, "p *x"]) -> Float64[np.ndarray, "*x"]:
    """The sum over the parts, those of weight 0 left out."""
    total = np.zeros(of_parts.shape[1:])
    for weight, own in zip(weights, of_parts, strict=True):
        if weight:
            total += weight * own
    return total


def make_dual(
    spread: Float64[np.ndarray, "k k"],
    sizes: tuple[int, ...],
    m: Float64[np.ndarray, "c k"],
    allowed: Float64[np.ndarray, "p"],
) -> Dual | None:
    """The dual form of a spread S of trace 1 in each part; None if R of all rows leaves a trace beyond rounding."""
    (factorize,) = scipy.linalg.get_lapack_funcs(("pstrf",), (spread,))
    small = max(SMALL, 2 * float(allowed.max()))
    upper, order, rank, _ = factorize(spread.T, tol=small, lower=0)
    root = np.zeros((rank, len(spread)))
    root[:, order - 1] = np.triu(upper[:rank])
    if not abs(np.square(root).sum() - np.trace(spread)) <= 2 * small * len(spread):
        return None
    parts = [root[:, start:end] for start, end in pairwise(np.cumsum([0, *sizes]))]
    return Dual(root, np.stack([part @ part.T for part in parts]), m, products_of(m, root, m, sizes), sizes, allowed)


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
