"""Statistics by a secure sum: the numbers that each contributor hands to SecAgg+, and what the server reads of the sum.

The server learns the sum alone, so it cannot leave a contributor out, nor remove one later: a removal asks all others
again. A contributor whose numbers are not finite or too large sends nothing (`fixed_point.encode`).
"""

import numpy as np

from tangent_federation.contributor import Contributor
from tangent_federation.fixed_point import BITS, decode, encode
from tangent_federation.settings import Request, Settings
from tangent_jax.models import FeatureMap
from tangent_jax.solver import Statistics, make_statistics
from tangent_jax.solver.statistics import as_tree, from_tree

SHIFT = 1 << (BITS - 1)  # SecAgg+ takes numbers around 0


def flat_of(statistics: Statistics, classes: tuple[str, ...]) -> np.ndarray:
    """The numbers of statistics, over all classes, "m"."""
    whole = statistics.of_classes(sorted(classes))
    tree = as_tree(whole.gram, whole.sums, whole.counts)
    return np.concatenate([tree[name].ravel() for name in ("counts", "gram", "sums")])


def statistics_of(flat: np.ndarray, map_: FeatureMap, classes: tuple[str, ...]) -> Statistics:
    """`flat_of` undone."""
    k, c = sum(map_.sizes), len(classes)
    counts, gram, sums = np.split(flat, np.cumsum([c, k * (k + 1) // 2]))
    tree = {"counts": counts, "gram": gram, "sums": sums.reshape(c, k)}
    return from_tree(tree, sorted(classes), map_.sizes, map_.identity)


def limbs_of(own: Contributor, request: Request, settings: Settings) -> np.ndarray:
    """A contributor's numbers as SecAgg+ takes them, "limbs m", in +-2^23."""
    map_ = own.at_anchor(request)
    statistics = make_statistics(
        map_, own.features(map_, request.classes, only=bool(settings.classes)), request.classes
    )
    return encode(flat_of(statistics, request.classes), settings.limit, settings.limbs) - SHIFT


def sum_of(mean: list[np.ndarray], count: int, map_: FeatureMap, request: Request, limit: float) -> Statistics:
    """The statistics of all contributors, of the mean that SecAgg+ gives of `count` of them."""
    limbs = np.rint(np.array([part + SHIFT for part in mean]) * count)
    return statistics_of(decode(limbs, limit, count), map_, request.classes)
