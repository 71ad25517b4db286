"""A mechanism: how much each step reveals of one unit, as one value for training, ledger, accounting and audits.

    G_t = (S_t + sigma C N(0, I)) / B,    t = 1..T,    S_t the clipped sum over the data or a Poisson sample of it

C is the clip norm, sigma the noise multiplier, B the expected number of units in a sample: a public constant, never
the size of a sample, which would tell who is in it. A unit is an example, or an owner: all examples of one contributor.
An account of one unit says nothing of the other. Discrete noise (discrete.py) on a grid is as private as the Gaussian
of the same sigma.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
from jax import Array

from tangent_jax.core import expect, finite_number, one_of, whole_number
from tangent_jax.core.boundary import public, public_class
from tangent_jax.core.records import convert
from tangent_jax.privacy.accounting import (
    NOISES,
    beside_distance,
    check,
    composed_epsilon,
    epsilon_of,
    exact_delta,
    noise_multiplier_of,
)

NEIGHBOURING = {"example": "add-or-remove-one", "owner": "add-or-remove-one-owner"}
"""How neighbouring data sets differ, by the unit of protection."""
ZERO_OUT = "zero-out-one"
"""How they differ under discrete noise: one example becomes nothing in its place, and no other moves."""
CLIP_NORMS = (1e-12, 1e12)
LEAST_DISCRETE = 0.25  # noise multiplier: with less, the noise would be more than it says


@public_class
@partial(
    jax.tree_util.register_dataclass,
    data_fields=["clip_norm", "noise_multiplier"],
    meta_fields=["steps", "delta", "sampling_rate", "unit", "noise", "count"],
)
@dataclasses.dataclass(frozen=True)
class Mechanism:
    """Gaussian steps on clipped sums; clip norm and noise multiplier are data to jit.

    `clip_norm`: C, L2 over the whole tree, the sensitivity of a sum for adding or removing one unit;
    `noise_multiplier`: sigma, in units of C; `steps`: T; `delta`: at which epsilon is stated; `sampling_rate`: 1 takes
    all units at every step, less is the rate q of Poisson samples of them; `unit`: whose presence is protected, that of
    one "example" or of one "owner" with all examples; `noise`: "gaussian" floats, or "discrete" on a grid, of which
    rounding tells nothing; `count`: the public number n of units, None: that of the data, which then is public.
    """

    clip_norm: float | Array
    noise_multiplier: float | Array
    steps: int
    delta: float
    sampling_rate: float = 1.0
    unit: str = "example"
    noise: Literal["gaussian", "discrete"] = "gaussian"
    count: int | None = None

    def __post_init__(self) -> None:
        one_of("unit", self.unit, NEIGHBOURING)
        if not isinstance(self.noise_multiplier, (int, float)) or not isinstance(self.clip_norm, (int, float)):
            return  # traced, or a placeholder of JAX's
        check_clip_norm(self.clip_norm)
        finite_number("noise_multiplier", self.noise_multiplier, 0.0)
        least = f"noise_multiplier of {NOISES[0]:g} or more"
        expect(self.noise_multiplier >= NOISES[0], least, self.noise_multiplier)
        check(self.delta, max(self.steps, 1), self.sampling_rate)
        whole_number("steps", self.steps, 0)
        expect(self.noise in ("gaussian", "discrete"), "noise gaussian or discrete", self.noise)
        check_discrete(self)
        if self.count is not None:
            whole_number("count", self.count, 2)

    @property
    def neighbouring(self) -> str:
        """The difference of two data sets that the steps make hard to tell apart."""
        return ZERO_OUT if self.noise == "discrete" else NEIGHBOURING[self.unit]

    def public_count(self, units: int) -> int:
        """The public number n of units, where the data hold `units`."""
        return units if self.count is None else self.count

    def expected_size(self, units: int) -> float:
        """B = q n, the constant by which a clipped sum is divided, whatever the size of its sample."""
        return self.sampling_rate * self.public_count(units)

    def compute_epsilon(self) -> float:
        """The epsilon that all steps spend; 0 for none."""
        if not self.steps:
            return 0.0
        sigma, discrete = float(self.noise_multiplier), self.steps * (self.noise == "discrete")
        cost = partial(epsilon_of, sigma, self.steps, sampling_rate=self.sampling_rate)
        return beside_distance(cost, self.delta, discrete)


@public
def make_mechanism(
    epsilon: float,
    delta: float,
    steps: int = 50,
    clip_norm: float = 1.0,
    sampling_rate: float = 1.0,
    unit: str = "example",
    noise: Literal["gaussian", "discrete"] = "gaussian",
) -> Mechanism:
    """The mechanism whose `steps` spend at most (epsilon, delta): its noise multiplier is calibrated.

    50 steps on the whole data are the paper's private runs; delta and clip norm are not given there. The noise
    multiplier is the same for every unit.

    >>> round(make_mechanism(3.0, 1e-5).noise_multiplier, 3)
    9.833
    """
    check_clip_norm(clip_norm)
    exact = exact_delta(delta) if noise == "discrete" else delta
    sigma = noise_multiplier_of(epsilon, exact, steps, sampling_rate=sampling_rate)
    mechanism = Mechanism(clip_norm, sigma, steps, delta, sampling_rate, unit, noise)
    if noise == "discrete":
        mechanism.compute_epsilon()  # refuses what the distance of its noise does not allow
    return mechanism


def check_discrete(mechanism: Mechanism) -> None:
    """Raises InputError for discrete noise on Poisson samples or for owners, or too little of it.

    An example that joins a sample moves those behind it to other places, and so the rounding of every micro-batch. Of
    an owner's examples the clip norm bounds the sum alone: each may be larger, and so may be what floats round.
    """
    if mechanism.noise == "discrete":
        do = "Take Gaussian noise"
        is_whole, is_example = mechanism.sampling_rate == 1, mechanism.unit == "example"
        expect(is_whole, "discrete noise on all examples at every step", "Poisson samples", do)
        expect(is_example, "discrete noise that protects examples", "owners", do)
        enough = mechanism.noise_multiplier >= LEAST_DISCRETE
        expected = f"discrete noise of a noise multiplier of {LEAST_DISCRETE} or more"
        expect(enough, expected, mechanism.noise_multiplier)


def check_clip_norm(clip_norm: float | Array) -> None:
    """Raises InputError for a number that is no clip norm; an array, which jit may trace, is taken as it is.

    Beyond the bounds float32 loses noise or norms: at 1e-38 a quarter of the coordinates would have no noise.
    """
    if not isinstance(clip_norm, Array):
        finite_number("clip_norm", clip_norm, 0.0)
        low, high = CLIP_NORMS
        expect(low <= clip_norm <= high, f"clip_norm in {low:g}..{high:g}", clip_norm)


@public_class
@dataclasses.dataclass(frozen=True)
class Spent:
    """An account: the mechanism of a run, the steps paid for, and False where a fixed seed drew the noise.

    A step that was paid for and then lost to a kill stays paid.
    """

    mechanism: Mechanism
    steps_paid: int
    private: bool

    def __post_init__(self) -> None:
        whole_number("steps_paid", self.steps_paid, 0, self.mechanism.steps)

    def pay(self, steps: int) -> "Spent":
        """The same run once `steps` in all are paid for."""
        return dataclasses.replace(self, steps_paid=steps)

    def compute_epsilon(self) -> float:
        """The epsilon that the steps paid for spend, at the mechanism's delta; 0 for none."""
        return dataclasses.replace(self.mechanism, steps=self.steps_paid).compute_epsilon()

    @classmethod
    def from_json(cls, fields: dict[str, Any], function: str = "Spent", where: object = "an account") -> "Spent":
        """The account whose fields JSON gives; InputError naming the field that is wrong."""
        return convert(cls, fields, function, where)


@public_class
@dataclasses.dataclass(frozen=True)
class PrivacyCost:
    """The most that accounts cost one unit: (epsilon, delta) for these neighbours; private if all of them are."""

    epsilon: float
    delta: float
    private: bool
    neighbouring: str = NEIGHBOURING["example"]


@public
def spent_together(parts: Sequence[tuple[Spent, frozenset[str]]]) -> PrivacyCost:
    """The cost of several accounts, each with the names of the units that its component saw.

    Units are content identifiers of examples, or owners. Components that share no unit compose in parallel, those that
    share one in sequence (McSherry 2009): a unit pays for the components that saw it, by privacy loss distributions;
    the whole costs what its dearest unit pays. Delta is the largest of the parts'.

    Guarantees: holds where a unit's component does not depend on the other units: sharding by owner; for examples also
                by content hash, by class; not by a shuffle.
    Raises:     InputError for no parts, or accounts of different units: neither bounds the other's. An image more or
                less is another owner's data, not an owner more or less; and an owner has many images.
    """
    expect(parts, "at least one component", "none")
    accounts = [spent for spent, _ in parts]
    units = sorted({spent.mechanism.unit for spent in accounts})
    expect(len(units) == 1, "accounts of one unit", " and ".join(units), "State each by itself")
    delta = max(spent.mechanism.delta for spent in accounts)
    seen: dict[str, list[int]] = {}
    for i, (_, names) in enumerate(parts):
        for name in names:
            seen.setdefault(name, []).append(i)
    epsilons = [0.0]
    for together in {tuple(components) for components in seen.values()} or {tuple(range(len(parts)))}:
        paid = [accounts[i] for i in together]
        if len(paid) == 1 and paid[0].mechanism.delta == delta:
            epsilons.append(paid[0].compute_epsilon())
        else:
            steps = [(float(s.mechanism.noise_multiplier), s.mechanism.sampling_rate, s.steps_paid) for s in paid]
            discrete = sum(s.steps_paid for s in paid if s.mechanism.noise == "discrete")
            epsilons.append(beside_distance(partial(composed_epsilon, steps), delta, discrete))
    # an example that becomes nothing moves a sum of floats by C too: so accounts of both kinds of noise state this
    neighbouring = next((s.mechanism.neighbouring for s in accounts if s.mechanism.noise == "discrete"), None)
    private = all(spent.private for spent in accounts)
    return PrivacyCost(max(epsilons), delta, private, neighbouring or NEIGHBOURING[units[0]])
