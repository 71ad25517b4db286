"""Auditing a private trainer: what an attacker who sees every step can prove about its epsilon.

The worst case that the guarantee allows: the attacker knows the model, all other examples and the canary, sees every
noisy gradient G_t, and asks whether the canary was there. What is left when the others are taken out, against what the
canary would add, is the likelihood ratio of a Gaussian mechanism:

    score = sum_t < B G_t - S_t(others), c_t >        c_t the canary's clipped gradient

Its errors over many trainings with and without the canary bound epsilon from below (Jagielski et al. 2020), and, were
the mechanism Gaussian, its mu (Nasr et al. 2023). What trains here is the trainer's own step (train.py).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import Tree, progress_bar, require, trees
from tangent_jax.privacy.clipping import ClippedSum
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.train import clip_all, private_step
from tangent_jax.train.batches import Batches
from tangent_jax.train.fit import State
from tangent_jax.train.objective import Objective, Predict, make_objective
from tangent_jax.train.optimizers import Optimizer, as_data, momentum


class Bound(NamedTuple):
    """Lower bounds on epsilon, each with the given confidence.

    `epsilon`: from the errors alone, whatever the mechanism; `gaussian_epsilon`: were it Gaussian; `false_positives`
    and `false_negatives`: the attack's error rates at the threshold of `epsilon`.
    """

    epsilon: float
    gaussian_epsilon: float
    false_positives: float
    false_negatives: float


def epsilon_lower_bound(absent: np.ndarray, present: np.ndarray, delta: float, confidence: float = 0.95) -> Bound:
    """What scores of trainings without and with the canary prove about epsilon at `delta`.

        epsilon >= log((1 - delta - FNR) / FPR), and the same with the two exchanged

    at Clopper and Pearson's upper bounds of both rates. The threshold is chosen on the first half of the scores, the
    rates are counted on the second.

    Raises: InputError for fewer than 4 scores of a kind.
    """
    from dp_accounting import get_epsilon_gaussian
    from scipy.stats import beta, norm

    require(min(len(absent), len(present)) >= 4, "epsilon_lower_bound", "4 scores of each kind", len(absent))

    def at(threshold: float, a: np.ndarray, p: np.ndarray) -> Bound:
        wrong = np.array([np.sum(a > threshold), np.sum(p <= threshold)])
        counts = np.array([len(a), len(p)])
        high = np.where(
            wrong < counts, beta.ppf(1 - (1 - confidence) / 2, wrong + 1, np.maximum(counts - wrong, 1)), 1.0
        )
        ratios = (1 - delta - high[::-1]) / high
        mu = float(norm.isf(high[0]) - norm.ppf(high[1]))
        gaussian = get_epsilon_gaussian(1 / mu, delta) if mu > 1e-3 else 0.0
        return Bound(float(np.log(max(1.0, *ratios))), float(gaussian), *(wrong / counts).tolist())

    first, second = (absent[::2], present[::2]), (absent[1::2], present[1::2])
    candidates = np.quantile(np.concatenate(first), np.linspace(0.01, 0.99, 99))
    general = max(candidates, key=lambda threshold: at(threshold, *first).epsilon)
    gaussian = max(candidates, key=lambda threshold: at(threshold, *first).gaussian_epsilon)
    return at(general, *second)._replace(gaussian_epsilon=at(gaussian, *second).gaussian_epsilon)


TOGETHER = 50  # trainings in one program


def canary_scores(
    predict: Predict,
    dw: Tree,
    batches: Batches,
    mechanism: Mechanism,
    trials: int,
    key: Array,
    *,
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    claimed: Mechanism | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The attack's scores over `trials` full-batch trainings without the canary, and as many with it.

    Args:       batches: the canary last; mechanism: what trains; objective, optimizer: as in `fit_private`;
                claimed: the mechanism that the attacker assumes (None: the one that trains).
    Returns:    (absent, present), "trials" each: N(0, 1) and N(mu, 1) for a correct mechanism, mu at most
                sqrt(steps) / sigma and equal to it where the canary is always clipped.
    """
    predict, n, claimed = trees.as_pytree(predict), len(batches), claimed or mechanism
    objective, optimizer = objective or make_objective("ce", penalty=0.0), as_data(optimizer or momentum())
    (inputs, labels), order = batches.resident(), batches.rows[None]
    everyone, canary = jnp.ones((1, n)), jnp.zeros((1, n)).at[0, -1].set(1)
    scale = claimed.noise_multiplier * claimed.clip_norm

    def trial(predict: Predict, key: Array, here: Array) -> Array:
        def step(state: State, t: Array) -> tuple[State, tuple[Array, Array]]:
            def summed(present: Array, mechanism: Mechanism) -> ClippedSum:
                return clip_all(predict, state.dw, (inputs, labels, order, present), 1, objective, mechanism)

            total = summed(everyone - (1 - here) * canary, mechanism)
            key_t = jax.random.fold_in(key, t)
            moved, gradient = private_step(state, total, n, key_t, objective, mechanism, optimizer)
            others, alone = summed(everyone - canary, claimed).value, summed(canary, claimed).value
            left = jax.tree.map(lambda g, other: n * g - other, gradient, others)
            seen = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(alone), strict=True))
            return moved, (jnp.asarray(seen), trees.squared_norm(alone))

        _, (seen, size) = jax.lax.scan(step, State(dw, optimizer.init(dw)), jnp.arange(mechanism.steps))
        return seen.sum() / (scale * jnp.sqrt(size.sum()))

    run = jax.jit(jax.vmap(trial, in_axes=(None, 0, 0)))
    here = np.repeat([0.0, 1.0], trials)
    keys, scores, together = jax.random.split(key, 2 * trials), [], min(TOGETHER, 2 * trials)
    with progress_bar(2 * trials, "training") as bar:
        for start in range(0, 2 * trials, together):
            rows = np.arange(start, start + together) % (2 * trials)  # one shape: the last program's surplus is dropped
            scores.append(np.asarray(run(predict, keys[rows], here[rows])))
            bar.update(min(together, 2 * trials - start))
    all_scores = np.concatenate(scores)[: 2 * trials]
    return all_scores[:trials], all_scores[trials:]
