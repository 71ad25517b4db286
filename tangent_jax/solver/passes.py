"""One batch of a pass: its terms of a gradient, of a Hessian product, and of the factors.

J of the batch is one of linear/jacobian.py; targets and example weights are stored next to it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import placement, trees
from tangent_jax.core.notation import Tree
from tangent_jax.linear.jacobian import Fresh, Kept, keep
from tangent_jax.solver.curvature import Curvature, batch_curvature
from tangent_jax.train.objective import ROUNDING, Objective
from tangent_jax.train.targets import Predict

CACHED = 1 << 25  # bytes of a batch's values on a CPU: more would exceed its caches


class Summed(NamedTuple):
    """A sum of gradients, the norms of its batches, and the sizes of its examples (`Objective.gradient_sizes`)."""

    total: Tree
    norms: Array
    sizes: Array

    def plus(self, own: Tree) -> "Summed":
        """The sum with one more batch; its sizes are added apart."""
        return self._replace(total=trees.plus(self.total, own), norms=self.norms + trees.norm(own))

    @property
    def rounding(self) -> Array:
        """The largest rounding error of the sum, in L2."""
        return ROUNDING * jnp.finfo(self.sizes.dtype).eps * self.sizes

    @property
    def noise(self) -> Array:
        """The usual rounding error of the sum: below it conjugate gradients follow rounding."""
        return jnp.finfo(self.norms.dtype).eps * self.norms


class Part(NamedTuple):
    """A batch: its J (None for targets alone), targets "b ...", example weights "b", 0 where padded."""

    jacobian: Any
    targets: Any
    example_weights: Any

    def loss(self, objective: Objective, outputs: Array) -> Array:
        """sum_i v_i loss(f_i, y_i); terms of weight 0 count 0, even if they are not finite."""
        v = self.example_weights
        return jnp.sum(jnp.where(v > 0, objective.losses(outputs, self.targets) * v, 0))


@jax.jit
def take(array: Any, rows: Any) -> Array:
    """The rows of an array, or one."""
    return array[rows]


@partial(jax.jit, donate_argnames="total")
def add_gradient(total: Summed, part: Part, dw: Tree, objective: Objective) -> tuple[Summed, Array, Array]:
    """(total + the gradient of the batch's losses at dw, those losses' sum, the outputs)."""
    j = part.jacobian.at(dw)
    losses, slope = jax.value_and_grad(partial(part.loss, objective))(j.outputs)
    return total.plus(j.vjp(slope)), losses, j.outputs


@jax.jit
def gradient_size(part: Part, dw: Tree, objective: Objective) -> Array:
    """The sum of the sizes of the batch's gradients, of its `Fresh` J."""
    sizes = objective.gradient_sizes(part.jacobian.predict, dw, part.jacobian.x, part.targets)
    return jnp.sum(jnp.where(part.example_weights > 0, sizes * part.example_weights, 0))


@partial(jax.jit, donate_argnames="total")
def add_product(total: Tree, part: Part, v: Tree, outputs: Array, objective: Objective) -> Tree:
    """total + J^T H J v, H the Hessian of the batch's losses at these outputs."""
    j = part.jacobian.at(v)  # J does not depend on the step
    bent = jax.jvp(jax.grad(partial(part.loss, objective)), (outputs,), (j.mv(v),))[1]
    return trees.plus(total, j.vjp(bent))


@jax.jit
def outputs_of(jacobian: Fresh | Kept, dw: Tree) -> Array:
    """f(dw), "b c"."""
    return jacobian.at(dw).outputs


@jax.jit
def change_of(jacobian: Fresh | Kept, v: Tree) -> Array:
    """J v, "b c"."""
    return jacobian.at(v).mv(v)


@partial(jax.jit, static_argnames="signals")
def part_curvature(
    part: Part, zero: Tree, outputs: Array, objective: Objective, key: Array | None, i: Any, signals: int
) -> Curvature:
    """The factors of the i-th batch; key: None for the signals of all outputs, else for `signals` random ones."""
    key = None if key is None else jax.random.fold_in(key, i)
    probed = part.jacobian.predict.probe(zero, part.jacobian.x, at_zero=True)
    cotangents = objective.loss.hessian_root(outputs, part.targets, key, signals)
    return batch_curvature(probed, cotangents, part.example_weights, batch_room())


@partial(jax.jit, static_argnames="signals")
def keep_with_curvature(
    part: Part, zero: Tree, outputs: Array, objective: Objective, key: Array | None, i: Any, signals: int
) -> tuple[Kept, Curvature]:
    """`keep` and `part_curvature` in one program, which shares their computations."""
    return keep(part.jacobian, zero), part_curvature(part, zero, outputs, objective, key, i, signals)


@partial(jax.jit, donate_argnames="a")
def add(a: Tree, b: Tree) -> Tree:
    """a + b."""
    return trees.plus(a, b)


@jax.jit
def value_along(
    outputs: Array, change: Array, part: Part, norms: Array, objective: Objective, penalty: Any, t: Array
) -> Array:
    """F where outputs are f + t change, "n c" each, and |dw + t v|^2 = a + 2 t b + t^2 c for norms (a, b, c)."""
    ridge = 0.5 * penalty * (norms[0] + 2 * t * norms[1] + t**2 * norms[2])
    return part.loss(objective, outputs + t.astype(outputs.dtype) * change) + ridge


def room() -> int:
    """The bytes available for kept values: a quarter of the devices' memory, on a CPU of the machine's."""
    return (placement.memory() or placement.machine_memory()) // 4


def batch_room() -> int:
    """The bytes that one batch's values may take: `room()`, on a CPU `CACHED`."""
    return CACHED if placement.memory() is None else room()


def kept_bytes(predict: Predict, zero: Tree, inputs: Any, count: int) -> int:
    """The bytes that `keep` stores for a batch of `count` examples."""
    x = jax.ShapeDtypeStruct((count, *inputs.shape[1:]), jax.dtypes.canonicalize_dtype(inputs.dtype))
    held: Any = keep.eval_shape(Fresh(predict, x, np.arange(count)), zero)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(held))


def pass_batch(predict: Predict, zero: Tree, inputs: Any) -> int:
    """The number of examples that a pass processes at once, a power of two.

    Their kept values fit into `batch_room()`.
    """
    of_one, of_two = (kept_bytes(predict, zero, inputs, count) for count in (1, 2))
    most = max(1, batch_room() // max(1, of_two - of_one))
    return min(1 << (most.bit_length() - 1), 4096)
