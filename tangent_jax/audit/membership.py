"""Membership inference: distinguishes training examples from others by how well a model fits them.

    confidence          log p_y - log (1 - p_y) of the example's label y, from one model's answer
    likelihood ratio    the confidence minus its mean over shadow models that never saw the example

Source: Carlini et al. 2022, Eq. (4) and the offline attack, with means. A failed attack proves nothing; only
`fit_private` bounds every attack.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Float, Int, Num
from scipy.special import log_softmax

from tangent_jax.audit.attacks import calibrate, clopper_pearson
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.notation import Tree
from tangent_jax.train.evaluate import outputs
from tangent_jax.train.features import Features
from tangent_jax.train.metrics import as_scores, auc
from tangent_jax.train.targets import Predict, check_indices

Train = Callable[[Features, list[np.ndarray]], Sequence[Tree]]
"""Trains one model on each set of rows of the features; returns their dw, in order."""

Seed = int | Sequence[int]
"""A seed for `np.random.default_rng`."""
DRAWS = 1000  # draws of a bootstrap


@dataclasses.dataclass(frozen=True)
class Membership:
    """The ranking of examples by each attack: `scores` by attack and model, "2n": n members, then n others.

    >>> scores = {"confidence": {"all data": np.array([2.0, 1.0, 0.5, 0.0])}}
    >>> tj.audit.Membership(scores).auc()
    {'confidence': {'all data': 1.0}}
    """

    scores: Mapping[str, Mapping[str, np.ndarray]]

    def auc(self) -> dict[str, dict[str, float]]:
        """The area under the ROC curve of each attack on each model: 0.5 is chance, 1 identifies all members."""
        return {
            attack: {name: auc(*halves(values)) for name, values in models.items()}
            for attack, models in self.scores.items()
        }

    def auc_gap(self, model: str, reference: str, seed: Seed = 0) -> dict[str, list[float]]:
        """[gap, low, high] by attack: AUC on `model` minus AUC on `reference`, with its 95 % interval.

        The interval is a paired bootstrap: members and others are drawn DRAWS times, with replacement. It is at least
        as wide as `discordant_limits` say, so that two AUCs of 1 have an interval too.

        Edge cases:
            Equal scores of both models give [0, 0, 0].
        """
        rng, result = np.random.default_rng(seed), {}
        for attack, models in self.scores.items():
            (a, b), (c, d) = halves(models[model]), halves(models[reference])
            gaps = []
            for _ in range(DRAWS):
                i, j = rng.integers(len(a), size=len(a)), rng.integers(len(b), size=len(b))
                gaps.append(auc(a[i], b[j]) - auc(c[i], d[j]))
            gap, (low, high) = auc(a, b) - auc(c, d), np.percentile(gaps, [2.5, 97.5])
            if not (np.array_equal(a, c) and np.array_equal(b, d)):
                below, above = discordant_limits(a, b, c, d)
                low, high = min(low, gap - below), max(high, gap + above)
            result[attack] = [gap, float(low), float(high)]
        return result


def halves(scores: Any) -> list[np.ndarray]:
    """The scores of n members and of n others, in f64, from those of both, "2n"."""
    scores = as_scores(scores)
    if len(scores) % 2:
        raise InputError(f"scores must be of n members, then of n others; got {len(scores)}, an odd number")
    return np.split(scores, 2)


def discordant_limits(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> tuple[float, float]:
    """How far the interval of the gap auc(a, b) - auc(c, d) = p - q reaches at least, (below, above) it; "n" each.

    p is the share of pairs (a member and another example) that the first model ranks rightly and the second does not, q
    the reverse. Their Clopper-Pearson intervals for n pairs are combined as Newcombe (1998) combines two intervals:

        below = |(p - low of p, high of q - q)|,    above = |(high of p - p, q - low of q)|
    """
    rows = [np.sign(x - b) - np.sign(y - d) for x, y in zip(a, c, strict=True)]
    p, q = (sum(float(np.maximum(sign * row, 0).mean()) for row in rows) / (2 * len(a)) for sign in (1, -1))
    (low_p, high_p), (low_q, high_q) = (clopper_pearson(share, len(a)) for share in (p, q))
    return float(np.hypot(p - low_p, high_q - q)), float(np.hypot(high_p - p, q - low_q))


def membership_attack(
    predict: Predict,
    models: Mapping[str, Tree],
    members: Features,
    others: Features,
    train: Train,
    *,
    shadows: int = 16,
    seed: Seed = 0,
) -> Membership:
    """Membership inference attacks on models; trains shadow models for them.

    Args:
        predict: predict(dw, x) -> outputs "b c".
        models: dw by name.
        members: Examples that the models may have seen.
        others: Examples that none saw. The larger set is subsampled to the size of the smaller one.
        train: Trains shadow models like the attacked ones, each on half of members and others, such as `lambda data,
            halves: [f.dw for f in tj.fit_many(predict, [data.batches(key, rows=rows) for rows in halves])]`.

    Returns:
        The scores of "confidence" and "likelihood ratio"; `.auc()` of them.

    Edge cases:
        An example that all shadow models saw keeps its confidence as its likelihood ratio; shadow models get the owners
        and groups of their examples where those of members and others are both known, else none.

    Raises:
        InputError: Fewer than 2 shadow models, no members, or no others.

    >>> def train(data, halves):
    ...     return [tj.solve(demo.predict, data.take(rows), demo.objective).dw for rows in halves]
    >>> attack = tj.audit.membership_attack(demo.predict, {"all": demo.dw}, demo.train, demo.test, train, shadows=2)
    >>> sorted(attack.auc())
    ['confidence', 'likelihood ratio']
    """
    whole_number("shadows", shadows, 2)
    size, rng = min(len(members), len(others)), np.random.default_rng(seed)
    if not size:
        raise InputError(
            f"members and others must hold at least one example each; got {len(members)} and {len(others)}."
        )
    sides = [side.take(np.sort(rng.permutation(len(side))[:size])) for side in (members, others)]
    inputs = np.concatenate([np.asarray(side.inputs) for side in sides])
    labels = np.concatenate([side.targets for side in sides])
    first, second = sides
    owners = first.owners and second.owners and first.owners + second.owners
    groups = first.groups and second.groups and first.groups + second.groups
    pool = Features(inputs, labels, first.examples + second.examples, owners=owners, groups=groups)
    halves = [np.sort(rng.permutation(2 * size)[:size]) for _ in range(shadows)]
    held = np.stack([np.isin(np.arange(2 * size), rows) for rows in halves])
    trained = train(pool, halves)
    if len(trained) != shadows:
        raise InputError(f"train must return {shadows} models; got {len(trained)}.")

    def score(dw: Tree) -> np.ndarray:
        return confidence(outputs(predict, dw, inputs), labels)

    of_shadows = np.stack([score(dw) for dw in trained])
    plain = {name: score(dw) for name, dw in models.items()}
    ratio = {name: calibrate(values, of_shadows, held) for name, values in plain.items()}
    return Membership({"confidence": plain, "likelihood ratio": ratio})


def confidence(
    logits: Num[Array | np.ndarray, "n c"], labels: Int[Array | np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """log p_y - log (1 - p_y) of the label y, "n", of logits "n c".

    >>> tj.audit.confidence(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([0, 1])).tolist()
    [2.0, 0.0]
    """
    check_indices(logits, labels)
    log_p = log_softmax(np.asarray(logits, np.float64), -1)
    rows = np.arange(len(labels))
    others = log_p.copy()
    others[rows, labels] = -np.inf
    return log_p[rows, labels] - np.logaddexp.reduce(others, 1)
