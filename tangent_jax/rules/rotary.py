"""Rotary positions of a grid of tokens: each feature pair rotates by an angle of the token's row or column.

    a(y, j) = 2 pi c_y theta^(-4j/e),  c_y = 2 (y + 1/2) / rows - 1           row y, frequency j = 0 .. e/4 - 1
    R x     = cos a * x + sin a * (-x_2, x_1)                                 x = (x_1, x_2), in halves

Each half holds the features of the rows, then those of the columns. Source: Simeoni et al. 2025 (DINOv3), as in Hugging
Face's code, without its random shifts in training. R is linear: its tangent is R dx.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float


class Turns(NamedTuple):
    """cos a and sin a, for p = no rotation, then each row, then each column; 0 at features of the other axis.

    Attributes:
        prefix: Tokens before the grid, which do not rotate.
        rows: The rows of the grid.
    """

    cos: Float[np.ndarray, "p e"]
    sin: Float[np.ndarray, "p e"]
    prefix: int
    rows: int


def make_turns(prefix: int, rows: int, columns: int, width: int, theta: float) -> Turns:
    """The rotations of a grid, for `width` features per head, a multiple of 4."""
    parts = [np.stack([np.ones((1, width)), np.zeros((1, width))])]
    frequency = theta ** -(np.arange(width // 4) / (width // 4))
    for axis, count in enumerate((rows, columns)):
        angle = 2 * np.pi * (2 * (np.arange(count) + 0.5) / count - 1)[:, None] * frequency
        table = np.zeros((2, count, 2, 2, width // 4))  # cos and sin, place, half, axis, frequency
        table[:, :, :, axis] = np.stack([np.cos(angle), np.sin(angle)])[:, :, None]
        parts.append(table.reshape(2, count, width))
    cos, sin = np.concatenate(parts, 1)
    return Turns(cos, sin, prefix, rows)


def rotate(
    x: Float[Array, "b n h e"], dx: Float[Array, "b n h e"] | None, turns: Turns
) -> tuple[Float[Array, "b n h e"], Float[Array, "b n h e"] | None]:
    """Queries or keys, each rotated by its token's position, and their tangent.

    Args:
        x: "b n h e", the prefix first, then the grid row by row.
        dx: The tangent of x.

    Returns:
        (y, dy), "b n h e".

    Guarantees:
        The dot product of two rotated tokens depends only on their distance; the prefix is unchanged.
    """
    cos, sin = (by_token(table, turns).astype(x.dtype) for table in (turns.cos, turns.sin))
    return x * cos + quarter_turn(x) * sin, None if dx is None else dx * cos + quarter_turn(dx) * sin


def turn_back(
    q: Float[Array, "b h e"], dq: Float[Array, "b h e"] | None, turns: Turns
) -> tuple[Float[Array, "b p h e"], Float[Array, "b p h e"] | None]:
    """R^T q of a query "b h e" for each p, "b p h e", and its tangent; at a row, the columns' features are 0.

    So the product of q and a key rotated by (y, x) equals that of the key with the sum of the entries at y and at x.
    """
    cos, sin = (table[:, None].astype(q.dtype) for table in (turns.cos, turns.sin))
    q, dq = q[:, None], None if dq is None else dq[:, None]
    return q * cos - quarter_turn(q) * sin, None if dq is None else dq * cos - quarter_turn(dq) * sin


def quarter_turn(x: Float[Array, "*b e"]) -> Float[Array, "*b e"]:
    """(-x_2, x_1) of the halves of the last axis."""
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([-second, first], -1)


def by_token(table: Float[np.ndarray, "p e"], turns: Turns) -> Float[np.ndarray, "n 1 e"]:
    """A table with a row for every token."""
    rows, columns = table[1 : 1 + turns.rows], table[1 + turns.rows :]
    grid = (rows[:, None] + columns).reshape(-1, table.shape[1])
    return np.concatenate([np.repeat(table[:1], turns.prefix, 0), grid])[:, None]
