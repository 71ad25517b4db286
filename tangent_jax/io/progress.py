"""Progress bars of long work on stderr, with rate and remaining time, and requests to stop.

A signal handler calls `request_stop`; every bar raises KeyboardInterrupt at its next update. So work stops between two
complete pieces, never inside a library that would swallow the exception. The processes of a job stop at the same step,
whichever of them was asked.
"""

import functools
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from tqdm import tqdm

from tangent_jax.core.placement import gather
from tangent_jax.core.progress import Progress

_TITLE: ContextVar[str | None] = ContextVar("title", default=None)
_ASKED, _STOP = threading.Event(), threading.Event()
_TOGETHER = threading.Event()
_agreements = iter(range(1 << 62))


@contextmanager
def show_progress(title: str | None) -> Iterator[Progress]:
    """Shows a progress bar with this title on stderr for long work within the `with` block; None silences it.

    Yields:
        The `progress` that trainers and solvers take. Work on files and stores shows its bar without it.

    >>> with tj.show_progress(None) as progress:
    ...     fitted = tj.solve(demo.predict, demo.train, demo.objective, progress=progress)
    """
    token = _TITLE.set(title)
    try:
        yield shown
    finally:
        _TITLE.reset(token)


def request_stop() -> None:
    """Stops long work at the next update of its bar; in a job, when all processes agree."""
    _ASKED.set()
    if not _TOGETHER.is_set():
        _STOP.set()


def stop_together(is_job: bool) -> None:
    """In a job of several processes, makes requests wait until all of them `stop`."""
    (_TOGETHER.set if is_job else _TOGETHER.clear)()


def is_asked() -> bool:
    """True if this process was asked to stop."""
    return _ASKED.is_set()


def stop() -> None:
    """Stops long work in this process at the next update of its bar."""
    _STOP.set()


def is_stopping() -> bool:
    """True from `stop` until the next `check_stop`."""
    return _STOP.is_set()


def check_stop() -> None:
    """Raises KeyboardInterrupt, once, if a stop was requested."""
    if _STOP.is_set():
        _STOP.clear()
        _ASKED.clear()
        raise KeyboardInterrupt


def agree_to_stop() -> None:
    """Stops all processes here if one was asked to stop, by a signal or a cluster's notice."""
    if jax.process_count() == 1:
        return
    noticed = multihost_utils.reached_preemption_sync_point(next(_agreements))
    if gather(np.array(is_asked() or noticed)).any():
        stop()


class Bar(tqdm):
    """A progress bar whose updates can stop the work; `together`: in all processes of a job, which all update it."""

    together = False
    resumed = ""
    in_lines = False

    def update(self, n: float | None = 1) -> bool | None:
        """Counts n more, then raises KeyboardInterrupt if a stop was requested."""
        if n and self.resumed:  # nothing for a finished run that is only read
            self.tell(self.resumed)
            self.resumed = ""
        displayed = super().update(n)
        if self.together:
            agree_to_stop()
        check_stop()
        return displayed

    def close(self) -> None:
        """Ends the bar; a plain line that shows its end already is not repeated."""
        if self.in_lines and not self.disable and self.last_print_n == self.n:
            self.leave = False
        super().close()

    def set_postfix(self, ordered_dict: Any = None, refresh: bool | None = False, **values: Any) -> None:
        """Sets the values beside the bar, shown at its next drawing."""
        super().set_postfix(ordered_dict, refresh, **values)

    def tell(self, line: str) -> None:
        """Prints a line above the bar, after its title; nothing where the bar is silent."""
        if not self.disable:
            self.write(f"{self.desc}: {line}", file=sys.stderr)


class Lines:
    """A stream that receives a bar as whole lines instead of redrawing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Writes the text as one line; ignores an empty one."""
        line = text.replace("\r", "").strip()
        if line:
            self.stream.write(f"{line}\n")

    def flush(self) -> None:
        """Flushes the stream."""
        self.stream.flush()


EVERY = 30.0  # seconds between two lines if stderr is not a terminal


def progress_bar(total: int | None, unit: str, initial: int = 0) -> Bar:
    """A bar that starts at `initial` of `total` (None: unknown); silent outside `show_progress`.

    If stderr is not a terminal, it prints a plain line every 30 seconds, and nothing for shorter work.
    """
    title = _TITLE.get()
    options: Any = {"file": sys.stderr, "dynamic_ncols": True, "mininterval": 0.5}
    options["delay"] = 1.0 if total is None else 0.0
    in_lines = not getattr(sys.stderr, "isatty", bool)()
    if in_lines:  # miniters: else tqdm waits for as many steps as it saw before, however slow they became
        options = {"file": Lines(sys.stderr), "mininterval": EVERY, "miniters": 1, "delay": EVERY, "ncols": 0}
    bar = Bar(total=total, initial=initial, desc=title, unit=unit, disable=title is None, **options)
    bar.in_lines = in_lines
    return bar


def shown(*, total: int | None, unit: str, initial: int = 0) -> Bar:
    """The `progress` of a run: its bar says where a resumed run continues, and stops all processes together."""
    bar = progress_bar(total, unit, initial)
    bar.together = True
    bar.resumed = f"resuming after {unit} {initial} of {total}" if initial else ""
    return bar


def warn_in_lines() -> None:
    """Makes Python's warnings one line each on stderr, without the line of code, as a command shows them."""
    warnings.simplefilter("default", UserWarning)
    warnings.showwarning = lambda message, *_, **__: print(message, file=sys.stderr)


@functools.cache
def tell(line: str) -> None:
    """Prints a line on stderr, once."""
    print(line, file=sys.stderr)
