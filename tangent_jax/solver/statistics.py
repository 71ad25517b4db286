"""Sufficient statistics of features: they add, so any shards and classes compose exactly to joint training.

    G = sum z z^T,   B_c = sum over class c of z,   n_c        z: an example's features (models/ntk.py)

    ridge: argmin_W sum |W z + b - y|^2 + lambda |W|^2
    LDA:   argmax_c of Gaussians that share one covariance, (G - sum_c B_c B_c^T / n_c) / n + lambda I, and one prior

Both need only G, B and n (Hastie, Tibshirani and Friedman 2009, sections 3.4 and 4.3), and a Cholesky factorisation in
f64. A removal re-sums the remaining statistics. G and B are second and first moments of features and are not secret:
statistics of a few images reveal these images.

A store keeps them as a tree of three leaves (leaves.py) and adds these trees (composition/kinds.py). Leaves that come
in are those of images only if

    S = G - sum_c B_c B_c^T / n_c is positive semi-definite, and G with it

to rounding. `check_spread`, a Cholesky factorisation, looks once where a contribution comes in. S of a sum is at least
the sum of the S, so a sum of what passed can be solved: `Statistics.system` adds to S what `check_spread` allows.
"""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float64, Integer

from tangent_jax.core.checks import InputError, finite_number, of_shape, one_of
from tangent_jax.core.names import check_classes
from tangent_jax.core.notation import Tree
from tangent_jax.solver.leaves import MADE, as_tree, factor_of, root_of

WAYS = ("lda", "ridge")
NEVER = -1e30  # the score of a class without examples
ROUNDING = 1e-12
"""Over trace(G) of a part: the size of a negative eigenvalue of S that rounding gives.

The largest measured is 1.1e-14, of one image 100,000 times.
"""
NOT_OF_IMAGES = f"G - sum_c B_c B_c^T / n_c must be positive semi-definite to rounding; got sums of no images. {MADE}."


class System(NamedTuple):
    """The linear system of a head: (scaled spread + ridge I) kernel = right; spread within classes, or around the mean.

    Attributes:
        factor: The factor of its matrix over the features of weight above 0, by Cholesky, lower.
        scale: The scale of each feature, "k".
        sums: What is solved for.
    """

    factor: Float64[np.ndarray, "j j"]
    scale: Float64[np.ndarray, "k"]
    sums: "Sums"


class Sums(NamedTuple):
    """The classes with examples: their places, the mean "k" of all examples, their counts "c", and their means less it.

    Attributes:
        present: The places "c".
        apart: "c k".
    """

    present: Integer[np.ndarray, "c"]
    mean: Float64[np.ndarray, "k"]
    counts: Float64[np.ndarray, "c"]
    apart: Float64[np.ndarray, "c k"]


class Settings(NamedTuple):
    """The way to solve for a head: one of WAYS, the shrinkage in mean diagonals of the covariance, the parts' weights.

    Attributes:
        weights: The variance of each part of the features, relative to the others, 0 for a part that is left out; none
            for equal ones.

    >>> tj.solver.Settings("ridge", shrinkage=0.1)
    Settings(how='ridge', shrinkage=0.1, weights=())
    """

    how: str = "lda"
    shrinkage: float = 0.3
    weights: tuple[float, ...] = ()

    def check(self) -> "Settings":
        """The same settings; InputError for others than `solve` takes."""
        one_of("how", self.how, WAYS)
        finite_number("shrinkage", self.shrinkage, 1e-12)
        for weight in filter(None, self.weights):  # 0 leaves a part out
            finite_number("weights", weight, 0)
        if self.weights and not any(self.weights):
            raise InputError("weights must be above 0 for one part at least; got 0 for all")
        return self

    def weights_of(self, sizes: tuple[int, ...]) -> Float64[np.ndarray, "p"]:
        """The weight of each part of these sizes; InputError for another number of weights."""
        if self.weights and len(self.weights) != len(sizes):
            raise InputError(f"weights must be {len(sizes)}, one for each part; got {len(self.weights)}")
        return np.array(self.weights or (1.0,) * len(sizes))


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """G "k k", B "c k" and counts "c" of examples' features, f64; they add, over classes of any names.

    Attributes:
        factor: G, or R "n k" of few examples, which `tree` then has instead of G; sums have G.
        classes: Their names, sorted.
        sizes: The size of each part of the features.
        source: The identity of the feature map; statistics of different maps do not add.

    Guarantees:
        a + b == b + a; the sum over shards is that of all examples, up to the order of f64 sums; a class that only some
        have seen gets the same numbers in any order.

    >>> halves = [demo.train.take(rows) for rows in demo.halves.values()]
    >>> a, b = [tj.solver.make_statistics(demo.map, half, ["a", "b", "c"]) for half in halves]
    >>> head = (a + b).solve()
    >>> (a + b).counts.tolist(), head["kernel"].shape, tj.evaluate(demo.map, head, demo.test)
    ([8.0, 8.0, 8.0], (6, 3), 0.833)
    """

    factor: Float64[np.ndarray, "n k"]
    sums: Float64[np.ndarray, "c k"]
    counts: Float64[np.ndarray, "c"]
    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    source: str

    def __post_init__(self) -> None:
        of_shape("counts", self.counts, (len(self.sums),))
        n, k = self.factor.shape
        if k != self.sums.shape[1] or n > k:
            raise InputError(
                f'factor must be G "k k", or R "n k" of fewer rows, of k = {self.sums.shape[1]}; got {n, k}'
            )

    @cached_property
    def gram(self) -> Float64[np.ndarray, "k k"]:
        """G, or R^T R."""
        n, k = self.factor.shape
        return self.factor if n == k else self.factor.T @ self.factor

    def __add__(self, other: "Statistics") -> "Statistics":
        if (self.source, self.sizes, self.sums.shape[1]) != (other.source, other.sizes, other.sums.shape[1]):
            raise InputError(
                "statistics that are added must be of one feature map; got those of two. Make both by one feature_map."
            )
        classes = tuple(sorted({*self.classes, *other.classes}))
        a, b = self.of_classes(classes), other.of_classes(classes)
        return dataclasses.replace(a, factor=a.gram + b.gram, sums=a.sums + b.sums, counts=a.counts + b.counts)

    def __radd__(self, zero: int) -> "Statistics":
        return self if zero == 0 else NotImplemented

    def of_classes(self, classes: Sequence[str]) -> "Statistics":
        """The same statistics over these classes, in this order; new classes have no example."""
        names = check_classes(classes)
        lost = sorted({*self.classes} - {*names})
        if lost:
            raise InputError(f"classes must hold every class of the statistics; got none for {lost[0]}")
        at = [names.index(name) for name in self.classes]
        sums, counts = np.zeros((len(names), self.sums.shape[1])), np.zeros(len(names))
        sums[at], counts[at] = self.sums, self.counts
        return dataclasses.replace(self, sums=sums, counts=counts, classes=names)

    def solve(self, settings: Settings | None = None) -> Tree:
        """The head {"center": "k", "kernel": "k c", "bias": "c"}, f32, in the order of `classes`.

        `map(head, x)` gives its scores, (z - center) kernel + bias: around the mean of all examples, so that f32 holds
        them also where this mean is thousands of spreads long.

        Args:
            settings: None for the default.

        Guarantees:
            Classes without examples change no bit of the other classes' kernel and bias.

        Edge cases:
            Where classes do not spread, as with one distinct image each, a class is that of the nearest mean.

        Raises:
            InputError: Invalid settings, if no class has an example, and what no examples sum to.
        """
        settings = settings or Settings()
        factor, scale, (present, mean, counts, apart) = self.system(settings)
        n, c, is_lda = counts.sum(), len(self.classes), settings.how == "lda"
        right = n * apart if is_lda else counts[:, None] * apart
        kept = scale > 0
        solved = np.zeros((len(mean), len(present)))
        solved[kept] = scipy.linalg.cho_solve((factor, True), (right * scale)[:, kept].T, check_finite=False)
        solved *= scale[:, None]
        at_mean = -0.5 * np.einsum("kc,ck->c", solved, apart) if is_lda else counts / n
        center = mean.astype(np.float32)
        kernel, bias = np.zeros((len(mean), c)), np.full(c, NEVER)
        kernel[:, present] = solved
        bias[present] = at_mean + (center - mean) @ solved  # of the center in f32
        with np.errstate(over="ignore"):
            head = {"center": center, "kernel": kernel.astype(np.float32), "bias": bias.astype(np.float32)}
        if not all(np.isfinite(leaf).all() for leaf in head.values()):
            raise InputError(f"a head must be finite in float32; got larger numbers. {MADE}.")
        return {name: jnp.asarray(leaf) for name, leaf in head.items()}

    def system(self, settings: Settings) -> System:
        """The system that `solve` solves, for valid settings."""
        settings = settings.check()
        weights, sums = np.repeat(settings.weights_of(self.sizes), self.sizes), self.of_present()
        spread = self.allow(self.spread(settings.how, sums))
        scale = self.scales(np.diag(spread)) * weights**0.5
        kept = scale > 0
        if not kept.all():
            spread = spread[np.ix_(kept, kept)]
        spread *= scale[kept, None] * scale[kept]
        diagonal = np.diag_indices(len(spread))
        spread[diagonal] += settings.shrinkage * max(spread[diagonal].mean(), np.finfo(np.float64).tiny)
        return System(cholesky(spread), scale, sums)

    def of_present(self) -> Sums:
        """The sums of the classes with examples; InputError if there are none."""
        if not self.counts.sum() > 0:
            raise InputError("statistics must be of one example at least; got none")
        present = np.flatnonzero(self.counts > 0)
        counts, sums = self.counts[present], self.sums[present]
        mean = sums.sum(0) / counts.sum()
        return Sums(present, mean, counts, sums / counts[:, None] - mean)

    def spread(self, how: str, sums: Sums) -> Float64[np.ndarray, "k k"]:
        """The spread "k k": within classes for LDA, around the mean for ridge."""
        if how == "ridge":
            return self.gram - sums.counts.sum() * np.outer(sums.mean, sums.mean)
        return self.gram - self.sums.T @ (self.sums / np.maximum(self.counts, 1)[:, None])

    def within(self) -> Float64[np.ndarray, "k k"]:
        """The spread within classes S, "k k", with what rounding may take from it."""
        return self.allow(self.spread("lda", self.of_present()))

    def allow(self, spread: Float64[np.ndarray, "k k"]) -> Float64[np.ndarray, "k k"]:
        """The spread "k k", changed in place: positive semi-definite though rounding gave it a negative eigenvalue."""
        spread[np.diag_indices(len(spread))] += self.allowed
        return spread

    @property
    def allowed(self) -> Float64[np.ndarray, "k"]:
        """What rounding may take from the diagonal of the spread, "k"."""
        return ROUNDING * self.of_parts(np.diag(self.gram))

    @property
    def tree(self) -> Tree:
        """The leaves that a store keeps and adds (`as_tree`).

        Raises:
            InputError: If G is not symmetric.
        """
        n, k = self.factor.shape
        if n == k and not np.array_equal(self.factor, self.factor.T):
            raise InputError("G must be symmetric; got another")
        return as_tree(self.factor, self.sums, self.counts)

    def of_parts(self, values: np.ndarray) -> np.ndarray:
        """The sum over each part of the features of values "k", for each feature of the part, "k"."""
        ends = np.cumsum([0, *self.sizes])
        return np.repeat([values[start:end].sum() for start, end in pairwise(ends)], self.sizes)

    def scales(self, variances: Float64[np.ndarray, "k"]) -> Float64[np.ndarray, "k"]:
        """A factor for each feature, "k", which brings the variance of its part to 1; InputError unless above 0."""
        totals = self.of_parts(variances)
        if not (totals > 0).all():
            raise InputError(NOT_OF_IMAGES)
        return totals**-0.5


def sums_of(rows: np.ndarray, targets: np.ndarray, count: int, sizes: tuple[int, ...]) -> Statistics:
    """The statistics of examples with rows "n k" of parts of these sizes, over `count` classes that have no names."""
    z = rows.astype(np.float64)
    return Statistics(z.T @ z, *class_sums(z, targets, count), tuple(f"{c:09}" for c in range(count)), sizes, "")


def class_sums(z: np.ndarray, targets: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(B, counts) of rows."""
    sums = np.array([z[targets == c].sum(0) for c in range(count)]).reshape(count, z.shape[1])
    return sums, np.bincount(targets, minlength=count).astype(np.float64)


def moments(rows: np.ndarray, targets: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(a factor, B, counts) of rows "n k" with targets that index `count` classes: the arguments of `as_tree`.

    The factor is R "n k" if n < k / 2, else G "k k".
    """
    z = rows.astype(np.float64)
    factor = root_of(z) if len(z) < z.shape[1] / 2 else z.T @ z
    return factor, *class_sums(z, targets, count)


def from_tree(tree: Tree, classes: Sequence[str], sizes: tuple[int, ...], source: str) -> Statistics:
    """The statistics with the leaves of `Statistics.tree`."""
    return Statistics(factor_of(tree), np.array(tree["sums"]), np.array(tree["counts"]), tuple(classes), sizes, source)


def check_spread(tree: Tree, sizes: tuple[int, ...]) -> None:
    """Raises InputError unless the spread within classes of leaves is positive semi-definite, to rounding.

    For R it is checked in n dimensions. By Schur's complement, for every U "n c", not the least squares' alone,

        S + 2 d >= 0   if   (1 + d / (p n)) N - U^T U - E^T E / d >= 0,   E = B^T - R^T U,   N = diag(n_c)

    of p parts: the trace of B^T N^-1 B is p n at most. The left side is largest at U = (R R^T + d)^-1 R B^T, refined
    once because R R^T keeps half of the digits of what is small in R. 2 d is what is allowed of G, ROUNDING n.

    Args:
        tree: That `check_lengths` let pass.

    Edge cases:
        One Cholesky factorisation, about a second for 4,288 features; of R, of "n n".
    """
    if "gram" in tree:
        cholesky(from_tree(tree, (), sizes, "").within())
        return
    root, n, some = factor_of(tree), tree["counts"].sum(), tree["counts"] > 0
    d = ROUNDING * n / 2
    b = (tree["sums"][some] / tree["counts"][some, None] ** 0.5).T  # B^T N^-1/2, "k c"
    factor = cholesky(root @ root.T + d * np.eye(len(root)))
    u = np.zeros((len(root), b.shape[1]))
    for _ in range(2):
        u += scipy.linalg.cho_solve((factor, True), root @ (b - root.T @ u) - d * u, check_finite=False)
    e = b - root.T @ u
    cholesky((1 + d / (len(sizes) * n)) * np.eye(b.shape[1]) - u.T @ u - e.T @ e / d)


def cholesky(matrix: Float64[np.ndarray, "k k"]) -> Float64[np.ndarray, "k k"]:
    """The lower Cholesky factor of a symmetric matrix, which is overwritten.

    Raises:
        InputError: A matrix that is not positive definite, or not finite.
    """
    try:
        factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        factor = np.full_like(matrix, np.nan)
    if not np.isfinite(np.diag(factor)).all():
        raise InputError(NOT_OF_IMAGES)
    return factor
