"""Features: the input of the first trained stage for every image, computed once and kept on disk.

    CACHE/TRUNK-IMAGES/    the rows (cache.py); the name hashes all that decides them

TRUNK is made of the trunk's weights and settings, the preprocessing and the compute dtype, IMAGES of every image's
content. What is there of the same images is read, of other sets too; and at a lower stage it is continued from.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import InputError, Tree, progress_bar, refusal, trees
from tangent_jax.core.files import digest, expanded, locked
from tangent_jax.core.rows import Rows
from tangent_jax.data.decode import decode, decode_ahead
from tangent_jax.data.sources import Examples
from tangent_jax.models.cache import CHUNK, CachedRows, identifiers_of
from tangent_jax.models.protocol import Model, prepared
from tangent_jax.train.batches import Batches

FORMAT = 2  # of the rows: counted up when the same trunk would give others, as when decoding changes


class Features(NamedTuple):
    """What training reads: inputs "n ...", labels "n", (content identifier, name) of each, images skipped.

    `folder`: the cache that holds the inputs, None where there is none.
    """

    inputs: Any
    labels: np.ndarray
    examples: tuple[tuple[str, str], ...]
    skipped: int
    folder: str | None = None

    def take(self, rows: np.ndarray) -> "Features":
        """The examples at `rows`, in that order; the inputs stay where they are."""
        examples = tuple(self.examples[i] for i in rows)
        return self._replace(inputs=Rows(self.inputs, rows), labels=self.labels[rows], examples=examples)

    def batches(self, key: Array | None = None, *, rows: np.ndarray | None = None, batch_size: int = 32) -> Batches:
        """The examples, or those at `rows`, for `fit` (which needs the key) or `fit_private`."""
        return Batches(self.inputs, self.labels, key, rows=rows, batch_size=batch_size)

    def hold_out(self) -> tuple["Features", "Features"]:
        """(train, held out): every fifth image of each class is held out, the same ones every time."""
        rank = np.zeros(len(self.labels), int)
        for label in np.unique(self.labels):
            rows = np.flatnonzero(self.labels == label)
            rank[rows] = np.arange(len(rows))
        held = rank % 5 == 4
        return self.take(np.flatnonzero(~held)), self.take(np.flatnonzero(held))


@dataclasses.dataclass(frozen=True)
class Cache:
    """Where features are kept, and how: `dtype` such as "float16" (None: the compute dtype)."""

    folder: str | os.PathLike = "~/.cache/tangent_jax"
    dtype: str | None = None
    skip_unreadable: bool = False


def features(
    model: Model, w: Tree, examples: Examples, stage: int, cache: Cache | None = None, dtype: Any = None
) -> Features:
    """The input of `stage` for every example, from the cache or computed now.

    Args:       dtype: the trunk's compute dtype (None: float32). Stage 0 keeps the decoded uint8 images.
    Returns:    Features; `inputs` is a read-only memory map unless images were skipped.
    Raises:     InputError naming the first unreadable image, unless the cache skips them.
    """
    cache = cache or Cache()
    root, identifiers = expanded("Cache", cache.folder).absolute(), examples.identifiers()
    stored_dtype = np.dtype(jnp.dtype(cache.dtype or dtype or jnp.float32))
    keys = trunk_keys(model, w, examples, stage, dtype, stored_dtype)

    def rows_at(stage: int, folder: Path, identifiers: Sequence[str]) -> CachedRows:
        kind = stored_dtype if stage else np.dtype(np.uint8)
        return CachedRows(folder, identifiers, model.input_shape(stage), kind)

    with locked(root / keys[stage] / "lock"):
        rows = rows_at(stage, root / keys[stage], identifiers)
        rows.make()
        missing = rows.missing()
        if missing:
            rows.complete.unlink(missing_ok=True)
            trunk = partial(run_trunk, w, model=model, stop=stage, dtype=dtype)
            chunks: Chunks | None = None
            for s in sorted(keys, reverse=True):
                source = find_rows(partial(rows_at, s), root, keys[s], rows, missing)
                if source is not None:
                    chunks = from_rows(partial(trunk, start=s) if s < stage else None, source, rows, missing)
                    break
            chunks = chunks or from_images(model, trunk, examples, stage, missing, cache.skip_unreadable)
            done = rows.count - sum(len(rows.rows(chunk)) for chunk in missing)
            with progress_bar(rows.count, "image", done) as bar:
                for chunk, (values, skipped) in zip(missing, chunks, strict=True):
                    rows.write(chunk, values, skipped)
                    bar.update(len(values))
            rows.complete.touch()
    skipped = sorted(rows.skipped)
    if skipped and not cache.skip_unreadable:
        got = f"{len(skipped)} unreadable, first {examples.names[skipped[0]]}"
        raise refusal("features", "readable images", got, "Mend or remove it, or set skip_unreadable=True")
    pairs = tuple(zip(identifiers, examples.names, strict=True))
    whole = Features(rows.inputs, examples.labels, pairs, len(skipped), str(root))
    return whole.take(np.setdiff1d(np.arange(rows.count), skipped)) if skipped else whole


def trunk_keys(
    model: Model, w: Tree, examples: Examples, stage: int, dtype: Any = None, stored_dtype: Any = None
) -> dict[int, str]:
    """The cache key of every stage up to `stage`, TRUNK-IMAGES: weights are hashed leaf by leaf, once."""
    leaves = [(model.stage_of(path), path, leaf) for path, leaf in sorted(trees.leaves(w).items())]
    hashed = [(at, path, trees.fingerprint(leaf)) for at, path, leaf in leaves if at < stage]
    images = digest("".join(examples.identifiers()).encode())[:24]
    dtypes = [str(jnp.dtype(kind or jnp.float32)) for kind in (dtype, stored_dtype or dtype)]
    keys = {}
    for s in range(stage + 1):
        trunk = [s, model.trunk_settings(s), [leaf for leaf in hashed if leaf[0] < s]]
        decisive = [FORMAT, type(getattr(model, "base", model)).__name__, model.preprocessing, *dtypes, *trunk]
        keys[s] = f"{digest(repr(decisive).encode())[:24]}-{images}"
    return keys


def find_rows(
    rows_at: Callable[[Path, Sequence[str]], CachedRows], root: Path, key: str, rows: CachedRows, missing: list[int]
) -> tuple[CachedRows, dict[str, int]] | None:
    """Cached rows of one trunk that hold every image of the missing chunks, and the row of each; None without such."""
    wanted = {rows.identifiers[i] for chunk in missing for i in rows.rows(chunk)}
    for listed in sorted(root.glob(f"{key.partition('-')[0]}-*/examples.txt")):
        if listed.parent == rows.folder or not (listed.parent / "complete").exists():
            continue
        names = identifiers_of(listed.parent)
        where = {name: i for i, name in enumerate(names) if name in wanted}
        if len(where) < len(wanted):
            continue
        found = rows_at(listed.parent, names)
        if found.is_sized() and not found.missing() and not found.skipped & {*where.values()}:
            return found, where
    return None


@partial(jax.jit, static_argnames=("model", "start", "stop", "dtype"))
def run_trunk(w: Tree, x: Array, *, model: Model, start: int = 0, stop: int, dtype: Any) -> Array:
    """The input of `start`, uint8 images for 0, to that of `stop`."""
    return model.apply(*prepared(model, w, x, dtype), start, stop)


def in_batches(run: Callable[[Any], Array], x: np.ndarray) -> np.ndarray:
    """`run` over x in batches of one shape; small ones on a CPU, where they stay in its caches."""
    size = 8 if jax.default_backend() == "cpu" else CHUNK
    parts = []
    for start in range(0, len(x), size):
        batch = x[start : start + size]
        padded = np.concatenate([batch, np.zeros((size - len(batch), *x.shape[1:]), x.dtype)])
        parts.append(run(padded)[: len(batch)])
    return np.concatenate([np.asarray(part) for part in parts])


Chunks = Iterator[tuple[np.ndarray, list[int]]]


def from_images(
    model: Model, trunk: Callable[[Any], Array], examples: Examples, stage: int, chunks: list[int], skip: bool
) -> Chunks:
    """Chunks computed from the images, which are decoded ahead in threads."""
    size = model.image_size
    wanted = [range(c * CHUNK, min(len(examples), (c + 1) * CHUNK)) for c in chunks]

    def decode_row(i: int) -> np.ndarray:
        return decode(examples.read(i), examples.names[i], size, model.preprocessing)

    jobs = (partial(decode_row, i) for rows in wanted for i in rows)
    decoded = decode_ahead(jobs, workers=os.cpu_count() or 1, ahead=2 * CHUNK)
    for rows in wanted:
        images, skipped = np.zeros((len(rows), size, size, 3), np.uint8), []
        for i in range(len(rows)):
            image = next(decoded)
            if isinstance(image, InputError):
                if not skip:
                    raise image
                skipped.append(i)
            else:
                images[i] = image
        yield (in_batches(trunk, images) if stage else images), skipped


def from_rows(
    trunk: Callable[[Any], Array] | None, source: tuple[CachedRows, dict[str, int]], rows: CachedRows, chunks: list[int]
) -> Chunks:
    """Chunks from rows cached for other sets, or computed from the cached input of a lower stage."""
    cached, where = source
    for chunk in chunks:
        x = np.asarray(cached.inputs[[where[rows.identifiers[i]] for i in rows.rows(chunk)]])
        yield (x if trunk is None else in_batches(trunk, x)), []
