"""Fills a cache of rows: from images decoded and run through the trunk, or from rows that are cached elsewhere.

In a job of P processes each computes every P-th chunk, on all of its devices. With a common disk they share one cache;
otherwise every disk receives all chunks.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
from jax import Array

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, expect
from tangent_jax.core.notation import Tree
from tangent_jax.core.rows import in_batches
from tangent_jax.data.workers import Decoded
from tangent_jax.features.cache import CachedRows
from tangent_jax.features.layout import CHUNK
from tangent_jax.io import hosts
from tangent_jax.io.progress import progress_bar
from tangent_jax.models.protocol import Model, prepare

WRITERS = 2  # chunks that are written, and synchronised, while the next one is computed
Chunks = Generator[tuple[np.ndarray, list[int]], None, None]
"""The rows "k ..." of each chunk, and the places of unreadable images in it."""


@partial(jax.jit, static_argnames=("model", "start", "stop", "dtype", "traced"))
def run_trunk(w: Tree, x: Array, *, model: Model, start: int = 0, stop: int, dtype: Any, traced: str = "") -> Array:
    """Computes the input "b ..." of stage `stop` from that of `start`.

    `traced`: the key of its program; another key compiles again.
    """
    return model.apply(*prepare(model, w, x, dtype, start), start, stop)


def trunk_rows(w: Tree, **settings: Any) -> Callable[[np.ndarray], np.ndarray]:
    """The function that runs a trunk on rows "n ...", divided over this process's devices."""
    w, size = placement.replicate(w, local=True), run_size() * placement.mesh(local=True).size
    return lambda x: in_batches(lambda x: run_trunk(w, placement.divide(x, 0, local=True), **settings), x, size)


def run_size() -> int:
    """The number of rows that a device processes at once; few on a CPU, so that they stay in its caches."""
    return 8 if placement.mesh(local=True).devices.flat[0].platform == "cpu" else CHUNK


def fill(rows: CachedRows, source: Callable[[list[int]], Chunks], keeper: int) -> None:
    """Writes the missing chunks while the next ones are computed; each process of a job computes its share.

    Args:   source: gives the rows of chunks, in order; keeper: the process that manages this one's disk. On a common
            disk each process writes its own chunks; otherwise the keeper of each disk writes all, and chunks are
            exchanged.
    Raises: InputError if a process does not see what another wrote.
    """
    me = jax.process_index()
    placement.together(lambda: rows.make() if keeper == me else None)
    missing = placement.together(rows.missing)
    of_all = placement.gather(np.isin(np.arange(-(-rows.count // CHUNK)), missing)).any(0)
    if of_all.any():
        if keeper == me:
            rows.complete.unlink(missing_ok=True)
        write_chunks(rows, np.flatnonzero(of_all).tolist(), missing, source, keeper)
        do = "Take a disk for the cache that shows a file's bytes to all processes at once"
        placement.together(lambda: expect(not rows.refresh(), f"all rows in {rows.folder}", "less", do))
    placement.together(lambda: rows.finish() if keeper == me else None)


def write_chunks(
    rows: CachedRows, wanted: list[int], missing: list[int], source: Callable[[list[int]], Chunks], keeper: int
) -> None:
    """Computes the chunks that any disk needs, and writes those that this process's disk lacks; as `fill`."""
    processes, me = jax.process_count(), jax.process_index()
    waiting: deque[Future] = deque()
    is_shared, own = bool(np.all(placement.gather(np.array(keeper)) == 0)), wanted[me::processes]
    done = rows.count - sum(len(rows.rows(chunk)) for chunk in wanted)
    with (
        closing(source(own) if own else (item for item in ())) as computed,
        progress_bar(rows.count, "example", done) as bar,
        ThreadPoolExecutor(WRITERS) as writers,  # at the end it waits for the writes that began
    ):
        for start in range(0, len(wanted), processes):
            parts = wanted[start : start + processes]
            item = placement.together(partial(next, computed, None))
            items = {} if item is None else {parts[me]: item}
            if not is_shared:
                items = exchange(rows, parts, item)
            for chunk, (values, skipped) in items.items():
                if is_shared or (keeper == me and chunk in missing):
                    waiting.append(writers.submit(rows.write, chunk, values, skipped))
            placement.together(lambda: wait(waiting, WRITERS))
            hosts.agree_to_stop()
            bar.update(sum(len(rows.rows(chunk)) for chunk in parts))
        placement.together(lambda: wait(waiting, 0))


def wait(waiting: deque[Future], most: int) -> None:
    """Waits until at most this number of writes remains; raises the exception of a write."""
    while len(waiting) > most:
        waiting.popleft().result()


def exchange(rows: CachedRows, parts: list[int], item: Any) -> dict[int, tuple[np.ndarray, list[int]]]:
    """Exchanges the chunks `parts`, one of each process, among all processes."""
    values, is_skipped = np.zeros((CHUNK, *rows.shape[1:]), rows.dtype), np.zeros(CHUNK, bool)
    if item is not None:
        computed, skipped = item
        values[: len(computed)], is_skipped[skipped] = computed, True
    of_all = zip(parts, placement.gather(values), placement.gather(is_skipped), strict=False)
    return {c: (each[: len(rows.rows(c))], np.flatnonzero(places).tolist()) for c, each, places in of_all}


def from_images(trunk: Callable[[Any], np.ndarray] | None, decoded: Iterator[Decoded], skip: bool) -> Chunks:
    """Yields chunks, "k ...", computed from images, a few per device at a time.

    Raises: InputError for the first unreadable image, unless `skip`.
    """
    size = placement.mesh(local=True).size
    is_read_at_once = trunk is not None and size == 1  # by the trunk, before the next chunk is decoded in its place
    while group := [(x if is_read_at_once else x.copy(), errors) for x, errors in islice(decoded, size)]:
        for x, errors in group:
            if errors and not skip:
                first = errors[min(errors)]
                count = f" ({len(errors)} of the {len(x)} images looked at cannot be read)." if len(errors) > 1 else ""
                raise InputError(f"{first}{count}") from first
        yield from in_chunks(trunk, group)


def from_rows(
    trunk: Callable[[Any], np.ndarray] | None, source: tuple[CachedRows, dict[str, int]], rows: CachedRows,
    chunks: list[int],
) -> Chunks:  # fmt: skip
    """Yields chunks, "k ...", of rows cached for other sets, or computed from a lower stage's cached rows."""
    (cached, where), size = source, placement.mesh(local=True).size
    for start in range(0, len(chunks), size):
        names = [[rows.identifiers[i] for i in rows.rows(chunk)] for chunk in chunks[start : start + size]]
        yield from in_chunks(trunk, [(np.asarray(cached.inputs[[where[n] for n in part]]), ()) for part in names])


def in_chunks(trunk: Callable[[Any], np.ndarray] | None, group: Sequence[tuple[np.ndarray, Iterable[int]]]) -> Chunks:
    """Yields the trunk's rows of a group of chunks, computed together, with the places that each skips."""
    lengths = np.cumsum([len(x) for x, _ in group])[:-1]
    x = group[0][0] if len(group) == 1 else np.concatenate([x for x, _ in group])
    for values, (_, skipped) in zip(np.split(x if trunk is None else trunk(x), lengths), group, strict=True):
        yield values, sorted(skipped)
