"""Progress bars of long work on stderr, with rate and time left, and the request to stop.

A signal handler calls `request_stop`; every bar raises KeyboardInterrupt at its next update. So work ends between two
whole pieces, and never inside a library that would swallow the exception.
"""

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

_TITLE: ContextVar[str | None] = ContextVar("title", default=None)
_ASKED, _STOP = threading.Event(), threading.Event()
_TOGETHER = threading.Event()


@contextmanager
def show_progress(title: str | None) -> Iterator[None]:
    """Long work inside the `with` shows a bar of this title on stderr; None silences it."""
    token = _TITLE.set(title)
    try:
        yield
    finally:
        _TITLE.reset(token)


def request_stop() -> None:
    """Makes long work end at the next update of its bar; of a job of several processes, where all agree to."""
    _ASKED.set()
    if not _TOGETHER.is_set():
        _STOP.set()


def stop_together(is_job: bool) -> None:
    """Makes requests wait, in a job of several processes, until all of them `stop`."""
    (_TOGETHER.set if is_job else _TOGETHER.clear)()


def is_asked() -> bool:
    """True where this process was asked to stop."""
    return _ASKED.is_set()


def stop() -> None:
    """Makes long work end at the next update of its bar, in this process."""
    _STOP.set()


def is_stopping() -> bool:
    """True from `stop` until the next `check_stop`."""
    return _STOP.is_set()


def check_stop() -> None:
    """Raises KeyboardInterrupt, once, where a stop was requested."""
    if _STOP.is_set():
        _STOP.clear()
        _ASKED.clear()
        raise KeyboardInterrupt


class Bar(tqdm):
    """A bar at whose updates the work can stop."""

    def update(self, n: float | None = 1) -> bool | None:
        """Counts n more, then raises KeyboardInterrupt where a stop was requested."""
        displayed = super().update(n)
        check_stop()
        return displayed

    def set_postfix(self, ordered_dict: Any = None, refresh: bool | None = False, **values: Any) -> None:
        """The values beside the bar, shown when it is drawn next."""
        super().set_postfix(ordered_dict, refresh, **values)


class Lines:
    """A stream that gets a bar as whole lines, which a terminal would draw one over the other."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Writes the text as one line; nothing for an empty one."""
        line = text.replace("\r", "").strip()
        if line:
            self.stream.write(f"{line}\n")

    def flush(self) -> None:
        """Flushes the stream."""
        self.stream.flush()


EVERY = 30.0  # seconds between two lines where stderr is no terminal


def progress_bar(total: int | None, unit: str, done: int = 0) -> Bar:
    """Returns a bar that begins at `done` of `total` (None: unknown); silent outside `show_progress`.

    Where stderr is no terminal, it is one plain line every 30 seconds, and nothing for shorter work.
    """
    title = _TITLE.get()
    options: Any = {"file": sys.stderr, "dynamic_ncols": True, "mininterval": 0.5}
    options["delay"] = 1.0 if total is None else 0.0
    if not sys.stderr.isatty():
        options = {"file": Lines(sys.stderr), "mininterval": EVERY, "delay": EVERY, "ncols": 0}
    return Bar(total=total, initial=done, desc=title, unit=unit, disable=title is None, **options)


@functools.cache
def tell(line: str) -> None:
    """Prints a line on stderr, once."""
    print(line, file=sys.stderr)
