"""Sufficient statistics of features: sums, so that they compose to joint training itself, for any shards and classes.

    G = sum z z^T,   B_c = sum over class c of z,   n_c        z: an example's features (models/ntk.py)

    ridge: argmin_W sum |W z + b - y|^2 + lambda |W|^2
    LDA:   argmax_c of Gaussians that share one covariance, (G - sum_c B_c B_c^T / n_c) / n + lambda I, and one prior

Both need G, B and n alone (Hastie, Tibshirani and Friedman 2009, sections 3.4 and 4.3), and a Cholesky factorisation in
f64. A removal re-sums what is left. G and B are second and first moments of the images' features, and so no secret: of
few images they can be read off.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg

from tangent_jax.core import Tree, check_stop, finite_number, progress_bar, require
from tangent_jax.core.boundary import public, public_class
from tangent_jax.models.anchor import check_classes
from tangent_jax.models.features import Features
from tangent_jax.models.ntk import FeatureMap, rows_of
from tangent_jax.solver.posterior import fitted_beta

WAYS = ("lda", "ridge")
SHRINKAGES = (3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
BALANCES = (0.5, 1.0, 2.0)
NEVER = -1e9  # the score of a class without examples


class Settings(NamedTuple):
    """The way to solve, one of WAYS; the shrinkage, in mean diagonals of the covariance; the balance of the parts."""

    how: str = "lda"
    shrinkage: float = 0.3
    balance: float = 1.0


@public_class
@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """G "k k", B "c k" and counts "c" of examples' features, f64; they add, over classes of any names.

    `classes`: their names, sorted; `sizes`: the numbers of each part of the features; `source`: the identity of the
    feature map: statistics of another do not add.

    Guarantees: a + b == b + a; the sum of shards is that of all examples, but for the order of f64 sums; a class that
                only some have seen is the same whoever adds it.
    """

    gram: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    source: str

    def __add__(self, other: "Statistics") -> "Statistics":
        require(isinstance(other, Statistics), "Statistics", "statistics to add", type(other).__name__)
        do = "Make both by one feature_map"
        require(self.source == other.source, "Statistics", "statistics of one feature map", "those of two", do)
        classes = tuple(sorted({*self.classes, *other.classes}))
        a, b = self.of_classes(classes), other.of_classes(classes)
        return dataclasses.replace(a, gram=a.gram + b.gram, sums=a.sums + b.sums, counts=a.counts + b.counts)

    def __radd__(self, zero: int) -> "Statistics":
        return self if zero == 0 else NotImplemented

    def of_classes(self, classes: Sequence[str]) -> "Statistics":
        """The same statistics with these classes, in this order; one that was not here counts no example."""
        names = check_classes("Statistics.of_classes", classes)
        lost = sorted({*self.classes} - {*names})
        require(not lost, "Statistics.of_classes", "names that hold every class here", f"none for {lost[:1]}")
        at = [names.index(name) for name in self.classes]
        sums, counts = np.zeros((len(names), len(self.gram))), np.zeros(len(names))
        sums[at], counts[at] = self.sums, self.counts
        return dataclasses.replace(self, sums=sums, counts=counts, classes=names)

    def solve(self, settings: Settings | None = None) -> Tree:
        """The head {"kernel": "k c", "bias": "c"}, f32, in the order of `classes`: `map(head, x)` are its scores.

        Args:       settings: None for the default. `balance`: of a later part's covariance, the root of its trace over
                    the first part's.
        Raises:     InputError for other settings, and where no class has an example.
        """
        how, shrinkage, balance = settings or Settings()
        require(how in WAYS, "Statistics.solve", f"how in {', '.join(WAYS)}", how)
        finite_number("Statistics.solve", "shrinkage", shrinkage, 1e-12)
        finite_number("Statistics.solve", "balance", balance, 1e-12)
        n, k = self.counts.sum(), len(self.gram)
        require(n > 0, "Statistics.solve", "an example", "none")
        class_means = self.sums / np.maximum(self.counts, 1)[:, None]
        mean = self.sums.sum(0) / n
        means = self.sums.T @ class_means if how == "lda" else n * np.outer(mean, mean)
        spread = self.gram - means  # within the classes, or around the mean of all
        scale = self.scales(np.diag(spread), balance)
        spread *= scale[:, None] * scale
        spread[np.diag_indices(k)] += shrinkage * max(np.trace(spread) / k, np.finfo(np.float64).tiny)
        factor = scipy.linalg.cho_factor(spread, lower=True, overwrite_a=True, check_finite=False)
        right = n * class_means if how == "lda" else self.counts[:, None] * (class_means - mean)
        kernel = scipy.linalg.cho_solve(factor, (right * scale).T, check_finite=False) * scale[:, None]
        lda, ridge = -0.5 * np.einsum("kc,ck->c", kernel, class_means), self.counts / n - mean @ kernel
        bias = lda if how == "lda" else ridge
        bias = np.where(self.counts > 0, bias, NEVER)
        return {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}

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
    Raises:     InputError for targets that are no indices of classes.
    """
    return of_rows(map_, rows_of(map_, data), np.asarray(data.targets), classes)


def of_rows(map_: FeatureMap, rows: np.ndarray, targets: np.ndarray, classes: Sequence[str]) -> Statistics:
    """The statistics of examples whose rows of features "n k" are known; classes without examples are left out."""
    names = check_classes("make_statistics", classes)
    good = targets.ndim == 1 and targets.dtype.kind in "iu" and (not len(targets) or targets.min() >= 0)
    good = good and (not len(targets) or targets.max() < len(names))
    require(good, "make_statistics", f"targets that index {len(names)} classes", f"{targets.dtype} {targets[:3]}")
    order = sorted({int(c) for c in targets}, key=lambda c: names[c])
    z = rows.astype(np.float64)
    sums = np.array([z[targets == c].sum(0) for c in order]).reshape(len(order), z.shape[1])
    counts = np.array([np.sum(targets == c) for c in order], np.float64)
    return Statistics(z.T @ z, sums, counts, tuple(names[c] for c in order), map_.sizes, map_.identity)


@public
def choose_settings(
    train: Statistics, rows: np.ndarray, targets: np.ndarray, ways: Sequence[str] = ("lda",)
) -> tuple[Settings, int]:
    """(the settings whose head gives held-out labels the greatest likelihood, at its best temperature; of how many).

    Args:       rows, targets: held-out features "n k" and indices "n" among `train.classes`.
    """
    balances = BALANCES if len(train.sizes) > 1 else (1.0,)
    grid = [Settings(how, s, b) for how in ways for s in SHRINKAGES for b in balances]
    losses = []
    with progress_bar(len(grid), "setting") as bar:
        for settings in grid:
            head = train.solve(settings)
            scores = rows @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
            losses.append(fitted_beta(scores, None, targets)[1])
            bar.update()
            check_stop()
    return grid[int(np.argmin(losses))], len(grid)
