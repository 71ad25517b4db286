"""Attention of one query per head, keys and values never formed.

With class-token pooling only the class token's query of the last block is read. Keys and values are
linear in the normalised tokens z = g x^ + beta, so their kernels move to the one-row side:

    u = W_k q / sqrt(e)            per head, d
    a = softmax(x^ (g u))          m;  beta . u and the key bias shift all scores alike and drop out
    r = x^^T a                     d
    m = g r + beta                 d;  a sums to 1
    o = W_v^T m + b_v              e

Exact, with O(n h d + d^2) work instead of O(n d^2). The tangent is the product rule on each line.
Not in the paper.
"""

from collections.abc import Mapping

from jax import Array

from tangent_jax.core import Dual, Tangent
from tangent_jax.rules.activations import softmax
from tangent_jax.rules.products import contract, dense, scale, shift, total

Leaf = Mapping[str, Dual]


def class_attention(
    x: Array, dx: Tangent, q: Array, dq: Tangent, norm: Leaf, key: Leaf, value: Leaf
) -> tuple[Array, Tangent]:
    """Attention of one query to all tokens through a layer norm, and its tangent.

    Args:       x, dx: standardised tokens x^ (before gain and shift), "b m d";
                q, dq: the query, "b h e";
                norm: {"scale": "d", "bias": "d"}; key, value: {"kernel": "d h e", "bias": "h e"}.
    Returns:    (o, do), "b h e": equal to `attention` on the full keys and values.
    Guarantees: do is linear in (dx, dq, all parameter tangents) together.
    Edge cases: the tangent of the key bias has no effect, as softmax ignores a common shift; one
                token gives o = its value.
    """
    e = q.shape[-1]
    u, du = contract("bhe,dhe->bhd", q * e**-0.5, None if dq is None else dq * e**-0.5, *key["kernel"])
    a, da = softmax(*contract("bmd,bhd->bhm", x, dx, *scale(u, du, norm["scale"])))
    r, dr = contract("bhm,bmd->bhd", a, da, x, dx)
    m, dm = scale(r, dr, norm["scale"])
    beta, dbeta = norm["bias"]
    return dense(m + beta, total(dm, shift(dbeta, m)), value, "bhd,dhe->bhe")
