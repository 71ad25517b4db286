"""bench features: the dual form gives the scores of the statistics, on the images that were held out."""

import numpy as np

from experiments.shared.folds import dual_lda, folds_of
from tangent_jax.models.ntk import score_rows
from tangent_jax.solver.statistics import Settings, Statistics


def test_scores_of_gram_matrices_are_those_of_statistics():
    rng, targets = np.random.default_rng(0), np.arange(50) % 3
    rows = rng.standard_normal((50, 9)) + np.eye(3, 9)[targets]
    rows[:, 4:] *= 30
    held = folds_of(targets) == 2
    assert held.sum() == 9  # every fifth of each class
    train = rows[~held], targets[~held]
    sums = np.array([train[0][train[1] == c].sum(0) for c in range(3)])
    parts = (4, 5)
    own = Statistics(train[0].T @ train[0], sums, np.bincount(train[1]).astype(float), ("a", "b", "c"), parts, "")
    grams = [part @ part.T for part in np.split(rows, [4], 1)]
    for shrinkage, got in zip((0.1, 1.0), dual_lda(grams, 9, targets, held, 2.0, (0.1, 1.0)), strict=True):
        head = own.solve(Settings("lda", shrinkage, 2.0))
        want = score_rows(head, rows[held])
        got *= len(train[0])
        np.testing.assert_allclose(got - got[:, :1], want - want[:, :1], atol=1e-3)
