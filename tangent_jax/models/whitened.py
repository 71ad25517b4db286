"""Whitened kernels: coordinates V of a kernel's tangent in which all directions of its inputs have equal energy.

    W  = W_0 + R V       R given, R R^T = M^-1 for a second moment M of the kernel's inputs; V is 0 at the anchor
    dW = R dV            an example's gradient in V is sum_t (R^T x_t) (x) s_t, of whitened inputs

This is done head by head if the kernel has heads. The network and its tangent do not change. A whitened network is
again a model of the protocol, like LoRA, so per-example norms have their closed form in these coordinates too.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Float, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.linear.signals import Layout
from tangent_jax.models.wrapper import Wrapper
from tangent_jax.rules import probe

ROOT, WHITENED = "_root", "_whitened"
"""The suffixes of the paths of R, which no subset trains, and of V, after their kernel's path."""


@dataclasses.dataclass(frozen=True)
class Whitened(Wrapper):
    """A model with R, "h i i", and V, of the kernel's shape, for each kernel of `layouts`: (path, its axes).

    Raises:
        InputError: A step with a tangent of such a kernel itself.
    """

    layouts: tuple[tuple[str, Layout], ...]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = self.base.shapes()
        for path, axes in self.layouts:
            heads, inputs, _ = jax.eval_shape(axes.blocks, jax.ShapeDtypeStruct(shapes[path], jnp.float32)).shape
            shapes |= {path + ROOT: (heads, inputs, inputs), path + WHITENED: shapes[path]}
        return shapes

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.base.settings, "whitened": [path for path, _ in self.layouts]}

    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Raises InputError: other libraries have no whitened kernels."""
        raise InputError(
            "predict must not be whitened, to be written; got one that is. Take the predictor that was "
            "whitened, with the step of unwhitened"
        )

    def apply(
        self, w: Tree, x: Shaped[Array, "b ..."], start: int = 0, stop: int | None = None
    ) -> Float[Array, "b ..."]:
        pairs: Any = self.natural(trees.pair(w, {}))
        plain = jax.tree.map(lambda leaf: leaf.primal, pairs, is_leaf=is_dual)
        return self.base.apply(plain, x, start, stop)

    @property
    def dual(self) -> Callable[..., Dual] | None:
        dual = self.base.dual
        return dual and (lambda pairs, x, start=0: dual(self.natural(pairs), x, start))

    def natural(self, pairs: Any) -> Any:
        """The pairs of the base, with W_0 + R V and its tangent R dV for each kernel."""
        flat = {
            keystr(path, simple=True, separator="/"): leaf
            for path, leaf in tree_flatten_with_path(pairs, is_leaf=is_dual)[0]
        }
        for path, axes in self.layouts:
            root, v = flat.pop(path + ROOT).primal, flat.pop(path + WHITENED)
            if flat[path].tangent is not None:
                raise InputError(
                    f"dw must be in whitened coordinates; got one of {path}. Take the predictor that was whitened"
                )
            tangent: Any = v.tangent
            if isinstance(tangent, probe.Probe):
                tangent = Rooted(root, tangent, axes)
            elif tangent is not None:
                tangent = times_root(root, tangent, axes)
            flat[path] = Dual(flat[path].primal + times_root(root, v.primal, axes), tangent)
        return trees.nest(flat)


def is_dual(node: Any) -> bool:
    """True for a Dual."""
    return isinstance(node, Dual)


def times_root(root: Float[Array, "h i j"], v: Float[Array | np.ndarray, "*v"], axes: Layout) -> Float[Array, "*v"]:
    """R V, in a kernel's shape."""
    return axes.kernel(jnp.einsum("hij,hjo->hio", root, axes.blocks(v)), v.shape)


class Rooted(probe.Probe):
    """The tangent R dV for a Probe dV: its use is an einsum with R^T x instead of x."""

    def __init__(self, root: Float[Array, "h i j"], v: probe.Probe, axes: Layout) -> None:
        self.root, self.v, self.axes = root, v, axes

    def einsum(self, spec: str, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The einsum of R^T x and dV."""
        xs, heads, inputs = self.axes.axes[0], self.axes.heads, self.axes.inputs
        sizes, new = dict(zip(xs, x.shape, strict=True)), inputs.upper()
        root = self.root.reshape([sizes[axis] for axis in heads + inputs + inputs])
        turned = xs.translate(str.maketrans(inputs, new))
        return self.v.einsum(spec, probe.einsum(f"{xs},{heads}{inputs}{new}->{turned}", x, root))

    def times(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        raise NotImplementedError

    def broadcast(self, shape: tuple[Any, ...], beside: Any = None) -> Float[Array, "..."]:
        raise NotImplementedError
