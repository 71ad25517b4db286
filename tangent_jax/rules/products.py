"""Products and sums, the parts of a dense layer.

y  = x W + b
dy = dx W + x dW + db          (Liu et al. 2024, the linear layer, with its bias)
"""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from tangent_jax.core.notation import ArrayTangent, Dual
from tangent_jax.rules import probe


def total(*terms: ArrayTangent) -> ArrayTangent:
    """The sum of tangents of one shape; structural zeros (None) add nothing, and only zeros sum to None."""
    present = [term for term in terms if term is not None]
    return sum(present[1:], start=present[0]) if present else None


def contract(
    spec: str,
    x: Float[Array | np.ndarray, "*x"],
    dx: Float[Array, "*x"] | None,
    y: Float[Array | np.ndarray, "*y"],
    dy: Float[Array | np.ndarray, "*y"] | probe.Probe | None,
) -> tuple[Float[Array, "*z"], Float[Array, "*z"] | None]:
    """The einsum of two operands and its tangent, by the product rule.

        z  = x . y
        dz = dx . y + x . dy

    Args:
        spec: The einsum.
        x, y: Operands.
        dx, dy: Their tangents or None.

    Returns:
        (z, dz).

    Guarantees:
        dz is linear in (dx, dy) together; a None costs no product.
    """
    x = jnp.asarray(x)
    return jnp.einsum(spec, x, y), total(
        None if dx is None else jnp.einsum(spec, dx, y), None if dy is None else probe.einsum(spec, x, dy)
    )


def bilinear(
    product: Callable[[Array, Array], Array],
    x: Float[Array, "*x"],
    dx: Float[Array, "*x"] | None,
    y: Float[Array, "*y"],
    dy: Float[Array, "*y"] | None,
) -> tuple[Float[Array, "*z"], Float[Array, "*z"] | None]:
    """Any product of two operands, linear in each, and its tangent: dz = product(dx, y) + product(x, dy).

    Neither operand is a parameter: for parameters, `contract` and `scale` record the use.
    """
    return product(x, y), total(None if dx is None else product(dx, y), None if dy is None else product(x, dy))


def shift(
    d: Float[Array | np.ndarray, "..."] | probe.Probe | None,
    y: Float[Array, "*y"],
    beside: Float[Array | np.ndarray, "..."] | probe.Probe | None = None,
) -> Float[Array, "*y"] | None:
    """The tangent, in y's shape, of adding a bias, token or position with tangent d; beside: its kernel's tangent."""
    return None if d is None else probe.broadcast(d, y.shape, y.dtype, beside)


def scale(
    x: Float[Array, "*b d"], dx: Float[Array, "*b d"] | None, factor: Dual
) -> tuple[Float[Array, "*b d"], Float[Array, "*b d"] | None]:
    """Elementwise product of x, "... d", with a parameter, "d", and its tangent: LayerScale, the gain of a norm.

    ::

        y = g x,   dy = g dx + dg x
    """
    g, dg = factor
    return g * x, total(None if dx is None else g * dx, None if dg is None else probe.times(x, dg))


def dense(
    x: Float[Array | np.ndarray, "..."],
    dx: Float[Array, "..."] | None,
    leaf: Mapping[str, Dual],
    spec: str = "...d,df->...f",
) -> tuple[Float[Array, "..."], Float[Array, "..."] | None]:
    """A dense layer and its tangent.

    Source: Liu et al. 2024, the tangent of a linear layer.

        y  = x W + b
        dy = dx W + x dW + db

    Args:
        x: Input, "... d".
        dx: The tangent of x.
        leaf: {"kernel": (W, dW), "d f", "bias": (b, db), "f"}.
        spec: Which axes of W are summed (heads have two).

    Returns:
        (y, dy), "... f".

    Guarantees:
        dy is linear in (dx, dW, db) together.

    Edge cases:
        dx, dW and db all None give dy = None: a frozen prefix costs nothing.
    """
    kernel, bias = leaf["kernel"], leaf["bias"]
    y, dy = contract(spec, x, dx, *kernel)
    return y + bias.primal, total(dy, shift(bias.tangent, y, kernel.tangent))
