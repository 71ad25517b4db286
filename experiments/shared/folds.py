"""Held-out accuracy of LDA from Gram matrices: the cost depends on the number of images, not of features."""

from collections.abc import Sequence

import numpy as np

FOLDS = 5


def folds_of(labels: np.ndarray) -> np.ndarray:
    """The fold of each example, "n": every fifth of each class."""
    folds = np.zeros(len(labels), int)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        folds[rows] = np.arange(len(rows)) % FOLDS
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
    known, asked = (
        sum(s * gram[np.ix_(rows, ~held)] for s, gram in zip(scales, grams, strict=True)) for rows in (~held, held)
    )
    values, vectors = np.linalg.eigh(sum(s * part for s, part in zip(scales, within, strict=True)))
    values = np.maximum(values, 0)
    at_mean, at_rows = asked @ of_mean, asked @ around @ vectors
    mean_rows = vectors.T @ around @ known @ of_mean
    means = np.einsum("nc,nm,mc->c", of_mean, known, of_mean, optimize=True)
    scores = []
    for shrinkage in shrinkages:
        penalty = shrinkage * values.sum() / size
        inverse = 1 / (values + penalty)
        bias = means - np.einsum("nc,n,nc->c", mean_rows, inverse, mean_rows)
        scores.append((at_mean - (at_rows * inverse) @ mean_rows - bias / 2) / penalty)
    return scores
