"""Lower bounds on epsilon from one run's canary scores; a fair coin decides whether a canary is in.

    guesses     the coins are guessed right too often for (epsilon, delta): for any mechanism
    Gaussian    mu, from the gap between the scores relative to their spread: for a Gaussian mechanism with equal,
                independent normal noise in every score

The bounds' choices are fixed before any score is seen.
"""

from typing import NamedTuple

import numpy as np

from tangent_jax.core.checks import InputError, as_array
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.train.targets import as_numbers

PARTS = (1, 2, 4, 8)  # the divisors of the number of canaries that are guessed
TIES = 0x71E5  # the seed of the order of equal scores
LARGEST_T = 1000.0  # beyond it scipy's noncentral t loses digits; a smaller t is conservative


class OneRunBound(NamedTuple):
    """Lower bounds on epsilon that hold together with the given confidence.

    Attributes:
        epsilon: By guesses, for any mechanism.
        gaussian_epsilon: For a Gaussian mechanism, None for Poisson samples.
        guesses, right: The guesses behind `epsilon`, and the number of right ones.

    >>> tj.audit.OneRunBound(epsilon=1.2, gaussian_epsilon=2.0, guesses=20, right=19).epsilon
    1.2
    """

    epsilon: float
    gaussian_epsilon: float | None
    guesses: int
    right: int


def one_run_bound(scores: np.ndarray, coins: np.ndarray, mechanism: Mechanism, confidence: float = 0.95) -> OneRunBound:
    """Lower bounds of epsilon, at the mechanism's delta, from the scores of one run.

    The error 1 - confidence is split between the two bounds, and that of the first bound between the numbers of
    guesses: all canaries, a half, a quarter, an eighth; the highest scores are guessed in, as many lowest ones out.

    Edge cases:
        Equal scores are ranked by a fixed random permutation of the canaries, which their number alone chooses: the
        order in which canaries are given, such as sorted by coin, proves nothing.

    Raises:
        InputError: Coins that are not True or False, another number of scores, scores that are not finite, or a
            confidence outside (0, 1).

    >>> coins = np.arange(100) % 2 == 0
    >>> scores = np.where(coins, 3.0, -3.0) + np.random.default_rng(0).normal(size=100)
    >>> bound = tj.audit.one_run_bound(scores, coins, tj.make_mechanism(epsilon=8.0, delta=1e-5))
    >>> bound.epsilon > 1, bound.right == bound.guesses
    (True, True)
    """
    check_confidence(confidence)
    scores, coins = as_numbers("scores", scores), as_array("coins", coins)
    is_valid = coins.dtype == bool and scores.shape == coins.shape == (scores.size,) and np.isfinite(scores).all()
    if not is_valid:
        raise InputError(
            f"scores must be finite, with one coin (True or False) for each; got scores {scores.shape} and coins "
            f"{coins.dtype}{coins.shape}."
        )
    error, m = (1 - confidence) / 2, len(scores)
    order = np.lexsort((np.random.default_rng(TIES).permutation(m), scores))
    bounds = []
    for part in PARTS:
        k = m // (2 * part)
        right = int(np.sum(~coins[order[:k]]) + np.sum(coins[order[m - k :]]))
        proved = epsilon_of_guesses(right, 2 * k, m, mechanism.delta, error / len(PARTS))
        bounds.append(OneRunBound(proved, None, 2 * k, right))
    best = max(bounds)
    gaussian = gaussian_epsilon(scores, coins, mechanism.delta, error) if mechanism.sampling_rate == 1 else None
    return best._replace(gaussian_epsilon=gaussian)


def check_confidence(confidence: float) -> None:
    """Raises InputError for a confidence outside (0, 1)."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1); got {confidence}. Pass 0.95 for 95 %.")


def guess_p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The largest probability under (epsilon, delta) of `right` or more right guesses of fair coins.

        P[right >= v] <= P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i,    W ~ Binomial(r, 1 / (1 + exp(-epsilon)))

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2 and Appendix D; m canaries, r guesses, fixed before.
    """
    from scipy.special import expit
    from scipy.stats import binom

    chance, i = expit(epsilon), np.arange(1, right + 1)
    tail = binom.sf(right - 1, guesses, chance)
    most = np.max((binom.sf(right - i - 1, guesses, chance) - tail) / i, initial=0.0)
    return float(min(1.0, tail + 2 * canaries * delta * most))


def epsilon_of_guesses(right: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """The largest epsilon (up to 1e-4 less) for which this many right guesses have a probability below `error`."""
    low, high = 0.0, 1.0
    while guess_p_value(right, guesses, canaries, high, delta) < error:
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        rejected = guess_p_value(right, guesses, canaries, middle, delta) < error
        low, high = (middle, high) if rejected else (low, middle)
    return low


def gaussian_epsilon(scores: np.ndarray, coins: np.ndarray, delta: float, error: float) -> float:
    """The lower bound of epsilon if scores are N(b, s^2) out and N(b + s mu, s^2) in, with unknown b and s.

        t = (mean in - mean out) / (s r),    r^2 = 1 / in + 1 / out,    s^2 pooled over both

    is noncentral t with in + out - 2 degrees of freedom and centre mu / r (Student's test of two samples).
    """
    from dp_accounting import get_epsilon_gaussian
    from scipy.optimize import brentq
    from scipy.stats import nct

    sides, freedom = (scores[~coins], scores[coins]), len(scores) - 2
    if min(map(len, sides)) < 2:
        return 0.0
    r = sum(1 / len(side) for side in sides) ** 0.5
    s = (sum(float(np.sum(np.square(side - side.mean()))) for side in sides) / freedom) ** 0.5
    t = min(float(sides[1].mean() - sides[0].mean()) / max(s * r, np.finfo(float).tiny), LARGEST_T)
    if nct.sf(t, freedom, 0.0) >= error:
        return 0.0
    mu = r * brentq(lambda centre: nct.sf(t, freedom, centre) - error, 0.0, t + 10)
    return float(get_epsilon_gaussian(1 / mu, delta)) if mu > 1e-3 else 0.0
