"""GELU, exact, tanh and quick, ReLU, and their tangents.

    y = x CDF(x),   dy = (CDF(x) + x PDF(x)) dx

Source: Liu et al. 2024, the tangent of GELU. Misprint there: the derivative is GELU(x)/x + x PDF(x), not
"+ x CDF(x)"; written with the CDF it needs no limit at x = 0, where it is 1/2.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Tangent


def gelu(x: Array, dx: Tangent) -> tuple[Array, Tangent]:
    """x CDF(x) of the standard normal, and its tangent.

    Args:       x, dx: any shape.
    Returns:    (y, dy), shape and dtype of x.
    Guarantees: dy is linear in dx.
    Edge cases: at x = 0, y = 0 and dy = dx / 2.
    """
    cdf = 0.5 * jax.lax.erfc(-x * 0.5**0.5)
    if dx is None:
        return x * cdf, None
    pdf = jnp.exp(-0.5 * x * x) * (2 * jnp.pi) ** -0.5
    return x * cdf, (cdf + x * pdf) * dx


def gelu_tanh(x: Array, dx: Tangent) -> tuple[Array, Tangent]:
    """The tanh approximation (Google's ViT code) and its tangent.

    t = tanh(k (x + a x^3)),  k = sqrt(2/pi),  a = 0.044715
    y = x (1 + t) / 2,        dy = ((1 + t) / 2 + x (1 - t^2) k (1 + 3 a x^2) / 2) dx
    """
    k, a = (2 / jnp.pi) ** 0.5, 0.044715
    t = jnp.tanh(k * (x + a * x * x * x))
    y = 0.5 * x * (1 + t)
    if dx is None:
        return y, None
    return y, 0.5 * ((1 + t) + x * (1 - t * t) * k * (1 + 3 * a * x * x)) * dx


def quick_gelu(x: Array, dx: Tangent) -> tuple[Array, Tangent]:
    """x sigmoid(1.702 x) (OpenAI's CLIP towers) and its tangent.

    s = sigmoid(1.702 x),  y = x s,  dy = (s + 1.702 x s (1 - s)) dx
    """
    s = jax.nn.sigmoid(1.702 * x)
    return x * s, None if dx is None else (s + 1.702 * x * s * (1 - s)) * dx


def relu(x: Array, dx: Tangent, slope: float = 0.0) -> tuple[Array, Tangent]:
    """max(x, slope x): ReLU, leaky for a slope in (0, 1), as linearised ResNets use it (LQF, Achille et al. 2021).

    y = x where x > 0, else slope x;   dy = dx where x > 0, else slope dx
    """
    gate = jnp.where(x > 0, 1, slope).astype(x.dtype)
    return gate * x, None if dx is None else gate * dx


ACTIVATIONS: dict[str, Callable[[Array, Tangent], tuple[Array, Tangent]]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
}
