"""One batch of a pass: f(dw) = f_0 + J dw, with J and J^T as products; nothing of J is formed.

`Fresh` linearises the predictor at each product. `Kept` has done so once and holds what the products need (J is the
same everywhere): a pass is then products alone. For a ViT's last block that is little more than its inputs.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import Tree, placement, trees
from tangent_jax.solver.curvature import Curvature, batch_curvature
from tangent_jax.train.objective import Objective
from tangent_jax.train.targets import Predict

ROUNDING = 8  # eps of the summed norms: 0.6 to 4.2 were measured against f64 (docs/optimum.md)
SHOWN = 1 / ROUNDING  # of that: where conjugate gradients end, for below it they follow rounding
CACHED = 1 << 25  # bytes: what a pass keeps of a batch on a CPU, where larger ones leave its caches and are slower


@partial(jax.tree_util.register_dataclass, data_fields=["predict", "inputs", "rows"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Fresh:
    """A predictor on the inputs "n ..." at `rows`, "b", or on inputs "b ..." where these are None."""

    predict: Predict
    inputs: Any
    rows: Any

    @property
    def x(self) -> Any:
        """The inputs, "b ..."."""
        return self.inputs if self.rows is None else self.inputs[self.rows]

    def at(self, dw: Tree) -> tuple[Array, Callable[[Tree], Array]]:
        """(f(dw) "b c", v -> J v "b c")."""
        x = self.x
        return jax.linearize(lambda dw: self.predict(dw, x), dw)


@partial(jax.tree_util.register_dataclass, data_fields=["outputs", "forward"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Kept:
    """f(0), "b c", and v -> J v with the arrays that it reads."""

    outputs: Array
    forward: Any

    def at(self, dw: Tree) -> tuple[Array, Callable[[Tree], Array]]:
        """(f(dw) "b c", v -> J v "b c")."""
        is_zero = trees.squared_norm(dw) == 0  # as at most starts: then so is J dw
        change = jax.lax.cond(is_zero, lambda dw: jnp.zeros_like(self.outputs), self.forward, dw)
        return self.outputs + change, self.forward


class Summed(NamedTuple):
    """A sum of batches' gradients, and of their norms, to which its rounding is relative."""

    total: Tree
    norms: Array

    def plus(self, own: Tree) -> "Summed":
        """With one more batch."""
        return Summed(trees.plus(self.total, own), self.norms + trees.norm(own))

    @property
    def rounding(self) -> Array:
        """The largest move of the sum by rounding, in L2: `ROUNDING` units of the norms, which no test exceeds."""
        return ROUNDING * jnp.finfo(self.norms.dtype).eps * self.norms


class Part(NamedTuple):
    """A batch: its linear model, targets "b ...", example weights "b", 0 where padded."""

    linear: Any
    targets: Any
    example_weights: Any

    def loss(self, objective: Objective, outputs: Array) -> Array:
        """sum_i v_i loss(f_i, y_i); what weighs 0 adds nothing, whatever it holds."""
        v = self.example_weights
        return jnp.sum(jnp.where(v > 0, objective.losses(outputs, self.targets) * v, 0))


@jax.jit
def take(array: Any, rows: Any) -> Array:
    """The rows of an array, or one."""
    return array[rows]


@jax.jit
def keep(linear: Fresh, zero: Tree) -> Kept:
    """The linear model with the arrays that its products read.

    zero: dw = 0, as data: where zeros are constants of the program, XLA's CPU compiler gave NaN for a ResNet.
    """
    return Kept(*linear.at(zero))


@partial(jax.jit, donate_argnames="total")
def add_gradient(total: Summed, part: Part, dw: Tree, objective: Objective) -> tuple[Summed, Array, Array]:
    """(total + the gradient of the batch's losses at dw, those losses' sum, the outputs)."""
    outputs, forward = part.linear.at(dw)
    losses, slope = jax.value_and_grad(partial(part.loss, objective))(outputs)
    return total.plus(jax.linear_transpose(forward, dw)(slope)[0]), losses, outputs


@partial(jax.jit, donate_argnames="total")
def add_product(total: Tree, part: Part, v: Tree, outputs: Array, objective: Objective) -> Tree:
    """total + J^T H J v, H the Hessian of the batch's losses at these outputs."""
    _, forward = part.linear.at(v)  # J is the same at any step
    bent = jax.jvp(jax.grad(partial(part.loss, objective)), (outputs,), (forward(v),))[1]
    return trees.plus(total, jax.linear_transpose(forward, v)(bent)[0])


def bent_of(part: Part, outputs: Array, changes: Array, v: Array, at_point: Array, objective: Objective) -> Array:
    """v_ki P_i (J_i q_k) + (v_ki - 1) e_i, the last term at a point alone, "b c k"; changes: J q; v: "k b"."""
    slope, bend = jax.linearize(jax.grad(partial(part.loss, objective)), outputs)  # of weights 1, 0 where padded
    v = v.T[:, None]
    bent = jnp.where(v > 0, v * jax.vmap(bend, 2, 2)(changes), 0)
    return bent + jnp.where(at_point, (v - 1) * slope[:, :, None], 0)


@jax.jit
def outputs_of(linear: Fresh | Kept, dw: Tree) -> Array:
    """f(dw), "b c"."""
    return linear.at(dw)[0]


@jax.jit
def change_of(linear: Fresh | Kept, v: Tree) -> Array:
    """J v, "b c"."""
    return linear.at(v)[1](v)


@partial(jax.jit, static_argnames="signals")
def part_curvature(
    part: Part, zero: Tree, outputs: Array, objective: Objective, key: Array | None, i: Any, signals: int
) -> Curvature:
    """The factors of the i-th batch; key: None for the signals of all outputs, else for `signals` random ones."""
    predict, x, v = part.linear.predict, part.linear.x, part.example_weights
    key = None if key is None else jax.random.fold_in(key, i)
    return batch_curvature(predict, zero, x, part.targets, outputs, v, objective.loss, key, signals)


@partial(jax.jit, static_argnames="signals")
def keep_with_curvature(
    part: Part, zero: Tree, outputs: Array, objective: Objective, key: Array | None, i: Any, signals: int
) -> tuple[Kept, Curvature]:
    """`keep` and `part_curvature` as one program, which computes once what both need."""
    return keep(part.linear, zero), part_curvature(part, zero, outputs, objective, key, i, signals)


@partial(jax.jit, donate_argnames="a")
def added(a: Tree, b: Tree) -> Tree:
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
    """The bytes that kept values may take: a quarter of the devices' memory, on a CPU of the machine's."""
    return (placement.memory() or placement.machine_memory()) // 4


def kept_bytes(predict: Predict, zero: Tree, inputs: Any, count: int) -> int:
    """The bytes that `keep` holds of a batch of `count` examples."""
    x = jax.ShapeDtypeStruct((count, *inputs.shape[1:]), jax.dtypes.canonicalize_dtype(inputs.dtype))
    held: Any = keep.eval_shape(Fresh(predict, x, np.arange(count)), zero)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(held))


def pass_batch(predict: Predict, zero: Tree, inputs: Any) -> int:
    """A power of two: how many examples a pass works on at once, so that what it keeps of them takes `room()`, or on a
    CPU `CACHED` bytes."""
    budget = CACHED if placement.memory() is None else room()
    of_one, of_two = (kept_bytes(predict, zero, inputs, count) for count in (1, 2))
    most = max(1, budget // max(1, of_two - of_one))
    return min(1 << (most.bit_length() - 1), 4096)
