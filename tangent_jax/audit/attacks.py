"""Membership inference attacks: how much likelier a model's signal is with an example than without it.

    s_i   the attacked model's signal on example i, as `membership.confidence` gives it, "n"
    S     the same of k shadow models, "k n"; H, "k n": whether shadow k was trained on example i

    LiRA, online     log N(s; IN) - log N(s; OUT)     Gaussians of the shadows with and without the example
    LiRA, offline    (s - mean of OUT) / its spread   the same order, by example, as the p-value of OUT alone
    RMIA             the share of examples z whose p(z) / mean p(z) is at most p(x) / mean p(x)
    Student's t      log t(s; IN) - log t(s; OUT)     the predictive density of a normal-inverse-gamma posterior

All scores are larger for likelier members. With shadow models that were trained and then unlearned like the attacked
model, LiRA is the U-LiRA of Hayes et al. 2024. Sources: Carlini et al. 2022 (LiRA); Zarifzadeh et al. 2024 (RMIA);
Brännvall 2026 (BaVarIA-t, for the conjugate prior and predictive density of Student's t; here the prior is fitted by
moments, as in Smyth 2004 for few samples, and may differ from that paper's).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import expit, log_expit
from scipy.stats import beta, norm
from scipy.stats import t as student

from tangent_jax.core.checks import InputError, as_array, of_shape, whole_number
from tangent_jax.train.targets import as_numbers

Signals = Float[np.ndarray, " n"]
Shadows = Float[np.ndarray, "k n"]
Held = Bool[np.ndarray, "k n"]
Score = Callable[[Signals, Shadows, Held], Signals]
"""(signals "n", shadows "k n", held "k n") -> scores "n"."""

RATES = (0.001, 0.01)
"""The false-positive rates at which attacks are compared."""


class Side(NamedTuple):
    """The shadows on one side of each example, "n" each: their number, mean, and sum of squares around it."""

    size: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """The unbiased variance; with fewer than two shadows, the mean of the other examples'."""
        several = self.size > 1
        own = self.squares / np.maximum(self.size - 1, 1)
        return np.where(several, own, own[several].mean() if several.any() else 1.0)

    def fill_from(self, other: "Side") -> "Side":
        """The side, with the other's mean where it has no shadow."""
        return self._replace(mean=np.where(self.size > 0, self.mean, other.mean))


def as_signals(target: Any, shadows: Any, held: Any) -> tuple[Signals, Shadows, Held]:
    """The signals "n" and "k n" in f64, and held as Booleans; InputError for other shapes."""
    target, shadows = as_numbers("target", target), as_numbers("shadows", shadows)
    held = as_array("held", held).astype(bool)
    if not (shadows.ndim == 2 and shadows.shape == held.shape and len(held)):
        raise InputError(
            f'held must have the shape of shadows, {shadows.shape}, "k n" with at least one row; got {held.shape}.'
        )
    return of_shape("target", target, shadows.shape[1:]), shadows, held


def sides(shadows: Shadows, held: Held) -> tuple[Side, Side]:
    """(IN, OUT) of the shadows "k n"; a side without a shadow has the other's mean."""
    inside, outside = (one_side(shadows, member) for member in (held, ~held))
    return inside.fill_from(outside), outside.fill_from(inside)


def one_side(shadows: Shadows, member: Held) -> Side:
    """The side of the shadows "k n" with `member`, "k n"; its mean is 0 without any."""
    size = member.sum(0)
    mean = np.sum(shadows * member, 0) / np.maximum(size, 1)
    return Side(size, mean, np.sum((shadows - mean) ** 2 * member, 0))


def calibrate(target: Signals, shadows: Shadows, held: Held) -> Signals:
    """The target's signal minus the mean of the shadow models that never saw the example (0 if none), "n"."""
    target, shadows, held = as_signals(target, shadows, held)
    return target - one_side(shadows, ~held).mean


def lira_online(target: Signals, shadows: Shadows, held: Held) -> Signals:
    """LiRA's log-likelihood ratio of Gaussians for IN and OUT, "n".

    Edge cases:
        An example in all shadows or in none has one mean for both; spreads of 0 count as 1e-15.
    """
    target, shadows, held = as_signals(target, shadows, held)
    inside, outside = (log_normal(target, side) for side in sides(shadows, held))
    return inside - outside


def lira_offline(target: Signals, shadows: Shadows, held: Held) -> Signals:
    """The target's signal in standard deviations above the mean of OUT, "n".

    Edge cases:
        An example in all shadows is compared with all of them; spreads of 0 count as 1e-15.
    """
    target, shadows, held = as_signals(target, shadows, held)
    out = sides(shadows, held)[1]
    return (target - out.mean) / spread(out)


def spread(side: Side) -> Signals:
    """The standard deviation of a side, "n", above 0."""
    return np.sqrt(side.variance + 1e-30)


def log_normal(signals: Signals, side: Side) -> Signals:
    """log N(s; mean, variance) of a side, "n"."""
    return norm.logpdf(signals, side.mean, spread(side))


def rmia(target: Signals, shadows: Shadows, held: Held, *, a: float | None = None) -> Signals:
    """RMIA's share of a population z that x dominates, "n": p(x) / mean p(x) >= p(z) / mean p(z).

    p is the probability of the label, 1 / (1 + e^-s); the population is all examples, including x; mean p is the
    average of IN's and OUT's, or offline, for `a` in 0..1, (1 + a) / 2 times OUT's plus (1 - a) / 2. The paper has a
    factor gamma = 2 before p(z). Here it is 1, because no probability doubles for outputs fitted to kappa = 15.
    """
    target, shadows, held = as_signals(target, shadows, held)
    inside, outside = (side.mean for side in sides(expit(shadows), held))
    mean = (inside + outside) / 2 if a is None else ((1 + a) * outside + (1 - a)) / 2
    ratio = log_expit(target) - np.log(mean + np.finfo(float).tiny)
    return np.searchsorted(np.sort(ratio), ratio, "right") / len(ratio)


def student_ratio(target: Signals, shadows: Shadows, held: Held) -> Signals:
    """The log ratio of the predictive densities of IN and OUT, "n", each a Student's t.

    An example's mean and variance are drawn from a normal-inverse-gamma prior, which all examples of a side share:

        variance ~ IG(a, b),   mean ~ N(m, variance / kappa)

    so the noisy variance of few shadows is shrunk towards that of other examples.

    Edge cases:
        An example without a shadow on a side gets the prior there.
    """
    target, shadows, held = as_signals(target, shadows, held)
    inside, outside = (log_predictive(target, side) for side in sides(shadows, held))
    return inside - outside


def log_predictive(signals: Signals, side: Side) -> Signals:
    """log p(s) given the shadows of a side, "n"; the prior's m, kappa, a, b are fitted by moments over examples."""
    several, k = side.size > 1, side.size
    if not several.any():
        raise InputError(
            "shadows must hold two models trained with, or two trained without, some example; got fewer. Train more "
            "shadows."
        )
    v, free = side.variance[several], k[several] - 1
    level = v.mean() + 1e-30
    fourth = np.mean(v**2 * free / (free + 2))  # for a Gaussian, E s^4 = sigma^4 (1 + 2 / free)
    a = 2 + level**2 / np.maximum(fourth - level**2, 1e-6 * level**2)
    b, m = (a - 1) * level, side.mean[several].mean()
    kappa = level / max(side.mean[several].var() - np.mean(v / k[several]), 1e-6 * level)
    center = (kappa * m + k * side.mean) / (kappa + k)
    shape = a + k / 2
    rate = b + side.squares / 2 + kappa * k * (side.mean - m) ** 2 / (2 * (kappa + k))
    return student.logpdf(signals, 2 * shape, center, np.sqrt(rate * (1 + 1 / (kappa + k)) / shape))


def rmia_offline(target: Signals, shadows: Shadows, held: Held) -> Signals:
    """RMIA of the shadows that never saw the example, with a = 0.3, the paper's for CIFAR-10, "n"."""
    return rmia(target, shadows, held, a=0.3)


ATTACKS: Mapping[str, Score] = {
    "mean difference": calibrate,
    "LiRA online": lira_online,
    "LiRA offline": lira_offline,
    "RMIA": rmia,
    "RMIA offline": rmia_offline,
    "Student's t": student_ratio,
}
"""The attacks by name: (signals of a model, of its shadows, which shadows saw each example) -> scores."""


class Ranking:
    """Scored pairs of an example and a model, for ROC curves: `member` pairs and other pairs.

    `scores`, "p"; `member`, "p": True if the pair's model was trained on its example; `examples`, "p": the pair's
    example, None if each pair has its own. A threshold accepts all scores above it; ties are accepted together or not
    at all.

    >>> ranking = tj.audit.Ranking(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, True, False, False]))
    >>> ranking.points(draws=10)["auc"][0]
    1.0
    """

    def __init__(self, scores: np.ndarray, member: np.ndarray, examples: np.ndarray | None = None) -> None:
        scores, self.member = as_numbers("scores", scores), as_array("member", member).astype(bool)
        if not np.isfinite(scores).all():
            raise InputError("scores must be finite; got NaN or infinity.")
        is_mask = self.member.shape == scores.shape == (scores.size,)
        if not (is_mask and 0 < self.member.sum() < len(scores)):
            raise InputError(
                f"member must mark at least one member and one other among scores of shape {scores.shape}; got "
                f"{self.member.sum()} members in shape {self.member.shape}."
            )
        self.place = np.unique(scores, return_inverse=True)[1]
        examples = np.arange(len(scores)) if examples is None else as_array("examples", examples)
        self.examples = np.unique(of_shape("examples", examples, scores.shape), return_inverse=True)[1]

    def counts(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(members, others) at each distinct score, ascending; times: the weight of each pair, "p"."""
        return np.bincount(self.place, times * self.member), np.bincount(self.place, times * ~self.member)

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """(false-, true-positive rates) of all thresholds, ascending."""
        members, others = self.counts(np.ones(len(self.member)))
        padded = [np.concatenate([[0], np.cumsum(side[::-1])]) / side.sum() for side in (others, members)]
        return padded[0], padded[1]

    def points(self, draws: int = 200, seed: int = 0) -> dict[str, list[float]]:
        """[value, low, high] of "auc", and of "tpr_0.1%" and "tpr_1%", the true-positive rate at so many false ones.

        The threshold is the lowest one with at most that false-positive rate; a tie beyond it is not accepted. The 95 %
        interval is a bootstrap over examples, each with all its pairs, and at least Clopper and Pearson's for the
        number of member examples, for "auc" for the smaller number of examples with and without members: no AUC of so
        many independent examples varies more. With fewer others than 1 / rate, none may be above the threshold: chance
        then gives a rate of 1 / (others + 1). The interval does not cover the models' dependence through shared
        examples.
        """
        whole_number("draws", draws, 1)
        rng, count = np.random.default_rng(seed), self.examples.max() + 1
        drawn = [np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(draws)]
        value = operating(*self.counts(np.ones(len(self.member))))
        sample = [operating(*self.counts(times[self.examples])) for times in drawn]
        low, high = np.nanpercentile(sample, [2.5, 97.5], axis=0)
        members, others = (len(np.unique(self.examples[side])) for side in (self.member, ~self.member))
        counts = [min(members, others), *[members] * len(RATES)]
        exact = np.transpose([clopper_pearson(*pair) for pair in zip(value, counts, strict=True)])
        low, high = np.fmin(low, exact[0]), np.fmax(high, exact[1])
        names = ["auc", *(f"tpr_{100 * rate:g}%" for rate in RATES)]
        return {name: list(map(float, row)) for name, *row in zip(names, value, low, high, strict=True)}


def clopper_pearson(share: float, count: int) -> tuple[float, float]:
    """The exact 95 % interval of a share of `count` draws, also where it is no whole number of them."""
    hits = share * count
    low = beta.ppf(0.025, hits, count - hits + 1) if hits > 0 else 0.0
    high = beta.ppf(0.975, hits + 1, count - hits) if hits < count else 1.0
    return float(low), float(high)


def operating(members: np.ndarray, others: np.ndarray) -> tuple[float, ...]:
    """(AUC, true-positive rate at each of RATES) from the members and others at each score; NaN if there are none."""
    if not (members.sum() and others.sum()):
        return (float("nan"),) * (1 + len(RATES))
    area = np.sum(members * (np.cumsum(others) - others / 2)) / (members.sum() * others.sum())
    above = np.cumsum(others[::-1])[::-1] / others.sum()  # at each score or above it
    return float(area), *(float(members[above <= rate * (1 + 1e-12)].sum() / members.sum()) for rate in RATES)
