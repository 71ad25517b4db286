"""Learned positions on another grid of patches, resampled as the program does that names the tensors.

    p'[r, c] = sum_yx R[r, y] C[c, x] p[y, x]          R, C: one matrix per axis, whose rows sum to 1

A point i of the new grid reads the old one at  t = (i + 1/2) old / new - 1/2,  or, where both grids' corners are the
same points, at  t = i (old - 1) / (new - 1).  Its weights are k(y - t), by one of these:

    name             whose it is                             k                     antialiased   corners   new is
    bicubic          timm; DINOv2 with registers             cubic, a = -1/2       yes           no        new
    bilinear         SigLIP 2 of any shape                   linear                yes           no        new
    bicubic_plain    Hugging Face's other models             cubic, a = -3/4       no            no        new
    bicubic_offset   DINOv2's own program                    cubic, a = -3/4       no            no        new + 0.1
    bicubic_corners  torchvision                             cubic, a = -3/4       no            yes       new
    linear_corners   Google's (scipy.ndimage.zoom, order 1)  linear                no            yes       new

Antialiased: where the grid shrinks, k is stretched by old / new, and weights outside the grid are left out. Otherwise a
point outside the grid is the nearest one on it. Sources: PyTorch's `interpolate`, whose two cubics differ in a; scipy's
`zoom`, but for grids where its rounding leaves the last row and column 0, such as from 28 to 14.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Filter(NamedTuple):
    """One row of the module's table; `offset`: what is added to the size of the new grid."""

    kernel: Callable[[np.ndarray], np.ndarray]
    is_antialiased: bool = False
    has_corners: bool = False
    offset: float = 0.0


def linear(x: Float[np.ndarray, "*x"]) -> Float[np.ndarray, "*x"]:
    """The kernel 1 - |x|, 0 beyond 1."""
    return np.maximum(1 - np.abs(x), 0.0)


def cubic(x: Float[np.ndarray, "*x"], a: float) -> Float[np.ndarray, "*x"]:
    """Keys' kernel of slope a at 1, 0 beyond 2."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x**2 + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


FILTERS = {
    "bicubic": Filter(lambda x: cubic(x, -0.5), is_antialiased=True),
    "bilinear": Filter(linear, is_antialiased=True),
    "bicubic_plain": Filter(lambda x: cubic(x, -0.75)),
    "bicubic_offset": Filter(lambda x: cubic(x, -0.75), offset=0.1),
    "bicubic_corners": Filter(lambda x: cubic(x, -0.75), has_corners=True),
    "linear_corners": Filter(linear, has_corners=True),
}
"""The filters by name."""


def resampling(old: int, new: int, filter_name: str) -> Float[np.ndarray, "{new} {old}"]:
    """The weights of `old` points in each of `new` ones."""
    filter = FILTERS[filter_name]
    at = points(old, new, filter)
    if filter.is_antialiased:
        stretch = max(old / new, 1.0)
        weights = filter.kernel((np.arange(old) - at[:, None]) / stretch)
        return weights / weights.sum(1, keepdims=True)
    weights = np.zeros((new, old))
    first = np.floor(at).astype(int)
    for tap in range(-1, 3):
        nearest = np.clip(first + tap, 0, old - 1)
        np.add.at(weights, (np.arange(new), nearest), filter.kernel(first + tap - at))
    return weights


def points(old: int, new: int, filter: Filter) -> Float[np.ndarray, "{new}"]:
    """The place of each point of the new grid on the old one."""
    if filter.has_corners:
        return np.arange(new) * (old - 1) / max(new - 1, 1)
    return (np.arange(new) + 0.5) * old / (new + filter.offset) - 0.5


def resample(
    grid: Float[np.ndarray, "y x d"], rows: int, columns: int, filter_name: str
) -> Float[np.ndarray, "{rows} {columns} d"]:
    """Positions on a grid of `rows` x `columns`, in float32."""
    height, width, _ = grid.shape
    by_row = resampling(height, rows, filter_name)
    by_column = resampling(width, columns, filter_name)
    return np.einsum("ry,cx,yxd->rcd", by_row, by_column, grid.astype(np.float64), optimize=True).astype(np.float32)
