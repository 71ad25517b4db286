"""Rows of feature maps on disk, so that an interrupted pass resumes.

    CACHE/MAP/    the rows z "k" of images (row_store.py)

MAP hashes the trunk below the map, its program, its weights and the batch size. The folder lies in the cache beside
those of the inputs, so a removal finds and erases these rows as it does inputs.
"""

import jax
import numpy as np
from jaxtyping import Float

from tangent_jax.core.identities import identity, program
from tangent_jax.core.progress import Progress, silent
from tangent_jax.features.extract import Cache, fill
from tangent_jax.features.row_store import RowStore
from tangent_jax.models.ntk import FeatureMap
from tangent_jax.models.trunk import Trunk
from tangent_jax.solver.mapped import compute_rows
from tangent_jax.train.features import Features


def keep_rows(
    cache: Cache, map_: FeatureMap, data: Features, batch: int, progress: Progress = silent
) -> Float[np.ndarray, "n k"]:
    """The rows of all examples, read from the cache, or computed and kept there; for `map_once`.

    Args:
        cache: Where `data` was extracted.
        progress: Not used, as work on files shows its own bar.

    Guarantees:
        Bitwise those of `compute_rows` on one kind of device; a cache that a GPU filled serves a CPU, too. A kill loses
        the last chunks alone, also a kill that nothing can catch.

    Raises:
        InputError: If images were removed from the cache meanwhile.

    >>> cache = tj.Cache(demo.folder())
    >>> once = tj.solver.map_once(demo.map, demo.train, lambda *of: tj.features.keep_rows(cache, *of))
    >>> tj.solver.rows_of(demo.map, once).shape
    (24, 6)
    """
    identifiers = [identifier for identifier, _ in data.examples]
    rows = RowStore(cache.path / key_of(map_, cache, batch), identifiers, (sum(map_.sizes),), np.dtype(np.float32))
    fill(rows, lambda spans: ((compute_rows(map_, data.take(np.array(span)), batch), ()) for span in spans))
    return np.asarray(rows.open())


def key_of(map_: FeatureMap, cache: Cache, batch: int) -> str:
    """The identity of all that decides a row besides the image."""
    trunk = Trunk(map_.model, map_.w, map_.subset.stage, map_.dtype)
    below = trunk.key(cache.dtype)
    x = jax.ShapeDtypeStruct((batch, *map_.model.input_shape(map_.subset.stage)), trunk.row_dtype(cache.dtype))
    return identity("rows", below, map_.identity, program(FeatureMap.rows, map_, x))[:24]
