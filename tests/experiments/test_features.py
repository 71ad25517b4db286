"""bench features: the dual form gives the scores of the statistics, on the images that were held out."""

import numpy as np

from experiments.shared.folds import dual_lda, folds_of
from experiments.shared.titles import differing
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


def test_the_picture_names_only_what_differs_between_settings():
    assert differing(["h+ntk 8x1 4096", "h+ntk 1x1 4096"]) == {
        "h+ntk 8x1 4096": "8 blocks",
        "h+ntk 1x1 4096": "1 block",
    }
    assert differing(["h 0x1 64", "h+ntk 0x2 64"])["h+ntk 0x2 64"] == "h + psi, 2 directions"
    assert [*differing(["h+ntk 8x1 4096"]).values()] == ["8 blocks"]
