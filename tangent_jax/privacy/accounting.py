"""What noise costs: (epsilon, delta) of Gaussian steps, and the noise that a budget needs.

    S + sigma C N(0, I),   T times,   each on the whole data or on a Poisson sample of rate q

Neighbours differ by one example added or removed; sigma, the noise multiplier, is in units of the sensitivity C. On the
whole data T steps are one Gaussian mechanism of noise sigma / sqrt(T), exactly (Dong et al. 2022); Poisson samples are
accounted by dp-accounting's privacy loss distributions (PLD) or Renyi divergences (RDP, looser).
dp-accounting takes seconds to import, so each function imports it.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from tangent_jax.core import finite_number, progress_bar, require, whole_number

ACCOUNTANTS = ("pld", "rdp")
EPSILONS = (1e-3, 100.0)
"""Of budgets: less is lost in rounding, more protects nobody."""
SMALLEST_DELTA = 1e-15  # where privacy loss distributions are truncated
Steps = tuple[float, float, int]
"""(noise multiplier, Poisson rate, how many steps)."""


def epsilon_of(
    noise_multiplier: float, steps: int, delta: float, *, sampling_rate: float = 1.0, accountant: str = "pld"
) -> float:
    """The epsilon that `steps` Gaussian steps spend at `delta`.

    Args:   sampling_rate: the Poisson rate q of each step's batch; 1 is the whole data, and amplifies nothing.
    Raises: InputError for values outside their ranges.
    """
    from dp_accounting import get_epsilon_gaussian

    check("epsilon_of", delta, steps, sampling_rate, accountant)
    require(noise_multiplier > 0, "epsilon_of", "noise_multiplier > 0", noise_multiplier)
    if sampling_rate == 1 and accountant == "pld":
        return get_epsilon_gaussian(noise_multiplier / steps**0.5, delta)
    return composed_epsilon([(noise_multiplier, sampling_rate, steps)], delta, accountant)


def composed_epsilon(parts: Iterable[Steps], delta: float, accountant: str = "pld") -> float:
    """The epsilon at `delta` of several runs on the same examples, one after another."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, pld, rdp

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    account = pld.PLDAccountant(relation) if accountant == "pld" else rdp.RdpAccountant(neighboring_relation=relation)
    for noise_multiplier, rate, steps in parts:
        event = GaussianDpEvent(noise_multiplier)
        account.compose(event if rate == 1 else PoissonSampledDpEvent(rate, event), steps)
    return account.get_epsilon(delta)


@cache
def noise_multiplier_of(
    epsilon: float, delta: float, steps: int, *, sampling_rate: float = 1.0, accountant: str = "pld"
) -> float:
    """The smallest noise multiplier with which `steps` Gaussian steps spend at most (epsilon, delta).

    Guarantees: `epsilon_of` of it is at most epsilon; on the whole data it is the closed form
                sqrt(steps) times the one-step Gaussian sigma of Balle and Wang 2018.
    """
    from dp_accounting import get_sigma_gaussian

    check("noise_multiplier_of", delta, steps, sampling_rate, accountant)
    low, high = EPSILONS
    finite_number("noise_multiplier_of", "epsilon", epsilon, 0.0)
    require(low <= epsilon <= high, "noise_multiplier_of", f"epsilon in {low:g}..{high:g}", epsilon)

    def excess(sigma: float, by: str) -> float:
        bar.update()
        spent = epsilon_of(sigma, steps, delta, sampling_rate=sampling_rate, accountant=by)
        return spent - epsilon

    with progress_bar(None, "trial") as bar:
        if sampling_rate == 1 and accountant == "pld":
            return met(lambda sigma: excess(sigma, "pld"), steps**0.5 * get_sigma_gaussian(epsilon, delta))
        return search(excess, accountant)


def search(excess: Callable[[float, str], float], accountant: str) -> float:
    """The noise multiplier that meets a budget, where only its excess is known, by accountant."""
    high = 1.0
    while excess(high, "rdp") > 0:
        high *= 2
    low = high
    while excess(low, "rdp") <= 0:
        low /= 2
    loose = root(lambda sigma: excess(sigma, "rdp"), low, high)
    if accountant == "rdp":
        return loose
    # PLD is slow, and as a rule tighter by less than a fifth: searched from there up to RDP's answer
    low = 0.8 * loose
    while excess(low, "pld") <= 0:
        low *= 0.8
    return root(lambda sigma: excess(sigma, "pld"), low, loose)


def root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where the budget is met, on the side that spends no more than it."""
    from scipy.optimize import brentq

    sigma: Any = brentq(excess, low, high, xtol=1e-5)
    return met(excess, float(sigma), 1e-6)


def met(excess: Callable[[float], float], sigma: float, step: float = 1e-15) -> float:
    """The noise multiplier, raised until it spends no more than the budget: rounding must not exceed the claim."""
    while excess(sigma) > 0:
        sigma, step = sigma * (1 + step), 2 * step
    return sigma


def check(function: str, delta: float, steps: int, sampling_rate: float, accountant: str) -> None:
    require(SMALLEST_DELTA <= delta < 1, function, f"delta in ({SMALLEST_DELTA:g}, 1), below 1 / examples", delta)
    whole_number(function, "steps", steps, 1, 10_000_000)
    require(0 < sampling_rate <= 1, function, "sampling_rate in (0, 1]", sampling_rate)
    require(accountant in ACCOUNTANTS, function, f"accountant in {', '.join(ACCOUNTANTS)}", accountant)
