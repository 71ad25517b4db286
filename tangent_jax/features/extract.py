"""Features of images: the input of the first trained stage, computed once and kept on disk.

    for rows in store.missing():
        store.write(rows, trunk(examples.read(rows)))

    CACHE/TRUNK-IMAGES/    the rows (row_store.py)

TRUNK hashes the trunk's program, its weights, the preprocessing and the dtypes. IMAGES hashes the content of all
images. Rows that are kept for another set of images are copied; rows of a lower stage are continued from there.
"""

import dataclasses
import os
import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import Shaped

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.identities import identity
from tangent_jax.core.promotion import promotes
from tangent_jax.core.rows import in_batches, padded
from tangent_jax.data.decode import MOST_PIXELS
from tangent_jax.data.formats import decoders
from tangent_jax.data.sources import Examples
from tangent_jax.features.inputs import check_classes, read_inputs, tell_of_small_model
from tangent_jax.features.row_store import CHUNK, RowStore, identifiers_of, state_of
from tangent_jax.io import hosts, progress
from tangent_jax.io.files import expand_path, fingerprint
from tangent_jax.models.protocol import is_floating
from tangent_jax.models.trunk import Trunk, run_trunk
from tangent_jax.train.features import Features

AHEAD = 2  # spans of rows that wait to be written while the next one is computed
TURN = 32  # spans between two looks at what another program finished
Values = Generator[tuple[Shaped[np.ndarray | Array, "k ..."], list[int]], None, None]
"""The rows of each span, which a device may still compute, and the places of unreadable images among them."""
Run = Callable[[Shaped[np.ndarray, "n ..."], int], Shaped[np.ndarray | Array, "n ..."]]
"""The function (rows, their stage) -> rows of the trunk's last stage."""


@dataclasses.dataclass(frozen=True)
class Cache:
    """The folder of kept features, and how they are computed.

    `dtype`: of the features, such as "float16" (None: the compute dtype); `skip_unreadable`: skip unreadable images
    instead of raising; `processes`: the number that decode (0: threads); `most_pixels`: an image of more pixels is
    unreadable, as a small file may hold very many.

    >>> cache = tj.Cache(demo.folder(), dtype="float16")
    >>> tj.extract(demo.predict, demo.examples(5, seed=2), cache).inputs.dtype
    dtype('float16')
    """

    folder: str | os.PathLike = "~/.cache/tangent_jax"
    dtype: str | None = None
    skip_unreadable: bool = False
    processes: int = 0
    most_pixels: int = MOST_PIXELS

    def __post_init__(self) -> None:
        whole_number("most_pixels", self.most_pixels, 1)
        if self.dtype is not None and not is_floating(self.dtype):
            raise InputError(f"dtype must be one of floats of 16 bits or more, or None; got {self.dtype!r}")
        if "," in str(self.folder) and not self.path.exists():
            raise InputError(
                f"the folder of a cache must be one folder; got {self.folder}. If its name has a comma, create it first"
            )
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"the folder of a cache must be a folder; got the file {self.path}. Choose another folder")

    @property
    def path(self) -> Path:
        """The absolute path of the folder."""
        return Path(os.path.abspath(expand_path(self.folder)))


@promotes
def extract(trunk: Any, examples: Examples, cache: Cache | None = None) -> Features:
    """The input of the first trained stage for every example, read from the cache or computed now.

    Args:       trunk: a Trunk; or a Predictor or FeatureMap, whose trunk is meant. At stage 0 the inputs are the
                decoded uint8 images, or the arrays as they are.
    Returns:    Features; `inputs` are OpenRows, "n ...", whose rows are read from the disk when indexed; or an array
                if there is no example.
    Raises:     InputError naming the first unreadable image, unless the cache skips them; with it, a class of the
                training split without a readable image. Reading rows raises it once images were removed from the cache.

    >>> tj.extract(demo.predict, demo.examples(5, seed=2), tj.Cache(demo.folder())).inputs.shape
    (5, 6)
    """
    cache = Cache() if cache is None else cache
    trunk = as_trunk(trunk)
    if not len(examples):  # nothing to compute, so no folder of the cache either
        empty = np.zeros((0, *trunk.model.input_shape(trunk.stage)), trunk.row_dtype(cache.dtype))
        return Features(empty, examples.labels, ())
    tell_of_small_model(trunk.model, examples)
    rows = open_store(trunk, examples.identifiers(), cache)
    fill(rows, partial(compute, trunk, rows, examples, cache))
    check_classes(rows.skipped, examples, trunk.model, cache.most_pixels)
    pairs = tuple(zip(rows.identifiers, examples.names, strict=True))
    skipped, folder = len(rows.skipped), str(cache.path)
    whole = Features(rows.opened(), examples.labels, pairs, skipped, folder, groups=examples.groups)
    return whole.take(np.setdiff1d(np.arange(len(rows)), sorted(rows.skipped))) if rows.skipped else whole


def expected_features(trunk: Any, examples: Examples, cache: Cache) -> Features:
    """The features that `extract` will give, before they are computed: zeros of their shape, which take no memory."""
    trunk = as_trunk(trunk)
    shape = len(examples), *trunk.model.input_shape(trunk.stage)
    return Features(np.broadcast_to(np.zeros((), trunk.row_dtype(cache.dtype)), shape), examples.labels, ())


def as_trunk(trunk: Any) -> Trunk:
    """A trunk, or that of a Predictor or FeatureMap."""
    return trunk if isinstance(trunk, Trunk) else Trunk(trunk.model, trunk.w, trunk.subset.stage, trunk.dtype)


def open_store(trunk: Trunk, identifiers: Sequence[str], cache: Cache, folder: Path | None = None) -> RowStore:
    """The store of a trunk's rows of these images; `folder`: where they lie, by default that of their key."""
    if folder is None:
        folder = folder_of(cache, trunk.key(cache.dtype), identifiers)
    # rows that were skipped are read again by other decoders, and where none may be skipped, so that the cause is named
    reader = identity(cache.skip_unreadable, cache.most_pixels, decoders())[:16]
    shape, dtype = trunk.model.input_shape(trunk.stage), trunk.row_dtype(cache.dtype)
    return RowStore(folder, identifiers, shape, dtype, reader=reader, process=jax.process_index())


def folder_of(cache: Cache, key: str, identifiers: Sequence[str]) -> Path:
    """The folder of rows of these images, CACHE/KEY-IMAGES."""
    return cache.path / f"{key}-{fingerprint(''.join(identifiers).encode())[:24]}"


# Where rows come from


class Kept(NamedTuple):
    """Rows of the same images in another folder: of a stage, and the place of each image there."""

    stage: int
    store: RowStore
    places: dict[str, int]


def compute(trunk: Trunk, rows: RowStore, examples: Examples, cache: Cache, spans: list[range]) -> Values:
    """Yields the rows of each span: copied, continued from a lower stage, or from images decoded a few spans ahead.

    Raises: InputError for the first unreadable image, unless the cache skips them; for an image whose kept row is
            erased meanwhile.
    """
    run = on_devices(trunk, rows.folder.name.partition("-")[0])
    kept = find_kept(trunk, rows, spans, cache)
    if kept is not None:
        inputs = kept.store.opened()
        for span in spans:
            x = inputs[np.array([kept.places[rows.identifiers[i]] for i in span])]
            yield (x if kept.stage == trunk.stage else run(x, kept.stage)), []
        return
    for x, errors in read_inputs(trunk.model, examples, spans, cache.processes, cache.most_pixels):
        if errors and not cache.skip_unreadable:
            first = errors[min(errors)]
            count = f" ({len(errors)} of the {len(x)} images looked at cannot be read)." if len(errors) > 1 else ""
            raise InputError(f"{first}{count}") from first
        yield (run(x, 0) if trunk.stage else x.copy()), sorted(errors)  # x is overwritten by the next images


def on_devices(trunk: Trunk, traced: str) -> Run:
    """The function that runs a trunk on this process's devices.

    `traced`: the key of its program.
    """
    w = placement.replicate(trunk.w, local=True)
    size = rows_at_once() * placement.mesh(local=True).size
    settings = {"model": trunk.model, "stop": trunk.stage, "dtype": trunk.dtype, "traced": traced}

    def run(x: Shaped[np.ndarray, "n ..."], start: int) -> Shaped[np.ndarray | Array, "n ..."]:
        def of_batch(part: Shaped[np.ndarray, "k ..."]) -> Shaped[Array, "k ..."]:
            return run_trunk(w, placement.divide(part, 0, local=True), start=start, **settings)

        if len(x) > size:
            return in_batches(of_batch, x, size)
        # the writer waits for it, while the next images are decoded and sent
        return of_batch(padded(x, size))[: len(x)]

    return run


def rows_at_once() -> int:
    """The number of rows that a device processes at once; few on a CPU, so that they stay in its caches."""
    return 8 if placement.mesh(local=True).devices.flat[0].platform == "cpu" else CHUNK


def find_kept(trunk: Trunk, rows: RowStore, spans: list[range], cache: Cache) -> Kept | None:
    """The rows of the highest stage that another folder has for every image of the spans; None if there are none."""
    wanted = {rows.identifiers[i] for span in spans for i in span}
    holding = {}  # a folder's images cost little to compare; a key traces the program and hashes the weights
    for folder in sorted(cache.path.glob("*-*")):
        if folder == rows.folder or not ((folder / "complete").exists() and (folder / "examples.txt").exists()):
            continue
        listed = state_of(folder / "examples.txt")
        names = identifiers_of(folder)
        if wanted <= {*names}:
            holding[folder] = listed, names
    for stage in range(trunk.stage, -1, -1) if holding else ():
        lower = dataclasses.replace(trunk, stage=stage)
        key = lower.key(cache.dtype)
        for folder, (listed, names) in holding.items():
            if not folder.name.startswith(f"{key}-"):
                continue
            store = open_store(lower, names, cache, folder)
            store.listed = listed  # so that an erasure from here on is seen
            places = {name: i for i, name in enumerate(names) if name in wanted}
            if not store.missing() and not store.skipped & {*places.values()}:
                return Kept(stage, store, places)
    return None


# How they are filled


def fill(rows: RowStore, compute: Callable[[list[range]], Values]) -> None:
    """Computes and writes the missing rows, on all processes of a job.

    Each process computes its share of the chunks that any of them lacks. Processes with a common disk share one store;
    other disks get the shares of the others afterwards.
    Raises: InputError if a process does not see what another wrote.
    """
    placement.together(rows.create)
    lacks = np.isin(np.arange(rows.chunks), placement.together(rows.missing))
    missing = np.flatnonzero(placement.gather(lacks).any(0))
    is_keeper = True
    if len(missing):
        keeper = hosts.keeper(rows.folder)  # the lowest process that sees this disk
        is_keeper = keeper == jax.process_index()
        shares = [share.tolist() for share in np.array_split(missing, jax.process_count())]
        placement.together(lambda: write_all(rows, shares[jax.process_index()], compute))
        progress.agree_to_stop()
        if placement.gather(np.array(keeper)).any():
            exchange(rows, shares, is_keeper)
        placement.together(lambda: check_seen(rows))
    placement.together(lambda: rows.finish() if is_keeper else None)


def write_all(rows: RowStore, chunks: list[int], compute: Callable[[list[range]], Values]) -> None:
    """Computes and writes the missing ones of these chunks, also those that another program has not finished yet."""
    chunks = [chunk for chunk in chunks if chunk not in rows.lines]
    done = len(rows) - sum(len(rows.rows(chunk)) for chunk in chunks)
    with progress.progress_bar(len(rows), "example", done) as bar, ThreadPoolExecutor(1) as writer:
        while chunks:
            write_turn(rows, chunks[:TURN] if rows.is_shared else chunks, compute, writer, bar)
            if rows.is_shared:
                rows.refresh()
            chunks = [chunk for chunk in chunks if chunk not in rows.lines]
            if rows.is_shared and chunks:  # go on elsewhere than the other program
                place = random.randrange(len(chunks))
                chunks = chunks[place:] + chunks[:place]


def write_turn(
    rows: RowStore, chunks: list[int], compute: Callable[[list[range]], Values], writer: ThreadPoolExecutor, bar: Any
) -> None:
    """Writes chunks while the next ones are computed; ends early once another program turns up."""
    waiting: deque[Future] = deque()
    was_shared = rows.is_shared
    spans = spans_of(rows, chunks, placement.mesh(local=True).size)
    with closing(compute(spans)) as computed:
        for span, (values, skipped) in zip(spans, computed, strict=True):
            waiting.append(writer.submit(rows.write, span, values, skipped))
            if len(waiting) > AHEAD:
                waiting.popleft().result()
            if progress.is_asked():  # in a job too: the others go on to the end of their shares
                progress.stop()
            bar.update(len(span))
            if rows.is_shared and not was_shared:
                break
    for write in waiting:
        write.result()


def spans_of(rows: RowStore, chunks: list[int], at_once: int) -> list[range]:
    """The rows of chunks, consecutive ones joined: those that the devices compute at once, a chunk on each."""
    spans: list[range] = []
    for chunk in chunks:
        added = rows.rows(chunk)
        if spans and spans[-1].stop == added.start and len(spans[-1]) < at_once * CHUNK:
            spans[-1] = range(spans[-1].start, added.stop)
        else:
            spans.append(added)
    return spans


def exchange(rows: RowStore, shares: list[list[int]], is_keeper: bool) -> None:
    """Sends each process's share of the chunks to all others; the keeper of each disk writes those that it lacks."""
    own = shares[jax.process_index()]
    rows.refresh()
    for turn in range(max(map(len, shares))):
        values = np.zeros((CHUNK, *rows.shape[1:]), rows.dtype)
        is_skipped = np.zeros(CHUNK, bool)
        if turn < len(own):
            span = rows.rows(own[turn])
            values[: len(span)] = rows.read(slice(span.start, span.stop))
            is_skipped[[row - span.start for row in rows.skipped if row in span]] = True
        received = zip(shares, placement.gather(values), placement.gather(is_skipped), strict=True)
        for share, theirs, skipped in received:
            if is_keeper and turn < len(share):
                span = rows.rows(share[turn])
                rows.write(span, theirs[: len(span)], np.flatnonzero(skipped).tolist())


def check_seen(rows: RowStore) -> None:
    """Raises InputError if this process does not see all rows that were written."""
    if rows.refresh():
        raise InputError(
            f"the disk of {rows.folder} must show a file's bytes to all processes at once; those of other processes "
            "are missing. Take another disk for the cache"
        )
