"""The relative three-sample test has its level and power, and its statistic is the difference of two MMDs."""

import itertools

import numpy as np
import pytest

from experiments.shared import relative
from experiments.shared.relative import relative_test


def kernel(a, b, scale):
    return np.exp(-np.sum((a - b) ** 2) / (2 * scale**2))


def mmd(x, y, images, scale):
    """The unbiased MMD^2 by a loop over pairs of different images."""
    pairs = [(i, j) for i, j in itertools.permutations(range(len(x)), 2) if images[i] != images[j]]
    total = sum(
        kernel(x[i], x[j], scale) + kernel(y[i], y[j], scale) - kernel(x[i], y[j], scale) - kernel(x[j], y[i], scale)
        for i, j in pairs
    )
    return total / len(pairs)


@pytest.mark.parametrize("images", [np.arange(7), np.array([0, 0, 1, 2, 2, 2, 3])])
def test_p_values_are_of_every_swap(monkeypatch, images):
    """The swaps are made on the samples; the test flips signs of the parts."""
    u, p, q = np.random.default_rng(1).normal(size=(3, 7, 2)) + np.array([0, 0.5, 1])[:, None, None]
    scale = relative.bandwidth(u, p, q)
    monkeypatch.setattr(relative, "DRAWS", 40_000)
    monkeypatch.setattr(relative, "jackknife_p_values", lambda t, without: [0, 0])
    got = relative_test(u, p, q, images)
    np.testing.assert_allclose(got[:2], [mmd(u, p, images, scale), mmd(u, q, images, scale)], rtol=1e-12)
    swapped = []
    for swap in itertools.product((False, True), repeat=images.max() + 1):
        at = np.array(swap)[images][:, None]
        first, second = np.where(at, q, p), np.where(at, p, q)
        swapped.append(mmd(u, first, images, scale) - mmd(u, second, images, scale))
    observed = got.to_never - got.to_before
    for p_value, sign in ((got.p_kept, 1), (got.p_removed, -1)):
        assert abs(p_value - np.mean(sign * np.array(swapped) >= sign * observed - 1e-12)) < 0.01


@pytest.mark.parametrize("images", [np.arange(7), np.array([0, 0, 1, 2, 2, 2, 3])])
def test_error_is_leave_one_out(monkeypatch, images):
    u, p, q = np.random.default_rng(1).normal(size=(3, 7, 2))
    scale = relative.bandwidth(u, p, q)
    asked = []
    monkeypatch.setattr(relative, "jackknife_p_values", lambda t, without: asked.append((t, without)) or [0, 0])
    relative_test(u, p, q, images)
    (t, without), rows = asked[0], [np.flatnonzero(images != i) for i in range(images.max() + 1)]

    def difference(at):
        return mmd(u[at], p[at], images[at], scale) - mmd(u[at], q[at], images[at], scale)

    np.testing.assert_allclose(t, difference(np.arange(7)), rtol=1e-12)
    np.testing.assert_allclose(without, [difference(at) for at in rows], rtol=1e-12)


SIZE = 40
NULLS = {
    "all alike": lambda rng: rng.normal(size=(3, SIZE)),
    "in the middle": lambda rng: rng.normal(size=(3, SIZE)) + np.array([[0], [-1], [1]]),
    "paired": lambda rng: rng.normal(size=SIZE) + 0.3 * rng.normal(size=(3, SIZE)),
    "heavy tails": lambda rng: rng.standard_t(2, (3, SIZE)) + np.array([[0], [-1], [1]]),
}


@pytest.mark.parametrize("null", NULLS)
def test_relative_test_keeps_its_level(monkeypatch, null):
    monkeypatch.setattr(relative, "DRAWS", 400)
    rng = np.random.default_rng(0)
    runs = 400
    kept = [relative_test(*NULLS[null](rng), seed=i).p_kept <= 0.05 for i in range(runs)]
    assert np.mean(kept) <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_relative_test_has_power():
    """Outputs move by 1.5 if the image was seen; a removal leaves a share of that."""
    rng = np.random.default_rng(0)
    runs = 40
    rates = {}
    for share in (0.0, 0.1, 0.9, 1.0):
        p_values = []
        for i in range(runs):
            never = rng.normal(size=80)
            before = never + 1.5
            result = relative_test(never + 1.5 * share + 0.05 * rng.normal(size=80), never, before, seed=i)
            p_values.append((result.p_kept, result.p_removed))
        rates[share] = np.mean(np.array(p_values) <= 0.05, 0)
    for share in (0.0, 0.1):
        assert rates[share][0] == 0
        assert rates[share][1] > 0.95
    for share in (0.9, 1.0):
        assert rates[share][0] > 0.95
        assert rates[share][1] == 0


def test_a_retrained_model_passes_by_its_bits():
    never, before = np.random.default_rng(0).normal(size=(2, 30))
    result = relative_test(never, never, before + 2)
    assert result.identical
    assert result.p_kept > 0.9
    assert not relative_test(np.nextafter(never, 9), never, before).identical
    same = relative_test(never, never, never)  # nobody can tell, and no p value claims it
    assert (same.p_kept, same.p_removed) == (1, 1)
