"""The cost of noise, and the noise that a budget needs, of Poisson samples: exact enough, and in bounded time."""

import time

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, get_epsilon_gaussian, pld, rdp
from helpers import in_long

from tangent_jax.core.checks import InputError
from tangent_jax.privacy import accounting
from tangent_jax.privacy.accounting import calibrate, composed_epsilon, epsilon_of
from tangent_jax.privacy.mechanism import Mechanism, Spent, make_mechanism, spent_together


def account(accountant, *runs):
    """The epsilon that dp-accounting's own accountant states at delta 1e-6."""
    for noise_multiplier, rate, steps in runs:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier)), steps)
    return accountant.get_epsilon(1e-6)


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon"),
    [(0.5, 3, 1.0), (1e-2, 1000, 3.0), (1e-2, 100_000, 1e-3), (1e-4, 10_000_000, 0.1),
     *in_long((1e-4, 100_000, 1.0), (1e-5, 1000, 3.0), (1e-6, 10_000_000, 100.0))],
)  # fmt: skip
def test_budget_is_met_in_few_trials(monkeypatch, rate, steps, epsilon):
    trials, real = [], composed_epsilon

    def counted(parts, delta, coarser=1):
        trials.append(coarser)
        return real(parts, delta, coarser)

    monkeypatch.setattr(accounting, "composed_epsilon", counted)
    accounting.sampled_epsilon.cache_clear()
    accounting.calibrate.cache_clear()
    sigma = calibrate(epsilon, 1e-6, steps, sampling_rate=rate)
    assert 0.999 * epsilon <= epsilon_of(sigma, steps, 1e-6, sampling_rate=rate) <= epsilon
    assert trials.count(1) <= 5
    assert len(trials) <= 12
    assert epsilon_of(0.99 * sigma, steps, 1e-6, sampling_rate=rate) > epsilon
    assert epsilon <= 1.01 * account(rdp.RdpAccountant(), (sigma, rate, steps))  # another account, never tighter


@pytest.mark.parametrize("run", [(1.3, 1e-2, 5000), (2.0, 0.5, 30), (0.6, 1e-3, 10_000)])
def test_account_is_dp_accountings(run):
    sigma, rate, steps = run
    want = account(pld.PLDAccountant(), run)
    assert abs(epsilon_of(sigma, steps, 1e-6, sampling_rate=rate) / want - 1) < 1e-4


def test_many_noisy_steps_are_one_gaussian():
    """By the central limit theorem; on a grid of 1e-4, dp-accounting's own, they would cost three times as much."""
    run = (100.0, 1e-3, 100_000)
    limit = get_epsilon_gaussian(run[0] / run[1] / run[2] ** 0.5, 1e-6)
    assert abs(composed_epsilon([run], 1e-6) / limit - 1) < 0.02
    assert account(pld.PLDAccountant(), run) > 2.5 * limit


def test_stages_compose_like_steps(monkeypatch):
    run = (2.0, 1e-2, 2345)
    at_once = composed_epsilon([run], 1e-6)
    monkeypatch.setattr(accounting, "STAGE", 1000)
    assert abs(composed_epsilon([run], 1e-6) / at_once - 1) < 1e-6


def test_several_runs_cost_dp_accountings():
    sampled, whole = Mechanism(1.0, 1.5, 1000, 1e-6, 1e-2), Mechanism(1.0, 20.0, 50, 1e-6)
    seen = frozenset("a")
    together = spent_together([(Spent(sampled, 800, True), seen), (Spent(whole, 50, True), seen)])
    assert abs(together.epsilon / account(pld.PLDAccountant(), (1.5, 1e-2, 800), (20.0, 1.0, 50)) - 1) < 1e-4
    nothing = Spent(sampled, 0, True)
    assert spent_together([(nothing, seen), (nothing, seen)]).epsilon == nothing.compute_epsilon() == 0
    assert Spent(sampled, 800, True).compute_epsilon() < sampled.compute_epsilon()


@pytest.mark.parametrize(
    ("unit", "group", "epsilon"),
    [
        *(("example", 1, 3.0), ("example", 8, 40.34), ("owner", 2, 6.71)),
        *in_long(("example", 2, 6.71), ("example", 4, 15.79), ("owner", 4, 15.79), ("owner", 8, 40.34)),
    ],
)
def test_group_costs_its_sensitivity(unit, group, epsilon):
    """An owner of 2, 4, 8 images under an account for images; an image under one for owners, whose sum moves by 2 C."""
    mechanism = make_mechanism(3.0, 1e-5, unit=unit)
    moved = pld.privacy_loss_distribution.from_gaussian_mechanism(
        mechanism.noise_multiplier / mechanism.steps**0.5, sensitivity=group, use_connect_dots=True
    )
    got = Spent(mechanism, mechanism.steps, True).compute_epsilon(group=group)
    assert got == pytest.approx(epsilon, abs=0.005)
    assert got == pytest.approx(moved.get_epsilon_for_delta(1e-5), rel=1e-4)


def test_huge_account_is_bounded_at_once():
    """Of ten million Poisson steps, which a file may say; the whole data bound them."""
    for sigma, rate in ((1.0, 0.01), (0.5, 0.5)):
        began = time.perf_counter()
        epsilon = Spent(Mechanism(1.0, sigma, 10**7, 1e-5, rate), 10**7, True).compute_epsilon()
        assert 500 < epsilon == epsilon_of(sigma, 10**7, 1e-5)
        assert time.perf_counter() - began < 5


def test_missing_rate_means_whole_data():
    sigma = calibrate(1.0, 1e-6, 10)
    assert 0.999 <= get_epsilon_gaussian(sigma / 10**0.5, 1e-6) <= 1 + 1e-9
    assert calibrate(1.0, 1e-6, 10, sampling_rate=1.0) == sigma


def test_delta_without_finite_epsilon_is_refused():
    message = r"delta must be in \[1e-14, 1\) for Poisson samples, below 1 / examples; got 1e-15"
    for call in (calibrate, epsilon_of):
        with pytest.raises(InputError, match=message):
            call(3.0, delta=1e-15, steps=10, sampling_rate=0.1)
    with pytest.raises(InputError, match=message):  # before any step
        Mechanism(1.0, 3.0, 10, 1e-15, 0.1)
    assert epsilon_of(1.0, 10_000_000, 1e-14, sampling_rate=1e-4) < 4
    runs = [(2.0, 0.01, 1000)] * 20
    with pytest.raises(InputError, match="20 runs together must be finite; at delta 1e-14 it is not"):
        composed_epsilon(runs, 1e-14)
    assert composed_epsilon(runs, 2e-13) < 6


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 26.380), (3, 9.833), (8, 4.244)])
def test_full_batch_noise_is_dp_accountings(epsilon, sigma):
    found = calibrate(epsilon, 1e-5, 50)
    assert abs(found - sigma) < 6e-4
    assert abs(epsilon_of(found, 50, 1e-5) - epsilon) < 1e-9
    accountant = pld.PLDAccountant().compose(GaussianDpEvent(found), 50)
    assert abs(accountant.get_epsilon(1e-5) - epsilon) < 1e-4 * epsilon  # four digits


def test_a_claim_never_exceeds_its_budget():
    for epsilon in (1e-3, 0.1, 1.0, 3.0, 8.0, 50.0, 100.0):
        for delta in (1e-15, 1e-5, 1e-2):
            assert make_mechanism(epsilon, delta).compute_epsilon() <= epsilon
    assert Mechanism(1.0, 2.0, 0, 1e-5).compute_epsilon(group=3) == 0


DISCRETE = {"noise": "discrete"}
WRONG = [
    (lambda: make_mechanism(0.0, 1e-5), "^epsilon must be a finite number > 0; got 0.0"),
    (lambda: make_mechanism(float("nan"), 1e-5), "epsilon must be a finite number > 0; got nan"),
    (lambda: make_mechanism(1e9, 1e-5), "epsilon must be in 0.001..100"),
    (lambda: make_mechanism(1e-9, 1e-5, sampling_rate=0.1), "epsilon must be in 0.001..100"),
    (lambda: make_mechanism(1.0, 1e-5, steps=0), r"steps must be a whole number in 1\.\."),
    (lambda: make_mechanism(3.0, 1e-5, clip_norm=1e-40), r"clip_norm must be in 1e-12..1e\+12; got 1e-40"),
    (lambda: make_mechanism(3.0, 1e-5, clip_norm=1e38), r"clip_norm must be in 1e-12..1e\+12"),
    (lambda: make_mechanism(3.0, 1e-300, sampling_rate=0.1), r"delta must be in \[1e-14, 1\) for Poisson"),
    (lambda: make_mechanism(3.0, 1e-5, unit="image"), "unit must be one of example, owner; got image"),
    (lambda: Mechanism(1.0, 1e-200, 10, 1e-5), "noise_multiplier must be 1e-09 or more"),
    (lambda: Mechanism(1.0, 1.0, 5, 1e-5, noise="laplace"), "noise must be one of gaussian, discrete; got laplace"),
    (lambda: Mechanism(1.0, 1.0, 5, 1e-5, 0.5, **DISCRETE), "on all examples at every step; got Poisson samples"),
    (lambda: Mechanism(1.0, 0.1, 5, 1e-5, **DISCRETE), "noise_multiplier of discrete noise must be 0.25 or more"),
    (
        lambda: Mechanism(1.0, 2.0, 10, 1e-5, 0.1).compute_epsilon(group=2),
        "group must be 1 with Poisson samples; got 2",
    ),
    (lambda: Mechanism(1.0, 2.0, 10, 1e-5).compute_epsilon(group=0), "group must be a whole number >= 1; got 0"),
    (lambda: calibrate(1.0, 1.5, 50), r"delta must be in \[1e-15, 1\), below 1 / examples"),
    (lambda: epsilon_of(0.0, 50, 1e-5), r"noise_multiplier must be in 1e-09..1e\+15"),
    (lambda: epsilon_of(1.0, 0, 1e-5), r"steps must be a whole number in 1\.\."),
    (lambda: epsilon_of(1.0, 5, 1e-5, sampling_rate=0.0), r"sampling_rate must be in \(0, 1\]"),
    (
        lambda: accounting.search(lambda sigma: 10.0, 1.0, 1.0, -2.0),
        "delta must be one that noise can reach; got one lost in rounding",
    ),
]


@pytest.mark.parametrize(("call", "match"), WRONG)
def test_impossible_mechanisms_are_refused(call, match, untyped):
    with pytest.raises(InputError, match=match):
        call()
