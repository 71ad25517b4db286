"""Discrete noise: its generator, its law, the grid on which it lies, what it costs, and how it is refused."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, pld, rdp
from dp_accounting.pld import privacy_loss_distribution as losses
from helpers import in_long
from recovered import recovered_noise
from scipy import stats

from tangent_jax.audit.audit import before_rounding, canary_scores, run_openly
from tangent_jax.core.checks import InputError
from tangent_jax.io.ledger import Ledger
from tangent_jax.io.records import convert
from tangent_jax.privacy import discrete, train
from tangent_jax.privacy.accounting import DISTANCE, RESERVED, epsilon_of
from tangent_jax.privacy.chacha import chacha
from tangent_jax.privacy.clipping import ClippedSum
from tangent_jax.privacy.discrete import (
    HALF,
    STRIDE,
    WIDTH,
    Halves,
    alias_table,
    check_grid,
    discrete_mean,
    discrete_normal,
    draw,
    on_grid,
    sensitivity_of,
    spacing_of,
    step_key,
    stride_of,
    table_shares,
)
from tangent_jax.privacy.mechanism import CLIP_NORMS, Mechanism, Spent, make_mechanism, spent_together
from tangent_jax.privacy.train import fit_private
from tangent_jax.train.batches import Batches, Chunk
from tangent_jax.train.objective import make_objective

RARE, N = 1e-6, 20_000
CE = make_objective("ce", penalty=0.0)
MECHANISM = Mechanism(1.0, 2.0, 5, 1e-5, noise="discrete")
KEY = jnp.arange(8, dtype=jnp.uint32)
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 30)).astype(np.float32), RNG.integers(0, 3, 40)
START = {"a": jnp.zeros((30, 3)), "b": jnp.zeros((30, 3))}


def as_account(fields):
    return convert(Spent, fields, "an account")


def two_leaves(dw, x):
    return x @ dw["a"] + jnp.square(x) @ dw["b"]


def train_discrete(mechanism=MECHANISM, batch_size=16, **options):
    data = Batches(X, Y, batch_size=batch_size)
    return fit_private(two_leaves, data, mechanism=mechanism, start=START, **options)


# The generator


def test_the_bits_are_rfc_8439s():
    """Section 2.3.2, the key being the bytes 0 to 31."""
    key = jnp.asarray(np.frombuffer(bytes(range(32)), "<u4"))
    nonce = jnp.asarray(np.frombuffer(bytes.fromhex("000000090000004a00000000"), "<u4"))
    words = [word[0] for word in chacha(key, jnp.array([1, 7], jnp.uint32), nonce)]
    want = "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    want += "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    assert np.array(words, "<u4").tobytes().hex() == want


# The law


def test_table_has_96_exact_bits():
    thresholds, other = alias_table()
    gives = [0] * (2 * HALF)
    for column, (high, middle, low) in enumerate(thresholds.T.tolist()):
        limit = (1 << 83) if other[column] == column else (high << 64) + (middle << 32) + low
        gives[column] += limit
        gives[other[column]] += (1 << 83) - limit
    assert gives == table_shares()
    assert sum(gives) == 2**96
    assert gives[1:] == gives[:0:-1]  # symmetric
    k = np.arange(-HALF, HALF)
    want = np.exp(-(k**2) / (2 * WIDTH**2))
    np.testing.assert_allclose(np.array(gives[1:], float) / 2.0**96, want[1:] / want[1:].sum(), rtol=1e-12, atol=2e-29)


def test_sampler_is_near_its_law():
    """Every term of the bound, in total variation: the table's rounding and tails, and Poisson's sums."""
    table = 2 * HALF * 2.0**-96 + 2 * stats.norm.sf(HALF / WIDTH)
    second = WIDTH**2 / (1 + STRIDE**2)
    third = WIDTH**2 * (1 + STRIDE**2) / (1 + STRIDE**2 + STRIDE**4)
    sums = sum(4 * math.exp(-2 * math.pi**2 * variance) for variance in (second, third, 4.0))
    assert 3 * table + sums < 2.0**-80
    assert discrete.NUMBERS * 2.0**-80 <= DISTANCE
    largest = (2.0 * 2**23 / WIDTH) ** 2 * (1 + 2.0**-17)  # Delta at most 2 C, and gamma at least sigma C 2^-23
    assert math.ceil((largest - STRIDE**2) ** 0.5) <= STRIDE**2


def test_each_comparison_looks_at_every_word():
    """Bits at, just below and just above a threshold, in each word of it."""
    thresholds, other = alias_table()
    column = next(c for c in range(2 * HALF) if other[c] != c and (thresholds[:, c] > 0).all())
    high, middle, low = thresholds[:, column].tolist()
    below = [(high - 1, 2**32 - 1, 2**32 - 1), (high, middle - 1, 2**32 - 1), (high, middle, low - 1)]
    above = [(high, middle, low), (high, middle + 1, 0), (high + 1, 0, 0)]
    words = np.array([((column << 19) + h, m, w) for h, m, w in below + above], np.uint32).T
    assert draw([*jnp.asarray(words)]).tolist() == [column - HALF] * 3 + [int(other[column]) - HALF] * 3


def accepted(draws, scale):
    """True where draws pass for the discrete Gaussian of this standard deviation: by mean, variance, chi-square."""
    draws = np.asarray(draws, np.float64).ravel()
    spread, edges = (
        stats.chi2(draws.size).cdf(np.sum(draws**2) / scale**2),
        stats.norm.ppf(np.linspace(0, 1, 33)) * scale,
    )
    centred = abs(draws.mean()) < 5 * scale / draws.size**0.5
    counts = stats.chisquare(np.histogram(draws, edges)[0], draws.size * np.full(32, 1 / 32)).pvalue
    return centred and min(2 * spread, 2 - 2 * spread, counts) > RARE


@pytest.fixture(scope="module")
def tables_draws():
    """Two million draws of the table."""
    words = np.random.default_rng(0).integers(0, 2**32, (3, 2_000_000), dtype=np.uint32)
    return np.asarray(jax.jit(lambda words: draw([*words]))(words))


def test_the_tables_draws_have_the_exact_law(tables_draws):
    """Chi-square over every number that is drawn twenty times or more, and over both tails."""
    shares = np.array(table_shares(), float) / 2.0**96 * tables_draws.size
    counts = np.bincount(tables_draws + HALF, minlength=2 * HALF)
    inner = shares >= 20
    low, high = np.flatnonzero(inner)[[0, -1]]
    got = [counts[:low].sum(), *counts[inner], counts[high + 1 :].sum()]
    want = [shares[:low].sum(), *shares[inner], shares[high + 1 :].sum()]
    assert stats.chisquare(got, np.array(want) * (sum(got) / sum(want))).pvalue > RARE
    positive, negative = (int(np.sum(sign * tables_draws > 0)) for sign in (1, -1))
    assert stats.binomtest(positive, positive + negative).pvalue > RARE


@pytest.mark.parametrize("stride", [1, STRIDE**2, *in_long(700)])
def test_variance_rejects_wrong_scales(stride):
    draws = jax.jit(lambda: discrete_normal(KEY, N, stride))()
    scale = WIDTH * (1 + STRIDE**2 + stride**2) ** 0.5
    assert draws.dtype == jnp.int32
    assert accepted(draws, scale)
    assert not accepted(draws, scale * 2 / 3)
    assert not accepted(draws, scale * 3 / 2)


def test_noise_differs_by_number_step_and_key():
    draws = jax.jit(lambda key: discrete_normal(key, N, 1000))
    first, step = (np.asarray(draws(step_key(MECHANISM, 3, step))) for step in range(2))
    for other in (step, np.roll(first, 1), np.roll(first, N // 2)):
        assert stats.pearsonr(first, other).pvalue > RARE
    entropy = {tuple(np.asarray(step_key(MECHANISM, None, 0)).tolist()) for _ in range(20)}
    assert len(entropy) == 20
    assert {len(set(key)) for key in entropy} == {8}
    assert np.std([word for key in entropy for word in key]) > 2**29  # every word is drawn


# The grid


SETTINGS = [(c, s) for c in (*CLIP_NORMS, 1.0, 0.3) for s in (0.25, 3.9, 26.4, 1000.0)]


@pytest.mark.parametrize(("clip_norm", "sigma"), SETTINGS)
def test_grid_is_power_of_two_without_overflow(clip_norm, sigma):
    mechanism = Mechanism(clip_norm, sigma, 5, 1e-5, noise="discrete")
    spacing = float(spacing_of(mechanism))
    assert math.frexp(spacing)[0] == 0.5
    assert 1 <= spacing / (clip_norm * max(2.0**-20, sigma * 2.0**-23)) * (1 + 1e-6) < 2 + 1e-6
    dw = {"a": jax.ShapeDtypeStruct((454_000,), jnp.float32)}
    moved = float(sensitivity_of(mechanism, dw, 64)) / spacing
    assert moved >= clip_norm / spacing * (1 + 64**2 * 2.0**-22) + 454_000**0.5
    stride = int(stride_of(jnp.float32(sigma * moved)))
    variance = WIDTH**2 * (1 + STRIDE**2 + stride**2)
    needed = (sigma * moved) ** 2 + 4
    assert 1 <= stride <= STRIDE**2
    assert needed <= variance
    assert variance <= 1.01 * needed
    assert HALF * (1 + STRIDE + stride) < 2**28
    assert clip_norm * 64 / spacing < discrete.LARGEST


def neighbours(seed, batch=16, numbers=5000):
    """The sums of two micro-batches, floats, of which one lacks one example of norm 1, all alike or not."""
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((batch, numbers)).astype(np.float32) + 3 * (seed % 2)
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    whole = np.float32(0) + sum(gradients)
    return whole, np.float32(0) + sum(gradients[1:])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sigma", [1.0, 200.0])
def test_neighbours_on_grid_keep_sensitivity(seed, sigma):
    mechanism = Mechanism(1.0, sigma, 5, 1e-5, noise="discrete")
    spacing, both = float(spacing_of(mechanism)), []
    for value in neighbours(seed):
        rounded = on_grid(ClippedSum({"a": jnp.asarray(value)}, jnp.zeros(16), jnp.zeros((), int), 1.0), mechanism)
        halves = rounded.value["a"]
        whole = np.asarray(halves.high, np.int64) * 2**15 + np.asarray(halves.low, np.int64)
        assert np.abs(whole * spacing - value).max() <= spacing / 2  # rounded to the nearest
        assert np.asarray(halves.low).min() >= 0
        assert np.asarray(halves.low).max() < 2**15
        both.append((whole, float(rounded.sensitivity)))
    (first, sensitivity), (second, _) = both
    assert np.linalg.norm(first - second) * spacing <= sensitivity
    assert sensitivity <= 1.1


def test_worst_rounding_is_accounted():
    """Every number just below and just above the middle: rounding moves each by gamma, and the sum by gamma sqrt(d)."""
    mechanism = Mechanism(1.0, 1000.0, 5, 1e-5, noise="discrete")
    spacing, d = float(spacing_of(mechanism)), 10_000
    sums = [np.full(d, spacing * (100.5 + side), np.float32) for side in (-1e-3, 1e-3)]
    moved = [on_grid(ClippedSum(jnp.asarray(s), jnp.zeros(16), jnp.zeros((), int), 1.0), mechanism) for s in sums]
    apart = np.linalg.norm(np.asarray(moved[1].value.low) - np.asarray(moved[0].value.low)) * spacing
    assert apart == pytest.approx(spacing * d**0.5)
    assert 0.9 * apart < float(moved[0].sensitivity) - 1 < 1.1 * apart


def test_release_is_one_number_on_the_grid():
    spacing = float(spacing_of(MECHANISM))
    value = jnp.arange(1000, dtype=jnp.int32) * 77_777 - 30_000_000
    same = [Halves(value >> 15, value & (2**15 - 1)), Halves((value >> 15) - 5, (value & (2**15 - 1)) + 5 * 2**15)]
    means = [
        discrete_mean(ClippedSum({"a": v}, jnp.zeros(4), jnp.zeros((), int), 1.0), MECHANISM, 1.0, KEY)["a"]
        for v in same
    ]
    np.testing.assert_array_equal(*means)
    noise = discrete_normal(KEY, 1000, stride_of(jnp.float32(2 / spacing)))
    units = np.asarray(means[0], np.float64) / spacing
    np.testing.assert_array_equal(units, np.round(units))
    np.testing.assert_array_equal(units, (np.asarray(value, np.int64) + np.asarray(noise)).astype(np.float32))
    fewer = discrete_mean(ClippedSum({"a": same[0]}, jnp.zeros(4), jnp.zeros((), int), 1.0), MECHANISM, 8.0, KEY)["a"]
    np.testing.assert_array_equal(fewer, means[0] / 8)


def test_many_micro_batches_do_not_overflow():
    """A million examples that agree in one number: 2^20 times what int32 holds of them on the finest grid."""
    mechanism, most = Mechanism(1.0, 1.0, 5, 1e-5, noise="discrete"), discrete.PARTS - 1
    part = on_grid(ClippedSum(jnp.full(1, 64.0), jnp.zeros(64), jnp.zeros((), int), 1.0), mechanism).value
    total = jax.tree.map(lambda leaf: leaf * most, part)
    negative = on_grid(ClippedSum(jnp.full(1, -(2.0**-20)), jnp.zeros(64), jnp.zeros((), int), 1.0), mechanism).value
    total = jax.tree.map(jnp.add, total, jax.tree.map(lambda leaf: leaf * 1, negative))
    assert int(negative.low[0]) == 2**15 - 1
    for sums, want in ((total, 64.0 * most), (jax.tree.map(lambda leaf: leaf * most, negative), -(2.0**-20) * most)):
        mean = discrete_mean(ClippedSum(sums, jnp.zeros(4), jnp.zeros((), int), 1.0), mechanism, 1.0, KEY)
        assert abs(float(mean[0]) - want) < 10


# The trainer


def test_trainer_sums_whole_numbers():
    dw, present = START, jnp.ones((3, 16)).at[2, 8:].set(0)
    order = jnp.resize(jnp.arange(40), 48).reshape(3, 16)
    chunk = Chunk(jnp.asarray(X), jnp.asarray(Y), order, present)
    predict = jax.tree_util.Partial(two_leaves)
    total = train.clip_all(predict, dw, chunk, 3, CE, MECHANISM)
    floats = train.clip_all(predict, dw, chunk, 3, CE, before_rounding(MECHANISM))
    spacing = float(spacing_of(MECHANISM))
    for name, leaf in total.value.items():
        got = (leaf.high * 2.0**15 + leaf.low) * spacing
        assert float(jnp.abs(got - floats.value[name]).max()) <= 3 * spacing
    assert float(total.sensitivity) == pytest.approx(1 + 16**2 * 2.0**-22 + spacing * 180**0.5, abs=3e-6)
    one = train.clip_all(predict, dw, Chunk(chunk.inputs, chunk.targets, order[:1], present[:1]), 1, CE, MECHANISM)
    assert float(one.sensitivity) == float(total.sensitivity)
    assert float((total + one).sensitivity) == float(total.sensitivity)
    assert float(floats.sensitivity) == 1


def test_noise_is_of_its_multiplier():
    mechanism = dataclasses.replace(MECHANISM, steps=20)
    data = Batches(X, Y, batch_size=16)
    steps = run_openly(two_leaves, START, data, mechanism, CE)
    noises = recovered_noise(two_leaves, steps, data, mechanism, CE)
    z = np.stack([[noise["a"].ravel(), noise["b"].ravel()] for noise in noises]).astype(np.float64)
    assert stats.kstest(z.ravel(), "norm").pvalue > RARE
    for scale, sound in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        p = stats.chi2(z.size).cdf(np.sum((z / scale) ** 2))
        assert (min(2 * p, 2 - 2 * p) > RARE) == sound
    assert stats.pearsonr(z[:, 0].ravel(), z[:, 1].ravel()).pvalue > RARE
    assert stats.pearsonr(z[1:].ravel(), z[:-1].ravel()).pvalue > RARE


def test_discrete_audit_stays_below_claim():
    claimed = make_mechanism(3.0, 1e-5, 2, 0.05, noise="discrete")
    absent, present = canary_scores(two_leaves, START, Batches(X, Y, batch_size=64), claimed, 10)
    mu = 2**0.5 / claimed.noise_multiplier
    assert stats.kstest(absent, "norm").pvalue > RARE
    assert stats.kstest(present - mu, "norm").pvalue > RARE


def test_seed_repeats_and_ledger_knows_noise(tmp_path):
    first = train_discrete(seed=3, ledger=Ledger(tmp_path))
    np.testing.assert_array_equal(first.dw["a"], train_discrete(seed=3).dw["a"])
    assert not np.array_equal(train_discrete().dw["a"], train_discrete().dw["a"])
    content = json.loads((tmp_path / "ledger.json").read_text())["spent"]
    assert content["mechanism"]["noise"] == "discrete"
    assert as_account(content) == first.info.spent
    with pytest.raises(InputError, match="the ledger of this run"):
        train_discrete(before_rounding(MECHANISM), seed=3, ledger=Ledger(tmp_path))


def test_an_account_without_the_field_is_gaussian():
    fields = {"clip_norm": 1.0, "noise_multiplier": 2.0, "steps": 5, "delta": 1e-5, "sampling_rate": 0.5}
    old = as_account({"mechanism": fields, "steps_paid": 5, "private": True})
    assert old.mechanism == Mechanism(1.0, 2.0, 5, 1e-5, 0.5)
    assert old.mechanism.noise == "gaussian"
    with pytest.raises(InputError, match="gaussian or discrete"):
        as_account({"mechanism": fields | {"noise": "laplace"}, "steps_paid": 5, "private": True})


# The account


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_discrete_costs_what_gaussian_costs(epsilon):
    discrete_one, gaussian = (make_mechanism(epsilon, 1e-5, noise=noise) for noise in ("discrete", "gaussian"))
    assert 1 < discrete_one.noise_multiplier / gaussian.noise_multiplier < 1.0005
    assert 0.999 * epsilon < discrete_one.compute_epsilon() <= epsilon
    sigma = float(discrete_one.noise_multiplier)
    by_rdp = rdp.RdpAccountant().compose(GaussianDpEvent(sigma), 50).get_epsilon(1e-5)
    assert 1.02 < by_rdp / discrete_one.compute_epsilon() < 1.12  # Canonne's concentrated bound, the same as RDP's


def test_account_is_not_below_dp_accountings():
    """One number of integers, where the exact cost of a discrete Gaussian is known: fifty steps of 1, with noise 20."""
    own = losses.from_discrete_gaussian_mechanism(20.0, value_discretization_interval=1e-5).self_compose(50)
    exact, gaussian = own.get_epsilon_for_delta(1e-5), (epsilon_of(s, 50, 1e-5) for s in ((20.0**2 - 4) ** 0.5, 20.0))
    assert exact <= next(gaussian)
    assert abs(exact / next(gaussian) - 1) < 1e-3


def test_delta_pays_for_samplers_distance():
    spent = Spent(make_mechanism(3.0, 1e-5, noise="discrete"), 50, True)
    assert spent.mechanism.compute_epsilon() == epsilon_of(spent.mechanism.noise_multiplier, 50, 1e-5 * (1 - RESERVED))
    assert (1 + math.exp(8.0)) * 50 * DISTANCE < RESERVED * 1e-5
    with pytest.raises(InputError, match=r"discrete noise can state; got 29\.99"):
        make_mechanism(30.0, 1e-5, noise="discrete")


def test_runs_of_both_kinds_of_noise_compose():
    """Of discrete noise one that is taken out moves others to other micro-batches, each rounded anew."""
    seen = frozenset("a")
    runs = [Spent(make_mechanism(3.0, 1e-5, noise=noise), 50, True) for noise in ("discrete", "gaussian")]
    assert [run.mechanism.neighbouring for run in runs] == ["zero-out-one", "add-or-remove-one"]
    together = spent_together([(run, seen) for run in runs])
    assert together.neighbouring == "zero-out-one"
    accountant = pld.PLDAccountant()
    for run in runs:
        accountant.compose(GaussianDpEvent(run.mechanism.noise_multiplier), 50)
    assert accountant.get_epsilon(1e-5) < together.epsilon < 1.001 * accountant.get_epsilon(1e-5)
    assert spent_together([(runs[0], seen)]).epsilon == runs[0].compute_epsilon()


# Wrong uses


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: check_grid(MECHANISM, jax.ShapeDtypeStruct((2**28 + 1,), jnp.float32), 4, 1), "268435456 numbers"),
        (
            lambda: check_grid(MECHANISM, START, 4, 2**16 + 1),
            "micro-batches must be at most 65536 under discrete noise",
        ),
        (lambda: check_grid(MECHANISM, START, 4096, 1), "at most twice the clip norm; got 5"),
        (lambda: train_discrete(dataclasses.replace(MECHANISM, noise_multiplier=1e7)), "at most twice the clip norm"),
    ],
)
def test_wrong_uses_are_one_clear_line(call, match, untyped):
    with pytest.raises(InputError, match=match):
        call()
