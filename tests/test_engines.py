"""examples/engines: statistics folded by engines, one worker or many, some of them repeated."""

import os
import random
import sys

import numpy as np
import pytest
from run_binary import ROOT

sys.path.insert(0, str(ROOT / "examples/engines"))

import fold
from fold import Parts, Totals, same_bits

SHARDS = 40


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


def monoid_of(kind, cache):
    return kind(shards=SHARDS, cache=cache)


@pytest.fixture(scope="module")
def alone(cache):
    monoid = monoid_of(Parts, cache)
    return fold.fold(monoid, monoid.names[:4])


def merged_at_random(monoid, seed, more=()):
    """The sum of four shards, each of a worker of its own, merged in a random order; `more`: repeated ones."""
    rng = random.Random(seed)
    parts = [monoid.add(monoid.zero(), name) for name in (*monoid.names[:4], *more)] + [monoid.zero()]
    while len(parts) > 1:
        rng.shuffle(parts)
        parts = [monoid.merge(*parts[:2]), *parts[2:]]
    return monoid.finish(parts[0])


def test_parts_have_the_same_bits_whoever_computed_them_and_however_often(cache, alone):
    monoid = monoid_of(Parts, cache)
    for seed in range(3):
        assert same_bits(merged_at_random(monoid, seed, monoid.names[1:3]), alone)
    assert fold.fold(monoid, monoid.names[:4] * 2).counts.sum() == alone.counts.sum()


def test_totals_are_equal_to_rounding_and_count_a_repeated_shard_once(cache, alone):
    monoid = monoid_of(Totals, cache)
    for seed in range(3):
        total = merged_at_random(monoid, seed)
        np.testing.assert_allclose(total.gram, alone.gram, rtol=1e-12, atol=1e-12 * np.abs(alone.gram).max())
        assert (total.counts == alone.counts).all()
    a, b, c = (monoid.add(monoid.zero(), name) for name in monoid.names[:3])
    both = monoid.merge(a, b)
    for order in ([a, both, c], [both, a, c], [both, c, a]):
        merged = monoid.merge(monoid.merge(*order[:2]), order[2])
        assert {*merged} == {frozenset(monoid.names[:3])}
        assert monoid.finish(merged).counts.sum() == sum(monoid.finish(part).counts.sum() for part in (a, b, c))
    with pytest.raises(ValueError, match="sums must be of different shards"):
        monoid.merge(both, monoid.merge(b, c))  # never counted twice
    with pytest.raises(ValueError, match="a shard at least"):
        monoid.finish(monoid.zero())


@pytest.mark.parametrize("workers", [1, 2])
def test_beam_folds_them(cache, alone, workers):
    """A runner that delivers a shard twice, as after a worker's death, counts it once."""
    pytest.importorskip("apache_beam", reason="apache-beam is absent")
    import beam_statistics

    monoid = monoid_of(Parts, cache)
    assert same_bits(beam_statistics.fold_by_beam(monoid, monoid.names[:4], workers), alone)
    assert same_bits(beam_statistics.fold_by_beam(monoid, [*monoid.names[:4], monoid.names[1]], workers), alone)


@pytest.mark.long
def test_beam_folds_them_though_a_process_is_killed(cache, alone, tmp_path):
    pytest.importorskip("apache_beam", reason="apache-beam is absent")
    import beam_statistics

    for kind in (Parts, Totals):
        monoid, marks = monoid_of(kind, cache), tmp_path / kind.__name__
        marks.mkdir()
        total = beam_statistics.fold_though_killed(monoid, monoid.names[:4], monoid.names[2], str(marks))
        assert os.listdir(marks) == [monoid.names[2]]  # it was killed once
        assert (total.counts == alone.counts).all()
        assert kind is Totals or same_bits(total, alone)


@pytest.mark.long
def test_ray_folds_them_though_a_worker_is_killed(cache, alone, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="ray is absent")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import ray_statistics

    ray_statistics.start(2)
    try:
        for kind in (Parts, Totals):
            monoid, marks = monoid_of(kind, cache), tmp_path / kind.__name__
            marks.mkdir()
            total = ray_statistics.fold_by_ray(monoid, monoid.names[:4], monoid.names[2], str(marks))
            assert os.listdir(marks) == [monoid.names[2]]  # it was killed once
            assert (total.counts == alone.counts).all()
            np.testing.assert_allclose(total.gram, alone.gram, rtol=1e-12, atol=1e-12 * np.abs(alone.gram).max())
            assert kind is Totals or same_bits(total, alone)
    finally:
        ray.shutdown()
