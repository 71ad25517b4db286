"""Held-out accuracy of LDA and ridge from Gram matrices: the cost depends on the number of images, not of features."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tangent_jax.io.progress import check_stop
from tangent_jax.solver import BALANCES, SHRINKAGES, Settings, fitted_beta
from tangent_jax.train import features
from tangent_jax.train.features import FOLDS


class Chosen(NamedTuple):
    """The settings with the greatest likelihood of held-out labels, and their accuracy on these images."""

    settings: Settings
    accuracy: float


def folds_of(
    labels: np.ndarray, training: Sequence[int] | np.ndarray = (), groups: Sequence[Any] | None = None
) -> np.ndarray:
    """The fold of each example, "n": every fifth of each class, or every fifth group (`features.folds_of`).

    FOLDS for the examples at `training` and others of their groups, which always train.
    """
    numbers = features.numbered(range(len(labels)) if groups is None else groups)
    folds = np.full(len(labels), FOLDS)
    left = np.flatnonzero(~np.isin(numbers, numbers[np.asarray(training, int)]))
    folds[left] = features.folds_of(labels[left], None if groups is None else numbers[left].tolist())
    return folds


def dual_lda(
    grams: Sequence[np.ndarray], size: int, labels: np.ndarray, held: np.ndarray, balance: float, shrinkages: Sequence
) -> list[np.ndarray]:
    """The scores "m c" of held-out examples by LDA of the others, for each shrinkage, as `Statistics.solve` gives them.

        S = Z^T Z + lambda I,  Z "n k" around class means:   z S^-1 m = (z m - z Z^T (Z Z^T + lambda I)^-1 Z m) / lambda

    Args:       grams: of each part of all examples, "n n"; size: k; held: a mask, "n".
    Edge cases: a class without examples has the mean 0; scores are n times too small, which does not affect
                comparisons.
    """
    hot = np.eye(labels.max() + 1)[labels[~held]]
    of_mean = hot / np.maximum(hot.sum(0), 1)  # class means are of_mean^T z
    around = np.eye(len(hot)) - hot @ of_mean.T
    within = [around @ gram[np.ix_(~held, ~held)] @ around for gram in grams]
    scales = [1.0, *(balance**2 * np.trace(within[0]) / np.trace(part) for part in within[1:])]
    gram: Any = sum(scale * part for scale, part in zip(scales, grams, strict=True))
    trained = gram[np.ix_(~held, ~held)]
    tested = gram[np.ix_(held, ~held)]
    values, vectors = np.linalg.eigh(sum(s * part for s, part in zip(scales, within, strict=True)))
    values = np.maximum(values, 0)
    at_mean = tested @ of_mean
    at_rows = tested @ around @ vectors
    mean_rows = vectors.T @ around @ trained @ of_mean
    means = np.einsum("nc,nm,mc->c", of_mean, trained, of_mean, optimize=True)
    scores = []
    for shrinkage in shrinkages:
        penalty = shrinkage * values.sum() / size
        inverse = 1 / (values + penalty)
        bias = means - np.einsum("nc,n,nc->c", mean_rows, inverse, mean_rows)
        scores.append((at_mean - (at_rows * inverse) @ mean_rows - bias / 2) / penalty)
    return scores


def dual_ridge(
    gram: np.ndarray, size: int, labels: np.ndarray, held: np.ndarray, shrinkages: Sequence
) -> list[np.ndarray]:
    """The scores "m c" of held-out examples by ridge of the others, for each shrinkage, as `Statistics.solve` has them.

        f(z) = mean of Y + (z - m) Z^T (Z Z^T + lambda I)^-1 Y        m: the mean;  Z "n k" around it;  Y one-hot

    Args: gram: of all examples, "n n"; size: k; held: a mask, "n".
    """
    hot = np.eye(labels.max() + 1)[labels[~held]]
    around = np.eye(len(hot)) - 1 / len(hot)
    trained = gram[np.ix_(~held, ~held)]
    tested = gram[np.ix_(held, ~held)]
    values, vectors = np.linalg.eigh(around @ trained @ around)
    values = np.maximum(values, 0)
    at_rows = (tested - trained.mean(0)) @ around @ vectors
    right = vectors.T @ around @ hot
    penalties = [shrinkage * values.sum() / size for shrinkage in shrinkages]
    return [hot.mean(0) + (at_rows / (values + penalty)) @ right for penalty in penalties]


def dual_scores(
    how: str, grams: Sequence[np.ndarray], size: int, labels: np.ndarray, held: np.ndarray, balance: float,
    shrinkages: Sequence,
) -> list[np.ndarray]:  # fmt: skip
    """The scores of held-out examples by `how`, lda or ridge (of one part): see `dual_lda` and `dual_ridge`."""
    if how == "lda":
        return dual_lda(grams, size, labels, held, balance, shrinkages)
    (gram,) = grams
    return dual_ridge(gram, size, labels, held, shrinkages)


def choose_by_folds(how: str, grams: Sequence[np.ndarray], size: int, labels: np.ndarray, folds: np.ndarray) -> Chosen:
    """The settings with the greatest likelihood of the labels of all folds, each held out once.

    Args: folds: of each example, "n", below FOLDS; an example of any other always trains.
    """
    held: dict[Settings, list[np.ndarray]] = {}
    for fold in range(FOLDS):
        for balance in BALANCES if len(grams) > 1 else (1.0,):
            scores = dual_scores(how, grams, size, labels, folds == fold, balance, SHRINKAGES)
            for shrinkage, own in zip(SHRINKAGES, scores, strict=True):
                held.setdefault(Settings(how, shrinkage, balance), []).append(own)
            check_stop()
    targets = np.concatenate([labels[folds == fold] for fold in range(FOLDS)])
    losses = {settings: fitted_beta(np.concatenate(own), None, targets)[1] for settings, own in held.items()}
    best = min(losses, key=losses.__getitem__)
    accuracy = float(np.mean(np.concatenate(held[best]).argmax(1) == targets))
    return Chosen(best, accuracy)
