"""Rows of arrays or memory maps: as one array that reads only indexed rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Integer, Shaped


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
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])
        self.starts = self.ends - [len(part) for part in parts]
        self.shape, self.dtype = (int(self.ends[-1]), *parts[0].shape[1:]), parts[0].dtype
        self.ndim, self.nbytes = len(self.shape), sum(part.nbytes for part in parts)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, slice):
            rows = np.arange(*first.indices(len(self)))
        else:
            rows = np.asarray(first)
            rows = np.arange(len(self))[rows] if rows.dtype == bool or (rows < 0).any() else rows
        flat = rows.ravel()
        part_of = np.searchsorted(self.ends, flat, "right")
        picked = np.empty((flat.size, *self.shape[1:]), self.dtype)
        for part in np.unique(part_of):
            places = np.flatnonzero(part_of == part)
            picked[places] = self.parts[part][flat[places] - self.starts[part]]
        return picked.reshape(*rows.shape, *self.shape[1:])[(*[slice(None)] * rows.ndim, *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self.parts).astype(dtype or self.dtype, copy=False)


def padded(x: Any, size: int) -> Shaped[np.ndarray, "n ..."]:
    """A copy of the rows of x, with zeros to `size` rows."""
    batch = np.asarray(x)
    return np.concatenate([batch, np.zeros((size - len(batch), *batch.shape[1:]), batch.dtype)])
