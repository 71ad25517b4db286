"""Measures of probabilities are what their formulas say."""

import jax.numpy as jnp
import numpy as np
import pytest

from tangent_jax.core.checks import InputError
from tangent_jax.train.evaluate import accuracy
from tangent_jax.train.metrics import auc, brier_score, calibration_error, entropy

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
    assert brier_score(p.astype(dtype), np.array([0, 1])) == brier_score(p, np.array([0, 1]))


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


def test_brier_is_proper():
    expected = np.mean([1 - 2 * p[y] + p @ p for p, y in zip(P, DRAWN, strict=True)])
    assert brier_score(P, DRAWN) == pytest.approx(expected, rel=1e-12)
    assert brier_score(np.eye(4)[DRAWN], DRAWN) == 0
    for other in (np.eye(4)[P.argmax(1)], np.full_like(P, 0.25), P**2 / (P**2).sum(1, keepdims=True)):
        assert brier_score(other, DRAWN) > brier_score(P, DRAWN) + 0.01


def test_entropy_has_its_extremes():
    np.testing.assert_array_equal(entropy(np.eye(4)), np.zeros(4))
    np.testing.assert_allclose(entropy(np.full((1, 4), 0.25)), np.log(4), rtol=1e-12)
    assert (entropy(P) < np.log(4)).all()


WRONG = {
    "Take the softmax of logits": (np.array([[2.0, -1.0]]), np.array([0])),
    "probabilities must be rows of sum 1": (np.array([[np.nan, 1.0]]), np.array([0])),
    r"probabilities must have shape \(n, c\)": (np.array([0.5, 0.5]), np.array([0])),
    "labels must be 1 whole numbers": (np.array([[0.5, 0.5]]), np.array([0.0])),
    "labels must be in 0..1; got 2..2": (np.array([[0.5, 0.5]]), np.array([2])),
}


@pytest.mark.parametrize("match", WRONG)
def test_wrong_probabilities_are_refused(match):
    for measure in (calibration_error, brier_score):
        with pytest.raises(InputError, match=match):
            measure(*WRONG[match])
