"""Features in one byte a number: each token in int8, with a scale of its own.

    x ~ s q,    q = round(x / s) in -127..127,    s = max |x| / 127

A row "... d" becomes one array of int8, "... d + 4": q, then the four bytes of s in f32. So it is kept, copied and read
as any other array of numbers; a model unpacks it where it prepares its inputs. A number moves by at most s / 2.
"""

import jax
import jax.numpy as jnp
from jax import Array

SCALE_BYTES = 4  # of a token
LARGEST = 127


def packed(x: Array) -> Array:
    """The rows "... d" as int8, "... d + 4"; a token with a number that is not finite unpacks to NaN."""
    x = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(x), -1, keepdims=True) / LARGEST
    q = jnp.round(x / jnp.where(scale > 0, scale, 1)).astype(jnp.int8)
    return jnp.concatenate([q, jax.lax.bitcast_convert_type(scale[..., 0], jnp.int8)], -1)


def unpacked(rows: Array) -> Array:
    """The numbers of packed rows, "... d" in f32."""
    rows = jnp.asarray(rows)
    scale = jax.lax.bitcast_convert_type(rows[..., -SCALE_BYTES:], jnp.float32)
    return rows[..., :-SCALE_BYTES].astype(jnp.float32) * jnp.where(jnp.isfinite(scale), scale, jnp.nan)[..., None]


def packed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a packed row, from that of its numbers."""
    return (*shape[:-1], shape[-1] + SCALE_BYTES)
