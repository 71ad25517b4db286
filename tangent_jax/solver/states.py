"""Conjugate gradients of k problems side by side: what one pass of `solve_many` computes of each."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Tree, trees
from tangent_jax.solver import passes
from tangent_jax.solver.curvature import Inverse
from tangent_jax.solver.leading import Leading
from tangent_jax.solver.passes import Part, Summed
from tangent_jax.train.objective import Objective


class State(NamedTuple):
    """Conjugate gradients of k problems: every leaf has them as its first axis, `rz` is "k".

    `delta`, `r`, `p`: the iterate, its residual, the direction.
    """

    delta: Tree
    r: Tree
    p: Tree
    rz: Array


def empty(base: Tree, count: int) -> State:
    """The state of `count` problems without any."""
    delta, r, p = (jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), base) for _ in range(3))
    return State(delta, r, p, jnp.zeros(count))


@partial(jax.jit, donate_argnames="state")
def begin(state: State, k: Any, base: Tree, start: Tree) -> State:
    """The state with a new problem in the k-th place, at a start whose gradient the next pass computes."""
    delta = jax.tree.map(lambda a, b, s: a.at[k].set(s - b), state.delta, base, start)
    r, p = (jax.tree.map(lambda a: a.at[k].set(0), tree) for tree in (state.r, state.p))
    return state._replace(delta=delta, r=r, p=p)


@partial(jax.jit, donate_argnames="state")
def begin_at_base(state: State, k: Any, gradient: Tree, inverse: Inverse | None) -> tuple[State, Array]:
    """The state with a new problem in the k-th place, at the base, where its gradient is "1 ..."; and |r|."""
    r = jax.tree.map(lambda g: -g[0], gradient)
    z = r if inverse is None else inverse.times(r)
    own = State(jax.tree.map(jnp.zeros_like, r), r, z, trees.vdot(r, z))
    return jax.tree.map(lambda a, new: a.at[k].set(new), state, own), passes.norm_of(r)


@jax.jit
def result(base: Tree, delta: Tree, k: Any) -> Tree:
    """base + delta_k."""
    return jax.tree.map(lambda leaf, d: leaf + d[k], base, delta)


@partial(jax.jit, donate_argnames="state")
def operands(
    state: State, gradient: Summed, at_point: Array, total_penalty: Any, leading: Leading
) -> tuple[State, Tree, Summed]:
    """(the state, corrected at a point; q, with which A is multiplied: delta there, else the direction; what the pass's
    sum begins with)."""

    def corrected(delta: Tree, r: Tree, at: Array) -> Tree:
        return passes.along(delta, jnp.where(at, 1, 0), leading.correction(r)[0])

    def own(delta: Tree, p: Tree, at: Array) -> tuple[Tree, Summed]:
        q = jax.tree.map(partial(jnp.where, at), delta, p)
        ridge = jax.tree.map(lambda leaf: total_penalty * leaf, q)
        begun = jax.tree.map(lambda leaf, g: leaf + jnp.where(at, g, 0), ridge, gradient.total)
        return q, Summed(begun, passes.norm_of(ridge) + jnp.where(at, gradient.norms, 0))

    given = state.delta, state.r, at_point
    delta = jax.lax.cond(at_point.any(), jax.vmap(corrected), lambda delta, *_: delta, *given)
    q, total = jax.vmap(own)(delta, state.p, at_point)
    return state._replace(delta=delta), q, total


@partial(jax.jit, donate_argnames="total")
def add_products(
    total: Summed, part: Part, zero: Tree, outputs: Array, q: Tree, v: Array, at_point: Array, objective: Objective
) -> Summed:
    """total + sum_i J_i^T (v_ki P_i J_i q_k + (v_ki - 1) e_i), the last term at a point alone; "k" in each leaf."""
    forward = part.linear.at(zero)[1]
    changes = jax.vmap(forward, out_axes=2)(q)
    bent = passes.bent_of(part, outputs, changes, v, at_point, objective)
    return jax.vmap(Summed.plus)(total, jax.vmap(jax.linear_transpose(forward, zero), 2)(bent)[0])


@partial(jax.jit, donate_argnames="state")
def advance(
    state: State, total: Tree, at_point: Array, inverse: Inverse | None, leading: Leading, changed: Any
) -> tuple[State, Array]:
    """The state after a pass, and |r|, "k": at a point r = -total, and a first direction; else a step of conjugate
    gradients, and |r| as it will be once it is corrected: by A where A_k should be, of which a part is left that is as
    large as the mean change of an example's weight, `changed`, "k".
    """

    def own(state: State, total: Tree, at: Array, changed: Array) -> tuple[State, Array]:
        bent = trees.vdot(state.p, total)
        t = jnp.where(at | (bent == 0), 0, state.rz / bent)  # 0 where a place is empty, or r is 0
        delta, before = passes.along(state.delta, t, state.p), passes.along(state.r, -t, total)
        r = jax.tree.map(partial(jnp.where, at), jax.tree.map(jnp.negative, total), before)
        z = r if inverse is None else inverse.times(r)
        rz = trees.vdot(r, z)
        p = passes.along(z, jnp.where(at | (state.rz == 0), 0, rz / state.rz), state.p)
        left = passes.along(r, jnp.where(at, 0, changed - 1), leading.correction(r)[1])
        return State(delta, r, p, rz), passes.norm_of(left)

    return jax.vmap(own)(state, total, at_point, jnp.asarray(changed, state.rz.dtype))
