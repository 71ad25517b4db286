"""The private trainer: its noise, its ledger, its audit, and what components spent together."""

import dataclasses
import json
import multiprocessing
import os
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, pld
from helpers import assert_rel_close
from jax.extend.random import threefry_2x32
from scipy import stats
from test_privacy import task

from experiments.audit import BREAKS
from tangent_jax import trees
from tangent_jax.checks import InputError
from tangent_jax.losses import cross_entropy
from tangent_jax.privacy import (
    ClippedSum,
    Ledger,
    PrivateSettings,
    Spent,
    clipped_sum,
    fit_private,
    noise_key,
    noisy_mean,
    spent_together,
    standard_normal,
)
from tangent_jax.privacy.audit import canary_scores, epsilon_lower_bound
from tangent_jax.privacy.noise import threefry
from tangent_jax.privacy.train import add_up, micro_batches, sample

BUDGET = PrivateSettings(3.0, 1e-5, steps=5)
N = 100_001


def linear(dw, x):
    """A plain function: logits of three classes."""
    return x @ dw["kernel"]


def points(n=40, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    return (np.eye(3)[labels] + 0.3 * rng.standard_normal((n, 3))).astype(np.float32), labels


START = {"kernel": jnp.zeros((3, 3))}


def train(settings=BUDGET, **options):
    return fit_private(linear, START, *points(), settings, **options)


# The noise


def test_the_bits_are_jaxs_own_threefry():
    key = noise_key(3, 5)
    counters = jnp.concatenate([jnp.arange(1001, dtype=jnp.uint32), jnp.zeros(1001, jnp.uint32)])
    want = threefry_2x32(jax.random.key_data(key), counters)
    np.testing.assert_array_equal(np.concatenate(threefry(key, 1001)), want)


def scale_accepted(z, scale):
    """Whether the draws pass for N(0, scale^2): mean and variance within 5 standard errors, Kolmogorov-Smirnov."""
    z = np.asarray(z, np.float64).ravel() / scale
    mean, spread = abs(z.mean()) * z.size**0.5, abs(z.var() - 1) * (z.size / 2) ** 0.5
    return mean < 5 and spread < 5 and stats.kstest(z, "norm").pvalue > 1e-4


def test_normals_are_normal_and_reach_further_than_jaxs():
    z = np.asarray(standard_normal(noise_key(1, 0), (N,)))
    assert scale_accepted(z, 1.0)
    assert abs(stats.kurtosis(z)) < 0.1
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.02
    assert np.sqrt(-2 * np.log(np.float32(2**-32))) > 6.6  # the largest radius
    assert not np.array_equal(z[:100], np.asarray(standard_normal(noise_key(1, 1), (N,)))[:100])


@pytest.mark.parametrize("clip_norm", [0.1, 7.0])
def test_noise_is_sigma_c_over_b_in_every_leaf_and_two_thirds_or_three_halves_of_it_are_rejected(clip_norm):
    value = {"a": jnp.full(N, 3.0), "b": jnp.full((7, 1001), -5.0)}
    clipped = ClippedSum(value, jnp.zeros(4), jnp.zeros((), int), clip_norm)
    found = noisy_mean(clipped, 2.0, 4.0, noise_key(0, 0))
    for name, leaf in value.items():
        noise = found[name] - leaf / 4
        scale = 2.0 * clip_norm / 4
        assert scale_accepted(noise, scale)
        assert not scale_accepted(noise, scale * 3 / 2)
        assert not scale_accepted(noise, scale * 2 / 3)
    assert not np.array_equal(np.asarray(found["a"])[:1001], np.asarray(found["b"])[0])


def test_noise_is_added_once_whatever_the_micro_batches():
    x, y = points()
    sums = []
    for size in (5, 64):
        settings = dataclasses.replace(BUDGET, micro_batch=size)
        order, present = sample(len(y), settings, 0, 0)
        chunks = [
            (jnp.asarray(x), jnp.asarray(y), order[i : i + 3], present[i : i + 3]) for i in range(0, len(order), 3)
        ]
        total = add_up(jax.tree_util.Partial(linear), START, iter(chunks), settings)
        assert total.sensitivity == settings.clip_norm
        sums.append(noisy_mean(total, 1.0, 40.0, noise_key(0, 0)))
    assert_rel_close(*sums)
    whole = clipped_sum(linear, START, x, y, np.ones(40), loss=cross_entropy, clip_norm=1.0)
    assert_rel_close(noisy_mean(whole, 1.0, 40.0, noise_key(0, 0)), sums[0])


def test_without_a_seed_every_key_is_new():
    keys = {tuple(np.asarray(jax.random.key_data(noise_key(None, 0))).tolist()) for _ in range(20)}
    assert len(keys) == 20


# Sampling


def test_poisson_samples_are_independent_coins_taken_whole():
    settings = SimpleNamespace(sampling_rate=0.2, micro_batch=4)
    counts, sizes = np.zeros(50), []
    for step in range(2000):
        order, present = sample(50, settings, 7, step)
        rows = order[present > 0]
        assert order.shape == present.shape
        assert len(set(rows.tolist())) == len(rows)
        counts[rows] += 1
        sizes.append(len(rows))
    assert stats.kstest(counts, stats.binom(2000, 0.2).cdf).pvalue > 1e-4
    assert abs(np.var(sizes) / (50 * 0.2 * 0.8) - 1) < 0.15  # a fixed size would have none
    assert min(sizes) < 4 < max(sizes)


def test_an_empty_sample_is_noise_alone():
    order, present = sample(40, SimpleNamespace(sampling_rate=1e-9, micro_batch=64), 0, 0)
    assert present.sum() == 0
    x, y = map(jnp.asarray, points())
    total = micro_batches(jax.tree_util.Partial(linear), START, x, y, order, present, 1, settings=BUDGET)
    assert not np.any(total.value["kernel"])


# The trainer and its ledger


def test_training_learns_and_says_what_it_spent():
    x, y = points(2000)
    fitted = fit_private(linear, START, x, y, dataclasses.replace(BUDGET, steps=30), seed=0, evaluation=points(500, 1))
    assert fitted.history[-1]["test_accuracy"] > 0.9
    assert fitted.steps == fitted.spent.steps == 30
    assert abs(fitted.spent.epsilon - 3) < 1e-9
    assert not fitted.spent.private
    assert train().spent.private


def test_a_seed_repeats_and_none_does_not():
    assert_rel_close(train(seed=3).dw, train(seed=3).dw)
    assert not np.array_equal(train(seed=3).dw["kernel"], train(seed=4).dw["kernel"])
    assert not np.array_equal(train().dw["kernel"], train().dw["kernel"])


def test_streamed_inputs_give_the_same_sums():
    whole, streamed = train(seed=1), train(dataclasses.replace(BUDGET, micro_batch=4), seed=1, resident_bytes=64)
    assert_rel_close(streamed.dw, whole.dw)


def test_a_finished_run_is_read_and_spends_nothing(tmp_path):
    first = train(folder=tmp_path)
    ledger = (tmp_path / "ledger.json").read_text()
    again = train(folder=tmp_path)
    assert_rel_close(again.dw, first.dw)
    assert (tmp_path / "ledger.json").read_text() == ledger
    assert (again.steps, again.seconds) == (first.steps, first.seconds)
    with pytest.raises(InputError, match="the ledger of this run"):
        train(dataclasses.replace(BUDGET, epsilon=8.0), folder=tmp_path)


def test_every_step_is_paid_before_it_is_taken_and_what_is_lost_stays_paid(tmp_path, monkeypatch):
    from tangent_jax.privacy import train as module

    seen, real = [], module.update

    def update(*arguments):
        seen.append(json.loads((tmp_path / "ledger.json").read_text())["spent"]["steps"])
        if len(seen) == 3:
            raise KeyboardInterrupt  # after the third was paid
        return real(*arguments)

    monkeypatch.setattr(module, "update", update)
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(folder=tmp_path)
    assert seen == [1, 2, 3]
    rest = train(folder=tmp_path, evaluation=points(50, 1))
    assert seen == [1, 2, 3, 4, 5]
    assert "test_accuracy" in rest.history[-1]
    assert (rest.steps, rest.spent.steps) == (4, 5)
    assert rest.spent.epsilon <= 3 + 1e-9


def test_a_budget_whose_result_is_gone_is_not_spent_again(tmp_path):
    train(folder=tmp_path)
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match="not spent again"):
        train(folder=tmp_path)


def test_a_ledger_is_held_by_one_run(tmp_path):
    spent = Spent(1.0, 0, 1.0, 1e-5, True)
    held = Ledger(tmp_path, "mine", spent)
    with pytest.raises(InputError, match="no other process"):
        Ledger(tmp_path, "mine", spent)
    held.pay(3)
    held.close()
    again = Ledger(tmp_path, "mine", spent)
    assert again.spent.steps == 3
    again.close()
    (tmp_path / "ledger.json").write_text("{}")
    for _ in range(2):  # and a refused ledger is not held
        with pytest.raises(InputError, match="which is damaged"):
            Ledger(tmp_path, "mine", spent)


def pay_and_say(folder, said):
    ledger = Ledger(folder, "run", Spent(1.0, 0, 1.0, 1e-5, True))
    for step in range(ledger.spent.steps, 100_000):
        ledger.pay(step + 1)
        os.write(said, (step + 1).to_bytes(4, "little"))  # the step is taken


@pytest.mark.slow
def test_a_killed_process_never_took_a_step_that_its_ledger_does_not_hold(tmp_path):
    taken = 0
    for delay in (0.02, 0.05, 0.11):
        out, said = os.pipe()
        child = multiprocessing.get_context("fork").Process(target=pay_and_say, args=(tmp_path, said))
        child.start()
        os.close(said)
        child.join(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        steps = np.frombuffer(b"".join(iter(lambda out=out: os.read(out, 4096), b"")), "<u4")
        os.close(out)
        taken = int(steps[-1]) if len(steps) else taken
        paid = json.loads((tmp_path / "ledger.json").read_text())["spent"]["steps"] if taken else 0
        assert taken <= paid <= taken + 1
    assert taken > 3


# What is spent together


def test_disjoint_components_cost_the_dearest_and_shared_examples_pay_for_each():
    one, three = Spent(26.38, 50, 1.0, 1e-5, True), Spent(9.833, 50, 1.0, 1e-5, True)
    apart = spent_together([(one, frozenset("ab")), (three, frozenset("cd"))])
    assert abs(apart["epsilon"] - 3) < 1e-3
    assert (apart["delta"], apart["neighbouring"], apart["private"]) == (1e-5, "add-or-remove-one", True)
    shared = spent_together([(one, frozenset("ab")), (three, frozenset("bc"))])
    accountant = pld.PLDAccountant().compose(GaussianDpEvent(26.38), 50).compose(GaussianDpEvent(9.833), 50)
    assert abs(shared["epsilon"] - accountant.get_epsilon(1e-5)) < 1e-6
    assert 3.1 < shared["epsilon"] < 4  # less than their sum
    seeded = spent_together([(dataclasses.replace(one, private=False), frozenset("a")), (one, frozenset("b"))])
    assert not seeded["private"]
    with pytest.raises(InputError, match="at least one component"):
        spent_together([])


def test_what_was_spent_survives_json():
    spent = Spent(9.833, 50, 1.0, 1e-5, True)
    assert Spent.from_json(json.loads(json.dumps(spent.to_json()))) == spent
    assert Spent(9.833, 0, 1.0, 1e-5, True).epsilon == 0


# The audit


def audit(broken="nothing", method="taft", trials=1000):
    predict, dw, x, y = task("layernorm", output="tangent" if method == "taft" else "total", depth=1)
    predict = dataclasses.replace(predict, method=method)
    settings = dataclasses.replace(BUDGET, steps=2, clip_norm=0.05)
    return canary_scores(predict, dw, x, y, settings, trials, jax.random.key(0), at_once=100, **BREAKS[broken])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["taft", "nlft"])
def test_the_audit_comes_near_the_claim_and_stays_under_it(method):
    absent, present = audit(method=method)
    mu = 2**0.5 / dataclasses.replace(BUDGET, steps=2).noise_multiplier
    assert stats.kstest(absent, "norm").pvalue > 1e-4
    assert stats.kstest(present - mu, "norm").pvalue > 1e-4  # a canary that is clipped at every step
    bound = epsilon_lower_bound(absent, present, 1e-5)
    assert 0.1 < bound.epsilon < 3
    assert 1 < bound.gaussian_epsilon < 3


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["no_noise", "no_clipping", "noise_over_batch"])
def test_the_audit_catches_a_broken_mechanism(broken):
    assert epsilon_lower_bound(*audit(broken), 1e-5).epsilon > 3


def test_a_bound_holds_for_a_known_gaussian_and_proves_nothing_of_chance():
    rng = np.random.default_rng(0)
    claimed, mu = 2.0, 1 / 1.9974  # one step of epsilon 2 at delta 1e-5
    for _ in range(5):
        bound = epsilon_lower_bound(rng.standard_normal(4000), mu + rng.standard_normal(4000), 1e-5)
        assert 0.3 < bound.gaussian_epsilon < claimed + 0.3
        assert bound.epsilon < claimed
    same = epsilon_lower_bound(rng.standard_normal(4000), rng.standard_normal(4000), 1e-5)
    assert same.epsilon < 0.2
    assert same.gaussian_epsilon < 0.5


# Wrong uses


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: PrivateSettings(0.0, 1e-5), "epsilon > 0; got 0.0"),
        (lambda: PrivateSettings(-1.0, 1e-5), "epsilon > 0"),
        (lambda: PrivateSettings(1.0, 0.0), r"delta in \(0, 1\)"),
        (lambda: PrivateSettings(1.0, 1e-5, clip_norm=0.0), "clip_norm > 0"),
        (lambda: PrivateSettings(1.0, 1e-5, steps=0), "steps >= 1"),
        (lambda: PrivateSettings(1.0, 1e-5, learning_rate=0.0), "learning_rate > 0"),
        (lambda: PrivateSettings(1.0, 1e-5, penalty=-1.0), "penalty >= 0"),
        (lambda: PrivateSettings(1.0, 1e-5, micro_batch=0), "micro_batch >= 1"),
        (lambda: PrivateSettings(1.0, 1e-5, sampling_rate=2.0), "sampling_rate in"),
        (lambda: PrivateSettings(1.0, 1e-5, loss="mine"), "a loss in"),
        (lambda: train(PrivateSettings(1.0, 1 / 40)), r"delta < 1 / examples = 0.025; got 0.025"),
        (
            lambda: fit_private(lambda dw, x: linear(dw, x - x.mean(0)) + dw["kernel"].sum(), {"kernel": jnp.eye(3)},
                                *points(), BUDGET),
            "do not depend on the rest of the batch",
        ),
        (lambda: fit_private(linear, START, points()[0][:5], points()[1], BUDGET), "as many inputs as labels"),
        (lambda: noisy_mean(ClippedSum(START, jnp.zeros(1), jnp.zeros(()), 1.0), 0.0, 1.0, noise_key(0, 0)),
         "noise_multiplier > 0"),
        (lambda: epsilon_lower_bound(np.zeros(3), np.zeros(9), 1e-5), "4 scores of each kind"),
    ],
)  # fmt: skip
def test_wrong_uses_are_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_one_example_that_is_not_finite_does_not_stop_a_private_run():
    x, y = points()
    x[3] = np.nan
    fitted = fit_private(linear, START, np.roll(x, -10, 0), np.roll(y, -10), BUDGET, seed=0)
    assert np.isfinite(float(trees.squared_norm(fitted.dw)))
