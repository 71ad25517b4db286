"""Per-example gradient norms of a model and its tangent in closed form, from inputs and signals.

The tangent is linear in every leaf, so an example's gradient of a kernel is its input times the signal that flows back:

    y += x dW      g_b = sum_t x_bt (x) s_bt       |g_b|^2 = sum_{t,u} (x_bt . x_bu) (s_bt . s_bu)
    y += x * dg    g_b = sum_t x_bt * s_bt         y += dbeta      g_b = sum_t s_bt

over the tokens t of example b, head by head where the kernel has heads. With one token this is a product of two norms,
with several a product of two Gram matrices (Goodfellow 2015; Li et al. 2022, "ghost clipping"). One backward pass gives
the signals s and forms no gradient; the clipped sum is then outer products of inputs and reweighted signals. The cost
is about one training step. For owners, the tokens of all examples of one owner are summed.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.linear.signals import Leaf
from tangent_jax.models.predict import Predictor
from tangent_jax.privacy.clipping import ClippedSum, clip_scales, of_units
from tangent_jax.privacy.mechanism import check_clip_norm
from tangent_jax.rules.probe import product, widen
from tangent_jax.train.losses import Loss
from tangent_jax.train.objective import Objective

ROUNDING = 4  # of Gram sums, in units of eps (sum_t |x_t| |s_t|)^2: measured at most 0.03 on tokens that cancel


def clipped_sum_closed_form(
    predict: Predictor, dw: Tree, x: Array, y: Array, present: Array, *, loss: Loss, clip_norm: float | Array
) -> ClippedSum:
    """`clipped_sum` for a model with a closed form, at the cost of about one ordinary step.

    The gradient of the non-linear f_{w + dw} is that of its own tangent at w + dw, for a step of zero.

    Args, Returns, Guarantees, Edge cases: as `clipped_sum`.
    Raises:     InputError for clip_norm <= 0, or a model without a closed form.

    >>> x, y = demo.train.inputs[:2], demo.train.targets[:2]
    >>> settings = {"loss": tj.losses.CrossEntropy(), "clip_norm": 0.1}
    >>> total = lambda dw: tj.privacy.clipped_sum_closed_form(demo.predict, dw, x, y, np.ones(2), **settings)
    >>> jax.jit(total)(demo.dw).norms.shape
    (2,)
    """
    check_clip_norm(clip_norm)
    predict.closed_form("clipped_sum_closed_form", "Call clipped_sum")
    at_zero = predict.method == "nlft"
    if at_zero:
        predict = dataclasses.replace(predict, w=trees.add(predict.w, dw), method="taft")
    probed = predict.probe(dw, x, at_zero)
    losses, units = Objective(loss).losses, len(present)
    slope = jax.grad(lambda outputs: jnp.sum(losses(outputs, y) * present.ravel()))(probed.outputs)
    leaves = probed.rows(slope[None])
    with jax.default_matmul_precision("highest"):  # no bound here covers TF32, a GPU's default
        squared, rounding = squared_norms(leaves, units)
        scales, norms, bad = clip_scales(squared, of_units(present), clip_norm, rounding)
        value = scaled_sum(dw, leaves, jnp.repeat(scales, len(y) // units))
    return ClippedSum(value, norms, bad, clip_norm)


def squared_norms(leaves: dict[str, Leaf], units: int) -> tuple[Array, Array]:
    """(|g_o|^2 over the whole tree, the largest underestimate by rounding), "o" each, of the batch's units o.

    leaves: one row of each example. Each unit has equally many examples of the batch "b", which follow each other.
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


def kernel_norm(leaf: Leaf, units: int) -> tuple[Array, Array]:
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


def of_reweighting(squared: Array, largest: Array, dtype: Any) -> Array:
    """The largest growth of |sum_t x_t (x) s_t|^2, "b", when the reweighted signals are rounded to half precision.

    Each signal changes by eps / 2 of itself: the norm |g| becomes at most |g| + eps / 2 sum_t |x_t| |s_t|.
    """
    if jnp.finfo(dtype).bits >= 32:
        return jnp.zeros_like(squared)
    moved = jnp.finfo(dtype).eps / 2 * jnp.sqrt(largest)
    return moved * (2 * jnp.sqrt(jnp.maximum(squared, 0)) + moved)


def scaled_sum(dw: Tree, leaves: dict[str, Leaf], scales: Array) -> Tree:
    """sum_b scale_b g_b: outer products of inputs and reweighted signals."""
    total = {path: jnp.zeros_like(leaf) for path, leaf in trees.leaves(dw).items()}

    def zeroed(a: Array) -> Array:
        return jnp.where(scales.reshape(-1, *[1] * (a.ndim - 1)) > 0, a, 0)

    def scaled(a: Array) -> Array:
        return zeroed(widen(a) * scales.reshape(-1, *[1] * (a.ndim - 1)))

    for path, leaf in leaves.items():
        like = total[path]
        if leaf.layout is None:
            value = jnp.sum(scaled(leaf.s), (0, 1)).reshape(like.shape)
        else:
            blocks = product("bthi,btho->hio", zeroed(leaf.x), scaled(leaf.s[:, 0]).astype(leaf.s.dtype))
            value = leaf.layout.kernel(blocks, like.shape)
        total[path] = value.astype(like.dtype)
    return jax.tree.unflatten(jax.tree.structure(dw), list(total.values()))
