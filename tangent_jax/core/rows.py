"""Rows of an array or memory map: as an array that reads only the rows that are indexed, and run batch by batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tangent_jax.core import placement


class Rows:
    """The rows `rows`, "k" or "k b", of `base`, an array of numbers "n ...": nothing is read until it is indexed."""

    def __init__(self, base: Any, rows: np.ndarray) -> None:
        within = isinstance(base, Rows)
        self.base, self.rows = (base.base, base.rows[rows]) if within else (base, np.asarray(rows))
        self.shape, self.dtype = (*self.rows.shape, *base.shape[1:]), base.dtype
        self.ndim, self.nbytes = len(self.shape), int(np.prod(self.shape)) * base.dtype.itemsize

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        of_rows, rest = index[: self.rows.ndim], index[self.rows.ndim :]
        picked = self.rows[of_rows]
        if np.ndim(picked) == 0:
            return self.base[(picked, *rest)]
        return self.base[picked][(*[slice(None)] * picked.ndim, *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.base[self.rows], dtype)


def in_batches(run: Callable[[Any], Any], x: Any, size: int) -> np.ndarray:
    """run(x) of every row of x, "n ...", n > 0, in batches of `size` rows (the last is padded with zeros)."""
    parts = []
    for start in range(0, len(x), size):
        batch = np.asarray(x[start : start + size])
        parts.append(run(np.concatenate([batch, np.zeros((size - len(batch), *x.shape[1:]), batch.dtype)])))
    return np.concatenate([placement.on_host(part) for part in parts])[: len(x)]
