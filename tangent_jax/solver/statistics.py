"""Sufficient statistics of features: they add, so any shards and classes compose exactly to joint training.

    G = sum z z^T,   B_c = sum over class c of z,   n_c        z: an example's features (models/ntk.py)

    ridge: argmin_W sum |W z + b - y|^2 + lambda |W|^2
    LDA:   argmax_c of Gaussians that share one covariance, (G - sum_c B_c B_c^T / n_c) / n + lambda I, and one prior

Both need only G, B and n (Hastie, Tibshirani and Friedman 2009, sections 3.4 and 4.3), and a Cholesky factorisation in
f64. A removal re-sums the remaining statistics. G and B are second and first moments of features and are not secret:
statistics of a few images reveal these images.

A store keeps them as a tree of three leaves, G as its upper triangle, and adds these trees (store/kinds.py).
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg

from tangent_jax.core import Tree, check_stop, expect, finite_number, instance, one_of, progress_bar, require, trees
from tangent_jax.core.boundary import public, public_class
from tangent_jax.models.anchor import check_classes
from tangent_jax.models.features import Features
from tangent_jax.models.mapped import rows_of
from tangent_jax.models.ntk import SUMS, FeatureMap
from tangent_jax.solver.posterior import fitted_beta
from tangent_jax.train.targets import as_labels

WAYS = ("lda", "ridge")
SHRINKAGES = (3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""The shrinkages that `choose_settings` tries."""
BALANCES = (0.5, 1.0, 2.0)
"""The balances that `choose_settings` tries, where features have several parts."""
NEVER = -1e9  # the score of a class without examples
BLOCK = 1024  # rows per block of leave-one-out


class System(NamedTuple):
    """The linear system of a head: (scaled spread + ridge I) kernel = right; spread within classes, or around the mean.

    `factor`: of its matrix, by Cholesky, lower, "k k"; `scale`: of each feature, "k"; `class_means` "c k"; `mean` "k".
    """

    factor: np.ndarray
    scale: np.ndarray
    class_means: np.ndarray
    mean: np.ndarray


class Settings(NamedTuple):
    """The way to solve for a head: one of WAYS, the shrinkage in mean diagonals of the covariance, the parts' balance.

    >>> tj.solver.Settings("ridge", shrinkage=0.1)
    Settings(how='ridge', shrinkage=0.1, balance=1.0)
    """

    how: str = "lda"
    shrinkage: float = 0.3
    balance: float = 1.0

    def check(self) -> "Settings":
        """The same settings; InputError for others than `solve` takes."""
        one_of("how", self.how, WAYS)
        finite_number("shrinkage", self.shrinkage, 1e-12)
        finite_number("balance", self.balance, 1e-12)
        return self


@public_class
@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """G "k k", B "c k" and counts "c" of examples' features, f64; they add, over classes of any names.

    `classes`: their names, sorted; `sizes`: the size of each part of the features; `source`: the identity of the
    feature map; statistics of different maps do not add.

    Guarantees: a + b == b + a; the sum over shards is that of all examples, up to the order of f64 sums; a class that
                only some have seen gets the same numbers in any order.

    >>> halves = [demo.train.take(rows) for rows in demo.halves.values()]
    >>> a, b = [tj.solver.make_statistics(demo.map, half, ["a", "b", "c"]) for half in halves]
    >>> head = (a + b).solve()
    >>> (a + b).counts.tolist(), head["kernel"].shape, tj.evaluate(demo.map, head, demo.test)
    ([8.0, 8.0, 8.0], (6, 3), 0.75)
    """

    gram: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    source: str

    def __add__(self, other: "Statistics") -> "Statistics":
        instance("statistics to add", other, Statistics, by="Statistics")
        do = "Make both by one feature_map"
        require(self.source == other.source, "Statistics", "statistics of one feature map", "those of two", do)
        classes = tuple(sorted({*self.classes, *other.classes}))
        a, b = self.of_classes(classes), other.of_classes(classes)
        return dataclasses.replace(a, gram=a.gram + b.gram, sums=a.sums + b.sums, counts=a.counts + b.counts)

    def __radd__(self, zero: int) -> "Statistics":
        return self if zero == 0 else NotImplemented

    @public
    def of_classes(self, classes: Sequence[str]) -> "Statistics":
        """The same statistics over these classes, in this order; new classes have no example."""
        names = check_classes("Statistics.of_classes", classes)
        lost = sorted({*self.classes} - {*names})
        expect(not lost, "names that hold every class here", f"none for {lost[:1]}")
        at = [names.index(name) for name in self.classes]
        sums, counts = np.zeros((len(names), len(self.gram))), np.zeros(len(names))
        sums[at], counts[at] = self.sums, self.counts
        return dataclasses.replace(self, sums=sums, counts=counts, classes=names)

    @public
    def solve(self, settings: Settings | None = None) -> Tree:
        """The head {"kernel": "k c", "bias": "c"}, f32, in the order of `classes`: `map(head, x)` gives its scores.

        Args:       settings: None for the default. `balance`: the standard deviation of a later part of the features,
                    relative to that of the first.
        Raises:     InputError for invalid settings, and if no class has an example.
        """
        settings = settings or Settings()
        factor, scale, class_means, mean = self.system(settings)
        n, is_lda = self.counts.sum(), settings.how == "lda"
        right = n * class_means if is_lda else self.counts[:, None] * (class_means - mean)
        kernel = scipy.linalg.cho_solve((factor, True), (right * scale).T, check_finite=False) * scale[:, None]
        lda, ridge = -0.5 * np.einsum("kc,ck->c", kernel, class_means), self.counts / n - mean @ kernel
        bias = np.where(self.counts > 0, lda if is_lda else ridge, NEVER)
        return {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}

    def system(self, settings: Settings) -> System:
        """The system that `solve` solves, for valid settings."""
        how, shrinkage, balance = settings.check()
        n, k = self.counts.sum(), len(self.gram)
        expect(n > 0, "an example", "none")
        class_means = self.sums / np.maximum(self.counts, 1)[:, None]
        mean = self.sums.sum(0) / n
        means = self.sums.T @ class_means if how == "lda" else n * np.outer(mean, mean)
        spread = self.gram - means  # within classes, or around the mean of all
        scale = self.scales(np.diag(spread), balance)
        spread *= scale[:, None] * scale
        spread[np.diag_indices(k)] += shrinkage * max(np.trace(spread) / k, np.finfo(np.float64).tiny)
        factor = scipy.linalg.cholesky(spread, lower=True, overwrite_a=True, check_finite=False)
        return System(factor, scale, class_means, mean)

    @public
    def leave_one_out(self, rows: np.ndarray, targets: np.ndarray, settings: Settings) -> np.ndarray:
        """The scores "n c" of each example by the head of all the others, in closed form: nothing is solved again.

        ridge   y - (y - f(x)) / (1 - h),   h = 1/n + u^T A^-1 u,  u = z - mean          A: the matrix of the system
        LDA     A' = A - a u u^T,  m' = m - u / (n_c - 1),  u = z - m,  a = n_c / (n_c - 1),  by Sherman and Morrison

        Source: Hastie, Tibshirani and Friedman 2009, section 7.10 (ridge).
        Args:       rows, targets: of the examples of these statistics, as for `of_rows`; targets index `classes`.
        Guarantees: the scores of solving without the example, with the penalty and the scales of all examples.
        Edge cases: the class of a single example is never chosen for it.
        """
        factor, scale, class_means, mean = self.system(settings)
        n, scores = self.counts.sum(), np.empty((len(rows), len(self.classes)))
        expect(n > 1, "two examples at least", "one")
        solved = solve_lower(factor, (class_means * scale).T)  # L^-1 m, "k c"
        middle = solve_lower(factor, (mean * scale)[:, None])
        for start in range(0, len(rows), BLOCK):
            at = slice(start, start + BLOCK)
            z, y = solve_lower(factor, (rows[at].astype(np.float64) * scale).T), targets[at]
            if settings.how == "ridge":
                u, hot = z - middle, np.eye(len(self.classes))[y]
                f = self.counts / n + (u.T @ (solved - middle)) * self.counts
                scores[at] = hot - (hot - f) / (1 - 1 / n - np.square(u).sum(0))[:, None]
            else:
                scores[at] = scores_without(z, y, solved, self.counts)
        alone = self.counts[targets] == 1
        scores[alone, targets[alone]] = NEVER
        scores[:, self.counts == 0] = NEVER
        return scores

    @property
    def tree(self) -> Tree:
        """The leaves that a store keeps and adds; G as its upper triangle, row by row.

        Raises: InputError if G is not symmetric.
        """
        expect(np.array_equal(self.gram, self.gram.T), "a symmetric G", "another")
        return as_tree(self.gram, self.sums, self.counts)

    def scales(self, variances: np.ndarray, balance: float) -> np.ndarray:
        """A factor for each feature, "k", which brings each later part's variance to balance^2 of the first's."""
        ends = np.cumsum(self.sizes)
        totals = [variances[end - size : end].sum() for end, size in zip(ends, self.sizes, strict=True)]
        later = [balance * (totals[0] / total) ** 0.5 if total > 0 else 0.0 for total in totals[1:]]
        return np.repeat([1.0, *later], self.sizes)


@public
def make_statistics(map_: FeatureMap, data: Features, classes: Sequence[str]) -> Statistics:
    """The statistics of examples: one pass.

    Args:       map_: by `feature_map`; data: its features; classes: the names that targets index.
    Raises:     InputError for targets that do not index the classes.

    >>> tj.solver.make_statistics(demo.map, demo.train, ["a", "b", "c"]).sums.shape
    (3, 6)
    """
    return of_rows(map_, rows_of(map_, data), data.targets, classes)


def of_rows(map_: FeatureMap, rows: np.ndarray, targets: np.ndarray, classes: Sequence[str]) -> Statistics:
    """The statistics of examples with known feature rows "n k"; classes without examples are left out."""
    names = check_classes("make_statistics", classes)
    targets = as_labels(targets, len(names))
    order = sorted({int(c) for c in targets}, key=lambda c: names[c])
    gram, sums, counts = moments(rows, targets, len(names))
    return Statistics(gram, sums[order], counts[order], tuple(names[c] for c in order), map_.sizes, map_.identity)


def moments(rows: np.ndarray, targets: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(G, B, counts) of rows "n k" with targets that index `count` classes."""
    z = rows.astype(np.float64)
    sums = np.array([z[targets == c].sum(0) for c in range(count)]).reshape(count, z.shape[1])
    return z.T @ z, sums, np.bincount(targets, minlength=count).astype(np.float64)


def as_tree(gram: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> Tree:
    """The leaves of statistics."""
    return {"counts": counts, "gram": gram[upper(len(gram))], "sums": sums}


def from_tree(tree: Tree, classes: Sequence[str], sizes: tuple[int, ...], source: str) -> Statistics:
    """The statistics with the leaves of `Statistics.tree`."""
    k = sum(sizes)
    gram, above = np.zeros((k, k)), upper(k)
    gram[above] = tree["gram"]
    gram.T[above] = tree["gram"]
    return Statistics(gram, np.array(tree["sums"]), np.array(tree["counts"]), tuple(classes), sizes, source)


def upper(k: int) -> np.ndarray:
    """A mask of the upper triangle, "k k"."""
    return np.triu(np.ones((k, k), bool))


def check_leaves(tree: Tree, count: int) -> int:
    """The number of features k of the leaves of statistics of `count` classes.

    Raises: InputError for other leaves, dtypes or shapes, for a number that is not finite, and a count below 0.
    """
    leaves = trees.leaves(tree)
    do = "Add what make_statistics gave"
    expect(sorted(leaves) == [*SUMS], f"the leaves {', '.join(SUMS)}", sorted(leaves)[:4], do)
    k = (*leaves["sums"].shape, 0, 0)[1]
    shapes = {"counts": (count,), "gram": (k * (k + 1) // 2,), "sums": (count, k)}
    for path, leaf in leaves.items():
        expect(leaf.dtype == np.float64, f"{path} in float64", leaf.dtype, do)
        expect(leaf.shape == shapes[path], f"{path} of shape {shapes[path]}", leaf.shape, do)
        expect(np.isfinite(leaf).all(), f"{path} finite", "NaN or infinity", do)
    expect((leaves["counts"] >= 0).all(), "counts >= 0", "one below", do)
    return k


def solve_lower(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """L^-1 right, L lower triangular."""
    return scipy.linalg.solve_triangular(factor, right, lower=True, check_finite=False)


def scores_without(z: np.ndarray, y: np.ndarray, means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The LDA scores "b c" of examples z "k b" of classes y by all others; z, means "k c": multiplied by L^-1."""
    n, own, rows = counts.sum(), counts[y], np.arange(len(y))
    u = z - means[:, y]
    some = own > 1  # a class of one example: the spread stays, u = 0
    a, less = (np.divide(over, own - 1, out=np.zeros(len(y)), where=some) for over in (own, np.ones(len(y))))
    q, r, t, p = np.square(u).sum(0), np.einsum("kb,kb->b", u, z), u.T @ means, z.T @ means
    grown = a / (1 - a * q)  # A'^-1 = A^-1 + grown A^-1 u u^T A^-1
    squares = np.square(means).sum(0) + grown[:, None] * t**2
    cross = p + grown[:, None] * t * r[:, None]
    along = t[rows, y] / (1 - a * q)
    cross[rows, y] -= less * r / (1 - a * q)
    squares[rows, y] += less**2 * q / (1 - a * q) - 2 * less * along
    return (n - 1) * (cross - 0.5 * squares)


@public
def choose_settings(
    train: Statistics, rows: np.ndarray, targets: np.ndarray, ways: Sequence[str] = ("lda",), left_out: bool = False
) -> tuple[Settings, int]:
    """(the settings with the greatest likelihood of the labels, at the best temperature; the number of settings tried).

    Args:       rows, targets: features "n k" and indices "n" among `train.classes`, of held-out images; or, with
                `left_out`, of the images of `train`, each scored by the head of all others.

    >>> rows = tj.models.rows_of(demo.map, demo.test)
    >>> settings, tried = tj.solver.choose_settings(demo.statistics, rows, demo.test.targets, ways=("lda", "ridge"))
    >>> tried
    12
    """
    balances = BALANCES if len(train.sizes) > 1 else (1.0,)
    grid = [Settings(how, s, b) for how in ways for s in SHRINKAGES for b in balances]
    losses = []
    with progress_bar(len(grid), "setting") as bar:
        for settings in grid:
            if left_out:
                scores = train.leave_one_out(rows, targets, settings)
            else:
                head = train.solve(settings)
                scores = rows @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
            losses.append(fitted_beta(scores, None, targets)[1])
            bar.update()
            check_stop()
    return grid[int(np.argmin(losses))], len(grid)
