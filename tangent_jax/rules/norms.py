"""Layer norm over the last axis, and rows of length 1.

    x^  = (x - mean x) / sigma,                      sigma = sqrt(var x + eps)
    dx^ = (dx - mean dx - x^ mean(x^ dx)) / sigma
    y   = g x^ + beta
    dy  = g dx^ + dg x^ + dbeta

Source: Liu et al. 2024, the tangent of layer norm. Misprint there: LN_(dgamma, dbeta)(x), our `dg x^ + dbeta`, belongs
to the tangent output as well, and Var carries eps. Statistics are taken in f32 or wider.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core.notation import Dual
from tangent_jax.rules.products import scale, shift, total


def standardize(
    x: Float[Array, "*b d"], dx: Float[Array, "*b d"] | None, eps: float
) -> tuple[Float[Array, "*b d"], Float[Array, "*b d"] | None]:
    """x^ and its tangent: mean 0, variance var / (var + eps) over the last axis.

    Args:
        x: "... d".
        dx: The tangent of x.
        eps: Added to the variance.

    Returns:
        (x^, dx^), "... d", dtype of x.

    Guarantees:
        dx^ is linear in dx; each row of dx^ sums to 0.

    Edge cases:
        A constant row gives x^ = 0, dx^ = (dx - mean dx) / sqrt(eps).
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    centred = x.astype(wide) - jnp.mean(x, -1, dtype=wide, keepdims=True)
    sigma = jnp.sqrt(jnp.mean(centred * centred, -1, keepdims=True) + eps)
    x_hat = centred / sigma
    if dx is None:
        return x_hat.astype(x.dtype), None
    dx = dx.astype(wide)
    mean_dx = jnp.mean(dx, -1, keepdims=True)
    dx_hat = (dx - mean_dx - x_hat * jnp.mean(x_hat * dx, -1, keepdims=True)) / sigma
    return x_hat.astype(x.dtype), dx_hat.astype(x.dtype)


def layer_norm(
    x: Float[Array, "*b d"], dx: Float[Array, "*b d"] | None, leaf: Mapping[str, Dual], eps: float
) -> tuple[Float[Array, "*b d"], Float[Array, "*b d"] | None]:
    """Layer norm and its tangent.

    Args:
        x: "... d".
        dx: The tangent of x.
        leaf: {"scale": (g, dg), "bias": (beta, dbeta)}, each "d".

    Returns:
        (y, dy), "... d", dtype of x.

    Guarantees:
        dy is linear in (dx, dg, dbeta) together.

    Edge cases:
        dx = None leaves dg x^ + dbeta, the term the paper's print omits.
    """
    y, dy = scale(*standardize(x, dx, eps), leaf["scale"])
    beta, dbeta = leaf["bias"]
    return y + beta, total(dy, shift(dbeta, y))


def unit_length(
    z: Float[Array, "*b d"], dz: Float[Array, "*b d"] | None
) -> tuple[Float[Array, "*b d"], Float[Array, "*b d"] | None]:
    """Rows scaled to length 1, as CLIP's embeddings, and their tangent. Not in the paper.

        z^  = z / |z|
        dz^ = (dz - z^ (z^ . dz)) / |z|

    Args:
        z: "... d".
        dz: The tangent of z.

    Returns:
        (z^, dz^), "... d", dtype of z; the length is taken in f32 or wider.

    Guarantees:
        dz^ is linear in dz and orthogonal to z^.

    Edge cases:
        A row of zeros gives z^ = 0 and dz^ = 0.
    """
    wide = jnp.promote_types(z.dtype, jnp.float32)
    squares = jnp.sum(jnp.square(z.astype(wide)), -1, keepdims=True)
    inverse = jnp.where(squares > 0, jax.lax.rsqrt(jnp.where(squares > 0, squares, 1)), 0)
    z_hat = z.astype(wide) * inverse
    if dz is None:
        return z_hat.astype(z.dtype), None
    dz = dz.astype(wide)
    dz_hat = (dz - z_hat * jnp.sum(z_hat * dz, -1, keepdims=True)) * inverse
    return z_hat.astype(z.dtype), dz_hat.astype(z.dtype)
