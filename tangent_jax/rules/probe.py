"""How a parameter's tangent enters the network: linearly, in one of three ways.

    einsum      y += einsum(spec, x, dW)     kernels
    times       y += x * dg                  gains
    broadcast   y += dbeta                   biases, tokens, positions

A Probe in the place of a parameter's tangent is told each use: what per-example clipping (privacy/) is made of.
"""

from abc import ABC, abstractmethod

import jax.numpy as jnp
from jax import Array


class Probe(ABC):
    """Stands for a parameter's tangent; each method returns what the use adds to the tangent it flows into."""

    @abstractmethod
    def einsum(self, spec: str, x: Array) -> Array: ...

    @abstractmethod
    def times(self, x: Array) -> Array: ...

    @abstractmethod
    def broadcast(self, shape: tuple[int, ...]) -> Array: ...


def einsum(spec: str, x: Array, d: Array | Probe) -> Array:
    return d.einsum(spec, x) if isinstance(d, Probe) else jnp.einsum(spec, x, d)


def times(x: Array, d: Array | Probe) -> Array:
    return d.times(x) if isinstance(d, Probe) else x * d


def broadcast(d: Array | Probe, shape: tuple[int, ...]) -> Array:
    return d.broadcast(shape) if isinstance(d, Probe) else jnp.broadcast_to(d, shape)
