"""Rows of feature maps on disk, so that an interrupted pass goes on where it stopped.

    CACHE/MAP-IMAGES/    the rows z "k" of images (row_store.py)

MAP hashes the trunk below the map, its program, its weights and the batch size. IMAGES hashes the content of the images
that a pass began with, under the cache's key (extract.py). Each pass computes only the rows that no
folder of its map holds. The folders lie in the cache beside those of the inputs, so a removal finds and erases these
rows as it does inputs.
"""

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jaxtyping import Float

from tangent_jax.core import placement
from tangent_jax.core.identities import identity, program
from tangent_jax.core.progress import Progress, silent
from tangent_jax.features.extract import Cache, Values, fill, folder_of
from tangent_jax.features.row_store import RowStore, identifiers_of, state_of
from tangent_jax.models.ntk import FeatureMap
from tangent_jax.models.trunk import Trunk
from tangent_jax.solver.mapped import compute_rows
from tangent_jax.train.features import Features


def keep_rows(
    cache: Cache, map_: FeatureMap, data: Features, batch: int, progress: Progress = silent
) -> Float[np.ndarray, "n k"]:
    """The rows of all examples, read from the cache, or computed and kept there; for `map_once`.

    Args:       cache: where `data` was extracted; progress: not used, as work on files shows its own bar.
    Guarantees: bitwise those of `compute_rows` on one kind of device; a cache that a GPU filled serves a CPU, too.
                A kill loses the last chunks alone, also a kill that nothing can catch.
    Raises:     InputError if images were removed from the cache meanwhile.

    >>> cache = tj.Cache(demo.folder())
    >>> once = tj.solver.map_once(demo.map, demo.train, lambda *of: tj.features.keep_rows(cache, *of))
    >>> tj.solver.rows_of(demo.map, once).shape
    (24, 6)
    """
    key = key_of(map_, cache, batch)
    wanted = [identifier for identifier, _ in data.examples]
    place = {identifier: row for row, identifier in enumerate(wanted)}  # of copies the last: they have the same row
    rows = np.zeros((len(data), sum(map_.sizes)), np.float32)
    is_known = np.zeros(len(data), bool)
    stores = open_stores(cache, key, rows.shape[1:])
    for store in stores:
        read_known(store, place, rows, is_known)
    if jax.process_count() > 1:  # all processes of a job compute what one of them lacks
        is_known = np.asarray(placement.gather(is_known).all(0))
    missing = [identifier for identifier, row in place.items() if not is_known[row]]
    if missing:
        store = store_of(cache, key, missing, stores, rows.shape[1:])
        fill(store, partial(compute, map_, data, place, store.identifiers, batch))
        read_known(store, place, rows, is_known)
    return rows[[place[identifier] for identifier in wanted]]


def key_of(map_: FeatureMap, cache: Cache, batch: int) -> str:
    """The identity of all that decides a row besides the image."""
    trunk = Trunk(map_.model, map_.w, map_.subset.stage, map_.dtype)
    below = trunk.key(cache.dtype)
    x = jax.ShapeDtypeStruct((batch, *map_.model.input_shape(map_.subset.stage)), trunk.row_dtype(cache.dtype))
    return identity("rows", below, map_.identity, program(FeatureMap.rows, map_, x))[:24]


def open_stores(cache: Cache, key: str, shape: tuple[int, ...]) -> list[RowStore]:
    """All folders of rows of this key, each with its finished chunks read."""
    stores = []
    for folder in sorted(cache.path.glob(f"{key}-*")):
        listed = folder / "examples.txt"
        if not listed.exists():  # a pass was killed as it began
            continue
        state = state_of(listed)
        store = RowStore(folder, identifiers_of(folder), shape, np.dtype(np.float32), process=jax.process_index())
        store.missing()
        store.listed = state
        stores.append(store)
    return stores


def read_known(store: RowStore, place: dict[str, int], rows: np.ndarray, is_known: np.ndarray) -> None:
    """Copies the finished rows of wanted images, by `place`, from a folder."""
    finished = [row for chunk in store.lines for row in store.rows(chunk) if store.identifiers[row] in place]
    if finished:
        at = [place[store.identifiers[row]] for row in finished]
        rows[at] = store.opened()[np.array(finished)]
        is_known[at] = True


def store_of(
    cache: Cache, key: str, missing: list[str], stores: Sequence[RowStore], shape: tuple[int, ...]
) -> RowStore:
    """The folder for missing rows: that of the pass that was interrupted before them, or a new one."""
    for store in stores if jax.process_count() == 1 else ():
        if {store.identifiers[row] for chunk in store.unfinished() for row in store.rows(chunk)} == {*missing}:
            return store
    folder = folder_of(cache, key, missing)
    return RowStore(folder, missing, shape, np.dtype(np.float32), process=jax.process_index())


def compute(
    map_: FeatureMap, data: Features, place: dict[str, int], identifiers: Sequence[str], batch: int, spans: list[range]
) -> Values:
    """Yields the rows of each span of the images with these identifiers."""
    for span in spans:
        at = np.array([place[identifiers[row]] for row in span])
        yield compute_rows(map_, data.take(at), batch), []
