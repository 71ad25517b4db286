"""The bar of long work: on stderr, with rate and time left."""

import sys

from tqdm import tqdm


def progress_bar(title: str | None, total: int, unit: str, done: int = 0) -> tqdm:
    """A bar that begins at `done` of `total`; silent where `title` is None."""
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
