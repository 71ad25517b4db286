"""J of a batch: f(dw) = f_0 + J dw, in one of two forms.

    Fresh     the predictor and its inputs: linearised at each product, nothing is stored
    Kept      the arrays that products read (`keep`): for a ViT's last block little more than its inputs

J does not depend on dw. Each form gives f(dw), J v and J^T u at a step (`at`). Rows of J as inputs and signals:
signals.py, gram.py.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core import trees
from tangent_jax.core.notation import Tree


class Products(NamedTuple):
    """f(dw), "b c", and the products of J: `mv`, v -> J v "b c", and its transpose `vjp`, u "b c" -> J^T u."""

    outputs: Float[Array, "b c"]
    mv: Callable[[Tree], Array]
    like: Tree

    def vjp(self, u: Float[Array, "b c"]) -> Tree:
        """J^T u."""
        return jax.linear_transpose(self.mv, self.like)(u)[0]


@partial(jax.tree_util.register_dataclass, data_fields=["predict", "inputs", "rows"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Fresh:
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
class Kept:
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
