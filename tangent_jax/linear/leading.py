"""Approximate leading eigenvectors of a matrix A, which correct an approximate solution.

    A delta = b,   r = b - A delta:    delta + W c,   c = (W^T A W)^-1 W^T r    leaves   r - A W c

|r| / Lambda bounds the error of delta. A few directions dominate r, those of A's largest eigenvalues, although the
error there is small; the correction removes them. W comes from one step of subspace iteration on random numbers (Halko,
Martinsson and Tropp 2011), which takes two products of A with as many steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core import trees
from tangent_jax.core.notation import Tree

SMALLEST = 1e-6  # share of the largest eigenvalue; in f32 smaller ones are rounding errors


class Leading(NamedTuple):
    """W and A W as steps, "k ..." in each leaf, and (W^T A W)^-1."""

    w: Tree
    a: Tree
    inverse: Float[Array, "k k"]

    def correction(self, r: Tree) -> tuple[Tree, Tree]:
        """(W c, A W c) of a residual."""
        c = self.inverse @ jax.vmap(trees.vdot, (0, None))(self.w, r)
        return combine(c, self.w), combine(c, self.a)


def leading(product: Callable[[Tree], Tree], shift: float | Float[Array, ""], like: Tree) -> Leading:
    """W of the leading eigenvectors of A; product: A q of steps "k ..." such as `like`; shift: A's least eigenvalue."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    random = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    q = jax.tree.unflatten(structure, random)
    w = _orthonormal(product(q), q, shift)
    return _leading(w, product(w))


@jax.jit
def _orthonormal(a: Tree, q: Tree, shift: float | Array) -> Tree:
    """Orthonormal steps that span A q - shift q; zeros if that has fewer dimensions."""
    spanned = jax.tree.map(lambda a, q: a - shift * q, a, q)
    values, vectors = jnp.linalg.eigh(_products(spanned, spanned))
    scale = jnp.where(values > SMALLEST * values[-1], jax.lax.rsqrt(jnp.abs(values)), 0)
    return combine((vectors * scale).T, spanned)


@jax.jit
def _leading(w: Tree, a: Tree) -> Leading:
    values, vectors = jnp.linalg.eigh(_products(w, a))
    inverse = jnp.where(values > SMALLEST * values[-1], 1 / values, 0)
    return Leading(w, a, (vectors * inverse) @ vectors.T)


def _products(a: Tree, b: Tree) -> Array:
    """<a_j, b_k>, "j k"."""
    return jax.vmap(lambda q: jax.vmap(trees.vdot, (None, 0))(q, b))(a)


def combine(c: Float[Array, "... k"], steps: Tree) -> Tree:
    """sum_k c_k steps_k; for c "j k", j such sums."""
    return jax.tree.map(lambda leaf: jnp.tensordot(c, leaf, 1), steps)
