"""GELU, exact, tanh and quick, SiLU, ReLU, softmax, and their tangents.

    y = x CDF(x),   dy = (CDF(x) + x PDF(x)) dx

Source: Liu et al. 2024, the tangent of GELU. Misprint there: the derivative is GELU(x)/x + x PDF(x), not
"+ x CDF(x)"; written with the CDF it needs no limit at x = 0, where it is 1/2.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import ArrayTangent
from tangent_jax.rules.probe import widen


def gelu(x: Float[Array, "*s"], dx: Float[Array, "*s"] | None) -> tuple[Float[Array, "*s"], Float[Array, "*s"] | None]:
    """x CDF(x) of the standard normal, and its tangent.

    Args:
        x: Any shape.
        dx: The tangent of x.

    Returns:
        (y, dy), shape and dtype of x.

    Guarantees:
        dy is linear in dx.

    Edge cases:
        At x = 0, y = 0 and dy = dx / 2.
    """
    cdf = (0.5 + 0.5 * jax.lax.erf(widen(x) * 0.5**0.5)).astype(x.dtype)  # faster than erfc, which XLA composes
    if dx is None:
        return x * cdf, None
    pdf = jnp.exp(-0.5 * x * x) * (2 * jnp.pi) ** -0.5
    return x * cdf, (cdf + x * pdf) * dx


def gelu_tanh(
    x: Float[Array, "*s"], dx: Float[Array, "*s"] | None
) -> tuple[Float[Array, "*s"], Float[Array, "*s"] | None]:
    """The tanh approximation of GELU (Google's ViT code) and its tangent; x, dx and the result have one shape.

    ::

        t = tanh(k (x + a x^3)),  k = sqrt(2/pi),  a = 0.044715
        y = x (1 + t) / 2,        dy = ((1 + t) / 2 + x (1 - t^2) k (1 + 3 a x^2) / 2) dx
    """
    k, a = (2 / jnp.pi) ** 0.5, 0.044715
    t = jnp.tanh(k * (x + a * x * x * x))
    y = 0.5 * x * (1 + t)
    if dx is None:
        return y, None
    return y, 0.5 * ((1 + t) + x * (1 - t * t) * k * (1 + 3 * a * x * x)) * dx


def quick_gelu(
    x: Float[Array, "*s"], dx: Float[Array, "*s"] | None
) -> tuple[Float[Array, "*s"], Float[Array, "*s"] | None]:
    """x sigmoid(1.702 x), in OpenAI's CLIP towers, and its tangent; x, dx and the result have one shape.

    ::

        s = sigmoid(1.702 x),  y = x s,  dy = (s + 1.702 x s (1 - s)) dx
    """
    s = jax.nn.sigmoid(1.702 * x)
    return x * s, None if dx is None else (s + 1.702 * x * s * (1 - s)) * dx


def silu(x: Float[Array, "*s"], dx: Float[Array, "*s"] | None) -> tuple[Float[Array, "*s"], Float[Array, "*s"] | None]:
    """x sigmoid(x), the gate of SwiGLU (Shazeer 2020), and its tangent; x, dx and the result have one shape.

    ::

        s = sigmoid(x),  y = x s,  dy = (s + x s (1 - s)) dx
    """
    s = jax.nn.sigmoid(x)
    return x * s, None if dx is None else (s + x * s * (1 - s)) * dx


def relu(
    x: Float[Array, "*s"], dx: Float[Array, "*s"] | None, slope: float = 0.0
) -> tuple[Float[Array, "*s"], Float[Array, "*s"] | None]:
    """max(x, slope x) and its tangent: ReLU, leaky for a slope in (0, 1); x, dx and the result have one shape.

    Linearised ResNets use a leaky one (LQF, Achille et al. 2021).

        y = x where x > 0, else slope x;   dy = dx where x > 0, else slope dx
    """
    gate = jnp.where(x > 0, 1, slope).astype(x.dtype)
    return gate * x, None if dx is None else gate * dx


def softmax(
    s: Float[Array, "*m"], ds: Float[Array, "..."] | None, axis: int = -1
) -> tuple[Float[Array, "*m"], Float[Array, "*m"] | None]:
    """Softmax over an axis and its tangent.

    Source: Liu et al. 2024, Eq. (5); their Phi is our a.

        a  = exp(s) / sum_m exp(s)
        da = a * (ds - sum_m a * ds)

    Args:
        s: Logits, "... m ...", one dtype.
        ds: The tangent of s.
        axis: The axis m.

    Returns:
        (a, da), shape and dtype of s; computed in f32 or wider.

    Guarantees:
        da is linear in ds, and sums to 0 over m.

    Edge cases:
        m = 1 gives a = 1, da = 0; ds = None gives da = None.

    Raises:
        InputError: If shapes or dtypes differ.
    """
    wide = jnp.promote_types(s.dtype, jnp.float32)
    a = jax.nn.softmax(s.astype(wide), axis)
    if ds is None:
        return a.astype(s.dtype), None
    if (s.shape, s.dtype) != (ds.shape, ds.dtype):
        raise InputError(f"ds must have shape {s.shape} and dtype {s.dtype}; got {ds.shape} and {ds.dtype}")
    ds = ds.astype(wide)
    da = a * (ds - jnp.sum(a * ds, axis, keepdims=True))
    return a.astype(s.dtype), da.astype(s.dtype)


ACTIVATIONS: dict[str, Callable[[Array, ArrayTangent], tuple[Array, ArrayTangent]]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
}
"""The activations by name: each a function (x, dx) -> (y, dy)."""
