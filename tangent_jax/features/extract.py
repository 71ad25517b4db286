"""Features of images: the input of the first trained stage, computed once and kept on disk.

    for images in rows.missing():
        rows.write(images, trunk(examples.read(images)))

    CACHE/TRUNK/    the rows (row_store.py)

TRUNK hashes the trunk's program, its weights, the preprocessing and the dtypes. Rows whose images have rows of a lower
stage are continued from there.
"""

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Shaped

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, check_printable, whole_number
from tangent_jax.core.names import columns, composed_name
from tangent_jax.core.promotion import promotes
from tangent_jax.core.rows import Rows, padded
from tangent_jax.data.decode import MOST_PIXELS
from tangent_jax.data.sources import Examples
from tangent_jax.features.inputs import check_classes, read_inputs, tell_of_small_model
from tangent_jax.features.row_store import CHUNK, MISSING, RowStore, read_lines
from tangent_jax.io import hosts, progress
from tangent_jax.io.files import expand_path
from tangent_jax.models.protocol import is_floating
from tangent_jax.models.trunk import Trunk, in_dtype, run_trunk
from tangent_jax.train.features import Features

AHEAD = 2  # spans of rows that wait to be written while the next one is computed
Span = list[int]
"""The images, by number, whose rows are computed at once."""
Values = Generator[tuple[Shaped[np.ndarray | Array, "k ..."], Collection[int]], None, None]
"""The rows of each span, which a device may still compute, and the places of unreadable images among them."""
Run = Callable[[Shaped[np.ndarray, "n ..."], int], Shaped[np.ndarray | Array, "n ..."]]
"""The function (rows, their stage) -> rows of the trunk's last stage."""


@dataclasses.dataclass(frozen=True)
class Cache:
    """The folder of kept features, and how they are computed.

    Attributes:
        dtype: The dtype of the features, such as "float16" (None: the compute dtype).
        skip_unreadable: Skip unreadable images instead of raising.
        processes: The number that decode (0: threads).
        most_pixels: An image of more pixels is unreadable, as a small file may hold very many.

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
        check_printable("the folder of a cache", str(self.path))  # a provenance names it, once all is trained
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"the folder of a cache must be a folder; got the file {self.path}. Choose another folder")

    @property
    def path(self) -> Path:
        """The absolute path of the folder."""
        return Path(os.path.abspath(expand_path(self.folder)))


@promotes
def extract(trunk: Any, examples: Examples, cache: Cache | None = None) -> Features:
    """The input of the first trained stage for every example, read from the cache or computed now.

    Args:
        trunk: A Trunk; or a Predictor or FeatureMap, whose trunk is meant. At stage 0 the inputs are the decoded uint8
            images, or the arrays unchanged.

    Returns:
        Features; `inputs` are Rows, "n ...", which are read from the disk when indexed; or an array if there is no
        example. Targets are in the order of the outputs if their file names them (`in_order_of`).

    Raises:
        InputError: It names the first unreadable image, unless the cache skips them; with it, a class of the training
            split without a readable image. Reading rows raises it for images that were removed from the cache
            meanwhile.

    >>> tj.extract(demo.predict, demo.examples(5, seed=2), tj.Cache(demo.folder())).inputs.shape
    (5, 6)
    """
    cache = Cache() if cache is None else cache
    names: tuple[str, ...] = getattr(trunk, "class_names", ())
    trunk = as_trunk(trunk)
    if not len(examples):  # nothing to compute, so no folder of the cache either
        empty = np.zeros((0, *trunk.model.input_shape(trunk.stage)), trunk.row_dtype(cache.dtype))
        return Features(empty, examples.labels, ())
    tell_of_small_model(trunk.model, examples)
    rows = open_rows(trunk, examples.identifiers(), cache.path / trunk.key(cache.dtype), cache)
    skipped = fill(rows, partial(compute, trunk, rows, examples, cache))
    is_skipped = np.isin(rows.places, rows.places[skipped])  # of copies all
    check_classes(is_skipped, examples, trunk.model, cache.most_pixels)
    pairs = tuple(zip(rows.identifiers, examples.names, strict=True))
    count, folder = int(is_skipped.sum()), str(cache.path)
    whole = Features(rows.open(), examples.labels, pairs, count, folder, groups=examples.groups)
    read = whole.take(np.flatnonzero(~is_skipped)) if skipped else whole
    return in_order_of(names, read, examples.classes)


def in_order_of(names: tuple[str, ...], data: Features, classes: tuple[str, ...]) -> Features:
    """The features with class indices among a model's own names of its outputs, if each class has one of them.

    Otherwise indices stay. One line says which.
    """
    classes = tuple(map(composed_name, classes))
    if not names or not classes or names == classes:
        return data
    if all(names.count(name) == 1 for name in classes):
        progress.tell(
            f"the {len(classes)} classes of the data are matched by name with the model's {len(names)} outputs"
        )
        return dataclasses.replace(data, targets=columns(names, classes)[data.targets].astype(data.targets.dtype))
    other = next(name for name in classes if names.count(name) != 1)
    progress.tell(
        f"none of the model's {len(names)} outputs alone is called {other}, as one of {len(classes)} classes of the "
        "data is: outputs and classes are matched by their order"
    )
    return data


def expected_features(trunk: Any, examples: Examples, cache: Cache) -> Features:
    """The features that `extract` will give, before they are computed: zeros of their shape, which take no memory."""
    trunk = as_trunk(trunk)
    shape = len(examples), *trunk.model.input_shape(trunk.stage)
    return Features(np.broadcast_to(np.zeros((), trunk.row_dtype(cache.dtype)), shape), examples.labels, ())


def as_trunk(trunk: Any) -> Trunk:
    """A trunk, or that of a Predictor or FeatureMap."""
    return trunk if isinstance(trunk, Trunk) else Trunk(trunk.model, trunk.w, trunk.subset.stage, trunk.dtype)


def open_rows(trunk: Trunk, identifiers: Sequence[str], folder: Path, cache: Cache) -> RowStore:
    """A trunk's rows of these images."""
    return RowStore(folder, identifiers, trunk.model.input_shape(trunk.stage), trunk.row_dtype(cache.dtype))


# Where rows come from


def compute(trunk: Trunk, rows: RowStore, examples: Examples, cache: Cache, spans: list[Span]) -> Values:
    """Yields the rows of each span: continued from a lower stage, or from images decoded a few spans ahead.

    Raises:
        InputError: The first unreadable image, unless the cache skips them; an image that is removed from the cache
            meanwhile.
    """
    run = on_devices(trunk, rows.folder.name)
    lower = find_lower(trunk, rows, spans, cache)
    if lower is not None:
        stage, inputs = lower
        first = 0
        for span in spans:
            yield run(inputs[first : first + len(span)], stage), ()
            first += len(span)
        return
    for x, errors in read_inputs(trunk.model, examples, spans, cache.processes, cache.most_pixels):
        if errors and not cache.skip_unreadable:
            first = errors[min(errors)]
            count = f" ({len(errors)} of the {len(x)} images looked at cannot be read)." if len(errors) > 1 else ""
            raise InputError(f"{first}{count}") from first
        yield (run(x, 0) if trunk.stage else x.copy()), errors  # x is overwritten by the next images


def on_devices(trunk: Trunk, traced: str) -> Run:
    """The function that runs a trunk on this process's devices.

    Args:
        traced: The key of its program.
    """
    w = in_dtype(placement.replicate(trunk.w, local=True), trunk.dtype)
    devices = placement.mesh(local=True).size
    size = rows_at_once() * devices
    threads = placement.cores() if devices == 1 else 1  # several devices share the cores already
    settings = {"model": trunk.model, "stop": trunk.stage, "dtype": trunk.dtype, "traced": traced}

    def run(x: Shaped[np.ndarray, "n ..."], start: int) -> Shaped[np.ndarray | Array, "n ..."]:
        batches = [placement.divide(padded(x[at : at + size], size), 0, local=True) for at in range(0, len(x), size)]
        if len(batches) == 1:  # the writer waits for it, while the next images are decoded and sent
            return run_trunk(w, batches[0], start=start, **settings)[: len(x)]
        # on a CPU several at once, as one leaves cores idle; threads do not have the caller's settings of JAX
        program = run_trunk.lower(w, batches[0], start=start, **settings).compile()
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate([*pool.map(lambda batch: np.asarray(program(w, batch)), batches)])[: len(x)]

    return run


def rows_at_once() -> int:
    """The number of rows that a device processes at once; few on a CPU, so that they stay in its caches."""
    return 8 if placement.mesh(local=True).devices.flat[0].platform == "cpu" else CHUNK


def find_lower(trunk: Trunk, rows: RowStore, spans: list[Span], cache: Cache) -> tuple[int, Rows] | None:
    """The highest stage below the trunk's at which all images of the spans have rows, and these; None without any."""
    wanted = [rows.identifiers[i] for span in spans for i in span]
    names = {rows.wanted[i] for span in spans for i in span}
    holding = []  # a folder's images cost little to compare; a key traces the program and hashes the weights
    for folder in sorted(cache.path.iterdir()):
        _, lines = read_lines(folder)
        if folder != rows.folder and names <= {*lines["identifier"][lines["checksum"] != MISSING].tolist()}:
            holding.append(folder)
    for stage in range(trunk.stage - 1, -1, -1) if holding else ():
        lower = dataclasses.replace(trunk, stage=stage)
        folder = cache.path / lower.key(cache.dtype)
        if folder in holding:
            kept = open_rows(lower, wanted, folder, cache)
            kept.find_places()
            if (kept.places >= 0).all() and kept.is_unaltered() and not kept.missing():
                return stage, kept.open()
    return None


# How they are filled


def fill(rows: RowStore, compute: Callable[[list[Span]], Values]) -> list[int]:
    """Computes and writes the missing rows, on all processes of a job. Returns the images that were skipped.

    Each process computes its share of the rows that any of them lacks. Processes with a common disk share one folder;
    other disks get the shares of the others afterwards.

    Raises:
        InputError: If a process does not see what another wrote.
    """
    placement.call_in_all(rows.create)
    missing = in_any(rows, placement.call_in_all(rows.missing))
    if not missing:
        return []
    process, count = jax.process_index(), jax.process_count()
    keeper = hosts.keeper(rows.folder)  # the lowest process that sees this disk
    shares = [share.tolist() for share in np.array_split(missing, count)]
    skipped = in_any(rows, placement.call_in_all(lambda: write_all(rows, shares[process], compute)))
    progress.agree_to_stop()
    if count > 1:
        if placement.gather(np.array(keeper)).any():
            exchange(rows, shares, {*skipped}, keeper == process)
        placement.call_in_all(lambda: check_seen(rows, {*skipped}))
    return skipped


def in_any(rows: RowStore, images: Sequence[int]) -> list[int]:
    """The images that any process of a job names."""
    is_named = np.zeros(len(rows), bool)
    is_named[[*images]] = True
    return np.flatnonzero(placement.gather(is_named).any(0)).tolist()


def write_all(rows: RowStore, images: Sequence[int], compute: Callable[[list[Span]], Values]) -> list[int]:
    """Writes the rows of images while the next ones are computed. Returns the images that were skipped."""
    size = CHUNK * placement.mesh(local=True).size
    spans = [[*images[start : start + size]] for start in range(0, len(images), size)]
    waiting: deque[Future] = deque()
    unreadable = []
    bar = progress.progress_bar(len(rows), "example", len(rows) - len(images))
    with bar, ThreadPoolExecutor(1) as writer, closing(compute(spans)) as computed:
        for span, (values, skipped) in zip(spans, computed, strict=True):
            unreadable += [span[place] for place in skipped]
            waiting.append(writer.submit(rows.write, span, values, skipped))
            if len(waiting) > AHEAD:
                waiting.popleft().result()
            if progress.is_asked():  # in a job too: the other processes finish their shares
                progress.stop()
            bar.update(len(span))
        for write in waiting:
            write.result()
    return unreadable


def exchange(rows: RowStore, shares: list[list[int]], skipped: set[int], is_keeper: bool) -> None:
    """Sends each process's share of the rows to all others; the keeper of each disk writes those that it lacks."""
    rows.read_again()
    lacks, opened = {*rows.missing()}, rows.open()
    for start in range(0, max(map(len, shares)), CHUNK):
        parts = [share[start : start + CHUNK] for share in shares]
        own = [(place, image) for place, image in enumerate(parts[jax.process_index()]) if image not in skipped]
        values = np.zeros((CHUNK, *rows.shape[1:]), rows.dtype)
        for place, image in own:
            values[place] = opened[image]
        for part, theirs in zip(parts, placement.gather(values), strict=True):
            if is_keeper:
                others = {place for place, image in enumerate(part) if image in skipped or image not in lacks}
                rows.write(part, theirs[: len(part)], others)


def check_seen(rows: RowStore, skipped: set[int]) -> None:
    """Raises InputError if this process does not see all rows that were written, or images were removed meanwhile."""
    rows.read_again()
    if {*rows.missing()} - skipped:
        raise InputError(
            f"the disk of {rows.folder} must show a file's bytes to all processes at once; those of other processes "
            "are missing. Take another disk for the cache"
        )
