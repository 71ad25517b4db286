"""The mechanism: clip norm, noise, sampling and steps, as one value; together they set epsilon.

    G_t = (S_t + sigma C N(0, I)) / B,    t = 1..T,    S_t the clipped sum over the data or a Poisson sample of it

C is the clip norm, sigma the noise multiplier, B the expected number of units in a sample. B is a public constant; the
actual size of a sample would leak membership. A unit is an example, or an owner with all examples (user-level privacy).
An account for one kind of unit bounds the other by a larger epsilon (`Mechanism.compute_epsilon` of a group). Discrete
noise (discrete.py) is as private as the Gaussian of the same sigma.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import jax
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Integer

from tangent_jax.core.checks import InputError, finite_number, one_of, whole_number
from tangent_jax.privacy.accounting import (
    NOISES,
    beside_distance,
    calibrate,
    check,
    composed_epsilon,
    epsilon_of,
    exact_delta,
)

if TYPE_CHECKING:
    import dp_accounting

Count = TypeVar("Count", int, Integer[Array, ""])
NEIGHBOURING = {"example": "add-or-remove-one", "owner": "add-or-remove-one-owner"}
"""The neighbouring relation, by the unit of protection."""
ZERO_OUT = "zero-out-one"
"""The relation under discrete noise: one example's gradient becomes zero in its place."""
CLIP_NORMS = (1e-12, 1e12)
LEAST_DISCRETE = 0.25  # noise multiplier; below it, the noise would be larger than stated


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["clip_norm", "noise_multiplier"],
    meta_fields=["steps", "delta", "sampling_rate", "unit", "noise", "count"],
)
@dataclasses.dataclass(frozen=True)
class Mechanism:
    """Gaussian steps on clipped sums; clip norm and noise multiplier are data to jit.

    Attributes:
        clip_norm: C, L2 over the whole tree, the sensitivity of a sum for adding or removing one unit.
        noise_multiplier: sigma, in units of C.
        steps: T.
        delta: For which epsilon is stated.
        sampling_rate: 1 uses all units at every step, less is the rate q of Poisson samples.
        unit: The protected unit, "example" or "owner" (all examples of one contributor).
        noise: "gaussian" in floats, or "discrete" on a grid, safe against floating-point attacks.
        count: The public number n of units, None for that of the data, which is then public.

    >>> mechanism = tj.privacy.Mechanism(clip_norm=1.0, noise_multiplier=9.833, steps=50, delta=1e-5)
    >>> round(mechanism.compute_epsilon(), 2), mechanism.neighbouring
    (3.0, 'add-or-remove-one')
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
        if self.noise_multiplier < NOISES[0]:
            raise InputError(f"noise_multiplier must be {NOISES[0]:g} or more; got {self.noise_multiplier}")
        check(self.delta, max(self.steps, 1), self.sampling_rate)
        whole_number("steps", self.steps, 0)
        one_of("noise", self.noise, ("gaussian", "discrete"))
        check_discrete(self)
        if self.count is not None:
            whole_number("count", self.count, 2)

    @property
    def neighbouring(self) -> str:
        """The neighbouring relation: the difference of two data sets that are made indistinguishable."""
        return ZERO_OUT if self.noise == "discrete" else NEIGHBOURING[self.unit]

    def public_count(self, units: Count) -> Count | int:
        """The public number n of units, for data with `units`."""
        return units if self.count is None else self.count

    def expected_size(self, units: Count) -> float | Float[Array, ""]:
        """B = q n, the divisor of a clipped sum, whatever the size of its sample."""
        return self.sampling_rate * self.public_count(units)

    def compute_epsilon(self, group: int = 1) -> float:
        """The epsilon of all steps for `group` units together, which move a sum by group C at most; 0 for no steps.

        An owner of k images is k units of an account for images. An image of an owner is two of one for owners: it
        moves the owner's clipped sum by 2 C at most.

        Raises:
            InputError: Several units with Poisson samples.

        >>> mechanism = tj.make_mechanism(epsilon=3.0, delta=1e-5)
        >>> [round(mechanism.compute_epsilon(group=k), 1) for k in (1, 2, 4, 8)]
        [3.0, 6.7, 15.8, 40.3]
        """
        whole_number("group", group, 1)
        if group > 1 and self.sampling_rate < 1:
            raise InputError(
                f"group must be 1 with Poisson samples; got {group}. MixtureOfGaussiansDpEvent of dp-accounting "
                "bounds more, with binomial probabilities"
            )
        if not self.steps:
            return 0.0
        sigma, discrete = float(self.noise_multiplier) / group, self.steps * (self.noise == "discrete")
        cost = partial(epsilon_of, sigma, self.steps, sampling_rate=self.sampling_rate)
        return beside_distance(cost, self.delta, discrete)

    def dp_event(self, steps: int | None = None) -> "dp_accounting.DpEvent":
        """What its steps (None: all) cost, as accountants of dp-accounting compose it.

        Discrete noise costs what Gaussian noise of the same sigma does, and the distance between them in delta.

        >>> mechanism = tj.privacy.Mechanism(clip_norm=1.0, noise_multiplier=9.833, steps=50, delta=1e-5)
        >>> mechanism.dp_event().count
        50
        """
        import dp_accounting  # takes a second

        count = self.steps if steps is None else steps
        if count == 0:  # which accountants refuse as a count
            return dp_accounting.NoOpDpEvent()
        step = dp_accounting.GaussianDpEvent(float(self.noise_multiplier))
        if self.sampling_rate < 1:
            step = dp_accounting.PoissonSampledDpEvent(self.sampling_rate, step)
        return dp_accounting.SelfComposedDpEvent(step, count)


def make_mechanism(
    epsilon: float,
    delta: float,
    steps: int = 50,
    clip_norm: float = 1.0,
    sampling_rate: float = 1.0,
    unit: str = "example",
    noise: Literal["gaussian", "discrete"] = "gaussian",
) -> Mechanism:
    """The mechanism of `steps` that cost at most (epsilon, delta): calibrates the noise multiplier.

    The paper's private runs are 50 steps on the whole data; it does not give delta and clip norm. The noise multiplier
    does not depend on the unit.

    >>> round(make_mechanism(3.0, 1e-5).noise_multiplier, 3)
    9.833
    """
    check_clip_norm(clip_norm)
    exact = exact_delta(delta) if noise == "discrete" else delta
    sigma = calibrate(epsilon, exact, steps, sampling_rate)
    mechanism = Mechanism(clip_norm, sigma, steps, delta, sampling_rate, unit, noise)
    if noise == "discrete":
        mechanism.compute_epsilon()  # raises if the distance of discrete noise needs too much of delta
    return mechanism


def check_discrete(mechanism: Mechanism) -> None:
    """Raises InputError for discrete noise on Poisson samples or for owners, or with too small a multiplier.

    An example that joins a sample moves later examples to other places, and so changes the rounding of every
    micro-batch. The clip norm bounds an owner's sum alone: single examples may be larger, and so may their rounding
    errors.
    """
    if mechanism.noise == "gaussian":
        return
    if mechanism.sampling_rate != 1:
        raise InputError(
            "discrete noise must be on all examples at every step; got Poisson samples. Take Gaussian noise."
        )
    if mechanism.unit != "example":
        raise InputError("discrete noise must protect examples; got owners. Take Gaussian noise.")
    if mechanism.noise_multiplier < LEAST_DISCRETE:
        raise InputError(
            f"noise_multiplier of discrete noise must be {LEAST_DISCRETE} or more; got {mechanism.noise_multiplier}"
        )


def check_clip_norm(clip_norm: float | Array) -> None:
    """Raises InputError for an invalid clip norm; a traced one is not checked.

    Outside the bounds float32 loses noise or norms: at 1e-38 a quarter of the coordinates would have no noise.
    """
    if not isinstance(clip_norm, Tracer):
        finite_number("clip_norm", clip_norm, 0.0)
        low, high = CLIP_NORMS
        if not low <= clip_norm <= high:
            raise InputError(f"clip_norm must be in {low:g}..{high:g}; got {clip_norm}")


@dataclasses.dataclass(frozen=True)
class Spent:
    """A privacy account: the mechanism of a run, the steps paid for, and False if a fixed seed drew the noise.

    A step that was paid for and then lost to a kill stays paid.

    >>> spent = tj.privacy.Spent(tj.make_mechanism(epsilon=3.0, delta=1e-5), steps_paid=25, private=True)
    >>> round(spent.compute_epsilon(), 2)
    2.03
    >>> print(spent)
    epsilon 2.04 at delta 1e-05 for each example, 25 of 50 steps paid
    """

    mechanism: Mechanism
    steps_paid: int
    private: bool

    def __post_init__(self) -> None:
        whole_number("steps_paid", self.steps_paid, 0, self.mechanism.steps)

    def pay(self, steps: int) -> "Spent":
        """The account of the same run once `steps` in total are paid for."""
        return dataclasses.replace(self, steps_paid=steps)

    def __str__(self) -> str:
        """The account in one line, with epsilon rounded upwards to hundredths."""
        epsilon = np.ceil(round(100 * self.compute_epsilon(), 9)) / 100
        paid = f"{self.steps_paid} of {self.mechanism.steps} steps paid"
        of_unit = f"epsilon {epsilon:.2f} at delta {self.mechanism.delta:g} for each {self.mechanism.unit}, {paid}"
        return of_unit if self.private else f"NOT private, as a fixed seed drew the noise ({of_unit})"

    def compute_epsilon(self, group: int = 1) -> float:
        """The epsilon of the steps paid for, at the mechanism's delta, for `group` units together; 0 for none."""
        return dataclasses.replace(self.mechanism, steps=self.steps_paid).compute_epsilon(group)


@dataclasses.dataclass(frozen=True)
class PrivacyCost:
    """The largest cost of several accounts for one unit: (epsilon, delta); private if all of them are.

    >>> spent = tj.privacy.Spent(tj.make_mechanism(epsilon=3.0, delta=1e-5), steps_paid=50, private=True)
    >>> cost = tj.privacy.spent_together([(spent, frozenset({"ann"}))])
    >>> round(cost.epsilon, 2), cost.delta
    (3.0, 1e-05)
    """

    epsilon: float
    delta: float
    private: bool
    neighbouring: str = NEIGHBOURING["example"]


def spent_together(parts: Sequence[tuple[Spent, frozenset[str]]]) -> PrivacyCost:
    """The cost of several accounts, each with the names of the units that its component saw.

    Units are content identifiers of examples, or owners. Components without a common unit compose in parallel, others
    in sequence (McSherry 2009): a unit pays for each component that saw it, by privacy loss distributions, and the cost
    is that of the unit that pays most. Delta is the largest of the accounts'.

    Guarantees:
        Valid if a unit's component does not depend on other units: sharding by owner, and for examples also by content
        hash or class, but not by a shuffle.

    Raises:
        InputError: No accounts, or accounts of different units: each bounds the other by a larger epsilon alone
            (`Mechanism.compute_epsilon` of a group).

    >>> spent = tj.privacy.Spent(tj.make_mechanism(epsilon=1.0, delta=1e-5), steps_paid=50, private=True)
    >>> apart = tj.privacy.spent_together([(spent, frozenset({"ann"})), (spent, frozenset({"bob"}))])
    >>> shared = tj.privacy.spent_together([(spent, frozenset({"ann"})), (spent, frozenset({"ann", "bob"}))])
    >>> round(apart.epsilon, 2), round(shared.epsilon, 2)
    (1.0, 1.47)
    """
    if not parts:
        raise InputError("parts must be at least one component; got none")
    accounts = [spent for spent, _ in parts]
    units = sorted({spent.mechanism.unit for spent in accounts})
    if len(units) != 1:
        raise InputError(f"accounts must be of one unit; got {' and '.join(units)}. State each by itself.")
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
    # zeroing an example changes a sum of floats by C too, so this relation holds for both kinds of noise
    neighbouring = next((s.mechanism.neighbouring for s in accounts if s.mechanism.noise == "discrete"), None)
    private = all(spent.private for spent in accounts)
    return PrivacyCost(max(epsilons), delta, private, neighbouring or NEIGHBOURING[units[0]])
