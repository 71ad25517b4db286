"""Privacy accounting: the (epsilon, delta) of Gaussian steps, and the noise multiplier for a budget.

    S + sigma C N(0, I),   T times,   each on the whole data or on a Poisson sample of rate q

Neighbours differ by one example added or removed; sigma, the noise multiplier, is in units of the sensitivity C. On the
whole data T steps equal one Gaussian mechanism of noise sigma / sqrt(T) (Dong et al. 2022). Poisson samples are
accounted by dp-accounting's privacy loss distributions, with losses rounded up to a grid. Importing dp-accounting takes
seconds, so functions import it when they need it.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from tangent_jax.core.checks import InputError, finite_number, whole_number

EPSILONS = (1e-3, 100.0)
"""The range of budgets: rounding hides smaller ones, larger ones give no protection."""
SMALLEST_DELTA = 1e-15  # where privacy loss distributions are truncated, up to six times in a run on Poisson samples
SMALLEST_SAMPLED_DELTA = 1e-14
COARSER = 8  # the grid of the search, in intervals of the grid of the answer
CLOSE = 1e-3  # the share of a budget that may stay unused
NOISES = (1e-9, 1e15)
"""The range of noise multipliers; the search does not converge outside."""
HOPELESS = 1000.0  # of the variance of the losses of all steps, which is about twice their epsilon
STAGE = 100_000  # steps composed at once
DISTANCE = 2.0**-52  # total variation distance of a step's discrete noise, on 2^28 numbers, from the exact law
RESERVED = 2.0**-10  # the share of delta for that distance
Steps = tuple[float, float, int]
"""(noise multiplier, Poisson rate, how many steps)."""


def epsilon_of(noise_multiplier: float, steps: int, delta: float, *, sampling_rate: float = 1.0) -> float:
    """The epsilon of `steps` Gaussian steps at `delta`.

    Args:
        sampling_rate: The Poisson rate q of each step's batch; 1 is the whole data, and amplifies nothing.

    Raises:
        InputError: Values outside their ranges.

    >>> round(tj.privacy.epsilon_of(9.833, steps=50, delta=1e-5), 2)
    3.0
    """
    from dp_accounting import get_epsilon_gaussian

    check(delta, steps, sampling_rate)
    low, high = NOISES
    if not low <= noise_multiplier <= high:
        raise InputError(f"noise_multiplier must be in {low:g}..{high:g}; got {noise_multiplier}")
    if sampling_rate == 1:
        return get_epsilon_gaussian(noise_multiplier / steps**0.5, delta)
    return sampled_epsilon((float(noise_multiplier), sampling_rate, steps), delta)


@functools.cache
def sampled_epsilon(part: Steps, delta: float, coarser: int = 1) -> float:
    """The epsilon of one run on Poisson samples, computed once."""
    return composed_epsilon([part], delta, coarser)


def composed_epsilon(parts: Iterable[Steps], delta: float, coarser: int = 1) -> float:
    """The epsilon at `delta` of several runs on the same examples, one after another; 0 for no steps.

    Args:
        coarser: A factor on the grid's interval: faster, and less tight.

    Edge cases:
        Above an epsilon of about 500, Poisson samples are bounded by steps on the whole data, so that any account is
        computed quickly.

    Raises:
        InputError: A delta so small that dp-accounting's epsilon is infinite.
    """
    from dp_accounting import get_epsilon_gaussian
    from dp_accounting.pld import privacy_loss_distribution as losses

    taken = [part for part in parts if part[2]]
    if not taken:
        return 0.0
    variance = sum(steps * rate**2 * math.expm1(min(sigma**-2, 700.0)) for sigma, rate, steps in taken)
    likely = sum(steps * rate / sigma**2 for sigma, rate, steps in taken)  # expected steps with a given unit
    if min(variance, likely) > HOPELESS:
        return get_epsilon_gaussian(sum(steps / sigma**2 for sigma, _, steps in taken) ** -0.5, delta)
    interval = coarser * grid(taken)
    runs = []
    for sigma, rate, steps in taken:
        loss_of = functools.partial(losses.from_gaussian_mechanism, value_discretization_interval=interval)
        whole = rate == 1  # T steps equal one with less noise
        runs.append(loss_of(sigma / steps**0.5) if whole else self_compose(loss_of(sigma, sampling_prob=rate), steps))
    epsilon = float(functools.reduce(lambda total, run: total.compose(run), runs).get_epsilon_for_delta(delta))
    if math.isinf(epsilon):
        least = SMALLEST_SAMPLED_DELTA * len(taken)
        raise InputError(
            f"the epsilon of {len(taken)} runs together must be finite; at delta {delta:g} it is not. Train them with "
            f"a delta of {least:g} or more"
        )
    return epsilon


def beside_distance(epsilon_at: Callable[[float], float], delta: float, steps: int) -> float:
    """epsilon_at(delta) if each of `steps` steps draws noise within DISTANCE of its law, at the cost of delta / 1000.

    If two laws are (epsilon, delta) apart, laws within eta of them are (epsilon, delta + (1 + e^epsilon) eta) apart.

    Raises:
        InputError: An epsilon so large that delta / 1000 is too little.
    """
    if not steps:
        return epsilon_at(delta)
    epsilon = epsilon_at(exact_delta(delta))
    added = (1 + math.exp(min(epsilon, 700))) * steps * DISTANCE
    if not added <= RESERVED * delta:
        raise InputError(
            f"epsilon must be one that discrete noise can state; got {epsilon}."
            " Take more noise, a larger delta, or Gaussian noise."
        )
    return epsilon


def exact_delta(delta: float) -> float:
    """The part of delta that remains after the distance of discrete noise from its law."""
    return delta * (1 - RESERVED)


def grid(parts: Iterable[Steps]) -> float:
    """The interval of losses: 1e-4, or a quarter of the least standard deviation of one step's; 2^16 of them at most.

    Rounding adds about interval^2 / 6 to the variance of each step's loss. On a grid of 1e-4 alone, the computed
    epsilon of a million steps of noise 100 and rate 1e-3 would be three times the true one.
    """
    deviations, largest = [], []
    for sigma, rate, steps in parts:
        if rate == 1:
            deviations.append(steps**0.5 / sigma)
            largest.append(10 * deviations[-1] + deviations[-1] ** 2 / 2)
            continue
        deviations.append(rate * math.expm1(min(sigma**-2, 700.0)) ** 0.5)
        exponent = (20 * sigma + 1) / (2 * sigma**2)  # of the likelihood ratio, 10 sigma above the mean
        largest.append(math.log(rate) + exponent if exponent > 700 else math.log1p(rate * math.expm1(exponent)))
    return max(min(1e-4, min(deviations) / 4), max(largest) / 2**16)


def self_compose(loss: Any, steps: int) -> Any:
    """The privacy loss distribution of `steps` equal steps, truncated at 1e-15 as dp-accounting does.

    It is composed in stages: in a single call dp-accounting would compute (number of losses)^steps, which has millions
    of digits.
    """
    rounds, rest = divmod(steps, STAGE)
    if rounds < 2:
        return loss.self_compose(steps)
    total = loss.self_compose(STAGE, SMALLEST_DELTA / rounds).self_compose(rounds)
    return total.compose(loss.self_compose(rest)) if rest else total


@functools.cache
def calibrate(epsilon: float, delta: float, steps: int, sampling_rate: float = 1.0) -> float:
    """The smallest noise multiplier with which `steps` Gaussian steps cost at most (epsilon, delta).

    Guarantees:
        Its `epsilon_of` is at most epsilon. On the whole data it is sqrt(steps) times the one-step Gaussian sigma of
        Balle and Wang 2018. With Poisson samples it uses at least 0.999 epsilon, unless dp-accounting's rounding
        prevents that.
    """
    from dp_accounting import get_sigma_gaussian

    check(delta, steps, sampling_rate)
    low, high = EPSILONS
    finite_number("epsilon", epsilon, 0.0)
    if not low <= epsilon <= high:
        raise InputError(f"epsilon must be in {low:g}..{high:g}; got {epsilon}")
    alone = get_sigma_gaussian(epsilon, delta)
    if sampling_rate == 1:
        return raise_to_budget(lambda sigma: epsilon_of(sigma, steps, delta), steps**0.5 * alone, epsilon)

    def spent(coarser: int, sigma: float) -> float:
        return sampled_epsilon((sigma, sampling_rate, steps), delta, coarser)

    # many steps approach one Gaussian mechanism, by the central limit theorem (Bu et al. 2020)
    start = math.log1p((alone * sampling_rate) ** -2 / steps) ** -0.5
    roughly, exactly = (functools.partial(spent, coarser) for coarser in (COARSER, 1))
    return search(exactly, epsilon, *search(roughly, epsilon, start, -2.0))[0]


def search(spent: Callable[[float], float], epsilon: float, sigma: float, slope: float) -> tuple[float, float]:
    """(the noise multiplier for a budget, the slope there), by secants of log epsilon against log sigma.

    Args:
        sigma, slope: The starting point.
        spent: Noise multiplier -> epsilon.

    Raises:
        InputError: If thirty trials find none.
    """
    goal, before, best = math.log(epsilon * (1 - CLOSE / 2)), None, (math.inf, 0.0)
    for _ in range(30):
        exact = spent(sigma)
        best = min(best, (sigma, exact)) if exact <= epsilon else best
        if epsilon * (1 - CLOSE) <= exact <= epsilon:
            break
        here = math.log(sigma), math.log(min(max(exact, 1e-9), 1e9))
        if before is not None and abs(here[0] - before[0]) > CLOSE:
            slope = min(max((here[1] - before[1]) / (here[0] - before[0]), -50.0), -0.5)
        before = here
        sigma *= math.exp(min(max((goal - here[1]) / slope, -0.7), 0.7))
    if not best[1] > epsilon / 2:
        raise InputError("delta must be one that noise can reach; got one lost in rounding. Choose a larger delta.")
    return best[0], slope


def raise_to_budget(spent: Callable[[float], float], sigma: float, epsilon: float) -> float:
    """The noise multiplier, raised until its epsilon is at most the budget despite rounding."""
    more = 1e-15
    while spent(sigma) > epsilon:
        sigma, more = sigma * (1 + more), 2 * more
    return sigma


def check(delta: float, steps: int, sampling_rate: float) -> None:
    """Raises InputError naming the argument that is out of range."""
    whole_number("steps", steps, 1, 10_000_000)
    if not 0 < sampling_rate <= 1:
        raise InputError(f"sampling_rate must be in (0, 1]; got {sampling_rate}")
    least, of = (SMALLEST_DELTA, "") if sampling_rate == 1 else (SMALLEST_SAMPLED_DELTA, " for Poisson samples")
    if not least <= delta < 1:
        raise InputError(f"delta must be in [{least:g}, 1){of}, below 1 / examples; got {delta}")
