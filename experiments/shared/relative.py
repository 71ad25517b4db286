"""Relative three-sample test: is a model after a removal nearer to one that never saw the images, or to the one before?

    u, p, q    outputs of the models after the removal, never trained on the images, and before, on the removed images
    T          MMD^2(u, p) - MMD^2(u, q), unbiased, by a Gaussian kernel k: above 0 if u is nearer to q

If u is as near to p as to q, swapping p_j and q_j of an image changes the sign of its part c_j of T = sum_j c_j:

    c_j = f(p_j) - f(q_j),    f(x) = sum_{i != j} (k(p_i, x) + k(q_i, x) - 2 k(u_i, x)) / (n (n - 1))

One p value counts sums with random signs: it is exact if p and q are exchangeable, even where T is degenerate, as it
is if all three are alike. Another is Student's t of T and its jackknife error, which hold for any three distributions
and many images. The larger one is given. The three outputs of an image need not be independent of one another.

Sources: Ribero, Schrab and Gretton 2026 (AISTATS; the relative test of unlearning), whose divergences are others;
Bounliphone et al. 2016 (T, with its normal limit for independent samples).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from scipy.spatial.distance import cdist, pdist
from scipy.stats import t as student

DRAWS = 4000  # of signs
MOST = 500  # images whose distances give the bandwidth


class Relative(NamedTuple):
    """The result of `relative_test`.

    Attributes:
        to_never, to_before: Unbiased MMD^2 of the model after the removal to the two others; below 0 by chance.
        p_kept: Small if it is nearer to the model before: the removal left something.
        p_removed: Small if it is nearer to the model that never saw the images.
        identical: True if all outputs are those of the model that never saw the images, bit for bit.
    """

    to_never: float
    to_before: float
    p_kept: float
    p_removed: float
    identical: bool


def relative_test(
    after: Float[np.ndarray, "..."],
    never: Float[np.ndarray, "..."],
    before: Float[np.ndarray, "..."],
    images: Shaped[np.ndarray, " _"] | None = None,
    seed: int = 0,
) -> Relative:
    """Tests which of two models a model after a removal is nearer to, by outputs on the removed images.

    Args:
        after, never, before: Finite outputs, or signals such as `confidence`, "n ..." of the same n pairs of model and
            image; of three images or more.
        images: The image of each pair, whose pairs change sign together; by default they are n images.

    Guarantees:
        Where never and before are exchangeable, each p value is at most a with a chance of at most a; with many images,
        also where the model is as near to one as to the other by the kernel.
    """
    identical = bool((after == never).all())
    u, p, q = (sample.reshape(len(after), -1).astype(np.float64) for sample in (after, never, before))
    names, place = np.unique(np.arange(len(u)) if images is None else images, return_inverse=True)
    scale = bandwidth(u, p, q)
    others = place[:, None] != place[None]
    pairs = others.sum()

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(others, np.exp(-cdist(a, b, "sqeuclidean") / (2 * scale**2)), 0)

    uu, pp, qq, up, uq, pq = (kernel(a, b) for a, b in ((u, u), (p, p), (q, q), (u, p), (u, q), (p, q)))
    parts = (pp + pq.T - 2 * up - pq - qq + 2 * uq).sum(0) / pairs
    of_image = np.bincount(place, parts)
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), (DRAWS, len(names)))
    sums = signs @ of_image
    rounding = 1e-12 * np.abs(of_image).sum()
    by_signs = [(1 + np.sum(s * sums >= s * of_image.sum() - rounding)) / (1 + DRAWS) for s in (1, -1)]
    left_out = place[:, None] == np.arange(len(names))
    of_rows = (pp - up - up.T - qq + uq + uq.T).sum(1) @ left_out
    pairs_left = pairs - 2 * others.sum(1) @ left_out
    by_error = jackknife_p_values(of_image.sum(), (of_rows.sum() - 2 * of_rows) / pairs_left)
    p_kept, p_removed = np.maximum(by_signs, by_error)
    to_never, to_before = ((uu + own - 2 * both).sum() / pairs for own, both in ((pp, up), (qq, uq)))
    return Relative(float(to_never), float(to_before), float(p_kept), float(p_removed), identical)


def jackknife_p_values(t: float, without: Float[np.ndarray, " m"]) -> list[float]:
    """The p values of t > 0 and of t < 0, from its values without each of m images, by Student's t."""
    m = len(without)
    error = np.sqrt((m - 1) * np.var(without))
    if error <= 1e-12 * abs(t):
        return [float(t <= 0), float(t >= 0)]
    return [float(student.sf(sign * t / error, m - 1)) for sign in (1, -1)]


def bandwidth(*samples: np.ndarray) -> float:
    """The median distance between outputs of all models on up to MOST images; 1 if it is 0."""
    step = -(-len(samples[0]) // MOST)
    return float(np.median(pdist(np.concatenate([sample[::step] for sample in samples])))) or 1.0
