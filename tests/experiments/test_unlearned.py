"""Each way of removal leaves the model that its name says, and the attacks tell members of those that keep them."""

import dataclasses

import numpy as np
import pytest

from experiments.shared.pool import Pool
from experiments.shared.removals import Removals, relative, without
from tangent_jax.core import trees
from tangent_jax.data.shards import uniform
from tangent_jax.solver.optimum import solve
from tangent_jax.train.features import Features

N, SHARDS = 38, 4  # two shards of ten images, two of nine


def linear(dw, x):
    return x @ dw["kernel"]


@pytest.fixture(scope="module")
def removals(tmp_path_factory):
    """Ridge regressions of random halves of 38 images, of which three are removed."""
    rng = np.random.default_rng(0)
    data = Features(
        rng.normal(size=(N, 8)).astype(np.float32), rng.integers(0, 3, N), tuple((f"{i}", f"{i}") for i in range(N))
    )
    pool = Pool(linear, data, np.arange(0), 0.05, certificate=1e-4, passes=60, at_once=3)
    zero = {"kernel": np.zeros((8, 3), np.float32)}
    base = solve(linear, data, pool.objective, start=zero, example_weights=np.full(N, 0.5), certificate=1e-4)
    member, folder = rng.random((5, N)) < 0.5, tmp_path_factory.mktemp("parts")
    return Removals(pool, base, member, {"few": np.array([3, 11, 30])}, 3, SHARDS, folder, "key")


@pytest.fixture(scope="module")
def signals(removals):
    return removals.run()


def optimum(removals, present, rows=None):
    """dw of the images that are present, cold."""
    pool = removals.pool
    data, zero = pool.data if rows is None else pool.data.take(rows), {"kernel": np.zeros((8, 3), np.float32)}
    weighed = np.asarray(present, float)
    return solve(linear, data, pool.objective, start=zero, example_weights=weighed, certificate=1e-4).dw


def composed(removals, member, gone=()):
    """The mean of the models of the shards of which no image is gone."""
    steps = []
    for rows in uniform(N, SHARDS, seed=0):
        if member[rows].any() and not (member[rows] & np.isin(rows, gone)).any():
            present = np.append(member[rows], [False] * (10 - len(rows)))  # Lambda is of ten images in all
            steps.append(optimum(removals, present, np.resize(rows, 10)))
    return {"kernel": np.mean([dw["kernel"] for dw in steps], 0)}


def assert_seen(removals, signals, steps):
    """The signals are those of these dw."""
    models = [dataclasses.replace(removals.base, dw=dw) for dw in steps]
    np.testing.assert_allclose(signals, removals.pool.signals(models), atol=0.02)


def test_solve_leaves_out_what_its_way_says(removals, signals):
    rows, member = removals.requests["few"], removals.member
    left = without(member, rows)
    assert_seen(removals, signals["nothing"], [optimum(removals, m) for m in member])
    for way in ("exact", "never"):
        assert_seen(removals, signals[f"{way}/few"], [optimum(removals, m) for m in left[:3]])
    subtracted = []
    for m in member[:3]:
        share = m[rows].sum() / m.sum()
        gone = optimum(removals, m[rows], rows)
        subtracted.append(trees.plus(optimum(removals, m), trees.scale(-share, gone)))
    assert_seen(removals, signals["subtracted/few"], subtracted)
    assert np.abs(signals["exact/few"] - signals["nothing"][:3])[:, rows][member[:3, rows]].min() > 0.02


def test_each_way_is_near_its_model(removals, signals):
    member = removals.member
    tests = relative(signals, member, removals.requests)
    assert {*tests} == {"subtracted", "exact", "dropped", "retrained"}
    exact, retrained = tests["exact"]["few"], tests["retrained"]["few"]
    assert retrained["identical"]
    assert not exact["identical"]
    for test in (exact, retrained):
        assert test["to_never"] < test["to_before"]
        assert test["p_kept"] > 0.5


def test_shards_with_removed_image_retrain(removals, signals):
    rows, member = removals.requests["few"], removals.member
    assert_seen(removals, signals["composed"], [composed(removals, m) for m in member])
    assert_seen(removals, signals["retrained/few"], [composed(removals, m) for m in without(member, rows)[:3]])
    assert_seen(removals, signals["dropped/few"], [composed(removals, m, rows) for m in member[:3]])


def test_all_dropped_shards_have_no_signal(removals):
    every = dataclasses.replace(removals, requests={"all": np.arange(N)})
    assert np.isnan(every.sharded(np.arange(3))["dropped/all"]).all()


def test_parts_that_are_finished_are_read_again(removals, signals):
    again = dataclasses.replace(removals, pool=dataclasses.replace(removals.pool, predict=None)).run()
    assert {*again} == {*signals}
    for way, values in again.items():
        np.testing.assert_array_equal(values, signals[way])


def test_finer_certificate_leaves_less(removals):
    gaps = removals.certified("few", 3, (1.0, 1e-2, 1e-4))
    sizes = [np.abs(gaps[c]).max() for c in ("1", "0.01", "0.0001")]
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2]
