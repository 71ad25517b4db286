"""Which shard an example belongs to: disjoint rows, a cover of all of them."""

import numpy as np

from tangent_jax.checks import require


def uniform(count: int, shards: int, seed: int) -> list[np.ndarray]:
    """Equal shards of a seeded shuffle (the paper's); adding or removing an example moves others.

    Returns: `shards` sorted arrays of rows of 0..count-1; sizes differ by at most one.
    """
    require(1 <= shards <= count, "uniform", f"shards in 1..{count}", shards)
    return [np.sort(rows) for rows in np.array_split(np.random.default_rng(seed).permutation(count), shards)]


def by_identifier(identifiers: tuple[str, ...], shards: int) -> list[np.ndarray]:
    """Shards by a hash of the content identifier: no other example moves when one comes or goes.

    Returns: `shards` sorted arrays of rows; sizes differ by chance, and one may be empty.
    """
    require(shards >= 1, "by_identifier", "shards >= 1", shards)
    shard = np.array([int(name[:16], 16) % shards for name in identifiers], np.int64)
    return [np.flatnonzero(shard == s) for s in range(shards)]
