"""The sum of per-example gradients, each clipped to an L2 norm over the whole tree.

    g_b = grad_dw loss(predict(dw, x_b), y_b)
    S   = sum_b min(1, C / |g_b|) g_b

S moves by at most C when one example is added to the data or taken out: that is its sensitivity (add-or-remove-one
neighbouring; half of what replacing one can do). Source: Abadi et al. 2016. Here by vmapped per-example gradients, for
any function and loss: the reference. `norms.py` gives the same sum for the tangent model without forming any g_b.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from tangent_jax.core import Tree, require
from tangent_jax.privacy.mechanism import check_clip_norm
from tangent_jax.train.losses import Loss
from tangent_jax.train.objective import Objective, check_targets
from tangent_jax.train.targets import as_targets, output_shape


@partial(jax.tree_util.register_dataclass, data_fields=["value", "norms", "non_finite", "sensitivity"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class ClippedSum:
    """A clipped sum that knows its own sensitivity.

    `value`: the tree S; `sensitivity`: the most, in L2, that S moves when one example comes or goes; `norms`: |g_b|
    before clipping, "b" (0 where padded or not finite), which is not private; `non_finite`: how many examples had a
    gradient that is not finite, and contributed zero.
    """

    value: Tree
    norms: Array
    non_finite: Array
    sensitivity: float | Array

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """The sum over two micro-batches of different examples: each is in one of them, so the sensitivity stays."""
        first, second = float(self.sensitivity), float(other.sensitivity)
        require(first == second, "ClippedSum", f"clip norm {first}", second)
        value = jax.tree.map(jnp.add, self.value, other.value)
        norms = jnp.concatenate([self.norms, other.norms])
        return ClippedSum(value, norms, self.non_finite + other.non_finite, self.sensitivity)


def clip_scales(
    squared_norms: Array, present: Array, clip_norm: float | Array, rounding: float | Array = 0.0
) -> tuple[Array, Array, Array]:
    """(min(1, C / |g_b|) or 0 where padded or not finite, norms, the number not finite), "b" each.

    Args:   rounding: the most by which a squared norm may have been lowered by rounding, "b": it is clipped as if it
            had.
    """
    finite = jnp.isfinite(squared_norms + rounding)
    squared = jnp.where(finite, jnp.maximum(squared_norms, 0), 0)
    norms = jnp.sqrt(squared) * present
    most = jnp.sqrt(squared + jnp.where(finite, rounding, 0))
    scales = jnp.minimum(1, clip_norm / jnp.maximum(most, jnp.finfo(norms.dtype).tiny))
    return scales * finite * present, norms, jnp.sum(~finite & (present > 0))


def clipped_sum(
    predict: Callable[[Tree, Array], Array],
    dw: Tree,
    x: Array,
    y: Array,
    present: Array,
    *,
    loss: Loss,
    clip_norm: float | Array,
    chunk: int = 8,
) -> ClippedSum:
    """The clipped sum by per-example gradients, `chunk` of them held at a time.

    Args:       predict: (dw, x "b ...") -> outputs "b c", called with one example at a time; y: targets "b ...";
                present: 1, or 0 where padded, "b"; loss: (outputs, targets) -> "b", called likewise; clip_norm: C > 0,
                L2 over the whole tree.
    Returns:    ClippedSum.
    Guarantees: |S(D) - S(D')| <= C for D, D' that differ by one example, up to rounding.
    Edge cases: a gradient that is not finite counts as zero; padding contributes nothing; no example gives zero.
    Raises:     InputError for clip_norm <= 0.
    """
    check_clip_norm("clipped_sum", clip_norm)
    objective = Objective(loss)
    if not isinstance(y, Tracer):
        shape = output_shape("clipped_sum", predict, dw, jnp.asarray(x))
        check_targets("clipped_sum", as_targets("clipped_sum", y), shape, objective)
    x, y, present = map(jnp.asarray, (x, y, present))
    padding = -len(y) % min(chunk, len(y))

    def chunks(a: Array) -> Array:
        a = jnp.concatenate([a, jnp.zeros((padding, *a.shape[1:]), a.dtype)])
        return a.reshape(-1, min(chunk, len(y)), *a.shape[1:])

    def gradient_of_one(x: Array, y: Array) -> Tree:
        return jax.grad(lambda dw: objective.losses(predict(dw, x[None]), y[None])[0])(dw)

    def add(total: Tree, batch: tuple[Array, Array, Array]) -> tuple[Tree, tuple[Array, Array]]:
        x, y, here = batch
        gradients = jax.vmap(gradient_of_one)(x, y)
        squared = sum(jnp.sum(jnp.square(g), range(1, g.ndim)) for g in jax.tree.leaves(gradients))
        scales, norms, bad = clip_scales(jnp.asarray(squared), here, clip_norm)

        def summed(g: Array) -> Array:
            finite = jnp.where(scales.reshape(-1, *[1] * (g.ndim - 1)) > 0, g, 0)
            return jnp.tensordot(scales.astype(g.dtype), finite, 1, precision="highest")  # TF32 would exceed the norm

        return jax.tree.map(lambda t, g: t + summed(g), total, gradients), (norms, bad)

    zeros = jax.tree.map(jnp.zeros_like, dw)
    value, (norms, bad) = jax.lax.scan(add, zeros, (chunks(x), chunks(y), chunks(present)))
    return ClippedSum(value, norms.reshape(-1)[: len(y)], bad.sum(), clip_norm)
