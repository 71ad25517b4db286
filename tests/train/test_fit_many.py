"""Models trained at once are the models trained one by one."""

import jax
import numpy as np
import pytest
from helpers import assert_rel_close, normal, predictor

from tangent_jax.core.checks import InputError
from tangent_jax.data import shards
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import accuracy
from tangent_jax.train.fit import fit
from tangent_jax.train.fit_many import fit_many

X = np.asarray(normal(1, (50, 6, 12), np.float32), np.float64)
Y = np.random.default_rng(1).integers(0, 7, 50)
KEYS = [jax.random.key(s) for s in range(4)]


def batches(rows, key):
    return Batches(X, Y, key, rows=rows, batch_size=6)


@pytest.mark.parametrize("at_once", [2, pytest.param(10, marks=pytest.mark.long)])
def test_each_equals_its_run_alone(x64, at_once):
    divided = shards.uniform(50, 4, seed=0)  # 13, 13, 12, 12 rows: two groups of steps
    predict, _ = predictor(depth=1)
    runs = [batches(rows, key) for rows, key in zip(divided, KEYS, strict=True)]
    metrics = {"accuracy": accuracy}
    together = fit_many(predict, runs, epochs=4, metrics=metrics, at_once=at_once)
    for run, got in zip(runs, together, strict=True):
        alone = fit(predict, run, epochs=4, metrics=metrics)
        assert_rel_close(got.dw, alone.dw, 1e-9)  # Adam divides rounding by sqrt(v)
        assert got.steps == alone.steps
        assert [row["loss"] for row in got.history] == pytest.approx([row["loss"] for row in alone.history])
        assert got.history[-1]["accuracy"] == alone.history[-1]["accuracy"]


def test_bad_input_is_one_clear_line():
    predict, _ = predictor(depth=1)
    with pytest.raises(InputError, match="runs must be at least one; got none"):
        fit_many(predict, [])
    with pytest.raises(InputError, match="batches must have a key, which decides their order"):
        fit_many(predict, [batches(np.arange(5), None)])
    with pytest.raises(InputError, match="runs must be of one array of inputs and targets; got several"):
        fit_many(predict, [batches(np.arange(5), KEYS[0]), Batches(X.copy(), Y, KEYS[1])])
    with pytest.raises(InputError, match="rows must name at least one example; got none"):
        batches(np.arange(0), KEYS[0])
