"""Measures of predicted probabilities "n c": errors against the labels, and entropy.

The probabilities should be of examples outside the training set. Computed on the host, in float64.
"""

import numpy as np
from jax import Array
from jaxtyping import Float64
from scipy.special import entr

from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.train.targets import as_labels, as_numbers


def calibration_error(p: Array | np.ndarray, labels: Array | np.ndarray, bins: int = 15) -> float:
    """The expected calibration error: the mean, over examples, of the gap of their bin.

    A bin holds the examples whose confidence max_c p_c is between two multiples of 1 / bins; its gap is
    |accuracy - mean confidence|. Source: Guo et al. 2017, Eq. (3).

    Args:
        p: Probabilities, "n c".
        labels: Class indices, "n".

    Returns:
        A number in 0..1; 0 where the accuracy of each bin equals its mean confidence.

    Raises:
        InputError: Rows that are not probabilities, or labels of no class.

    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])  # confident and right; less confident and wrong
    >>> round(calibration_error(p, np.array([0, 0])), 3)
    0.35
    """
    p, labels = as_probabilities(p), as_labels(labels, np.shape(p)[-1])
    if len(labels) != len(p):
        raise InputError(f"labels must be {len(p)}, one for each example; got {len(labels)}")
    whole_number("bins", bins, 1)
    confidence, right = p.max(1), p.argmax(1) == labels
    at = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(at, right - confidence, bins)  # summed over the examples of each bin
    return float(np.abs(gaps).sum() / len(labels))


def entropy(p: Array | np.ndarray) -> Float64[np.ndarray, "n"]:
    """-sum_c p_c log p_c of each example's probabilities "n c", in nats, "n".

    Edge cases:
        0 log 0 counts as 0.

    Raises:
        InputError: Rows that are not probabilities.

    >>> entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).round(3).tolist()
    [0.693, 0.0]
    """
    return entr(as_probabilities(p)).sum(1)


def auc(positives: Array | np.ndarray, negatives: Array | np.ndarray) -> float:
    """The area under the ROC curve: the share of pairs whose positive scores above the negative; ties count half.

    Args:
        positives, negatives: Their scores, "k" and "m".

    >>> auc(np.array([3.0, 1.0]), np.array([0.0, 2.0]))
    0.75
    """
    from scipy.stats import rankdata  # a third of a second

    positives, negatives = (as_scores(scores) for scores in (positives, negatives))
    ranks = rankdata(np.concatenate([positives, negatives]))[: len(positives)]
    return float((ranks.sum() - len(positives) * (len(positives) + 1) / 2) / (len(positives) * len(negatives)))


def as_scores(scores: Array | np.ndarray) -> Float64[np.ndarray, "n"]:
    """The scores "n", n > 0, in f64; InputError for anything else, NaN among them."""
    array = as_numbers("scores", scores)
    if array.ndim != 1 or not array.size:
        raise InputError(f'scores must be numbers "n", at least one; got {array.dtype} of shape {array.shape}')
    if np.isnan(array).any():
        raise InputError("scores must not be NaN; got one that is")
    return array


def as_probabilities(p: Array | np.ndarray) -> Float64[np.ndarray, "n c"]:
    """p as float64, "n c"; InputError for an array of another shape, or rows that do not sum to 1."""
    p = as_numbers("probabilities", p)
    if p.ndim != 2 or not p.size:
        raise InputError(f"probabilities must have shape (n, c); got shape {p.shape}")
    if (p < 0).any() or not np.allclose(p.sum(1), 1.0, atol=1e-3):
        raise InputError("probabilities must be rows of sum 1; got others. Take the softmax of logits.")
    return p
