"""Rows of arrays or memory maps: as one array that reads only indexed rows, and batch by batch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Integer, Shaped

from tangent_jax.core import placement


class Rows:
    """The rows `rows`, "k" or "k b", of `base`, an array of numbers "n ..."; nothing is read before indexing."""

    def __init__(self, base: Any, rows: Integer[np.ndarray, "*k"]) -> None:
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

    def __reduce__(self) -> tuple[Callable[[Any], np.ndarray], tuple[np.ndarray]]:
        """A pickle holds these rows alone, as an array."""
        return np.asarray, (np.asarray(self),)


class Parts:
    """The rows of several arrays "k ...", concatenated, as one array "n ..."."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts  # plain arrays if possible: reading a row of a memmap has an overhead
        self.ends = np.cumsum([len(part) for part in parts])
        self.starts = self.ends - [len(part) for part in parts]
        self.shape, self.dtype = (int(self.ends[-1]), *parts[0].shape[1:]), parts[0].dtype
        self.ndim, self.nbytes = len(self.shape), sum(part.nbytes for part in parts)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, slice):
            first = range(*first.indices(len(self)))
            part = int(np.searchsorted(self.ends, first.start, "right"))
            if first and first.step > 0 and first[-1] < self.ends[part]:  # within one part nothing is copied
                start = int(first.start - self.starts[part])
                return self.parts[part][(slice(start, start + len(first) * first.step, first.step), *rest)]
        rows = np.asarray(first)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(int)
        if rows.size and not (-len(self) <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"rows {rows.min()}..{rows.max()} of {len(self)}")
        flat = rows.ravel() % max(1, len(self))
        where = np.searchsorted(self.ends, flat, "right")
        inside = (flat - self.starts[where]).tolist()
        if rows.ndim == 0:
            return self.parts[int(where[0])][(inside[0], *rest)]
        picked = np.empty((rows.size, *self.shape[1:]), self.dtype)
        for i, (part, row) in enumerate(zip(where.tolist(), inside, strict=True)):
            picked[i] = self.parts[part][row]
        return picked.reshape(*rows.shape, *self.shape[1:])[(*[slice(None)] * rows.ndim, *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self.parts).astype(dtype or self.dtype, copy=False)


def in_batches(run: Callable[[Any], Any], x: Any, size: int) -> Shaped[np.ndarray, "n ..."]:
    """run(x) for every row of x, "n ...", n > 0, in batches of `size` rows (the last is padded with zeros)."""
    parts = [run(padded(x[start : start + size], size)) for start in range(0, len(x), size)]
    return np.concatenate([placement.on_host(part) for part in parts])[: len(x)]


def padded(x: Any, size: int) -> Shaped[np.ndarray, "n ..."]:
    """A copy of the rows of x, with zeros to `size` rows."""
    batch = np.asarray(x)
    return np.concatenate([batch, np.zeros((size - len(batch), *batch.shape[1:]), batch.dtype)])
