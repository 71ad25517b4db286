"""The leaves of statistics, as a store keeps and adds them: packed, and checked where they come in.

    {"gram": G, or "root": R,   "sums": B "c k",   "counts": n_c "c"}        their triangles row by row

Few images, n < k / 2, have the smaller factor R of their rows Z "n k" instead of G:

    R^T R = G,   Z = Q R,   R "n k" upper trapezoidal, its diagonal >= 0

R is a function of G up to rounding, so it tells what G tells and no more (`root_of`). It is expanded to G before
anything is added, so a sum has G. Each part of a row has length 1, so leaves that come in are those of images only if

    n_c is a whole number >= 0,   B_c = 0 where n_c = 0,   |B_c| <= n_c and trace(G) = n in each part

to rounding, which costs little and is checked at every read; and if S is positive semi-definite
(`statistics.check_spread`).
"""

from itertools import pairwise

import numpy as np
from jaxtyping import Float64

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, of_shape
from tangent_jax.core.notation import Tree
from tangent_jax.models.feature_settings import SUMS

LENGTHS = 1e-5
"""The relative error of the squared length of a part of a row: in f32, whatever the compute dtype.

The largest measured is 2.2e-7, of one image in bf16.
"""
MADE = "Add what make_statistics gave"
MOST = float(1 << 53)  # above it, f64 skips whole numbers


def root_of(z: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n k"]:
    """The factor R of rows Z "n k", n < k: upper trapezoidal, its diagonal >= 0, R^T R = Z^T Z = G.

        Z M = Q T,   Y = Q^T Z = T^-T M^T G,   R = that of Y        M "k n": random, the same for all Z

    Guarantees:
        A function of G up to rounding, by Y. The R of Z itself is none where features are 0 in all images, and may hold
        the row of an image: Householder's reflections leave a column of zeros alone.
    """
    n, k = z.shape
    q, t = np.linalg.qr(z @ np.random.default_rng(0).standard_normal((k, n)))
    _, root = np.linalg.qr((q * signs(t)).T @ z)
    return signs(root)[:, None] * root


def signs(root: np.ndarray) -> np.ndarray:
    """The factors +-1 of the rows "n" by which the diagonal of "n k" is >= 0."""
    return np.where(np.diag(root) < 0, -1.0, 1.0)


def as_tree(factor: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> Tree:
    """The leaves of statistics of a factor, G "k k" or R "n k": its numbers on and above the diagonal, row by row."""
    n, k = factor.shape
    leaf = np.concatenate([row[i:] for i, row in enumerate(factor)])
    return {"counts": counts, "gram" if n == k else "root": leaf, "sums": sums}


def factor_of(tree: Tree) -> np.ndarray:
    """The factor of leaves: G "k k", or R "n k"."""
    k = tree["sums"].shape[1]
    leaf = tree["root"] if "root" in tree else tree["gram"]
    n = height(leaf, k) if "root" in tree else k
    factor, end = np.zeros((n, k)), 0
    for i in range(n):
        start, end = end, end + k - i
        factor[i, i:] = leaf[start:end]
        if n == k:
            factor[i:, i] = leaf[start:end]
    return factor


def with_gram(tree: Tree) -> Tree:
    """The leaves with G, which add."""
    if "gram" in tree:
        return tree
    root = factor_of(tree)
    return as_tree(root.T @ root, tree["sums"], tree["counts"])


def height(root: np.ndarray, k: int) -> int:
    """The number of rows n < k of a packed R; InputError for a leaf that is none."""
    sizes = np.cumsum([0, *range(k, 1, -1)])  # n k - n (n - 1) / 2, for each n < k
    n = int(np.searchsorted(sizes, root.size))
    if root.ndim != 1 or root.size not in sizes[n : n + 1]:
        raise InputError(
            f"root must hold n k - n (n - 1) / 2 numbers, of n < k rows of k = {k} features; got shape {root.shape}."
            f" {MADE}."
        )
    return n


def check_leaves(tree: Tree, count: int) -> int:
    """The number of features k of the leaves of statistics of `count` classes.

    Raises:
        InputError: Other leaves, dtypes or shapes, a number that is not finite, and a count that is no whole number >=
            0.
    """
    leaves = trees.leaves(tree)
    is_root = "root" in leaves
    if sorted(leaves) != (["counts", "root", "sums"] if is_root else [*SUMS]):
        got = ", ".join(sorted(leaves)[:4])
        raise InputError(f"the leaves must be {', '.join(SUMS)}, or root instead of gram; got {got}. {MADE}.")
    k = (*leaves["sums"].shape, 0, 0)[1]
    n = height(leaves["root"], k) if is_root else k
    shapes = {"counts": (count,), "root" if is_root else "gram": (n * k - n * (n - 1) // 2,), "sums": (count, k)}
    for path, leaf in leaves.items():
        if leaf.dtype != np.float64:
            raise InputError(f"{path} must be float64; got {leaf.dtype}. {MADE}.")
        of_shape(path, leaf, shapes[path], MADE)
        if not np.isfinite(leaf).all():
            raise InputError(f"{path} must be finite; got NaN or infinity. {MADE}.")
    counts = leaves["counts"]
    wrong = counts[(counts < 0) | (counts > MOST) | (counts != np.rint(counts))]
    if len(wrong):
        raise InputError(f"counts must be whole numbers >= 0; got {wrong[0]:g}. {MADE}.")
    return k


def check_lengths(tree: Tree, sizes: tuple[int, ...]) -> None:
    """Raises InputError for leaves that no images give whose parts of features, of these sizes, have length 1.

        trace(G) = n in each part,   B_c = 0 where n_c = 0,   |B_c| <= n_c in each part,   R has n rows at most

    Args:
        tree: That `check_leaves` let pass.
    """
    counts, sums, n, k = tree["counts"], tree["sums"], tree["counts"].sum(), sum(sizes)
    if n <= 0:
        raise InputError(f"statistics must be of one image at least; got none. {MADE}.")
    own, longest = "root" if "root" in tree else "gram", counts * (1 + LENGTHS)
    for name, leaf, most in ((own, tree[own], n * (1 + LENGTHS)), ("sums", sums.T, longest)):
        largest = np.abs(leaf)
        if not (largest <= most).all():
            raise InputError(f"{name} must hold numbers no larger than the counts; got {largest.max():.3g}. {MADE}.")
    if own == "root":
        root = factor_of(tree)
        diagonal = np.square(root).sum(0)
        if len(root) > n:
            raise InputError(f"root must have a row for each of {n:g} images at most; got {len(root)} rows. {MADE}.")
    else:
        diagonal = tree["gram"][np.cumsum([0, *range(k, 1, -1)])]
    for number, (start, end) in enumerate(pairwise(np.cumsum([0, *sizes])), 1):
        trace = float(diagonal[start:end].sum())
        part = f"part {number} of the features"
        if not abs(trace - n) <= LENGTHS * n:
            raise InputError(f"G must have a trace of {n:g}, the number of images, in {part}; got {trace:.6g}. {MADE}.")
        if not (np.linalg.norm(sums[:, start:end], axis=1) <= longest).all():
            raise InputError(f"sums of each class must be no longer than its count in {part}; got longer ones. {MADE}.")
