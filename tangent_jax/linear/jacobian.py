"""J of a batch: f(dw) = f_0 + J dw, stored in one of three forms.

    Fresh     the predictor and its inputs: linearised at each product, nothing is stored
    Kept      the arrays that products read (`keep`): for a ViT's last block little more than its inputs
    Formed    inputs x signals of all outputs (`form`): for products with many steps together

J does not depend on dw. Each form gives f(dw), J v and J^T u at a step (`at`), and J q of k steps at once
(`times_all`), a map that `jax.linear_transpose` transposes. Rows of J as inputs and signals: signals.py, gram.py.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.linear.gram import Rows
from tangent_jax.linear.signals import Layout

Steps = Any
"""Several steps, in the form that a J multiplies."""


class Products(NamedTuple):
    """f(dw), "b c", and the products of J: `mv`, v -> J v "b c", and its transpose `vjp`, u "b c" -> J^T u."""

    outputs: Float[Array, "b c"]
    mv: Callable[[Tree], Array]
    like: Tree

    def vjp(self, u: Float[Array, "b c"]) -> Tree:
        """J^T u."""
        return jax.linear_transpose(self.mv, self.like)(u)[0]


class StoredJacobian(ABC):
    """J of a batch, with the data that it needs: a pytree, which compiled programs take as data."""

    @abstractmethod
    def at(self, dw: Tree) -> Products:
        """f(dw), and J for one step."""

    def side_by_side(self, steps: Tree) -> Steps:
        """The steps, with k as the first axis of each leaf, in the form for `times_all`."""
        return steps

    def apart(self, steps: Steps, like: Tree) -> Tree:
        """Inverts `side_by_side`; like: steps of these shapes. A leaf that does not reach the outputs is 0."""
        return steps

    def times_all(self, like: Steps) -> Callable[[Steps], Array]:
        """The linear map from steps, like `like`, to J q of each, "b c k"; it can be transposed."""
        return jax.vmap(self.at(jax.tree.map(lambda leaf: leaf[0], like)).mv, out_axes=2)


@partial(jax.tree_util.register_dataclass, data_fields=["predict", "inputs", "rows"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Fresh(StoredJacobian):
    """A predictor on the inputs "n ..." at `rows`, "b"; or on inputs "b ...", with `rows` None."""

    predict: Callable[[Tree, Any], Array]
    inputs: Any
    rows: Any

    @property
    def x(self) -> Any:
        """The inputs, "b ..."."""
        return self.inputs if self.rows is None else self.inputs[self.rows]

    def at(self, dw: Tree) -> Products:
        x = self.x
        return Products(*jax.linearize(lambda dw: self.predict(dw, x), dw), dw)


@partial(jax.tree_util.register_dataclass, data_fields=["outputs", "forward"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Kept(StoredJacobian):
    """f(0), and v -> J v with the arrays that it reads."""

    outputs: Float[Array, "b c"]
    forward: Any

    def at(self, dw: Tree) -> Products:
        is_zero = trees.squared_norm(dw) == 0  # zero, as at most starts: then J dw is zero too
        change = jax.lax.cond(is_zero, lambda dw: jnp.zeros_like(self.outputs), self.forward, dw)
        return Products(self.outputs + change, self.forward, dw)


@jax.jit
def keep(fresh: Fresh, zero: Tree) -> Kept:
    """J with the arrays that its products read.

    Args:
        zero: dw = 0, as data: with zeros as constants, XLA's CPU compiler gave NaN for a ResNet.
    """
    outputs, forward, _ = fresh.at(zero)
    return Kept(outputs, forward)


@partial(
    jax.tree_util.register_dataclass, data_fields=["outputs", "kernels", "others"], meta_fields=["layouts", "paths"]
)
@dataclasses.dataclass(frozen=True)
class Formed(StoredJacobian):
    """f(0); of each kernel the inputs and signals, of all other leaves the rows.

        J q_k = sum over kernels  s_ic . (x_i Q_k)  +  sum over gains, biases  g_ic . q_k,    k = 1, 2, ...

    `Kept` multiplies by the network's weights at each product, one step at a time. Here the steps form one array, "h i
    k o" for each kernel and "k p" for all other leaves, so all products of a kernel are one matrix product, and the
    signals contain the weights. That is less work if a kernel reads one token and an example has fewer signals than dw
    has numbers: for a ViT's last block with the class query and few classes. `layouts`: of the kernels; `paths`: the
    other leaves, in the order of p.
    """

    outputs: Float[Array, "b c"]
    kernels: dict[str, tuple[Float[Array, "b h i"], Float[Array, "b c h o"]]]
    others: Float[Array, "b c p"]
    layouts: tuple[tuple[str, Layout], ...]
    paths: tuple[str, ...]

    def at(self, dw: Tree) -> Products:
        def forward(v: Tree) -> Array:
            return self.times(self.side_by_side(jax.tree.map(lambda leaf: leaf[None], v)))[:, :, 0]

        return Products(self.outputs + forward(dw), forward, dw)

    def side_by_side(self, steps: Tree) -> Steps:
        leaves = trees.leaves(steps)
        kernels = {path: jax.vmap(axes.blocks, out_axes=2)(leaves[path]) for path, axes in self.layouts}
        others = [jnp.reshape(leaves[path], (len(leaves[path]), -1)) for path in self.paths]
        count = len(jax.tree.leaves(steps)[0])
        return kernels, jnp.concatenate([jnp.zeros((count, 0), self.others.dtype), *others], 1)

    def apart(self, steps: Steps, like: Tree) -> Tree:
        leaves, (kernels, others), at = trees.leaves(like), steps, 0
        apart = {path: jnp.zeros_like(leaf) for path, leaf in leaves.items()}
        for path, axes in self.layouts:
            apart[path] = jax.vmap(lambda a, axes=axes, of=leaves[path][0]: axes.kernel(a, of.shape), 2)(kernels[path])
        for path in self.paths:
            size = leaves[path][0].size
            apart[path] = others[:, at : at + size].reshape(leaves[path].shape)
            at += size
        return jax.tree.unflatten(jax.tree.structure(like), [apart[path] for path in leaves])

    def times_all(self, like: Steps) -> Callable[[Steps], Array]:
        return self.times

    def times(self, steps: Steps) -> Float[Array, "b c k"]:
        """J q of the steps."""
        kernels, others = steps
        changes = jnp.einsum("bcp,kp->bck", self.others, others)
        for path, (x, s) in self.kernels.items():
            for head, q in enumerate(kernels[path]):  # x Q as one matrix product of all steps
                y = jnp.einsum("bi,ip->bp", x[:, head], q.reshape(len(q), -1)).reshape(len(x), *q.shape[1:])
                changes += jnp.einsum("bco,bko->bck", s[:, :, head], y)
        return changes


def form(rows: Rows) -> Formed:
    """J from its rows, if each kernel reads one token."""
    outputs, leaves = rows
    kernels = {path: leaf for path, leaf in leaves.items() if leaf.layout is not None}
    paths = tuple(path for path in leaves if path not in kernels)
    return Formed(
        outputs,
        {path: (leaf.x[:, 0], leaf.s[:, :, 0]) for path, leaf in kernels.items()},
        jnp.concatenate([jnp.zeros((*outputs.shape, 0), outputs.dtype), *[leaves[path].s for path in paths]], 2),
        tuple((path, leaf.layout) for path, leaf in kernels.items() if leaf.layout is not None),
        paths,
    )
