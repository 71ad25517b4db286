"""The bar of long work: on stderr, with rate and time left, where the caller has given it a title."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tqdm import tqdm

_TITLE: ContextVar[str | None] = ContextVar("title", default=None)


@contextmanager
def show_progress(title: str | None) -> Iterator[None]:
    """Long work inside the `with` shows a bar of this title on stderr; None silences it."""
    token = _TITLE.set(title)
    try:
        yield
    finally:
        _TITLE.reset(token)


def progress_bar(total: int, unit: str, done: int = 0) -> tqdm:
    """A bar that begins at `done` of `total`; silent outside `show_progress`."""
    title = _TITLE.get()
    return tqdm(
        total=total,
        initial=done,
        desc=title,
        unit=unit,
        disable=title is None,
        file=sys.stderr,
        dynamic_ncols=True,
        mininterval=0.5,
    )
