"""Rows of an array or memory map: as an array that reads only the rows that are indexed, and run batch by batch."""

from collections.abc import Callable
from typing import Any

import numpy as np


class Rows:
    """The rows `rows` of `base`, an array of numbers "n ...": a part that copies nothing until it is indexed."""

    def __init__(self, base: Any, rows: np.ndarray) -> None:
        within = isinstance(base, Rows)
        self.base, self.rows = (base.base, base.rows[rows]) if within else (base, np.asarray(rows))
        self.shape, self.dtype = (len(self.rows), *base.shape[1:]), base.dtype
        self.ndim, self.nbytes = base.ndim, int(np.prod(self.shape)) * base.dtype.itemsize

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) else (index,)
        picked = self.rows[first]
        return self.base[(picked, *rest)] if np.ndim(picked) == 0 else self.base[picked][(slice(None), *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.base[self.rows], dtype)


def in_batches(run: Callable[[Any], Any], x: Any, size: int) -> np.ndarray:
    """run(x) of every row of x, "n ...", n > 0, in batches of `size` rows (the last is padded with zeros)."""
    parts = []
    for start in range(0, len(x), size):
        batch = np.asarray(x[start : start + size])
        parts.append(run(np.concatenate([batch, np.zeros((size - len(batch), *x.shape[1:]), batch.dtype)])))
    return np.concatenate([np.asarray(part) for part in parts])[: len(x)]
