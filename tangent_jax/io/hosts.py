"""Files in a job of several processes.

Process 0 writes them. A resumed run reads them in process 0, which sends them to the others.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from tangent_jax.core.placement import agree, call_in_all

T = TypeVar("T")


def is_writer() -> bool:
    """True in the process that writes files."""
    return jax.process_index() == 0


def in_writer(function: Callable[[], T]) -> T | None:
    """Calls function() in process 0 alone, and returns its value there; an exception is raised in all processes."""
    return call_in_all(lambda: function() if is_writer() else None)


def from_writer(function: Callable[[], T]) -> T:
    """Calls function() on process 0, and broadcasts its value, or its exception, to all processes."""
    value: Any = in_writer(function)
    if jax.process_count() == 1:
        return value
    content = np.frombuffer(pickle.dumps(value), np.uint8)
    size = int(agree(np.array(len(content))))
    return pickle.loads(agree(content if is_writer() else np.zeros(size, np.uint8)).tobytes())


def keeper(folder: Path) -> int:
    """The lowest process that sees this folder; it alone locks and manages it. All processes call this."""
    if jax.process_count() == 1:
        return 0
    nonce = int(agree(np.frombuffer(os.urandom(4), np.uint32))[0])
    names = [folder / f".seen-{nonce:08x}-{p}" for p in range(jax.process_count())]

    def touch() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names[jax.process_index()].touch()

    call_in_all(touch)
    lowest = call_in_all(lambda: next(p for p, name in enumerate(names) if name.exists()))
    call_in_all(lambda: names[jax.process_index()].unlink(missing_ok=True))
    return lowest
