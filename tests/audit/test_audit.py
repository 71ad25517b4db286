"""The trainer from outside: what its released steps say of its noise, its samples, its rate and its penalty.

Everything here calls `fit_private` itself. A detector must pass the sound trainer and catch a broken one; each
p-value's bound is one in a million, so that a sound trainer fails once in ten thousand runs of this file or less.
"""

import dataclasses
import inspect
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld
from helpers import in_long, private_task
from recovered import recovered_noise
from scipy import stats

from experiments.shared.breaks import BREAKS, break_mechanism
from tangent_jax.audit.audit import (
    DESCENT,
    RATE,
    canary_scores,
    epsilon_lower_bound,
    noise_scale,
    private_gradients,
    run_openly,
)  # fmt: skip
from tangent_jax.audit.bounds import one_run_bound
from tangent_jax.core.checks import InputError
from tangent_jax.io.ledger import Ledger
from tangent_jax.io.records import convert
from tangent_jax.privacy import train as module
from tangent_jax.privacy import transformation, units
from tangent_jax.privacy.clipping import clipped_sum
from tangent_jax.privacy.mechanism import Mechanism, Spent, make_mechanism
from tangent_jax.privacy.noise import noisy_mean, standard_normal
from tangent_jax.privacy.train import fit_private
from tangent_jax.privacy.units import sample
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import make_objective

CE = make_objective("ce", penalty=0.0)
RARE = 1e-6
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((30, 40)).astype(np.float32), RNG.integers(0, 3, 30)


def as_account(fields):
    return convert(Spent, fields, "an account")


def two_layers(dw, x):
    """Logits of three classes, of two leaves of one shape: noise that they share would show."""
    return x @ dw["a"] + jnp.square(x) @ dw["b"]


START = {"a": jnp.zeros((40, 3)), "b": jnp.zeros((40, 3))}


def linear(dw, x):
    return x @ dw


def audit(broken="nothing", trials=300):
    x, y = RNG.standard_normal((6, 3)).astype(np.float32), np.array([0, 1, 2, 0, 1, 2])
    claimed = make_mechanism(3.0, 1e-5, 2, 0.05)
    data = Batches(x, y)

    trained = break_mechanism(claimed, broken, len(y))
    return canary_scores(linear, jnp.zeros((3, 3)), data, trained, trials, claimed=claimed), claimed


def is_caught(absent, present, claimed=3.0):
    """As `experiments.privacy audit` decides: a proof above the claim, or less noise than claimed, at 99.9 %."""
    bound = epsilon_lower_bound(absent, present, 1e-5, 0.999)
    return max(bound.epsilon, bound.gaussian_epsilon) > claimed or noise_scale(absent, 0.999)[1] < 1


def test_audit_is_near_claim_and_below():
    (absent, present), claimed = audit()
    mu = 2**0.5 / claimed.noise_multiplier
    assert stats.kstest(absent, "norm").pvalue > RARE
    assert stats.kstest(present - mu, "norm").pvalue > RARE  # a canary that is clipped at every step
    assert abs(present.mean() - absent.mean() - mu) < 5 * (2 / len(absent)) ** 0.5
    assert not is_caught(absent, present)


@pytest.mark.parametrize("broken", ["half_noise", *in_long(*(name for name in BREAKS[1:] if name != "half_noise"))])
def test_the_audit_catches_a_broken_mechanism(broken):
    assert is_caught(*audit(broken)[0])


@pytest.mark.long
@pytest.mark.parametrize("method", ["taft", "nlft"])
def test_audit_of_vit_stays_below_claim(method):
    output = "tangent" if method == "taft" else "total"
    predict, dw, x, y = private_task("layernorm", method=method, output=output, depth=1)
    claimed = make_mechanism(3.0, 1e-5, 2, 0.05)
    absent, present = canary_scores(predict, dw, Batches(np.asarray(x), np.asarray(y)), claimed, 100)
    assert abs(present.mean() - absent.mean() - 2**0.5 / claimed.noise_multiplier) < 5 * (2 / 100) ** 0.5
    assert not is_caught(absent, present)


# From a trained run alone: its ledger, its steps, its data


SIGMA = 0.05  # little, so that a wrong sum shows beside the noise


def run(folder=None, steps=20):
    """(steps dw_0..dw_T, what the ledger says) of a run by plain descent."""
    mechanism, objective = Mechanism(1.0, SIGMA, steps, 1e-5), CE
    if folder is None:
        return run_openly(two_layers, START, Batches(X, Y), mechanism, objective), mechanism
    seen = [jax.tree.map(np.asarray, START)]
    options = {"optimizer": DESCENT, "ledger": Ledger(folder)}
    on_step = Keep(seen)
    fit_private(two_layers, Batches(X, Y), objective, mechanism=mechanism, start=START, on_step=on_step, **options)
    said = as_account(json.loads((folder / "ledger.json").read_text())["spent"])
    assert said.private
    return seen, said.mechanism


@dataclasses.dataclass
class Keep:
    """Keeps every released step."""

    steps: list

    def __call__(self, row, dw):
        self.steps.append(jax.tree.map(np.array, dw))


def noises(steps, mechanism, objective=CE):
    """The recovered noise, "steps leaf numbers"."""
    found = recovered_noise(two_layers, steps, Batches(X, Y), mechanism, objective)
    return np.stack([[noise["a"].ravel(), noise["b"].ravel()] for noise in found]).astype(np.float64)


def is_sound(z):
    """True where recovered noise is N(0, 1), independent between leaves and between steps."""
    n = z.size
    scale = stats.chi2(n).cdf(np.sum(z**2))
    normal = stats.kstest(z.ravel(), "norm").pvalue
    leaves = stats.pearsonr(z[:, 0].ravel(), z[:, 1].ravel()).pvalue
    steps = stats.pearsonr(z[1:].ravel(), z[:-1].ravel()).pvalue
    return min(2 * scale, 2 - 2 * scale, normal, leaves, steps) > RARE


def test_the_noise_of_a_run_is_as_its_ledger_says(tmp_path):
    steps, mechanism = run(tmp_path)
    assert is_sound(noises(steps, mechanism))
    other, _ = run()
    first, second = noises(steps, mechanism), noises(other, mechanism)
    assert stats.pearsonr(first.ravel(), second.ravel()).pvalue > RARE  # a fresh key for every run
    smaller, larger = (dataclasses.replace(mechanism, noise_multiplier=s) for s in (SIGMA * 2 / 3, SIGMA * 3 / 2))
    assert not is_sound(noises(steps, smaller))
    assert not is_sound(noises(steps, larger))


def shared_between_leaves(clipped, sigma, count, key):
    leaves, structure = jax.tree.flatten(clipped.value)
    noisy = [(leaf + sigma * clipped.sensitivity * standard_normal(key, leaf.shape)) / count for leaf in leaves]
    return jax.tree.unflatten(structure, noisy)


BROKEN = {
    "half the noise": {"noisy_mean": lambda c, s, n, k: noisy_mean(c, s / 2, n, k)},
    "a thousandth of the noise": {"noisy_mean": lambda c, s, n, k: noisy_mean(c, s / 1000, n, k)},
    "noise shared between leaves": {"noisy_mean": shared_between_leaves},
    "one key for every step": {"step_key": lambda mechanism, seed, step: jax.random.key(5, impl="threefry2x32")},
    "a division by another number": {"noisy_mean": lambda c, s, n, k: noisy_mean(c, s, n + 3, k)},
    "twice the clip norm": {
        "clipped_gradients": lambda *a, clip_norm, **k: dataclasses.replace(
            clipped_sum(*a, clip_norm=2 * clip_norm, **k), sensitivity=clip_norm
        )
    },
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_trainer_shows_in_noise(monkeypatch, broken):
    for name, replacement in BROKEN[broken].items():
        monkeypatch.setattr(transformation if name == "noisy_mean" else module, name, replacement)
    monkeypatch.setattr(module, "clip_chunk", jax.jit(lambda *a, **_: module.clip_all(*a), static_argnames="traced"))
    step = inspect.unwrap(module.take_step)  # in a new function: JAX keeps the traces of the same one
    monkeypatch.setattr(module, "take_step", jax.jit(lambda *a, **_: step(*a), static_argnames="traced"))
    steps, mechanism = run()
    monkeypatch.undo()  # the auditor's own sums are sound
    assert not is_sound(noises(steps, mechanism))


def test_the_penalty_is_in_every_private_step():
    objective = make_objective("ce", penalty=0.05)
    mechanism = Mechanism(1.0, 2.0, 20, 1e-5)
    start = {name: leaf + 30 for name, leaf in START.items()}  # far out, where the penalty pulls hard
    steps = run_openly(two_layers, start, Batches(X, Y), mechanism, objective)
    assert is_sound(noises(steps, mechanism, objective))
    assert not is_sound(noises(steps, mechanism, CE))


# Poisson samples


def sums(seed=None, rate=0.3, steps=30):
    """The noisy gradients of a Poisson run with next to no noise, "steps numbers"."""
    mechanism = Mechanism(1.0, 1e-6, steps, 1e-5, rate)
    released = run_openly(two_layers, START, Batches(X, Y), mechanism, CE, seed)
    return np.stack(
        [np.concatenate([g["a"].ravel(), g["b"].ravel()]) for g in private_gradients(released, mechanism, CE)]
    )


def test_poisson_coins_are_fresh_or_seeded():
    """Two runs of 30 examples and 30 steps have one sample alike with chance 0.58^30 a step: 1e-7."""
    first, second = sums()[0], sums()[0]
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(sums(seed=3)[0] - sums(seed=3)[0]).max() < 1e-3
    first, second = sums()[:2]  # and between the steps of a run, which start alike
    assert np.abs(first - second).max() > 1e-3


def test_coins_of_a_fixed_seed_are_caught(monkeypatch):
    monkeypatch.setattr(units, "sample", lambda units, mechanism, seed, step: sample(units, mechanism, 0, step))
    assert np.abs(sums()[0] - sums()[0]).max() < 1e-3


@pytest.mark.parametrize(("rate", "ratio"), [(0.3, 1.0), (0.7, 1.0)])
def test_poisson_gradient_is_unbiased(rate, ratio):
    """The first step's gradient over many runs is unbiased: so S is divided by q n, at the rate that is stated."""
    whole = sums(rate=1.0, steps=1)[0]
    first = np.stack([sums(rate=rate, steps=1)[0] for _ in range(150)])
    along = first @ whole / (whole @ whole)
    assert abs(along.mean() - ratio) < 5 * along.std() / len(along) ** 0.5
    for wrong in (rate, 1 / rate):
        assert abs(along.mean() - wrong) > 5 * along.std() / len(along) ** 0.5


def test_the_account_is_of_the_rate_that_was_used():
    mechanism = Mechanism(1.0, 2.0, 3, 1e-5, 0.5)
    spent = fit_private(two_layers, Batches(X, Y), mechanism=mechanism, start=START, seed=0).info.spent
    assert spent.mechanism == mechanism
    accountant = pld.PLDAccountant().compose(PoissonSampledDpEvent(0.5, GaussianDpEvent(2.0)), 3)
    assert abs(mechanism.compute_epsilon() - accountant.get_epsilon(1e-5)) < 1e-6


def test_threshold_is_chosen_on_other_scores():
    """Scores that separate in the first half alone prove nothing."""
    absent, present = np.tile([0.0, 10.0], 500), np.tile([5.0, 5.0], 500)
    bound = epsilon_lower_bound(absent, present, 1e-5)
    assert bound.epsilon == bound.gaussian_epsilon == 0


BAD = [np.full(40, np.nan), np.full(40, np.inf), np.zeros((40, 2)), np.array(["a"] * 40), np.zeros(1)]


def test_lists_and_halves_prove_as_much(untyped):
    absent = np.arange(-200, 200).astype(np.float16)  # squares overflow
    scores = absent, absent + np.float16(300)
    expected = epsilon_lower_bound(*(values.astype(np.float64) for values in scores), 1e-5)
    assert expected.epsilon > 0
    assert epsilon_lower_bound(*scores, 1e-5) == expected
    assert epsilon_lower_bound(*(values.tolist() for values in scores), 1e-5) == expected
    assert noise_scale(absent) == noise_scale(absent.astype(np.float64)) == noise_scale(absent.tolist())
    with pytest.raises(InputError, match="scores must be one array"):
        noise_scale([[0.0], 1.0])


@pytest.mark.parametrize("bad", BAD)
def test_non_finite_scores_prove_nothing(bad):
    """NaN scores "proved" 3.3."""
    good = np.zeros(40)
    for scores in ((bad, good), (good, bad)):
        with pytest.raises(InputError, match="scores must be at least 4 finite numbers"):
            epsilon_lower_bound(*scores, 1e-5)
    with pytest.raises(InputError, match="scores must be at least 2 finite numbers"):
        noise_scale(bad)


@pytest.mark.parametrize("confidence", [0, 1, 1.5, -1, np.nan])
@pytest.mark.parametrize(
    "call",
    [
        lambda scores, confidence: epsilon_lower_bound(scores, scores, 1e-5, confidence),
        noise_scale,
        lambda scores, confidence: one_run_bound(scores, scores > 0, Mechanism(1.0, 1.0, 1, 1e-5), confidence),
    ],
)
def test_bounds_refuse_confidence_outside_0_and_1(call, confidence):
    with pytest.raises(InputError, match=r"confidence must be in \(0, 1\)"):
        call(np.arange(-20.0, 20.0), confidence)


@pytest.mark.parametrize("delta", [0, 1, -1, np.nan])
def test_epsilon_lower_bound_refuses_delta(delta):
    with pytest.raises(InputError, match="delta must be in"):
        epsilon_lower_bound(np.zeros(40), np.ones(40), delta)


def test_every_gradient_lies_within_the_clip_norm():
    """With next to no noise a full-batch step moves dw by at most RATE, whatever the data: 1e4 times larger inputs."""
    mechanism = Mechanism(0.5, 1e-6, 2, 1e-5)
    steps = run_openly(two_layers, START, Batches(1e4 * X, Y), mechanism, CE)
    for before, after in itertools.pairwise(steps):
        moved = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(before.values(), after.values(), strict=True)))
        assert 0.1 * RATE < moved <= (1 + 1e-3) * RATE
