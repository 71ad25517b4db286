"""J of a batch as inputs and signals, for products with many steps at once.

    J q_k = sum over kernels  s_ic . (x_i Q_k)  +  sum over gains, biases  g_ic . q_k,    k = 1, 2, ...

`passes.Kept` multiplies by the network's weights at each product, one step at a time. Here the steps stand side by
side, so that a kernel's products with all of them are one of two matrices, and the weights are in the signals. That is
less work where a kernel reads one token and an example has fewer signals than dw has numbers: a ViT's last block, read
by the class query, with few classes.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Tree, trees
from tangent_jax.models.predict import Predictor
from tangent_jax.models.signals import Layout
from tangent_jax.solver.jacobian import Part as Leaf
from tangent_jax.solver.jacobian import rows_of
from tangent_jax.solver.passes import Fresh, Part, Summed, bent_of, room
from tangent_jax.solver.problem import Problem
from tangent_jax.train.objective import Objective

Steps = tuple[dict[str, Array], Array]
"""Steps side by side: of each kernel "h i k o", of all other leaves together "k p"."""


@partial(jax.tree_util.register_dataclass, data_fields=["kernels", "others"], meta_fields=["layouts", "paths"])
@dataclasses.dataclass(frozen=True)
class Formed:
    """J of a batch: of each kernel the inputs "b h i" and signals "b c h o", of all other leaves the rows "b c p".

    `layouts`: of the kernels; `paths`: the other leaves, in the order of p.
    """

    kernels: dict[str, tuple[Array, Array]]
    others: Array
    layouts: tuple[tuple[str, Layout], ...]
    paths: tuple[str, ...]

    def side_by_side(self, steps: Tree) -> Steps:
        """Steps with k as the first axis of each leaf; a leaf that reaches no output is left out."""
        leaves = trees.leaves(steps)
        kernels = {path: jax.vmap(axes.blocks, out_axes=2)(leaves[path]) for path, axes in self.layouts}
        others = [jnp.reshape(leaves[path], (len(leaves[path]), -1)) for path in self.paths]
        count = len(jax.tree.leaves(steps)[0])
        return kernels, jnp.concatenate([jnp.zeros((count, 0), self.others.dtype), *others], 1)

    def apart(self, steps: Steps, like: Tree) -> Tree:
        """`side_by_side` undone; like: steps of these shapes. A leaf that reaches no output is 0."""
        leaves, (kernels, others), at = trees.leaves(like), steps, 0
        apart = {path: jnp.zeros_like(leaf) for path, leaf in leaves.items()}
        for path, axes in self.layouts:
            apart[path] = jax.vmap(lambda a, axes=axes, of=leaves[path][0]: axes.kernel(a, of.shape), 2)(kernels[path])
        for path in self.paths:
            size = leaves[path][0].size
            apart[path] = others[:, at : at + size].reshape(leaves[path].shape)
            at += size
        return jax.tree.unflatten(jax.tree.structure(like), [apart[path] for path in leaves])

    def times(self, steps: Steps) -> Array:
        """J q of every step, "b c k"."""
        kernels, others = steps
        changes = jnp.einsum("bcp,kp->bck", self.others, others)
        for path, (x, s) in self.kernels.items():
            for head, q in enumerate(kernels[path]):  # x Q as one matrix product of all steps
                y = jnp.einsum("bi,ip->bp", x[:, head], q.reshape(len(q), -1)).reshape(len(x), *q.shape[1:])
                changes += jnp.einsum("bco,bko->bck", s[:, :, head], y)
        return changes


def formed(problem: Problem) -> Part | None:
    """All batches with their J formed, one after another along a first axis: so that one program can go through them.

    None where that would be more work, or take more than `room()`.
    """
    predict = problem.predict
    if not isinstance(predict, Predictor) or predict.model.dual is None:
        return None
    shapes: Any = jax.eval_shape(rows_of, predict, next(iter(problem.fresh())).linear.x)
    signals = sum(leaf.s.size for leaf in shapes[1].values()) // problem.batches.width
    one_token = all(leaf.x is None or leaf.x.shape[1] == 1 for leaf in shapes[1].values())
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)) * problem.batches.steps
    if not one_token or signals > predict.subset.size or 2 * needed > room():
        return None
    parts = [part._replace(linear=_formed(part.linear)) for part in problem.fresh()]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)


@jax.jit
def _formed(linear: Fresh) -> Formed:
    assert isinstance(linear.predict, Predictor)
    outputs, leaves = rows_of(linear.predict, linear.x)
    kernels: dict[str, Leaf] = {path: leaf for path, leaf in leaves.items() if leaf.layout is not None}
    paths = tuple(path for path in leaves if path not in kernels)
    return Formed(
        {path: (leaf.x[:, 0], leaf.s[:, :, 0]) for path, leaf in kernels.items()},
        jnp.concatenate([jnp.zeros((*outputs.shape, 0), outputs.dtype), *[leaves[path].s for path in paths]], 2),
        tuple((path, leaf.layout) for path, leaf in kernels.items() if leaf.layout is not None),
        paths,
    )


@partial(jax.jit, donate_argnames="total")
def add_products(
    total: Summed, parts: Part, outputs: Array, q: Tree, v: Array, at_point: Array, objective: Objective
) -> Summed:
    """total + sum_i J_i^T (v_ki P_i J_i q_k + (v_ki - 1) e_i), the last term at a point alone; "k" in each leaf.

    parts: what `formed` gives, of n batches; outputs "n b c", v "n k b": as solver/many.py has them.
    """

    def add(sums: tuple[Steps, Array], batch: tuple[Part, Array, Array]) -> tuple[tuple[Steps, Array], None]:
        part, outputs, v = batch
        bent = bent_of(part, outputs, part.linear.times(beside), v, at_point, objective)
        kernels, others = own = jax.linear_transpose(part.linear.times, beside)(bent)[0]
        squares = jnp.sum(others**2, 1) + sum(jnp.sum(leaf**2, (0, 1, 3)) for leaf in kernels.values())
        return (trees.plus(sums[0], own), sums[1] + jnp.sqrt(squares)), None

    beside = parts.linear.side_by_side(q)
    (sums, norms), _ = jax.lax.scan(add, (jax.tree.map(jnp.zeros_like, beside), total.norms), (parts, outputs, v))
    return Summed(trees.plus(total.total, parts.linear.apart(sums, total.total)), norms)


@jax.jit
def changes_of(parts: Part, steps: Tree) -> Array:
    """J q of every step "k ...", for the examples of all batches, those of padding too: "n c k"."""
    beside = parts.linear.side_by_side(steps)
    changes = jax.lax.map(lambda linear: linear.times(beside), parts.linear)
    return changes.reshape(-1, *changes.shape[2:])
