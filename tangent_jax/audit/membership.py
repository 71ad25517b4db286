"""Membership attacks: they tell members of the training data from others by how well a model fits them.

    confidence          log p_y - log (1 - p_y) of the example's label y: what one model's answer tells
    likelihood ratio    the confidence, less its mean over shadow models that never saw the example

Source: Carlini et al. 2022, Eq. (4) and the offline attack, of means. An attack that fails proves nothing; a bound on
what any attack could tell comes of `fit_private` alone.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.special import log_softmax

from tangent_jax.audit.attacks import calibrate
from tangent_jax.core import Tree, expect, whole_number
from tangent_jax.core.boundary import public, public_class
from tangent_jax.models.features import Features
from tangent_jax.train.evaluate import outputs
from tangent_jax.train.metrics import auc
from tangent_jax.train.targets import Predict, check_indices

Train = Callable[[Features, list[np.ndarray]], Sequence[Tree]]
"""Trains one model on each set of rows of the features; returns their dw, in order."""

Seed = int | Sequence[int]
"""As `np.random.default_rng` takes it."""
DRAWS = 1000  # of a bootstrap


@public_class
@dataclasses.dataclass(frozen=True)
class Membership:
    """The ranking of examples by each attack: `scores` by attack and model, "2n": n members, then n others."""

    scores: Mapping[str, Mapping[str, np.ndarray]]

    def auc(self) -> dict[str, dict[str, float]]:
        """The area under the ROC curve of each attack on each model: 0.5 tells nothing, 1 tells all members."""
        return {
            attack: {name: auc(*np.split(values, 2)) for name, values in models.items()}
            for attack, models in self.scores.items()
        }

    def auc_gap(self, model: str, reference: str, seed: Seed = 0) -> dict[str, list[float]]:
        """[gap, low, high] by attack: AUC on `model` less AUC on `reference`, and the 95 % interval of the gap.

        The interval is of a paired bootstrap: DRAWS times, members and others are drawn with replacement.
        """
        rng, result = np.random.default_rng(seed), {}
        for attack, models in self.scores.items():
            (a, b), (c, d) = np.split(models[model], 2), np.split(models[reference], 2)
            gaps = []
            for _ in range(DRAWS):
                i, j = rng.integers(len(a), size=len(a)), rng.integers(len(b), size=len(b))
                gaps.append(auc(a[i], b[j]) - auc(c[i], d[j]))
            result[attack] = [auc(a, b) - auc(c, d), *map(float, np.percentile(gaps, [2.5, 97.5]))]
        return result


@public
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
    """Attacks models with the question which examples they were trained on; trains shadow models for it.

    Args:       predict: predict(dw, x) -> outputs "b c"; models: dw by name; members: examples that the models may have
                seen; others: examples that none saw. Of the larger set, as many as the smaller has are drawn.
                train: trains the shadow models as the attacked ones were trained, each on half of members and others:
                such as `lambda data, halves: [f.dw for f in tj.fit_many(predict, dw, [data.batches(key, rows=rows)
                for rows in halves])]`.
    Returns:    the scores of "confidence" and "likelihood ratio"; `.auc()` of them.
    Edge cases: an example that all shadow models saw keeps its confidence as its likelihood ratio.
    Raises:     InputError for fewer than 2 shadow models, no members, or no others.
    """
    whole_number("shadows", shadows, 2)
    size, rng = min(len(members), len(others)), np.random.default_rng(seed)
    expect(size, "at least one member and one other", f"{size} of both")
    sides = [side.take(np.sort(rng.permutation(len(side))[:size])) for side in (members, others)]
    inputs = np.concatenate([np.asarray(side.inputs) for side in sides])
    labels = np.concatenate([side.targets for side in sides])
    pool = dataclasses.replace(members, inputs=inputs, targets=labels, examples=sides[0].examples + sides[1].examples)
    halves = [np.sort(rng.permutation(2 * size)[:size]) for _ in range(shadows)]
    held = np.stack([np.isin(np.arange(2 * size), rows) for rows in halves])
    trained = train(pool, halves)
    expect(len(trained) == shadows, f"{shadows} models of train", len(trained))

    def score(dw: Tree) -> np.ndarray:
        return confidence(outputs(predict, dw, inputs), labels)

    of_shadows = np.stack([score(dw) for dw in trained])
    plain = {name: score(dw) for name, dw in models.items()}
    ratio = {name: calibrate(values, of_shadows, held) for name, values in plain.items()}
    return Membership({"confidence": plain, "likelihood ratio": ratio})


@public
def confidence(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """log p_y - log (1 - p_y) of the label y, "n", of logits "n c"."""
    check_indices(logits, labels)
    log_p = log_softmax(np.asarray(logits, np.float64), -1)
    rows = np.arange(len(labels))
    others = log_p.copy()
    others[rows, labels] = -np.inf
    return log_p[rows, labels] - np.logaddexp.reduce(others, 1)
