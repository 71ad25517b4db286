"""Audits a private trainer: lower bounds on its epsilon by an attacker who sees every step.

This is the worst case of the guarantee: the attacker knows the model, all other examples and the canary, and sees every
step dw_t, and so every noisy gradient G_t. They must decide whether the canary was present. The likelihood ratio of a
Gaussian mechanism is the gradient without the others' part, times the canary's:

    score = sum_t < B G_t - S_t(others), c_t >        c_t the canary's clipped gradient

Its errors over many trainings with and without the canary bound epsilon from below (Jagielski et al. 2020), and, for a
Gaussian mechanism, its mu (Nasr et al. 2023). The audit calls `fit_private` itself, from outside.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tangent_jax.audit.bounds import check_confidence
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, as_array
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import progress_bar, show_progress
from tangent_jax.privacy.accounting import check
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.train import clip_all, default_objective, fit_private
from tangent_jax.train.batches import Batches, Chunk
from tangent_jax.train.objective import Objective
from tangent_jax.train.targets import Predict, is_real

RATE = 0.01  # rate of plain descent, in units of 1 / clip norm: so small that the canary stays clipped
DESCENT = optax.sgd(RATE)


class Bound(NamedTuple):
    """Lower bounds on epsilon, each with the given confidence.

    Attributes:
        epsilon: From the errors alone, for any mechanism.
        gaussian_epsilon: For a Gaussian mechanism.
        false_positives, false_negatives: The attack's error rates at the threshold of `epsilon`.
    """

    epsilon: float
    gaussian_epsilon: float
    false_positives: float
    false_negatives: float


def epsilon_lower_bound(absent: np.ndarray, present: np.ndarray, delta: float, confidence: float = 0.95) -> Bound:
    """Lower bounds of epsilon at `delta`, from scores of trainings without and with the canary.

        epsilon >= log((1 - delta - FNR) / FPR), and the same with the two exchanged

    at Clopper and Pearson's upper bounds of both rates. The first half of the scores chooses the threshold, the second
    half gives the rates.

    Raises:
        InputError: Fewer than 4 scores of a kind, or a delta or confidence outside (0, 1).

    >>> rng = np.random.default_rng(0)
    >>> bound = tj.audit.epsilon_lower_bound(rng.normal(size=400), 3 + rng.normal(size=400), delta=1e-5)
    >>> bound.epsilon > 1, bound.gaussian_epsilon > bound.epsilon
    (True, True)
    """
    from dp_accounting import get_epsilon_gaussian
    from scipy.stats import beta, norm

    absent, present = (finite_scores(scores, 4) for scores in (absent, present))
    check(delta, steps=1, sampling_rate=1)
    check_confidence(confidence)

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


def finite_scores(scores: Any, least: int) -> np.ndarray:
    """The scores as an array "n", in f64; InputError for fewer than `least`, or numbers that are not finite."""
    array = as_array("scores", scores)
    is_number = array.dtype.kind != "b" and is_real(array.dtype)
    if is_number:
        array = array.astype(np.float64)
    is_finite = is_number and np.isfinite(array).all()
    if not (is_finite and array.ndim == 1 and len(array) >= least):
        got = f"{array.dtype} of shape {array.shape}" + " with NaN or infinity" * bool(is_number and not is_finite)
        raise InputError(f"scores must be at least {least} finite numbers of each kind; got {got}.")
    return array


def noise_scale(absent: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The confidence interval of the actual noise relative to the claimed noise, from scores without the canary.

    The scores are N(0, 1) if the claim is true, so their variance is chi-squared. An upper end below 1 means too little
    noise.

    Raises:
        InputError: Fewer than 2 scores, or a confidence outside (0, 1).

    >>> low, high = tj.audit.noise_scale(np.random.default_rng(0).normal(size=400))
    >>> low < 1 < high
    True
    """
    from scipy.stats import chi2

    absent = finite_scores(absent, 2)
    check_confidence(confidence)
    total, n = float(np.sum(np.square(absent))), len(absent)
    low, high = (float(chi2.ppf(p, n)) for p in ((1 + confidence) / 2, (1 - confidence) / 2))
    return (total / low) ** 0.5, (total / high) ** 0.5


def run_openly(
    predict: Predict, dw: Tree, batches: Batches, mechanism: Mechanism, objective: Objective, seed: int | None = None
) -> list[Tree]:
    """The trainer's own run with every step released: dw_0, ..., dw_T on the host, by plain descent.

    The guarantee holds for every optimiser and every step, so an auditor may choose the most revealing one.
    """
    steps: list[Tree] = [jax.tree.map(np.asarray, dw)]
    options: Any = {"mechanism": mechanism, "start": dw, "optimizer": DESCENT, "seed": seed}
    fit_private(predict, batches, objective, **options, on_step=lambda _, dw: steps.append(jax.tree.map(np.array, dw)))
    return steps


def private_gradients(steps: Sequence[Tree], mechanism: Mechanism, objective: Objective) -> list[Tree]:
    """The noisy gradients G_1, ..., G_T of a run of `run_openly`, computed from its steps.

    ::

        dw_t = dw_(t-1) - RATE (G_t + penalty dw_(t-1)) / C
    """
    clip_norm, penalty = float(mechanism.clip_norm), float(objective.penalty)

    def gradient(before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return clip_norm / RATE * (before - after) - penalty * before

    return [jax.tree.map(gradient, before, after) for before, after in itertools.pairwise(steps)]


def before_rounding(mechanism: Mechanism) -> Mechanism:
    """The mechanism without a grid, for the auditor's own sums, which are compared with released ones."""
    return dataclasses.replace(mechanism, noise="gaussian")


TOGETHER = 50  # trainings attacked in one program


def canary_scores(
    predict: Predict,
    dw: Tree,
    batches: Batches,
    mechanism: Mechanism,
    trials: int,
    *,
    objective: Objective | None = None,
    claimed: Mechanism | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The attack's scores over `trials` full-batch trainings without the canary, and as many with it.

    Args:
        batches: The canary last.
        mechanism: The mechanism of training, by `fit_private` itself.
        objective: As there.
        claimed: The mechanism that the attacker assumes (None: the same).

    Returns:
        (absent, present), "trials" each, of N(0, 1) and N(mu, 1) for a correct mechanism; mu is at most sqrt(steps) /
        sigma, with equality if the canary is always clipped.

    >>> linear, dw = lambda dw, x: x @ dw["w"], {"w": np.zeros((2, 2), np.float32)}
    >>> batches = tj.Batches(np.eye(4, 2, dtype=np.float32), np.arange(4) % 2)
    >>> mechanism = tj.make_mechanism(epsilon=8.0, delta=1e-2, steps=2)
    >>> absent, present = tj.audit.canary_scores(linear, dw, batches, mechanism, trials=4)
    >>> absent.shape, present.shape
    ((4,), (4,))
    """
    predict, claimed = trees.as_pytree(predict), before_rounding(claimed or mechanism)
    objective = objective or default_objective()
    # an absent canary is an example with a zero gradient, like padding
    absent = Batches(batches.inputs, batches.targets, rows=batches.rows[:-1], batch_size=batches.batch_size)
    data, scores = (*batches.resident(), batches.rows[None]), []
    with progress_bar(2 * trials, "training") as bar:
        for part in (absent, batches):
            of_part: list[np.ndarray] = []
            for start in range(0, trials, TOGETHER):
                runs = []
                for _ in range(min(TOGETHER, trials - start)):
                    with show_progress(None):
                        runs.append(run_openly(predict, dw, part, mechanism, objective))
                    bar.update()
                gradients = [private_gradients(run, mechanism, objective) for run in runs]
                runs += [runs[-1]] * (TOGETHER - len(runs))  # one shape for all
                gradients += [gradients[-1]] * (TOGETHER - len(gradients))
                before, noisy = (stack_runs([run[: mechanism.steps] for run in group]) for group in (runs, gradients))
                attacked = _attack(predict, before, noisy, data, len(part), objective, claimed)
                of_part.append(np.asarray(attacked)[: min(TOGETHER, trials - start)])
            scores.append(np.concatenate(of_part))
    return scores[0], scores[1]


def stack_runs(runs: Sequence[Sequence[Tree]]) -> Tree:
    """Trees of each run and step as one, "runs steps ..."."""
    flat = jax.tree.map(lambda *leaves: np.stack(leaves), *(tree for run in runs for tree in run))
    return jax.tree.map(lambda leaf: leaf.reshape(len(runs), len(runs[0]), *leaf.shape[1:]), flat)


@jax.jit
def _attack(
    predict: Predict, before: Tree, noisy: Tree, data: Any, count: Any, objective: Objective, claimed: Mechanism
) -> Array:
    """The score of each run, from its steps before and its noisy gradients, "runs steps ..."."""
    inputs, targets, order = data
    n = order.shape[-1]
    canary = jnp.zeros((1, n)).at[0, -1].set(1)

    def at(dw: Tree, gradient: Tree) -> tuple[Array, Array]:
        def summed(present: Array) -> Tree:
            return clip_all(predict, dw, Chunk(inputs, targets, order, present), 1, objective, claimed).value

        left = jax.tree.map(lambda g, other: count * g - other, gradient, summed(1 - canary))
        alone = summed(canary)
        seen = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(alone), strict=True))
        return jnp.asarray(seen), trees.squared_norm(alone)

    def score(dw: Tree, gradient: Tree) -> Array:
        _, (seen, size) = jax.lax.scan(lambda _, pair: (None, at(*pair)), None, (dw, gradient))
        return seen.sum() / (claimed.noise_multiplier * claimed.clip_norm * jnp.sqrt(size.sum()))

    return jax.lax.map(lambda run: score(*run), (before, noisy), batch_size=10)
