"""Features: the input of the first trained stage for every image, computed once and kept on disk.

    CACHE/TRUNK-IMAGES/    the rows (cache.py); the name hashes all that decides them

TRUNK is the identity of the trunk's program, the weights that it reads, the preprocessing and the dtypes; IMAGES is the
fingerprint of every image's content. Rows that another set of images shares are copied; rows of a lower stage are
computed on from there.
"""

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import InputError, Tree, identity, placement, progress_bar, refusal, require
from tangent_jax.core.files import expanded, fingerprint, locked
from tangent_jax.core.identities import program_reading
from tangent_jax.core.rows import Rows, in_batches
from tangent_jax.data.decode import decode, decode_ahead
from tangent_jax.data.sources import Examples
from tangent_jax.models.cache import CHUNK, CachedRows, identifiers_of
from tangent_jax.models.protocol import Model, prepared
from tangent_jax.train.batches import Batches, OnDevice

FORMAT = 3  # of the rows: counted up when the same trunk would give others, as when decoding changes


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Inputs "n ..." of the first trained stage, targets "n ...", and (content identifier, name) of each image.

    Targets are the data set's class indices; `dataclasses.replace(features, targets=y)` trains on others. `skipped`:
    the number of unreadable images; `folder`: the cache that holds the inputs, or None; `device`: the one copy on the
    device that all batches of these features share.
    """

    inputs: Any
    targets: np.ndarray
    examples: tuple[tuple[str, str], ...]
    skipped: int = 0
    folder: str | None = None
    device: OnDevice = dataclasses.field(default_factory=OnDevice, init=False, repr=False)

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Features":
        """The examples at `rows`, "k", in that order; the inputs are not copied."""
        rows = np.arange(len(self))[np.asarray(rows) if len(rows) else np.zeros(0, int)]  # a mask too
        examples = tuple(self.examples[i] for i in rows)
        return dataclasses.replace(self, inputs=Rows(self.inputs, rows), targets=self.targets[rows], examples=examples)

    def batches(self, key: Array | None = None, *, rows: np.ndarray | None = None, batch_size: int = 32) -> Batches:
        """The examples, or those at `rows`, "k", for `fit` (which needs the key) or `fit_private`."""
        return Batches(self.inputs, self.targets, key, rows=rows, batch_size=batch_size, device=self.device)

    def hold_out(self) -> tuple["Features", "Features"]:
        """Returns (train, held out): every fifth image of each class is held out, the same ones every time."""
        rank = np.zeros(len(self), int)
        for label in np.unique(self.targets):
            rows = np.flatnonzero(self.targets == label)
            rank[rows] = np.arange(len(rows))
        held = rank % 5 == 4
        return self.take(np.flatnonzero(~held)), self.take(np.flatnonzero(held))


@dataclasses.dataclass(frozen=True)
class Cache:
    """The folder of cached features, their dtype such as "float16" (None: the compute dtype), and whether unreadable
    images are skipped."""

    folder: str | os.PathLike = "~/.cache/tangent_jax"
    dtype: str | None = None
    skip_unreadable: bool = False


def features(
    model: Model, w: Tree, examples: Examples, stage: int, cache: Cache | None = None, dtype: Any = None
) -> Features:
    """Returns the input of `stage` for every example, from the cache or computed now.

    Args:       dtype: the trunk's compute dtype (None: float32). At stage 0 the inputs are the decoded uint8 images.
    Returns:    Features; `inputs` is a read-only memory map "n ..." unless images were skipped.
    Raises:     InputError naming the first unreadable image, unless the cache skips them.
    """
    cache = cache or Cache()
    root, identifiers = expanded("Cache", cache.folder).absolute(), examples.identifiers()
    stored_dtype = np.dtype(jnp.dtype(cache.dtype or dtype or jnp.float32))
    images = fingerprint("".join(identifiers).encode())[:24]

    def key(stage: int) -> str:
        return f"{trunk_key(model, w, stage, dtype, stored_dtype)}-{images}"

    here = key(stage)

    def rows_at(stage: int, folder: Path, identifiers: Sequence[str]) -> CachedRows:
        kind = stored_dtype if stage else np.dtype(np.uint8)
        return CachedRows(folder, identifiers, model.input_shape(stage), kind)

    with locked(root / here / "lock"):
        rows = rows_at(stage, root / here, identifiers)
        rows.make()
        missing = rows.missing()
        if missing:
            rows.complete.unlink(missing_ok=True)
            trunk = partial(run_trunk, w, model=model, stop=stage, dtype=dtype, traced=here.partition("-")[0])
            chunks: Chunks | None = None
            others = any(folder.name != here for folder in root.iterdir())
            for s in range(stage, -1, -1) if others else ():  # the highest stage whose rows are cached
                source = find_rows(partial(rows_at, s), root, here if s == stage else key(s), rows, missing)
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


def trunk_key(model: Model, w: Tree, stage: int, dtype: Any, stored_dtype: np.dtype) -> str:
    """The identity of all that decides a stage's input besides the image: decoding, the trunk's program, the leaves
    that it reads, the dtypes.

    Raises: InputError where the trunk gives another shape than the model's `input_shape`.
    """
    size, decoded = model.image_size, (FORMAT, model.image_size, model.preprocessing)
    if stage == 0:
        return identity(decoded)[:24]
    image = jax.ShapeDtypeStruct((1, size, size, 3), jnp.uint8)
    trunk = partial(inspect.unwrap(run_trunk), model=model, stop=stage, dtype=dtype)  # traced anew: code may be mended
    shape = jax.eval_shape(trunk, w, image).shape[1:]
    expected = f"the input of stage {stage}, of shape {model.input_shape(stage)} as the model says"
    require(shape == tuple(model.input_shape(stage)), "features", expected, f"shape {shape} from apply")
    traced, read = program_reading(trunk, w, image)
    return identity(decoded, stage, str(stored_dtype), traced, read)[:24]


def find_rows(
    rows_at: Callable[[Path, Sequence[str]], CachedRows], root: Path, key: str, rows: CachedRows, missing: list[int]
) -> tuple[CachedRows, dict[str, int]] | None:
    """Returns cached rows of one trunk that hold every image of the missing chunks, and the row of each; else None."""
    wanted = {rows.identifiers[i] for chunk in missing for i in rows.rows(chunk)}
    for listed in sorted(root.glob(f"{key.partition('-')[0]}-*/examples.txt")):
        if listed.parent == rows.folder or not (listed.parent / "complete").exists():
            continue
        names = identifiers_of(listed.parent)
        where = {name: i for i, name in enumerate(names) if name in wanted}
        if len(where) < len(wanted):
            continue
        cached = rows_at(listed.parent, names)
        if cached.is_sized() and not cached.missing() and not cached.skipped & {*where.values()}:
            return cached, where
    return None


@partial(jax.jit, static_argnames=("model", "start", "stop", "dtype", "traced"))
def run_trunk(w: Tree, x: Array, *, model: Model, start: int = 0, stop: int, dtype: Any, traced: str = "") -> Array:
    """Computes the input "b ..." of stage `stop` from that of `start`, uint8 images for 0. `traced`: the key of its
    program, which another compiles anew."""
    return model.apply(*prepared(model, w, x, dtype), start, stop)


def run_size() -> int:
    """The rows that a trunk runs at once: few on a CPU, where they stay in its caches."""
    return 8 if placement.mesh().devices.flat[0].platform == "cpu" else CHUNK


Chunks = Iterator[tuple[np.ndarray, list[int]]]


def from_images(
    model: Model, trunk: Callable[[Any], Array], examples: Examples, stage: int, chunks: list[int], skip: bool
) -> Chunks:
    """Yields chunks, "k ...", computed from the images, which are decoded ahead in threads."""
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
        yield (in_batches(trunk, images, run_size()) if stage else images), skipped


def from_rows(
    trunk: Callable[[Any], Array] | None, source: tuple[CachedRows, dict[str, int]], rows: CachedRows, chunks: list[int]
) -> Chunks:
    """Yields chunks, "k ...", of rows cached for other sets, or computed from the cached input of a lower stage."""
    cached, where = source
    for chunk in chunks:
        x = np.asarray(cached.inputs[[where[rows.identifiers[i]] for i in rows.rows(chunk)]])
        yield (x if trunk is None else in_batches(trunk, x, run_size())), []
