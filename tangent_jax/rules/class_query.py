"""Attention of one query per head, keys and values never formed.

With class-token pooling only the class token's query of the last block is used. Keys and values are linear in the
normalised tokens z = g x^ + beta, so their kernels can be applied to the query's single row instead:

    u = W_k q / sqrt(e)            per head, d
    a = softmax(x^ (g u))          m;  beta . u and the key bias shift all scores alike and drop out
    r = x^^T a                     d
    m = g r + beta                 d;  a sums to 1
    o = W_v^T m + b_v              e

Exact, with O(n h d + d^2) work instead of O(n d^2). The tangent is the product rule on each line.
Not in the paper.

For rotary keys (rotary.py), q . R k = R^T q . k. Half of the features rotate by the row y alone, the others by the
column x alone. So there is one u for each row and one for each column, not one for each token:

    s_yx = z_yx . (u_y + u_x) + (R_y^T q + R_x^T q) . b_k,     u_y = W_k R_y^T q / sqrt(e)

with O(n h d + (1 + rows + columns) d^2) work; beta . u and the key bias matter, as they differ between positions.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core.notation import Dual
from tangent_jax.rules.activations import softmax
from tangent_jax.rules.products import bilinear, contract, dense, scale, shift, total
from tangent_jax.rules.rotary import Turns, turn_back

Leaf = Mapping[str, Dual]


def class_attention(
    x: Float[Array, "b n d"],
    dx: Float[Array, "b n d"] | None,
    query: Dual,
    norm: Leaf,
    key: Leaf,
    value: Leaf,
    turns: Turns | None = None,
    first: int = 0,
) -> tuple[Float[Array, "b h e"], Float[Array, "b h e"] | None]:
    """Attention of one query to all tokens through a layer norm, and its tangent.

    Args:
        x: Standardised tokens x^ (before gain and shift), "m d" of each example, after `first` other rows.
        dx: The tangent of x.
        query: (q, dq), "b h e", not rotated.
        norm: {"scale": "d", "bias": "d"}.
        key, value: {"kernel": "d h e", "bias": "h e"}.
        turns: The keys' rotations, or None.
        first: The first row that is a token. Rows before it are finite and get weight 0: x without them is a copy.

    Returns:
        (o, do), "b h e", equal to `attention` on the full keys and values.

    Guarantees:
        do is linear in (dx, dq, all parameter tangents) together.

    Edge cases:
        Without turns the tangent of the key bias has no effect, as softmax ignores a common shift; one token gives o =
        its value.
    """
    q, dq = query
    e = q.shape[-1]
    q, dq = q * e**-0.5, None if dq is None else dq * e**-0.5
    if turns is None:
        u, du = contract("bhe,dhe->bhd", q, dq, *key["kernel"])
        s, ds = contract("bnd,bhd->bnh", x, dx, *scale(u, du, norm["scale"]))  # as "bhn" twice as slow on CPUs
        s, ds = jax.tree.map(lambda s: s[:, first:], (s, ds))
    else:
        z, dz = jax.tree.map(lambda x: x[:, first:], (x, dx))
        s, ds = turned_scores(z, dz, *turn_back(q, dq, turns), norm, key, turns)
    a, da = jax.tree.map(lambda a: jnp.pad(a, ((0, 0), (first, 0), (0, 0))), softmax(s, ds, axis=1))
    r, dr = contract("bnh,bnd->bhd", a, da, x, dx)
    m, dm = scale(r, dr, norm["scale"])
    beta, dbeta = norm["bias"]
    return dense(m + beta, total(dm, shift(dbeta, m)), value, "bhd,dhe->bhe")


def turned_scores(
    x: Float[Array, "b m d"],
    dx: Float[Array, "b m d"] | None,
    q: Float[Array, "b p h e"],
    dq: Float[Array, "b p h e"] | None,
    norm: Leaf,
    key: Leaf,
    turns: Turns,
) -> tuple[Float[Array, "b m h"], Float[Array, "b m h"] | None]:
    """The scores s "b m h" from a query rotated back, "b p h e", and their tangent."""

    def flat(first: Float[Array, "b f h"], grid: Float[Array, "b y x h"]) -> Float[Array, "b m h"]:
        b, y, x, h = grid.shape
        return jnp.concatenate([first, grid.reshape(b, y * x, h)], 1)

    def spread(of_place: Float[Array, "b p h"]) -> Float[Array, "b m h"]:
        first, rows, columns = jnp.split(of_place, [1, 1 + turns.rows], 1)
        return flat(jnp.repeat(first, turns.prefix, 1), rows[:, :, None] + columns[:, None])

    def products(x: Float[Array, "b m d"], u: Float[Array, "b p h d"]) -> Float[Array, "b m h"]:
        first, rows, columns = jnp.split(u, [1, 1 + turns.rows], 1)
        grid = x[:, turns.prefix :].reshape(x.shape[0], turns.rows, -1, x.shape[-1])
        of_grid = jnp.einsum("byxd,byhd->byxh", grid, rows) + jnp.einsum("byxd,bxhd->byxh", grid, columns)
        return flat(jnp.einsum("bmd,bhd->bmh", x[:, : turns.prefix], first[:, 0]), of_grid)

    u, du = contract("bphe,dhe->bphd", q, dq, *key["kernel"])
    s, ds = bilinear(products, x, dx, *scale(u, du, norm["scale"]))
    for term, dterm in (scale(u, du, norm["bias"]), scale(q, dq, key["bias"])):
        s, ds = s + spread(term.sum(-1)), total(ds, None if dterm is None else spread(dterm.sum(-1)))
    return s, ds
