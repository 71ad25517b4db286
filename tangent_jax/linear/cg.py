"""Preconditioned conjugate gradients: solves A x = b for a symmetric positive A, given by its products A p.

    x* = argmin f,   f(x) = <x, A x> / 2 - <b, x>,   gradient A x - b = -r,   r the residual

Each step minimises f along a direction p, and makes the next direction conjugate to all earlier ones, <p, A p'> = 0. So
a system of n numbers takes at most n steps. A symmetric positive matrix M near A^-1 reduces their number: the steps are
those of M^(1/2) A M^(1/2), whose eigenvalues are close together.

    alpha = <r, z> / <p, A p>       x <- x + alpha p
                                    r <- r - alpha A p
                                    z <- M r
    beta  = <r, z> / <r, z> before  p <- z + beta p

Source: Hestenes and Stiefel 1952; Saad 2003, algorithm 9.1. Vectors are trees. The functions treat one right-hand side;
for k of them use `jax.vmap(step, (0, 0, None, 0))`: each leaf of a state then has k as its first axis, and one pass
over the data gives k products. A is not checked: if it is not positive, the result is meaningless.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core import trees
from tangent_jax.core.notation import Tree


@runtime_checkable
class Preconditioner(Protocol):
    """M, a pytree, which compiled programs take as data."""

    def times(self, v: Tree) -> Tree:
        """M v."""
        ...


class State(NamedTuple):
    """The iterate x, its residual r = b - A x, the direction p, and rz = <r, M r>."""

    x: Tree
    r: Tree
    p: Tree
    rz: Float[Array, ""]


@jax.jit
def init(gradient: Tree, m: Preconditioner | None = None) -> State:
    """The state at x = 0, where the gradient is -b; m: M, None for the identity."""
    r = jax.tree.map(jnp.negative, gradient)
    z = precondition(m, r)
    return State(jax.tree.map(jnp.zeros_like, r), r, z, trees.vdot(r, z))


@partial(jax.jit, donate_argnames="state")
def step(state: State, product: Tree, m: Preconditioner | None = None, restart: Any = False) -> State:
    """The state after one step; product: A p.

    Args:
        restart: If True, `product` is the gradient A x - b instead: x stays, r loses the rounding errors of earlier
            steps, and the directions start over.

    Edge cases:
        If r is 0, as for a right-hand side of 0, nothing changes.
    """
    alpha = jnp.where(restart, 0, ratio(state.rz, trees.vdot(state.p, product)))
    x, r = trees.along(state.x, alpha, state.p), trees.along(state.r, -alpha, product)
    r = jax.tree.map(lambda r, gradient: jnp.where(restart, -gradient, r), r, product)
    z = precondition(m, r)
    rz = trees.vdot(r, z)
    beta = jnp.where(restart, 0, ratio(rz, state.rz))
    return State(x, r, trees.along(z, beta, state.p), rz)


def precondition(m: Preconditioner | None, r: Tree) -> Tree:
    """z = M r; without M a copy of r, as a state may be donated."""
    return jax.tree.map(jnp.copy, r) if m is None else m.times(r)


def ratio(a: Float[Array, ""], b: Float[Array, ""]) -> Float[Array, ""]:
    """a / b, and 0 if b is 0."""
    return jnp.where(b == 0, 0, a / b)


def solve(
    times: Callable[[Tree], Tree], b: Tree, m: Preconditioner | None = None, *, tolerance: float, steps: int
) -> Tree:
    """x with |b - A x| <= tolerance |b|, or after this many steps; times: p -> A p."""
    state, largest = init(trees.scale(-1.0, b), m), tolerance * trees.norm(b)
    for _ in range(steps):
        if trees.norm(state.r) <= largest:
            break
        state = step(state, times(state.p), m)
    return state.x
