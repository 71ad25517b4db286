"""Measures of probabilities are what their formulas say."""

import jax.numpy as jnp
import numpy as np
import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.train.evaluate import accuracy
from tangent_jax.train.metrics import auc, calibration_error, entropy

P = np.random.default_rng(0).dirichlet(np.ones(4), 2000)
DRAWN = (np.cumsum(P, 1) < np.random.default_rng(1).random((2000, 1))).sum(1)
"""Labels that have just these probabilities."""


def test_auc_is_the_share_of_pairs_told_apart():
    members, others = np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.0])
    assert auc(members, others) == np.mean([1, 1, 1, 0, 1, 0.5])
    assert auc(others, members) == 1 - auc(members, others)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_scores_of_half_precision_count_in_f64(dtype):
    rng = np.random.default_rng(0)
    positives, negatives = rng.standard_normal((2, 500)).astype(dtype)
    assert auc(positives, negatives) == auc(positives.astype(np.float64), negatives.astype(np.float64))
    p = np.array([[0.5, 0.5], [0.25, 0.75]])
    assert (entropy(p.astype(dtype)) == entropy(p)).all()


def test_nan_is_no_score_and_no_right_answer():
    with pytest.raises(InputError, match="scores must not be NaN"):
        auc(np.array([1.0, np.nan]), np.zeros(2))
    assert accuracy(jnp.array([[np.nan, 1.0], [2.0, 1.0]]), jnp.array([0, 0])).tolist() == [0.0, 1.0]


def test_calibration_error_is_mean_gap():
    confidence, right = P.max(1), P.argmax(1) == DRAWN
    gaps = []
    for low in np.arange(5) / 5:
        here = (confidence >= low) & (confidence < low + 0.2)
        if here.any():
            gaps.append(here.mean() * abs(right[here].mean() - confidence[here].mean()))
    assert calibration_error(P, DRAWN, 5) == pytest.approx(sum(gaps), rel=1e-12)


def test_entropy_has_its_extremes():
    np.testing.assert_array_equal(entropy(np.eye(4)), np.zeros(4))
    np.testing.assert_allclose(entropy(np.full((1, 4), 0.25)), np.log(4), rtol=1e-12)
    assert (entropy(P) < np.log(4)).all()


WRONG = {
    "Take the softmax of logits": ([[2.0, -1.0]], [0]),
    "probabilities must be rows of sum 1": ([[np.nan, 1.0]], [0]),
    r"probabilities must have shape \(n, c\)": ([0.5, 0.5], [0]),
    "must be class indices, whole numbers; got dtype float64": ([[0.5, 0.5]], [0.0]),
    "class indices must be below 2, the number of classes; got 2": ([[0.5, 0.5]], [2]),
    "labels must be 1, one for each example; got 2": ([[0.5, 0.5]], [0, 1]),
}


@pytest.mark.parametrize("match", WRONG)
def test_wrong_probabilities_are_refused(match):
    with pytest.raises(InputError, match=match):
        calibration_error(*map(np.array, WRONG[match]))
