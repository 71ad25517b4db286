"""A mechanism: how much each step reveals of one example, as one value for training, ledger, accounting and audits.

    G_t = (S_t + sigma C N(0, I)) / B,    t = 1..T,    S_t the clipped sum over the data or a Poisson sample of it

C is the clip norm, sigma the noise multiplier, B the expected number of examples in a sample: a public constant, never
the size of a sample, which would tell who is in it.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax import Array

from tangent_jax.core import finite_number, require, whole_number
from tangent_jax.core.records import typed
from tangent_jax.privacy.accounting import check, composed_epsilon, epsilon_of, noise_multiplier_of

NEIGHBOURING = "add-or-remove-one"
CLIP_NORMS = (1e-12, 1e12)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["clip_norm", "noise_multiplier"],
    meta_fields=["steps", "delta", "sampling_rate", "count"],
)
@dataclasses.dataclass(frozen=True)
class Mechanism:
    """Gaussian steps on clipped sums; clip norm and noise multiplier are data to jit.

    `clip_norm`: C, L2 over the whole tree, the sensitivity of a sum for adding or removing one example;
    `noise_multiplier`: sigma, in units of C; `steps`: T; `delta`: at which epsilon is stated; `sampling_rate`: 1 takes
    all examples at every step, less is the rate q of Poisson samples; `count`: the public number n of examples, None:
    that of the data, which then is public.
    """

    clip_norm: float | Array
    noise_multiplier: float | Array
    steps: int
    delta: float
    sampling_rate: float = 1.0
    count: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.noise_multiplier, (int, float)) or not isinstance(self.clip_norm, (int, float)):
            return  # traced, or a placeholder of JAX's
        check_clip_norm("Mechanism", self.clip_norm)
        finite_number("Mechanism", "noise_multiplier", self.noise_multiplier, 0.0)
        check("Mechanism", self.delta, max(self.steps, 1), self.sampling_rate)
        whole_number("Mechanism", "steps", self.steps, 0)
        if self.count is not None:
            whole_number("Mechanism", "count", self.count, 2)

    def public_count(self, examples: int) -> int:
        """The public number n of examples, where the data hold `examples`."""
        return examples if self.count is None else self.count

    def expected(self, examples: int) -> float:
        """B = q n, the constant by which a clipped sum is divided, whatever the size of its sample."""
        return self.sampling_rate * self.public_count(examples)

    def compute_epsilon(self) -> float:
        """The epsilon that all steps spend; 0 for none."""
        if not self.steps:
            return 0.0
        sigma = float(self.noise_multiplier)
        return epsilon_of(sigma, self.steps, self.delta, sampling_rate=self.sampling_rate)


def make_mechanism(
    epsilon: float, delta: float, steps: int = 50, clip_norm: float = 1.0, sampling_rate: float = 1.0
) -> Mechanism:
    """The mechanism whose `steps` spend at most (epsilon, delta): its noise multiplier is calibrated.

    50 steps on the whole data are the paper's private runs; delta and clip norm are not given there.

    >>> round(make_mechanism(3.0, 1e-5).noise_multiplier, 3)
    9.833
    """
    check_clip_norm("make_mechanism", clip_norm)
    sigma = noise_multiplier_of(epsilon, delta, steps, sampling_rate=sampling_rate)
    return Mechanism(clip_norm, sigma, steps, delta, sampling_rate)


def check_clip_norm(function: str, clip_norm: float | Array) -> None:
    """Raises InputError for a number that is no clip norm; an array, which jit may trace, is taken as it is.

    Beyond the bounds float32 loses noise or norms: at 1e-38 a quarter of the coordinates would have no noise.
    """
    if not isinstance(clip_norm, Array):
        finite_number(function, "clip_norm", clip_norm, 0.0)
        low, high = CLIP_NORMS
        require(low <= clip_norm <= high, function, f"clip_norm in {low:g}..{high:g}", clip_norm)


@dataclasses.dataclass(frozen=True)
class Spent:
    """An account: the mechanism of a run, the steps paid for, and False where a fixed seed drew the noise.

    A step that was paid for and then lost to a kill stays paid.
    """

    mechanism: Mechanism
    steps_paid: int
    private: bool

    def __post_init__(self) -> None:
        whole_number("Spent", "steps_paid", self.steps_paid, 0, self.mechanism.steps)

    def paid(self, steps: int) -> "Spent":
        """The same run once `steps` in all are paid for."""
        return dataclasses.replace(self, steps_paid=steps)

    def compute_epsilon(self) -> float:
        """The epsilon that the steps paid for spend, at the mechanism's delta; 0 for none."""
        return dataclasses.replace(self.mechanism, steps=self.steps_paid).compute_epsilon()

    @classmethod
    def from_json(cls, fields: dict[str, Any], function: str = "Spent", where: object = "an account") -> "Spent":
        """The account whose fields JSON gives, of this version or of 0.2; InputError naming the field that is wrong."""
        return typed(cls, from_version_0_2(fields), function, where)


def from_version_0_2(fields: Any) -> Any:
    """The fields of an account as this version writes them; 0.2 wrote the mechanism's beside the others.

    Its `steps` are those paid for, and how many were planned is not known.
    """
    if not isinstance(fields, dict) or "mechanism" in fields:
        return fields
    mechanism = {field.name: fields[field.name] for field in dataclasses.fields(Mechanism) if field.name in fields}
    paid = {new: fields[old] for new, old in (("steps_paid", "steps"), ("private", "private")) if old in fields}
    return {"mechanism": mechanism, **paid}


@dataclasses.dataclass(frozen=True)
class PrivacyCost:
    """The most that accounts cost one example: (epsilon, delta) for these neighbours; private if all of them are."""

    epsilon: float
    delta: float
    private: bool
    neighbouring: str = NEIGHBOURING


def spent_together(parts: Sequence[tuple[Spent, frozenset[str]]]) -> PrivacyCost:
    """The cost of several accounts, each with the identifiers of the examples that its component saw.

    Those that share no example compose in parallel, those that share one in sequence (McSherry 2009): an example pays
    for the components that saw it, by privacy loss distributions; the whole costs what its dearest example pays.
    Delta is the largest of the parts'.

    Guarantees: holds where an example's component does not depend on the other examples: sharding by content hash, by
                owner, by class; not by a shuffle.
    Raises:     InputError for no parts.
    """
    require(parts, "spent_together", "at least one component", "none")
    accounts = [spent for spent, _ in parts]
    delta = max(spent.mechanism.delta for spent in accounts)
    seen: dict[str, list[int]] = {}
    for i, (_, examples) in enumerate(parts):
        for example in examples:
            seen.setdefault(example, []).append(i)
    epsilons = [0.0]
    for together in {tuple(components) for components in seen.values()} or {tuple(range(len(parts)))}:
        paid = [accounts[i] for i in together]
        if len(paid) == 1 and paid[0].mechanism.delta == delta:
            epsilons.append(paid[0].compute_epsilon())
        else:
            steps = [(float(s.mechanism.noise_multiplier), s.mechanism.sampling_rate, s.steps_paid) for s in paid]
            epsilons.append(composed_epsilon(steps, delta))
    return PrivacyCost(max(epsilons), delta, all(spent.private for spent in accounts))
