"""Examples in memory: `examples` of the rows of an array, such as token ids, and scikit-learn's digits."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tangent_jax.core.checks import InputError, as_array
from tangent_jax.data.rows import Rows
from tangent_jax.data.sources import Examples
from tangent_jax.io.packages import import_extra


def examples(x: Any, targets: Any, names: Sequence[str] | None = None) -> Examples:
    """Examples from the rows of `x`, "n ...", and their targets, as `tj.extract` takes them.

    Args:
        x: An array or memory map of whole numbers or floats.
        targets: Class indices "n", or arrays "n ...".
        names: The names of the rows, None for "row 0" and so on.

    Guarantees:
        A row's content identifier, by which stores and removals know it, hashes its shape and bytes.

    >>> data = tj.examples(np.zeros((4, 3), np.int32), np.array([0, 1, 0, 1]))
    >>> data.names[0], data.read(0).shape
    ('row 0', (3,))
    """
    x = x if hasattr(x, "nbytes") else as_array("x", x)
    targets = as_array("targets", targets)
    has_examples = np.ndim(x) >= 1 and targets.ndim >= 1
    if not has_examples or x.dtype.kind not in "biuf" or targets.dtype.kind not in "biuf":
        raise InputError(f"x and targets must be arrays of numbers; got {x.dtype} and {targets.dtype}")
    targets = targets.astype(np.int32) if targets.dtype.kind in "iu" else targets
    names = tuple(f"row {i}" for i in range(len(targets))) if names is None else tuple(names)
    counts = [len(part) if np.ndim(part) else 0 for part in (x, targets, names)]
    alike = len({*counts}) == 1 and counts[0] >= 1
    if not alike:
        raise InputError(f"x, targets and names must have as many rows, at least one; got {counts}")
    if np.ndim(x) < 2:
        raise InputError(f'x must have rows of one shape, "n ..."; got shape {np.shape(x)}')
    return Examples(names, targets, partial(row_of, x))


def row_of(x: Any, i: int) -> np.ndarray:
    """The row i."""
    return np.asarray(x[i])


def digits(where: str) -> Rows:
    """1,797 handwritten digits, 8 x 8; the files are in writer order, the first half trains."""
    bunch = import_extra("digits", "sklearn.datasets", "data").load_digits()
    images = np.repeat(np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None], 3, -1)
    names = [f"digit {i}" for i in range(len(images))]
    half = len(images) // 2
    splits = ["train"] * half + ["test"] * (len(images) - half)
    return Rows("digits", "digits", names, splits, bunch.target.tolist(), partial(row_of, images), classes="0123456789")
