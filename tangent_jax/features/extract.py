"""Features: the input of the first trained stage for every example, computed once and cached on disk.

    CACHE/TRUNK-IMAGES/    the rows (cache.py)

TRUNK hashes the trunk's program, its weights, the preprocessing and the dtypes. IMAGES hashes the content of all
images. Rows that are cached for another set of images are copied; rows of a lower stage are continued from there.
"""

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, expect, require, whole_number
from tangent_jax.core.identities import identity, program_reading
from tangent_jax.core.notation import Tree
from tangent_jax.core.preprocessing import sides
from tangent_jax.data.decode import MOST_PIXELS, size_of
from tangent_jax.data.formats import decoders
from tangent_jax.data.sources import Examples
from tangent_jax.data.workers import Decoded, Decoder, decode_chunks
from tangent_jax.features.cache import CachedRows, identifiers_of
from tangent_jax.features.filling import Chunks, fill, from_images, from_rows, run_trunk, trunk_rows
from tangent_jax.features.layout import first_folder
from tangent_jax.features.shared_rows import fetch_rows, share_rows
from tangent_jax.io import hosts
from tangent_jax.io.files import expand_path, fingerprint, hold_lock
from tangent_jax.io.progress import tell
from tangent_jax.models.protocol import Arrays, Model, input_dtype, is_floating
from tangent_jax.remote.urls import CACHE, is_url, scratch_of
from tangent_jax.train.features import Features

FEW_PIXELS = 32  # pixels; a model of fewer reads letters, not photographs
OR_SKIP = ", or skip it by skip_unreadable"
"""The end of what the decoders advise for an unreadable image."""
FORMAT = 4  # version of the rows: raised when the same trunk would give others, as when decoding changes


@dataclasses.dataclass(frozen=True)
class Cache:
    """The folder of cached features, and how they are computed.

    `dtype`: of the features, such as "float16" (None: the compute dtype); `skip_unreadable`: skip unreadable images
    instead of raising; `processes`: the number that decode (0: threads); `most_pixels`: an image of more pixels is
    unreadable, as a small file may hold very many. With several folders, on several disks, large
    features are spread over them.

    A single URL stands for a local copy of its folder: rows are fetched from there, and copied there once computed.

    >>> cache = tj.Cache(demo.folder(), dtype="float16")
    >>> tj.extract(demo.predict, demo.examples(5, seed=2), cache).inputs.dtype
    dtype('float16')
    """

    folder: str | os.PathLike | Sequence[str | os.PathLike] = "~/.cache/tangent_jax"
    dtype: str | None = None
    skip_unreadable: bool = False
    processes: int = 0
    most_pixels: int = MOST_PIXELS

    def __post_init__(self) -> None:
        whole_number("most_pixels", self.most_pixels, 1)
        good = self.dtype is None or is_floating(self.dtype)
        expect(good, "a dtype of floats of 16 bits or more, or None", repr(self.dtype))
        _ = self.folders  # raises for an invalid folder

    @property
    def url(self) -> str | None:
        """The URL where the rows are kept, None for folders of this machine."""
        given = [self.folder] if isinstance(self.folder, (str, os.PathLike)) else [*self.folder]
        named = [os.fspath(folder) for folder in given if is_url(folder)]
        require(not named or len(given) == 1, "Cache", "a URL alone, or folders", f"{len(given)} of both", "Choose one")
        return named[0].rstrip("/") if named else None

    @property
    def folders(self) -> list[Path]:
        """The absolute paths of the folders, or of the local copy of a URL's."""
        given = [self.folder] if isinstance(self.folder, (str, os.PathLike)) else [*self.folder]
        require(given, "Cache", "a folder at least", "none")
        if self.url is not None:
            return [scratch_of(self.url) / CACHE]
        folders = [expand_path(folder).absolute() for folder in given]
        files = [str(folder) for folder in folders if folder.exists() and not folder.is_dir()]
        require(not files, "Cache", "folders", f"the file {files[:1]}", "Choose another folder")
        return folders


def extract(predict: Any, examples: Examples, cache: Cache | None = None) -> Features:
    """The input of a predictor's first trained stage for every example, from the cache or computed now.

    Args:       predict: a Predictor or a FeatureMap, or anything with a model, its weights w, a subset and a dtype.

    >>> tj.extract(demo.predict, demo.examples(5, seed=2), tj.Cache(demo.folder())).inputs.shape
    (5, 6)
    """
    return features(predict.model, predict.w, examples, predict.subset.stage, cache, predict.dtype)


def features(
    model: Model, w: Tree, examples: Examples, stage: int, cache: Cache | None = None, dtype: Any = None
) -> Features:
    """The input of `stage` for every example, from the cache or computed now.

    Args:       dtype: the trunk's compute dtype (None: float32). At stage 0 the inputs are the decoded uint8 images, or
                the arrays as they are.
    Returns:    Features; `inputs` is a read-only memory map "n ...", or `Parts` of several; an array if images were
                skipped or there is no example.
    Raises:     InputError naming the first unreadable image, unless the cache skips them; with it, a class of the
                training split without a readable image.
    """
    cache = cache or Cache()
    if not len(examples):  # nothing to compute, so no folder of the cache either
        shape = (0, *model.input_shape(stage))
        dtype = jnp.dtype(cache.dtype or dtype or jnp.float32) if stage else input_dtype(model)
        return Features(np.zeros(shape, dtype), examples.labels, ())
    tell_of_small_model(model, examples)
    roots, identifiers = cache.folders, examples.identifiers()
    stored_dtype = np.dtype(jnp.dtype(cache.dtype or dtype or jnp.float32))
    images = fingerprint("".join(identifiers).encode())[:24]

    def key(stage: int) -> str:
        return f"{trunk_key(model, w, stage, dtype, stored_dtype)}-{images}"

    here = key(stage)
    # rows that were skipped are read again by other decoders, and where none may be skipped, so that the cause is named
    reader = identity(cache.skip_unreadable, cache.most_pixels, decoders())[:16]

    def rows_at(stage: int, folder: Path, identifiers: Sequence[str], more: Sequence[Path] = ()) -> CachedRows:
        shape, kind = model.input_shape(stage), stored_dtype if stage else input_dtype(model)
        return CachedRows(folder, identifiers, shape, kind, more, jax.process_index(), reader)

    def source(chunks: list[int]) -> Chunks:
        settings = {"model": model, "stop": stage, "dtype": dtype}
        trunk = partial(trunk_rows, w, **settings, traced=here.partition("-")[0])
        others = any(folder.name != here for root in roots for folder in root.glob("*"))
        for s in range(stage, -1, -1) if others else ():  # the highest stage with cached rows
            cached = find_rows(partial(rows_at, s), roots, here if s == stage else key(s), rows, chunks)
            if cached is not None:
                return from_rows(trunk(start=s) if s < stage else None, cached, rows, chunks)
        inputs = read_inputs(model, examples, [*map(rows.rows, chunks)], cache)
        return from_images(trunk() if stage else None, inputs, cache.skip_unreadable)

    folders = [root / here for root in roots]
    folder = first_folder(folders)
    keeper = hosts.keeper(folder)
    with ExitStack() as held:
        is_keeper = keeper == jax.process_index()
        placement.together(lambda: held.enter_context(hold_lock(folder / "lock")) if is_keeper else None)
        placement.together(lambda: fetch_rows(cache.url, folder) if is_keeper else None)
        rows = rows_at(stage, folder, identifiers, folders[1:])
        fill(rows, source, keeper)
        placement.together(lambda: share_rows(cache.url, folder) if hosts.is_writer() else None)
    check_classes(rows.skipped, examples, model, cache)
    return readable(rows, examples, identifiers)


def check_classes(skipped: Set[int], examples: Examples, model: Model, cache: Cache) -> None:
    """Raises InputError for a class of a training split without a readable image; prints a line for other splits.

    The data set was checked when it was opened, by the names of its images; only decoding tells which can be read.
    """
    lost = np.zeros(len(examples), bool)
    lost[sorted(skipped)] = True
    for label in np.unique(examples.labels[lost]) if examples.labels.ndim == 1 else ():
        of_class = np.flatnonzero(examples.labels == label)
        if not lost[of_class].all():
            continue
        first = int(of_class[0])
        count = f"{len(of_class)} of {len(of_class)} images of {examples.class_name(int(label))} cannot be read"
        line = f"{count}, the first because: {cause_of(first, examples, model, cache)}"
        if examples.every_class:
            raise InputError(f"{line}; a class needs a readable training image: mend them, or remove the class")
        tell(line)


def cause_of(row: int, examples: Examples, model: Model, cache: Cache) -> str:
    """Returns why the image of a row cannot be decoded; it is read again, as the cache keeps no causes."""
    preprocessing = model.preprocessing
    if isinstance(preprocessing, Arrays):
        return f"{examples.names[row]} was skipped"
    decoder = Decoder(examples.read, examples.names, model.image_size, preprocessing, cache.most_pixels)
    decoded = decoder(row)
    if not isinstance(decoded, InputError):
        return f"{examples.names[row]} could not be read before"
    return str(decoded).removesuffix(OR_SKIP)  # this caller skips already


def readable(rows: CachedRows, examples: Examples, identifiers: Sequence[str]) -> Features:
    """The features of all readable examples."""
    skipped = sorted(rows.skipped)
    pairs = tuple(zip(identifiers, examples.names, strict=True))
    whole = Features(rows.inputs, examples.labels, pairs, len(skipped), str(rows.folder.parent))
    return whole.take(np.setdiff1d(np.arange(rows.count), skipped)) if skipped else whole


def tell_of_small_model(model: Model, examples: Examples) -> None:
    """Warns on stderr if the first image is larger than a model of few pixels, like the embedded one, reads."""
    if isinstance(model.preprocessing, Arrays) or max(sides(model.image_size)) >= FEW_PIXELS or not len(examples):
        return
    with contextlib.suppress(InputError):  # unreadable images are reported when they are decoded
        wide, high = size_of(examples.read(0), examples.names[0])
        rows, columns = sides(model.image_size)
        if min(wide, high) > max(rows, columns):
            reads = f"the model reads {columns} x {rows}: of the embedded weights, which know letters of that size"
            tell(f"the images have {wide} x {high} pixels, and {reads}. Pass weights of a model of photographs")


def read_inputs(model: Model, examples: Examples, chunks: Sequence[range], cache: Cache) -> Iterator[Decoded]:
    """The inputs of stage 0 for each chunk of rows, in the model's form: images decoded, arrays as they are.

    Raises: InputError for a row that is not an array of the model's shape and kind of numbers.
    """
    inputs, shape, read = model.preprocessing, tuple(model.input_shape(0)), examples.read_identified()
    if not isinstance(inputs, Arrays):
        decoder = Decoder(read, examples.names, model.image_size, inputs, cache.most_pixels)
        return decode_chunks(decoder, chunks, cache.processes)
    dtype = input_dtype(model)

    def checked(i: int) -> Any:
        row: Any = read(i)
        good = isinstance(row, np.ndarray) and row.shape == shape and np.can_cast(row.dtype, dtype, "same_kind")
        good = good and (dtype.kind == "f" or (row.astype(dtype) == row).all())
        got = f"{row.dtype}{row.shape}" if isinstance(row, np.ndarray) else type(row).__name__
        do = f"Make them by tj.examples(x, targets), x of {dtype} {('n', *shape)}".replace("'n'", "n")
        require(good, "features", f"rows of {dtype}{shape}, as the model reads them", f"{got}, {examples.names[i]}", do)
        return row.astype(dtype)

    return ((np.stack([checked(i) for i in rows]), {}) for rows in chunks)


def trunk_key(model: Model, w: Tree, stage: int, dtype: Any, stored_dtype: np.dtype) -> str:
    """The identity of all that decides a stage's input besides the image.

    That is decoding, the trunk's program, its leaves, and the dtypes.

    Raises: InputError if the trunk's output has another shape than the model's `input_shape`.
    """
    decoded = FORMAT, model.image_size, model.preprocessing
    if stage == 0:
        return identity(decoded)[:24]
    x = jax.ShapeDtypeStruct((1, *model.input_shape(0)), input_dtype(model))
    # traced again, as code may change
    trunk = partial(inspect.unwrap(run_trunk), model=model, stop=stage, dtype=dtype)
    shape = jax.eval_shape(trunk, w, x).shape[1:]
    expected = f"the input of stage {stage}, of shape {model.input_shape(stage)} as the model says"
    expect(shape == tuple(model.input_shape(stage)), expected, f"shape {shape} from apply")
    traced, read = program_reading(trunk, w, x)
    return identity(decoded, stage, str(stored_dtype), traced, read)[:24]


def find_rows(
    rows_at: Callable[[Path, Sequence[str]], CachedRows],
    roots: Sequence[Path],
    key: str,
    rows: CachedRows,
    missing: list[int],
) -> tuple[CachedRows, dict[str, int]] | None:
    """Cached rows of the same trunk that hold every image of the missing chunks, with the row of each; or None."""
    wanted = {rows.identifiers[i] for chunk in missing for i in rows.rows(chunk)}
    pattern = f"{key.partition('-')[0]}-*/examples.txt"
    for listed in (path for root in roots for path in sorted(root.glob(pattern))):
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
