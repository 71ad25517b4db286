"""What noise costs: (epsilon, delta) of Gaussian steps, and the noise that a budget needs.

    S + sigma C N(0, I),   T times,   each on the whole data or on a Poisson sample of rate q

Neighbours differ by one example added or removed; sigma, the noise multiplier, is in units of the sensitivity C. On the
whole data T steps are one Gaussian mechanism of noise sigma / sqrt(T), exactly (Dong et al. 2022); Poisson samples are
accounted by dp-accounting's privacy loss distributions (PLD) or Renyi divergences (RDP, looser).
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import dp_accounting
from dp_accounting import pld, rdp
from scipy.optimize import brentq

from tangent_jax.checks import require

ACCOUNTANTS = ("pld", "rdp")
RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
NEIGHBOURING = "add-or-remove-one"


def epsilon_of(
    noise_multiplier: float, steps: int, delta: float, *, sampling_rate: float = 1.0, accountant: str = "pld"
) -> float:
    """The epsilon that `steps` Gaussian steps spend at `delta`.

    Args:   sampling_rate: the Poisson rate q of each step's batch; 1 is the whole data, and amplifies nothing.
    Raises: InputError for values outside their ranges.
    """
    check("epsilon_of", delta, steps, sampling_rate, accountant)
    require(noise_multiplier > 0, "epsilon_of", "noise_multiplier > 0", noise_multiplier)
    if sampling_rate == 1 and accountant == "pld":
        return dp_accounting.get_epsilon_gaussian(noise_multiplier / steps**0.5, delta)
    kept = pld.PLDAccountant(RELATION) if accountant == "pld" else rdp.RdpAccountant(neighboring_relation=RELATION)
    return kept.compose(event_of(noise_multiplier, sampling_rate), steps).get_epsilon(delta)


def event_of(noise_multiplier: float, sampling_rate: float) -> dp_accounting.DpEvent:
    """One step, as dp-accounting calls it."""
    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    return event if sampling_rate == 1 else dp_accounting.PoissonSampledDpEvent(sampling_rate, event)


@cache
def noise_multiplier_of(
    epsilon: float, delta: float, steps: int, *, sampling_rate: float = 1.0, accountant: str = "pld"
) -> float:
    """The smallest noise multiplier with which `steps` Gaussian steps spend at most (epsilon, delta).

    Guarantees: `epsilon_of` of it is at most epsilon; on the whole data it is the closed form
                sqrt(steps) times the one-step Gaussian sigma of Balle and Wang 2018.
    """
    check("noise_multiplier_of", delta, steps, sampling_rate, accountant)
    require(epsilon > 0, "noise_multiplier_of", "epsilon > 0", epsilon)
    if sampling_rate == 1 and accountant == "pld":
        return steps**0.5 * dp_accounting.get_sigma_gaussian(epsilon, delta)

    def excess(sigma: float, by: str) -> float:
        spent = epsilon_of(sigma, steps, delta, sampling_rate=sampling_rate, accountant=by)
        return spent - epsilon

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
    sigma: Any = brentq(excess, low, high, xtol=1e-5)
    while excess(sigma) > 0:
        sigma *= 1 + 1e-6
    return float(sigma)


def check(function: str, delta: float, steps: int, sampling_rate: float, accountant: str) -> None:
    require(0 < delta < 1, function, "delta in (0, 1), below 1 / examples", delta)
    require(steps >= 1, function, "steps >= 1", steps)
    require(0 < sampling_rate <= 1, function, "sampling_rate in (0, 1]", sampling_rate)
    require(accountant in ACCOUNTANTS, function, f"accountant in {', '.join(ACCOUNTANTS)}", accountant)


@dataclasses.dataclass(frozen=True)
class Spent:
    """What `steps` Gaussian steps at noise multiplier `noise_multiplier` and Poisson rate `sampling_rate` spent.

    `delta`: at which `epsilon` is stated; `private`: False where a fixed seed drew the noise.
    """

    noise_multiplier: float
    steps: int
    sampling_rate: float
    delta: float
    private: bool

    @property
    def epsilon(self) -> float:
        """0 where nothing was spent."""
        if not self.steps:
            return 0.0
        return epsilon_of(self.noise_multiplier, self.steps, self.delta, sampling_rate=self.sampling_rate)

    def to_json(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "neighbouring": NEIGHBOURING, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Spent":
        return cls(**{field.name: fields[field.name] for field in dataclasses.fields(cls)})


def spent_together(parts: Sequence[tuple[Spent, frozenset[str]]]) -> dict[str, Any]:
    """What components spent together: each with the identifiers of the examples it saw.

    Those that share no example compose in parallel, those that share one in sequence (McSherry 2009): an example pays
    for the components that saw it, by privacy loss distributions; the whole costs what its dearest example pays.

    Returns:    {"epsilon", "delta", "neighbouring", "private"}; delta is the largest of the parts'.
    Guarantees: holds where an example's component does not depend on the other examples: sharding by content hash, by
                owner, by class; not by a shuffle.
    Raises:     InputError for no parts.
    """
    require(parts, "spent_together", "at least one component", "none")
    delta = max(spent.delta for spent, _ in parts)
    seen: dict[str, list[int]] = {}
    for i, (_, examples) in enumerate(parts):
        for example in examples:
            seen.setdefault(example, []).append(i)
    epsilons = [0.0]
    for together in {tuple(found) for found in seen.values()} or {tuple(range(len(parts)))}:
        if len(together) == 1 and parts[together[0]][0].delta == delta:
            epsilons.append(parts[together[0]][0].epsilon)
            continue
        accountant = pld.PLDAccountant(RELATION)
        for spent in (parts[i][0] for i in together):
            accountant.compose(event_of(spent.noise_multiplier, spent.sampling_rate), spent.steps)
        epsilons.append(accountant.get_epsilon(delta))
    private = all(spent.private for spent, _ in parts)
    return {"epsilon": max(epsilons), "delta": delta, "neighbouring": NEIGHBOURING, "private": private}
