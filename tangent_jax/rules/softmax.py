"""Softmax over the last axis."""

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Tangent, require


def softmax(s: Array, ds: Tangent) -> tuple[Array, Tangent]:
    """Softmax over the last axis and its tangent.

    Source: Liu et al. 2024, Eq. (5); their Phi is our a.

        a  = exp(s) / sum_m exp(s)
        da = a * (ds - sum_m a * ds)

    Args:       s, ds: logits and tangent, "... m", one dtype.
    Returns:    (a, da), "... m", dtype of s; computed in f32 or wider.
    Guarantees: da is linear in ds; each row of da sums to 0.
    Edge cases: m = 1 gives a = 1, da = 0; ds = None gives da = None.
    Raises:     InputError if shapes or dtypes differ.
    """
    wide = jnp.promote_types(s.dtype, jnp.float32)
    a = jax.nn.softmax(s.astype(wide), -1)
    if ds is None:
        return a.astype(s.dtype), None
    expected = f"ds of shape {s.shape} and dtype {s.dtype}"
    require((s.shape, s.dtype) == (ds.shape, ds.dtype), "softmax", expected, f"{ds.shape}, {ds.dtype}")
    ds = ds.astype(wide)
    da = a * (ds - jnp.sum(a * ds, -1, keepdims=True))
    return a.astype(s.dtype), da.astype(s.dtype)
