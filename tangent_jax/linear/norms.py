"""Norms of the rows of J in closed form, from inputs and signals: no row is formed.

The tangent is linear in every leaf, so an example's gradient of a kernel is its input times the signal that flows back:

    y += x dW      g_b = sum_t x_bt (x) s_bt       |g_b|^2 = sum_{t,u} (x_bt . x_bu) (s_bt . s_bu)
    y += x * dg    g_b = sum_t x_bt * s_bt         y += dbeta      g_b = sum_t s_bt

over the tokens t of example b, head by head where the kernel has heads. With one token this is a product of two norms,
with several a product of two Gram matrices (Goodfellow 2015; Li et al. 2022, "ghost clipping"). For owners, the tokens
of all examples of one owner are summed.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.linear.signals import Leaf
from tangent_jax.rules.probe import product, widen

ROUNDING = 4  # of Gram sums, in units of eps (sum_t |x_t| |s_t|)^2: measured at most 0.03 on tokens that cancel


def squared_norms(leaves: dict[str, Leaf], units: int) -> tuple[Float[Array, "o"], Float[Array, "o"]]:
    """(|g_o|^2 over the whole tree, the largest underestimate by rounding), "o" each, of the batch's units o.

    Each unit has equally many examples of the batch "b", which follow each other.

    Args:
        leaves: One row of each example.
    """
    total = jnp.zeros(units, jnp.result_type(*(leaf.s for leaf in leaves.values()), jnp.float32))
    rounding = jnp.zeros_like(total)
    for leaf in leaves.values():
        if leaf.layout is None:
            total += jnp.sum(jnp.square(leaf.s.reshape(units, -1, leaf.s.shape[-1]).sum(1)), 1)
        else:
            squared, own = kernel_norm(leaf, units)
            total, rounding = total + squared, rounding + own
    return total, rounding


def kernel_norm(leaf: Leaf, units: int) -> tuple[Float[Array, "o"], Float[Array, "o"]]:
    """(|sum_t x_t (x) s_t|^2 of each unit, the largest underestimate by rounding), "o" each.

    Computed from Gram matrices over the tokens t, or from the sum itself if the kernel is smaller than those, as for a
    convolution with many pixels (Bu et al. 2022, "mixed ghost clipping"). If tokens' gradients cancel, the sum over
    Gram matrices cancels too, with rounding errors of the size of eps (sum_t |x_t| |s_t|)^2.
    """
    x, s = (a.reshape(units, -1, *a.shape[-2:]) for a in (leaf.x, leaf.s))  # an owner's tokens, of all examples
    inputs, outputs, tokens = x.shape[-1], s.shape[-1], x.shape[1]
    lengths = jnp.sqrt(jnp.sum(jnp.square(widen(x)), -1) * jnp.sum(jnp.square(widen(s)), -1))
    largest = jnp.sum(jnp.square(jnp.sum(lengths, 1)), -1)  # (sum_t |x_t| |s_t|)^2, over the heads
    if inputs * outputs < tokens**2:
        squared = jnp.sum(jnp.square(product("bthi,btho->bhio", x, s)), (1, 2, 3))
        rounding = (ROUNDING * jnp.finfo(squared.dtype).eps) ** 2 * largest
    else:
        grams = product("bthi,buhi->bhtu", x, x) * product("btho,buho->bhtu", s, s)
        squared = jnp.sum(grams, (1, 2, 3))
        rounding = ROUNDING * jnp.finfo(grams.dtype).eps * largest
    rounding *= tokens > 1
    return squared, rounding + of_reweighting(squared + rounding, largest, s.dtype)


def of_reweighting(squared: Float[Array, "b"], largest: Float[Array, "b"], dtype: Any) -> Float[Array, "b"]:
    """The largest growth of |sum_t x_t (x) s_t|^2 when the reweighted signals are rounded to half precision.

    Each signal changes by eps / 2 of itself: the norm |g| becomes at most |g| + eps / 2 sum_t |x_t| |s_t|.
    """
    if jnp.finfo(dtype).bits >= 32:
        return jnp.zeros_like(squared)
    moved = jnp.finfo(dtype).eps / 2 * jnp.sqrt(largest)
    return moved * (2 * jnp.sqrt(jnp.maximum(squared, 0)) + moved)
