"""The attacks measure what they say."""

import numpy as np

from tangent_jax.privacy import membership


def test_auc_is_the_share_of_pairs_told_apart():
    members, others = np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.0])
    assert membership.auc(members, others) == np.mean([1, 1, 1, 0, 1, 0.5])
    assert membership.auc(others, members) == 1 - membership.auc(members, others)


def test_confidence_is_the_log_odds_of_the_true_class():
    logits = np.random.default_rng(0).normal(size=(5, 4))
    labels = np.array([0, 1, 2, 3, 0])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p = p[np.arange(5), labels]
    np.testing.assert_allclose(membership.confidence(logits, labels), np.log(p / (1 - p)), rtol=1e-12)


def test_calibration_tells_a_memorised_hard_example_from_an_easy_one():
    rng = np.random.default_rng(0)
    difficulty, member = rng.normal(0, 5, 400), np.arange(400) < 200
    target = difficulty + 2.0 * member
    held = rng.random((16, 400)) < 0.5
    shadows = difficulty + 2.0 * held + rng.normal(0, 0.1, held.shape)
    plain = membership.auc(target[member], target[~member])
    ratio = membership.calibrated(target, shadows, held)
    assert membership.auc(ratio[member], ratio[~member]) > 0.99 > 0.7 > plain


def test_a_shadow_model_that_saw_the_example_says_nothing_of_it():
    target, shadows, held = np.array([4.0]), np.array([[9.0], [1.0], [3.0]]), np.array([[True], [False], [False]])
    assert membership.calibrated(target, shadows, held) == [2.0]
