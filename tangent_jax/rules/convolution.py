"""Convolution, frozen batch norm and pooling: the parts of a residual network besides its dense layer.

    y = conv(x, W)              dy = conv(dx, W) + patches(x) . dW
    y = g x^ + beta             dy = g dx^ + dg x^ + dbeta,        x^ = (x - mean) / sqrt(var + eps)
    y = x at its window's max   dy = dx there

Images are "b y x c", kernels "i j c d" (rows, columns, input and output channels). Source: the linear layer of Liu et
al. 2024, with a sum over a window instead of inputs; batch norm with fixed statistics as in LQF (Achille et al. 2021).
The product with dW is written over patches, so that a Probe receives them.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from tangent_jax.core.notation import Dual
from tangent_jax.rules import probe
from tangent_jax.rules.products import scale, shift, total

PATCHES = "byxijc,ijcd->byxd"


def conv(
    x: Float[Array | np.ndarray, "b y x c"], dx: Float[Array, "b y x c"] | None, kernel: Dual, stride: int = 1
) -> tuple[Float[Array, "b _ _ d"], Float[Array, "b _ _ d"] | None]:
    """A convolution without bias and its tangent; PyTorch's padding of half the window on each side.

    Args:
        x: "b y x c".
        dx: The tangent of x.
        kernel: (W, dW), "i j c d" of one odd size i = j.
        stride: In pixels.

    Returns:
        (y, dy), "b y' x' d", y' = ceil(y / stride).

    Guarantees:
        dy is linear in (dx, dW) together; a None costs no product.

    Edge cases:
        A window of 1 is a dense layer on every stride-th pixel.
    """
    x = jnp.asarray(x)
    w, dw = kernel
    sides = [(w.shape[0] // 2, w.shape[0] // 2)] * 2

    def over_patches(x: Array, w: Array) -> Array:
        return jnp.einsum(PATCHES, patches(x, w.shape[0], stride), w)

    def by_xla(x: Array, w: Array) -> Array:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def convolved(x: Array) -> Array:  # on a CPU XLA's own convolution, inside a loop, was 27 times slower (jax 0.10.2)
        return jax.lax.platform_dependent(x, w, cpu=over_patches, default=by_xla)

    from_kernel = None if dw is None else probe.einsum(PATCHES, patches(x, w.shape[0], stride), dw)
    return convolved(x), total(None if dx is None else convolved(dx), from_kernel)


def batch_norm(
    x: Float[Array, "*b c"], dx: Float[Array, "*b c"] | None, leaf: Mapping[str, Dual], eps: float
) -> tuple[Float[Array, "*b c"], Float[Array, "*b c"] | None]:
    """Batch norm with fixed statistics, and its tangent.

    Args:
        x: "... c".
        dx: The tangent of x.
        leaf: {"scale": (g, dg), "bias": (beta, dbeta), "mean", "var"}, each "c"; no tangent of the statistics is read.

    Returns:
        (y, dy), "... c".

    Guarantees:
        dy is linear in (dx, dg, dbeta) together.
    """
    inverse = jax.lax.rsqrt(leaf["var"].primal + eps)
    x_hat = (x - leaf["mean"].primal) * inverse
    y, dy = scale(x_hat, None if dx is None else dx * inverse, leaf["scale"])
    beta, dbeta = leaf["bias"]
    return y + beta, total(dy, shift(dbeta, y))


def max_pool(
    x: Float[Array, "b y x c"], dx: Float[Array, "b y x c"] | None
) -> tuple[Float[Array, "b _ _ c"], Float[Array, "b _ _ c"] | None]:
    """The largest value of each window of 3 x 3, at every second pixel, and its tangent, channel by channel.

    Args:
        x: "b y x c".
        dx: The tangent of x.

    Returns:
        (y, dy), "b y' x' c".

    Edge cases:
        Of equal values the first one in reading order passes its tangent; padding never does.
    """
    (y, *others), dxs = windows(x, 3, 2, -jnp.inf), [] if dx is None else windows(dx, 3, 2)
    dy = dxs.pop(0) if dxs else None
    for i, value in enumerate(others):
        dy = None if dy is None else jnp.where(value > y, dxs[i], dy)
        y = jnp.maximum(y, value)
    return y, dy


def mean_pool(
    x: Float[Array, "b y x c"], dx: Float[Array, "b y x c"] | None
) -> tuple[Float[Array, "b c"], Float[Array, "b c"] | None]:
    """The mean of "b y x c" over all pixels, "b c", and its tangent."""
    return jnp.mean(x, (1, 2)), None if dx is None else jnp.mean(dx, (1, 2))


def patches(x: Float[Array | np.ndarray, "b y x c"], size: int, stride: int) -> Float[Array, "b _ _ i i c"]:
    """The window of "b y x c" that each output pixel of a convolution reads, "b y' x' i j c"."""
    return jnp.stack(windows(x, size, stride), 3).reshape(x.shape[0], *size_after(x, stride), size, size, x.shape[-1])


def windows(
    x: Float[Array | np.ndarray, "b y x c"], size: int, stride: int, padding: float = 0.0
) -> list[Float[Array, "b _ _ c"]]:
    """For each place of a window, in reading order, the pixel there, "b y' x' c"."""
    half, (high, wide) = size // 2, size_after(x, stride)
    padded = jnp.pad(x, ((0, 0), (half, half), (half, half), (0, 0)), constant_values=padding)
    rows, columns = stride * (high - 1) + 1, stride * (wide - 1) + 1
    places = [(i, j) for i in range(size) for j in range(size)]
    return [padded[:, i : i + rows : stride, j : j + columns : stride] for i, j in places]


def size_after(x: Float[Array | np.ndarray, "b y x c"], stride: int) -> tuple[int, int]:
    """Rows and columns after a stride."""
    return -(-x.shape[1] // stride), -(-x.shape[2] // stride)
