"""Products of J with many steps at once, over all batches in one program, where J is stored (linear/jacobian.py)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.linear.jacobian import Formed, Fresh, Steps, form
from tangent_jax.solver.passes import Part, Summed, products_of, room
from tangent_jax.solver.problem import Problem
from tangent_jax.solver.rows import rows_of
from tangent_jax.train.objective import Objective


@jax.default_matmul_precision("highest")
def form_all(problem: Problem) -> Part | None:
    """All batches with their J formed, stacked along a first axis, so that one program processes them.

    None if that would be more work, or exceed `room()`.
    """
    predict = problem.predict
    if not predict.has_factors:
        return None
    shapes: Any = jax.eval_shape(rows_of, predict, problem.zero, next(iter(problem.fresh())).jacobian.x)
    signals = sum(leaf.s.size for leaf in shapes.leaves.values()) // problem.batches.width
    one_token = all(leaf.x is None or leaf.x.shape[1] == 1 for leaf in shapes.leaves.values())
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)) * problem.batches.steps
    if not one_token or signals > sum(leaf.size for leaf in jax.tree.leaves(problem.zero)) or 2 * needed > room():
        return None
    parts = [part._replace(jacobian=_form(part.jacobian, problem.zero)) for part in problem.fresh()]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)


@jax.jit
def _form(fresh: Fresh, zero: Tree) -> Formed:
    return form(rows_of(fresh.predict, zero, fresh.x))


@partial(jax.jit, donate_argnames="total")
def add_products(
    total: Summed, parts: Part, outputs: Array, q: Tree, v: Array, at_point: Array, objective: Objective
) -> Summed:
    """total + sum_i J_i^T (v_ki P_i J_i q_k + (v_ki - 1) e_i); the last term only at a point; "k" in each leaf.

    Args:
        parts: What `form_all` gives, of n batches; outputs "n b c", v "n k b": as solver/many.py has them.
    """

    def add(sums: tuple[Steps, Array], batch: tuple[Part, Array, Array]) -> tuple[tuple[Steps, Array], None]:
        part, outputs, v = batch
        kernels, others = own = products_of(part, outputs, beside, v, at_point, objective)
        squares = jnp.sum(others**2, 1) + sum(jnp.sum(leaf**2, (0, 1, 3)) for leaf in kernels.values())
        return (trees.plus(sums[0], own), sums[1] + jnp.sqrt(squares)), None

    beside = parts.jacobian.side_by_side(q)
    (sums, norms), _ = jax.lax.scan(add, (jax.tree.map(jnp.zeros_like, beside), total.norms), (parts, outputs, v))
    return total._replace(total=trees.plus(total.total, parts.jacobian.apart(sums, total.total)), norms=norms)
