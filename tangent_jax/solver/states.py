"""Conjugate gradients of k problems together: the computations of one pass of `solve_many`.

A step is that of linear/cg.py, under vmap. In addition a problem can enter a slot (`begin`), restart at a point, where
its pass is a gradient, and be corrected there along the leading eigenvectors (linear/leading.py).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.linear import cg
from tangent_jax.linear.leading import Leading
from tangent_jax.solver import passes
from tangent_jax.solver.curvature import Inverse
from tangent_jax.solver.passes import Part, Summed
from tangent_jax.train.objective import Objective


def empty(base: Tree, count: int) -> cg.State:
    """The state with `count` empty slots; x is delta."""
    x, r, p = (jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), base) for _ in range(3))
    return cg.State(x, r, p, jnp.zeros(count))


@partial(jax.jit, donate_argnames="state")
def begin(state: cg.State, k: Any, base: Tree, start: Tree) -> cg.State:
    """The state with a new problem in slot k, at a start whose gradient the next pass computes."""
    x = jax.tree.map(lambda a, b, s: a.at[k].set(s - b), state.x, base, start)
    r, p = (jax.tree.map(lambda a: a.at[k].set(0), tree) for tree in (state.r, state.p))
    return state._replace(x=x, r=r, p=p)


@partial(jax.jit, donate_argnames="state")
def begin_at_base(state: cg.State, k: Any, gradient: Tree, inverse: Inverse | None) -> tuple[cg.State, Array]:
    """(the state with a new problem in slot k, at the base with the gradient "1 ..."; |r|)."""
    own = cg.init(jax.tree.map(lambda g: g[0], gradient), inverse)
    return jax.tree.map(lambda a, new: a.at[k].set(new), state, own), trees.norm(own.r)


@jax.jit
def result(base: Tree, delta: Tree, k: Any) -> Tree:
    """base + delta_k."""
    return jax.tree.map(lambda leaf, d: leaf + d[k], base, delta)


@partial(jax.jit, donate_argnames="state")
def operands(
    state: cg.State, gradient: Summed, at_point: Array, total_penalty: Any, leading: Leading
) -> tuple[cg.State, Tree, Summed]:
    """(the state, corrected if at a point; q, which the pass multiplies with A; the first term of the pass's sum).

    q is delta at a point, else the direction.
    """

    def corrected(x: Tree, r: Tree, at: Array) -> Tree:
        return trees.along(x, jnp.where(at, 1, 0), leading.correction(r)[0])

    def own(x: Tree, p: Tree, at: Array) -> tuple[Tree, Summed]:
        q = jax.tree.map(partial(jnp.where, at), x, p)
        ridge = jax.tree.map(lambda leaf: total_penalty * leaf, q)
        begun = jax.tree.map(lambda leaf, g: leaf + jnp.where(at, g, 0), ridge, gradient.total)
        norms, sizes = (jnp.where(at, each, 0) for each in (gradient.norms, gradient.sizes))
        return q, Summed(begun, trees.norm(ridge) + norms, sizes)

    x = jax.lax.cond(at_point.any(), jax.vmap(corrected), lambda x, *_: x, state.x, state.r, at_point)
    q, total = jax.vmap(own)(x, state.p, at_point)
    return state._replace(x=x), q, total


@partial(jax.jit, donate_argnames="total")
def add_products(
    total: Summed, part: Part, outputs: Array, q: Tree, v: Array, at_point: Array, objective: Objective
) -> Summed:
    """total + sum_i J_i^T (v_ki P_i J_i q_k + (v_ki - 1) e_i); the last term only at a point; "k" in each leaf."""
    own = passes.products_of(part, outputs, part.jacobian.side_by_side(q), v, at_point, objective)
    return jax.vmap(Summed.plus)(total, part.jacobian.apart(own, q))


@partial(jax.jit, donate_argnames="state")
def advance(
    state: cg.State, total: Tree, at_point: Array, inverse: Inverse | None, leading: Leading, changed: Any
) -> tuple[cg.State, Array]:
    """The state after a pass, and |r|, "k".

    At a point: a restart from the gradient `total`. Else: a step of conjugate gradients, and |r| as predicted after the
    correction. The correction uses A instead of A_k; the remaining part is as large as the mean change of an example's
    weight, `changed`, "k".
    """

    def left(r: Tree, at: Array, changed: Array) -> Array:
        return trees.norm(trees.along(r, jnp.where(at, 0, changed - 1), leading.correction(r)[1]))

    state = jax.vmap(cg.step, (0, 0, None, 0))(state, total, inverse, at_point)
    return state, jax.vmap(left)(state.r, at_point, jnp.asarray(changed, state.rz.dtype))
