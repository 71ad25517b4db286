"""bench features: the dual form gives the scores of the statistics, on the images that were held out."""

import json

import numpy as np
import pytest
from run_binary import run

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


@pytest.mark.long
def test_bench_features_measures_each_setting_without_test_images(tmp_path):
    flags = ["--width=16,36", "--feature_blocks=0,2", "--only=h,h+ntk", "--images=200", f"--out={tmp_path}"]
    result = json.loads(run("bench features", *flags, f"--cache_dir={tmp_path / 'cache'}")[0])
    assert result["tried"] == len(result["mean"]) == len(result["settings"]["digits"]) == 8
    assert result["best"] == max(result["mean"], key=result["mean"].get)
    assert result["mean"]["h+ntk 2x1 36"] > 0.7
    alone = [result["mean"][f"h 0x1 {width}"] for width in (16, 36)]
    assert alone[0] == alone[1]  # the width is the sketch's
    assert (tmp_path / "features.png").exists()
    assert "| h+ntk 2x1 36 |" in (tmp_path / "features.md").read_text()
    assert result["pass"]["h+ntk 2x1 36"]["forward_passes"] > result["pass"]["h+ntk 0x1 36"]["forward_passes"] > 0
