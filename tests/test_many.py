"""Models trained at once are the models trained one by one."""

import jax
import numpy as np
import pytest
from helpers import assert_rel_close, normal, small

from tangent_jax import subsets
from tangent_jax.checks import InputError
from tangent_jax.data import shards
from tangent_jax.fit import Settings, fit
from tangent_jax.many import fit_many
from tangent_jax.predict import Predictor

X = normal(1, (50, 6, 12), np.float32)
Y = np.random.default_rng(1).integers(0, 7, 50)
SETTINGS = Settings(epochs=4, batch_size=6, learning_rate=1e-3)
KEYS = [jax.random.key(s) for s in range(4)]


def task():
    config, w = small(1)
    subset = subsets.make_subset(config)
    return Predictor(w, config, subset.split), subset.zeros(w)


@pytest.mark.parametrize("at_once", [2, 10])
def test_each_equals_its_run_alone(x64, at_once):
    split = shards.uniform(50, 4, seed=0)  # 13, 13, 12, 12 rows: two groups of steps
    x = np.asarray(X, np.float64)
    together = fit_many(*task(), x, Y, split, SETTINGS, KEYS, at_once=at_once)
    for rows, key, got in zip(split, KEYS, together, strict=True):
        alone = fit(*task(), x[rows], Y[rows], SETTINGS, key)
        assert_rel_close(got.dw, alone.dw, 1e-9)  # Adam divides rounding by sqrt(v)
        assert got.steps == alone.steps
        assert [row["loss"] for row in got.history] == pytest.approx([row["loss"] for row in alone.history])
        assert got.history[-1]["train_accuracy"] == alone.history[-1]["train_accuracy"]


def test_bad_input_is_one_clear_line():
    with pytest.raises(InputError, match=r"fit_many: expected as many keys as shards \(1\); got 4"):
        fit_many(*task(), X, Y, [np.arange(5)], SETTINGS, KEYS)
    with pytest.raises(InputError, match="a row in every shard; got an empty one"):
        fit_many(*task(), X, Y, [np.arange(0)], SETTINGS, KEYS[:1])
