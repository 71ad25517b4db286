"""Membership inference: telling removed images from images that no model ever saw."""

import numpy as np

import tangent_jax as tj
from experiments.shared.flags import F
from experiments.shared.shards import Method
from tangent_jax.core import Tree
from tangent_jax.privacy import membership

Scores = dict[str, dict[str, np.ndarray]]
"""By attack and model: the score of each image, removed ones first, then as many that were never seen."""


def scores(method: Method, models: dict[str, Tree], gone: np.ndarray) -> Scores:
    """What each attack says of the removed images and of test images, for each model."""
    train, test, rng = method.train, method.test, np.random.default_rng([F.seed, 3])
    size = min(len(gone), len(test.labels))
    members, others = rng.permutation(gone)[:size], rng.permutation(len(test.labels))[:size]
    pool = np.concatenate([np.asarray(train.inputs[np.sort(members)]), np.asarray(test.inputs[np.sort(others)])])
    labels = np.concatenate([train.labels[np.sort(members)], test.labels[np.sort(others)]])
    half = -(-len(pool) // 2)
    halves = [np.sort(rng.permutation(len(pool))[:half]) for _ in range(F.shadows)]
    held = np.stack([np.isin(np.arange(len(pool)), rows) for rows in halves])
    examples = tuple(train.examples[i] for i in np.sort(members)) + tuple(test.examples[i] for i in np.sort(others))
    everyone = train._replace(inputs=pool, labels=labels, examples=examples)
    shadow_models = method.fit({f"shadow {i}": rows for i, rows in enumerate(halves)}, "shadows", everyone)

    def score(dw: Tree) -> np.ndarray:
        return membership.confidence(tj.logits(method.predict, dw, pool), labels)

    shadows = np.stack([score(one.dw) for one in shadow_models])
    plain = {name: score(dw) for name, dw in models.items()}
    ratio = {name: membership.calibrated(values, shadows, held) for name, values in plain.items()}
    return {"confidence": plain, "likelihood ratio": ratio}


def areas(found: Scores) -> dict[str, dict[str, float]]:
    """The AUC of each attack on each model."""
    return {
        attack: {name: membership.auc(*np.split(values, 2)) for name, values in models.items()}
        for attack, models in found.items()
    }


def advantage(found: Scores, model: str, reference: str, draws: int = 1000) -> dict[str, list[float]]:
    """By attack: AUC on `model` minus AUC on `reference`, with the 95 % interval of a paired bootstrap over images."""
    rng, result = np.random.default_rng([F.seed, 4]), {}
    for attack, models in found.items():
        (a, b), (c, d) = np.split(models[model], 2), np.split(models[reference], 2)
        gaps = []
        for _ in range(draws):
            i, j = rng.integers(len(a), size=len(a)), rng.integers(len(b), size=len(b))
            gaps.append(membership.auc(a[i], b[j]) - membership.auc(c[i], d[j]))
        gap = membership.auc(a, b) - membership.auc(c, d)
        result[attack] = [gap, *map(float, np.percentile(gaps, [2.5, 97.5]))]
    return result
