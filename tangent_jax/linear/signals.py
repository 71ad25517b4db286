"""Rows of J as inputs times signals: the inputs of a leaf's uses, and the cotangents that flow back to them.

The tangent is linear in every leaf, so an example's row u^T J is its input times the signal of the cotangent u:

    y += x dW      J = sum_t x_t (x) s_t         kernels, token by token, head by head where the kernel has heads
    y += x * dg    J = sum_t x_t * s_t           gains
    y += dbeta     J = sum_t s_t                 biases, tokens, positions

One forward and one backward pass over probes (rules/probe.py) gives both, without forming a gradient. Per-example
norms, Kronecker factors, Gram matrices, sketches and products with many steps use them, leaf by leaf (`Leaf`).
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Inexact

from tangent_jax.core import trees
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.rules.probe import Probe, widen


class Use(NamedTuple):
    """One place where a leaf enters the network: its path, the einsum or None, and the input or None.

    Attributes:
        beside: For a bias, the path of its kernel if that is trained too.
    """

    path: str
    spec: str | None
    x: Inexact[Array, "..."] | None
    beside: str | None = None


class UseProbe(Probe):
    """A leaf of dw that records its uses, and adds a zero to each, whose gradient is the signal there."""

    def __init__(self, path: str, leaf: Array, uses: list[Use], zeros: Callable[[Any], Array], at_zero: bool) -> None:
        self.path, self.leaf, self.uses, self.zeros, self.at_zero = path, leaf, uses, zeros, at_zero

    def note(self, tangent: Callable[[Array], Array], *of_use: Any) -> Array:
        """Records a use; returns its term of the tangent plus the zero, or the zero alone if dw counts as 0."""
        self.uses.append(Use(self.path, *(of_use or (None, None))))
        if self.at_zero:
            return self.zeros(jax.eval_shape(tangent, self.leaf))
        y = tangent(self.leaf)
        return y + self.zeros(y)

    def einsum(self, spec: str, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.note(lambda leaf: jnp.einsum(spec, x, leaf), spec, x)

    def times(self, x: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return self.note(lambda leaf: x * leaf, None, x)

    def broadcast(self, shape: tuple[Any, ...], beside: Any = None) -> Float[Array, "..."]:
        kernel = beside.path if isinstance(beside, UseProbe) else None
        return self.note(lambda leaf: jnp.broadcast_to(leaf, shape), None, None, kernel)


class Probed(NamedTuple):
    """A forward pass with probes: outputs, uses of the leaves, and the map from a cotangent to their signals.

    Attributes:
        shapes: The shapes of every leaf, by path.
    """

    outputs: Float[Array, "b c"]
    uses: list[Use]
    back: Callable[[Array], list[Array]]
    shapes: dict[str, tuple[int, ...]]

    @property
    def biases(self) -> dict[str, str]:
        """The path of each kernel's bias, if both are trained."""
        return {use.beside: use.path for use in self.uses if use.beside is not None}

    def rows(self, cotangents: Float[Array, "k b c"]) -> dict[str, "Leaf"]:
        """u^T J of each example, by leaf; cotangents: u. Leaves that do not reach the outputs are left out."""
        if len(cotangents) == 1:  # the same program as for a gradient: one backward pass
            signals = [s[None] for s in self.back(cotangents[0])]
        else:
            signals = jax.vmap(self.back)(cotangents)
        leaves: dict[str, Leaf] = {}
        for use, s in zip(self.uses, signals, strict=True):
            if use.spec is not None:
                assert use.x is not None
                assert use.path not in leaves, use.path  # a kernel is used once
                axes = layout(use)
                leaves[use.path] = Leaf(axes.rows(use.x), jax.vmap(axes.signals)(s).swapaxes(0, 1), axes)
                continue
            each = jax.vmap(partial(vector, use, ndim=len(self.shapes[use.path])))(s)
            each = each.reshape(*each.shape[:2], -1).swapaxes(0, 1)
            before = leaves[use.path].s if use.path in leaves else 0
            leaves[use.path] = Leaf(None, before + each, None)
        return leaves


@partial(jax.tree_util.register_dataclass, data_fields=["x", "s"], meta_fields=["layout"])
@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf's part of k rows of each example; a kernel's part, sum_t x_t (x) s_kt, is not formed.

    For a kernel: the inputs x "b t h i" and signals s "b k t h o". For another leaf: x is None, and s "b k p" the rows.
    """

    x: Any
    s: Any
    layout: "Layout | None"

    def take(self, rows: Any) -> "Leaf":
        """The examples at `rows`."""
        return dataclasses.replace(self, x=None if self.x is None else self.x[rows], s=self.s[rows])


def probe_uses(f: Callable[[Tree], Dual], answer: Callable[[Dual], Array], dw: Tree, at_zero: bool = False) -> Probed:
    """The outputs answer(f(dw)) on a batch, the uses of every leaf of dw, and the map back to their signals.

    Args:
        f: A closed form made of rules, which take probes as leaves; its leaves are nested.
        answer: The outputs "b c" of its value and tangent, linear in the tangent.
        at_zero: The outputs at dw = 0, for any dw, without multiplications by it.

    Returns:
        Probed; `back` of a cotangent "b c" gives one signal for each use, linear in the cotangent.
    """

    def outputs_of(zeros: list[Array] | None) -> tuple[Dual, tuple[list[Use], list[Any]]]:
        uses: list[Use] = []
        terms: list[Any] = []  # arrays, or their shapes

        def zero(y: Any) -> Array:
            terms.append(y)
            return jnp.zeros(y.shape, y.dtype) if zeros is None else zeros[len(terms) - 1]

        probes = {path: UseProbe(path, leaf, uses, zero, at_zero) for path, leaf in leaves.items()}
        return f(trees.nest(probes)), (uses, terms)

    leaves = trees.leaves(dw)
    shapes = jax.eval_shape(lambda: outputs_of(None)[1][1])
    zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    named: list[Use] = []

    def run(zeros: list[Array]) -> tuple[Array, tuple[Array, list[Array | None]]]:
        value, (uses, _) = outputs_of(zeros)
        named[:] = [use._replace(x=None) for use in uses]
        outputs = answer(value)
        # at zero the tangent is 0: nobody reads its forward pass, so the compiler drops it
        read = answer(Dual(value.primal, jnp.zeros_like(value.primal))) if at_zero else outputs
        return outputs, (read, [use.x for use in uses])

    _, back, (outputs, inputs) = jax.vjp(run, zeros, has_aux=True)
    uses = [use._replace(x=x) for use, x in zip(named, inputs, strict=True)]
    of_leaves = {path: jnp.shape(leaf) for path, leaf in leaves.items()}
    return Probed(outputs, uses, lambda cotangent: back(cotangent)[0], of_leaves)


def letters(use: Use) -> tuple[str, str, str]:
    """The einsum's axes of input, kernel and output, with letters instead of the dots."""
    assert use.spec is not None
    assert use.x is not None
    terms, ss = use.spec.split("->")
    xs, ws = terms.split(",")
    dots = "zvw"[: use.x.ndim - len(xs.replace("...", ""))]  # letters that no kernel uses
    return xs.replace("...", dots), ws, ss.replace("...", dots)


def vector(use: Use, s: Float[Array, "b ..."], ndim: int) -> Float[Array, "b ..."]:
    """Each example's gradient of a gain, bias, token or position with `ndim` axes: s summed over others."""
    each = widen(s) if use.x is None else widen(s) * use.x
    return each.reshape(s.shape[0], -1, *s.shape[s.ndim - ndim :]).sum(1)


class Layout(NamedTuple):
    """A kernel's axes by their role in its product: tokens are summed, heads are shared, then inputs and outputs."""

    batch: str
    tokens: str
    heads: str
    inputs: str
    outputs: str
    axes: tuple[str, str, str]

    def rows(self, x: Float[Array, "..."]) -> Float[Array, "b t h i"]:
        """A use's input, by the roles of its axes."""
        return group_axes(x, self.axes[0], (self.batch, self.tokens, self.heads, self.inputs))

    def signals(self, s: Float[Array, "..."]) -> Float[Array, "b t h o"]:
        """A use's signal, by the roles of its axes."""
        return group_axes(s, self.axes[2], (self.batch, self.tokens, self.heads, self.outputs))

    def blocks(self, leaf: Float[Array | np.ndarray, "..."]) -> Float[Array | np.ndarray, "h i o"]:
        """A kernel, one block for each head."""
        return group_axes(leaf, self.axes[1], (self.heads, self.inputs, self.outputs))

    def kernel(self, blocks: Any, shape: tuple[int, ...]) -> Any:
        """The kernel of `shape` with these `blocks`, "h i o"."""
        order = self.heads + self.inputs + self.outputs
        sizes = dict(zip(self.axes[1], shape, strict=True))
        whole = blocks.reshape([sizes[axis] for axis in order])
        return whole.transpose([order.index(axis) for axis in self.axes[1]])


def layout(use: Use) -> Layout:
    """The layout of a kernel's axes, from those of its input and output."""
    xs, ws, ss = letters(use)
    tokens = "".join(a for a in xs[1:] if a in ss and a not in ws)
    heads = "".join(a for a in ws if a in xs and a in ss)
    inputs = "".join(a for a in ws if a in xs and a not in ss)
    outputs = "".join(a for a in ws if a in ss and a not in xs)
    return Layout(xs[0], tokens, heads, inputs, outputs, (xs, ws, ss))


def group_axes(a: Float[Array | np.ndarray, "..."], axes: str, groups: tuple[str, ...]) -> Any:
    """The array with one axis for each group of its axes, of length 1 for an empty group."""
    sizes = dict(zip(axes, a.shape, strict=True))
    moved = a.transpose([axes.index(axis) for group in groups for axis in group])
    return moved.reshape([math.prod(sizes[axis] for axis in group) for group in groups])
