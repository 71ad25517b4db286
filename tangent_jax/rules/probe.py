"""Probes of a parameter's uses: its tangent enters the network linearly, in one of three ways.

    einsum      y += einsum(spec, x, dW)     kernels
    times       y += x * dg                  gains
    broadcast   y += dbeta                   biases, tokens, positions

A Probe in the place of a parameter's tangent gets a call at each use. Per-example clipping (privacy/) is made of these.
"""

from abc import ABC, abstractmethod

import jax.numpy as jnp
from jax import Array


class Probe(ABC):
    """A value in the place of a parameter's tangent d; each method returns the term that a use of d adds to dy."""

    @abstractmethod
    def einsum(self, spec: str, x: Array) -> Array:
        """The einsum of x and a kernel's tangent."""

    @abstractmethod
    def times(self, x: Array) -> Array:
        """The product of x, "... d", and a gain's tangent, "d"."""

    @abstractmethod
    def broadcast(self, shape: tuple[int, ...]) -> Array:
        """The tangent of a bias, token or position, broadcast to `shape`."""


def einsum(spec: str, x: Array, d: Array | Probe) -> Array:
    """The einsum of x and a kernel's tangent d."""
    return d.einsum(spec, x) if isinstance(d, Probe) else jnp.einsum(spec, x, d)


def times(x: Array, d: Array | Probe) -> Array:
    """The product of x, "... d", and a gain's tangent, "d"."""
    return d.times(x) if isinstance(d, Probe) else x * d


def broadcast(d: Array | Probe, shape: tuple[int, ...]) -> Array:
    """The tangent d of a bias, token or position, broadcast to `shape`."""
    return d.broadcast(shape) if isinstance(d, Probe) else jnp.broadcast_to(d, shape)
