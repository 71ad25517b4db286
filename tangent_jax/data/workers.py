"""Chunks of images, decoded ahead and yielded in order, by threads or, for more speed, by processes.

Threads share the interpreter's lock. Decoding holds it for about a tenth of the time, so about ten threads can be busy.
Processes share nothing: each reads its images and writes a chunk into a mapped file, which the caller reads in place.
Both give the same bytes.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import cycle, islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.placement import cores
from tangent_jax.core.preprocessing import ImageSize, Preprocessing, sides
from tangent_jax.data.decode import MOST_PIXELS, decode
from tangent_jax.io.files import allocate
from tangent_jax.io.progress import check_stop

Decoded = tuple[np.ndarray, dict[int, InputError]]
"""(images "k height width 3" of a chunk, valid until the next chunk; errors of unreadable images by their place in the
chunk, where the image is zeros)."""


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Reads and decodes the image of a row; an unreadable image gives its InputError.

    Attributes:
        most_pixels: An image of more is unreadable.
    """

    read: Callable[[int], bytes | np.ndarray]
    names: tuple[str, ...]
    size: ImageSize
    preprocessing: Preprocessing
    most_pixels: int = MOST_PIXELS

    def __call__(self, row: int) -> np.ndarray | InputError:
        """The image "height width 3" of a row, uint8."""
        try:
            return decode(self.read(row), self.names[row], self.size, self.preprocessing, self.most_pixels)
        except InputError as error:
            return error

    def fill(self, images: np.ndarray, decoded: Iterable[np.ndarray | InputError]) -> dict[int, InputError]:
        """Writes the decoded images into `images`, "k height width 3", and returns the errors by place."""
        errors = {}
        for i, image in enumerate(decoded):
            images[i] = 0 if isinstance(image, InputError) else image
            if isinstance(image, InputError):
                errors[i] = image
        return errors


def decode_chunks(decoder: Decoder, chunks: Sequence[Sequence[int]], processes: int = 0) -> Iterator[Decoded]:
    """Yields the images of each chunk of rows, in order; 0 processes: one thread for each core.

    Raises:
        InputError: If the examples cannot be sent to processes, or a process died.
    """
    if whole_number("processes", processes, 0) and chunks:
        yield from in_processes(decoder, chunks, processes)
        return
    images = np.zeros((max(map(len, chunks), default=0), *sides(decoder.size), 3), np.uint8)
    rows = (row for chunk in chunks for row in chunk)
    with closing_pool(ThreadPoolExecutor(cores())) as pool:
        decoded = in_order(pool, decoder, rows, ahead=2 * len(images))
        for chunk in chunks:
            errors = decoder.fill(images, islice(decoded, len(chunk)))
            yield images[: len(chunk)], errors


def in_processes(decoder: Decoder, chunks: Sequence[Sequence[int]], processes: int) -> Iterator[Decoded]:
    """Yields like `decode_chunks`; each process writes its chunk into one of the mapped files."""
    shape = (max(map(len, chunks)), *sides(decoder.size), 3)
    ahead = min(2 * processes, len(chunks))
    processes = min(processes, len(chunks))
    context = multiprocessing.get_context("spawn")
    content = pickle_decoder(decoder)
    with tempfile.TemporaryDirectory(prefix="tangent_jax-decoded-") as folder:
        paths = [Path(folder) / f"{i}" for i in range(ahead + 1)]  # one more than filled: the caller reads it
        for path in paths:
            allocate(path, int(np.prod(shape)))
        blocks = [np.memmap(path, np.uint8, "r", shape=shape) for path in paths]
        workers = ProcessPoolExecutor(processes, context, initializer=begin, initargs=(content,))
        with closing_pool(workers) as pool:
            start(pool, processes)
            calls = zip(chunks, cycle(map(str, paths)), [shape] * len(chunks), strict=False)
            results = in_order(pool, fill_block, calls, ahead)
            try:
                for chunk, block, errors in zip(chunks, cycle(blocks), results, strict=False):
                    yield np.asarray(block[: len(chunk)]), errors
            except BrokenProcessPool as error:
                check_stop()  # the signal may have reached the processes too
                raise InputError(
                    f"{processes} processes must decode to the end; one ended early. Read its message above; a script"
                    " that asks for processes needs `if __name__ == '__main__':`"
                ) from error


def pickle_decoder(decoder: Decoder) -> bytes:
    """The decoder as bytes; InputError if `read` is a lambda or a local function."""
    try:
        return pickle.dumps(decoder)
    except Exception as error:
        raise InputError(
            f"examples must be such that processes can receive them; {error}. Write `read` as a function of a module, "
            "or decode in threads (0 processes)"
        ) from error


def in_order(pool: Executor, run: Callable[[Any], Any], arguments: Iterable[Any], ahead: int) -> Iterator[Any]:
    """Yields run(argument) for each argument, in order, computing up to `ahead` in advance."""
    remaining = iter(arguments)
    waiting = deque(pool.submit(run, argument) for argument in islice(remaining, ahead))
    while waiting:
        result = waiting.popleft().result()
        waiting.extend(pool.submit(run, argument) for argument in islice(remaining, 1))
        yield result


@contextlib.contextmanager
def closing_pool(pool: Executor) -> Iterator[Executor]:
    """Yields the pool, and cancels its pending work at the end, so that an interrupted caller does not wait."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def start(pool: Executor, processes: int) -> None:
    """Starts the processes of a pool with interrupts blocked: the parent handles them."""
    resource_tracker.ensure_running()  # its start would unblock the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for _ in range(processes):
            pool.submit(int)  # no process is idle yet, so each call starts one
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# In a worker process

DECODER: list[Decoder] = []


def begin(content: bytes) -> None:
    """Prepares a worker process, which ends when its parent does."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    DECODER.append(pickle.loads(content))


def fill_block(call: tuple[Sequence[int], str, tuple[int, ...]]) -> dict[int, InputError]:
    """Decodes a chunk of rows into a mapped file and returns the errors by place."""
    rows, path, shape = call
    (decoder,) = DECODER
    return decoder.fill(np.memmap(path, np.uint8, "r+", shape=shape), map(decoder, rows))
