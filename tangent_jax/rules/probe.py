"""Probes of a parameter's uses: its tangent enters the network linearly, in one of three ways.

    einsum      y += einsum(spec, x, dW)     kernels
    times       y += x * dg                  gains
    broadcast   y += dbeta                   biases, tokens, positions

A Probe replaces a parameter's tangent and is called at each use. Per-example clipping (privacy/) is built on this.

The transpose of each use is a sum over examples and tokens. In a network that computes in half precision, the tangents
of its parameters stay in f32, and so do these sums; only values that pass between layers are rounded to half precision.
"""

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import DotAlgorithmPreset
from jaxtyping import Float

ALGORITHMS = {"bfloat16": DotAlgorithmPreset.BF16_BF16_F32}


class Probe(ABC):
    """Replaces a parameter's tangent d; each method returns the term that a use of d adds to dy."""

    @abstractmethod
    def einsum(self, spec: str, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The einsum of x and a kernel's tangent."""

    @abstractmethod
    def times(self, x: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """The product of x and a gain's tangent, of its last axes."""

    @abstractmethod
    def broadcast(self, shape: tuple[Any, ...], beside: Any = None) -> Float[Array, "..."]:
        """The tangent of a bias, token or position, broadcast to `shape`; `beside`: its kernel's, of one layer."""


def einsum(spec: str, x: Float[Array, "..."], d: Float[Array | np.ndarray, "..."] | Probe) -> Float[Array, "..."]:
    """The einsum of x and a kernel's tangent d, in the dtype of x."""
    if isinstance(d, Probe):
        return d.einsum(spec, x)
    if d.dtype == x.dtype:
        return jnp.einsum(spec, x, d)
    kept_in_half = jax.checkpoint(partial(product, spec), prevent_cse=False)  # keeps x itself, not a copy in f32
    return kept_in_half(x, d).astype(x.dtype)


def times(x: Float[Array, "*b"], d: Float[Array | np.ndarray, "..."] | Probe) -> Float[Array, "*b"]:
    """The product of x and a gain's tangent, in the dtype of x."""
    return d.times(x) if isinstance(d, Probe) else (widen(x) * d).astype(x.dtype)


def broadcast(
    d: Float[Array | np.ndarray, "..."] | Probe, shape: tuple[Any, ...], dtype: Any, beside: Any = None
) -> Float[Array, "..."]:
    """The tangent d of a bias, token or position, broadcast to `shape`, in `dtype`.

    Args:
        beside: The tangent of W for a layer x W + b, else None; a probe treats both as one block.
    """
    return (d.broadcast(shape, beside) if isinstance(d, Probe) else jnp.broadcast_to(d, shape)).astype(dtype)


def widen(a: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """The array in f32 or wider, as a sum needs it."""
    return a.astype(jnp.promote_types(a.dtype, jnp.float32))


def product(spec: str, a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """The einsum of a and b, multiplied in the dtype of a and summed in f32 or wider; so is its transpose.

    The operands are f32, with an algorithm that multiplies in half precision: one form for all platforms. XLA's CPU
    compiler refuses this algorithm for scaled vectors and inner products; these and their transposes use f32.
    """
    algorithm = None if is_thin(spec, a, b) else ALGORITHMS.get(str(a.dtype))
    return jnp.einsum(spec, widen(a), widen(b), precision=algorithm)


def is_thin(spec: str, a: Float[Array, "..."], b: Float[Array, "..."]) -> bool:
    """True for one matrix product with two of three sizes equal to 1: rows of a, columns of b, the summed axis.

    Its transposes have the same three sizes in another order.
    """
    operands, out = spec.split("->")
    left, right = operands.split(",")
    sizes = dict(zip(right, b.shape, strict=True))
    shared = [axis for axis in right if axis in left]
    columns = b.size // math.prod(sizes[axis] for axis in shared)
    rows = a.size * columns // b.size
    batch, summed = (math.prod(sizes[axis] for axis in shared if (axis in out) == stays) for stays in (True, False))
    return batch == 1 and (rows, columns, summed).count(1) >= 2
