"""The curvature of the objective leaf by leaf, as factors that add up over examples.

    H = sum_i v_i J_i^T H_i J_i,    H_i the Hessian of the loss in the logits, v_i the example's weight

    kernels         H ~ A (x) G / N     A = sum_i v_i sum_t x_t x_t^T,  G = sum_i v_i sum_(k,t) s_k s_k^T / T
    gains, biases   H = sum_i v_i sum_k g_k g_k^T, exact

N = sum_i v_i, over the tokens t = 1..T of example i, head by head where the kernel has heads, for signals s_k of the
cotangents u_k with sum_k u_k u_k^T = H_i: one for each class, or a few random ones whose mean is the same. Source:
Martens and Grosse 2015 (K-FAC); with weight sharing Eschenhagen et al. 2023 ("expand"). Exact where every example has
one token and inputs are independent of signals. What they reveal of the data: second moments of its features.
"""

import dataclasses
import operator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import Tree, require, trees
from tangent_jax.models.predict import Predictor
from tangent_jax.models.signals import Layout, layout, probe_uses, vector
from tangent_jax.train.losses import Loss

LARGEST_BLOCK = 4096  # of a gain or bias; larger leaves have one block for each row of their last axis


@partial(
    jax.tree_util.register_dataclass, data_fields=["kernels", "blocks", "weight"], meta_fields=["layouts", "anchor"]
)
@dataclasses.dataclass(frozen=True)
class Curvature:
    """Sums over examples: `kernels` {path: (A "h i i", G "h o o")}, `blocks` {path: "h p p"}, N = `weight`.

    `layouts`: (path, how the axes of that kernel meet its input and output); `anchor`: the fingerprint of w, "" where
    none was taken.
    """

    kernels: dict[str, tuple[Any, Any]]
    blocks: dict[str, Any]
    weight: Any
    layouts: tuple[tuple[str, Layout], ...]
    anchor: str = ""

    def __add__(self, other: "Curvature") -> "Curvature":
        """That of both sets of examples."""
        alike = self.layouts == other.layouts and trees.leaves(self).keys() == trees.leaves(other).keys()
        require(alike, "Curvature", "factors of one model and subset", "others")
        require(self.anchor == other.anchor, "Curvature", "factors at one anchor", "two")
        return jax.tree.map(operator.add, self, other)  # NumPy's stay NumPy's: f64 without x64

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    def split(self, path: str, leaf: Any) -> Any:
        """A leaf of dw as blocks: a kernel "h i o", any other "h p"; one that reaches no logit as it is."""
        if path in self.kernels:
            return dict(self.layouts)[path].blocks(leaf)
        return leaf.reshape(self.blocks[path].shape[:2]) if path in self.blocks else leaf

    def join(self, path: str, blocks: Any, shape: tuple[int, ...]) -> Any:
        """`split` undone."""
        return dict(self.layouts)[path].kernel(blocks, shape) if path in self.kernels else blocks.reshape(shape)

    def times(self, dw: Tree) -> Tree:
        """H dw, as the factors have it."""
        product = {}
        for path, leaf in trees.leaves(dw).items():
            v = self.split(path, leaf)
            if path in self.kernels:
                a, g = self.kernels[path]
                v = jnp.einsum("hij,hjo,hop->hip", a, v, g) / self.weight
            elif path in self.blocks:
                v = jnp.einsum("hpq,hq->hp", self.blocks[path], v)
            else:  # as a key's bias, which softmax ignores
                v = jnp.zeros_like(v)
            product[path] = self.join(path, v, leaf.shape)
        return jax.tree.unflatten(jax.tree.structure(dw), list(product.values()))


def batch_curvature(
    predict: Predictor, dw: Tree, x: Array, y: Array, outputs: Array, weights: Array, loss: Loss, key: Array | None,
    count: int,
) -> Curvature:  # fmt: skip
    """The factors of one batch; `outputs`: those at which the loss is expanded; weights "b", 0 where padded."""
    recorded = probe_uses(predict, dw, x, at_zero=True)
    roots = loss.hessian_root(outputs, y, key, count) * jnp.sqrt(weights.astype(outputs.dtype))[:, None]
    signals = jax.vmap(recorded.back)(roots)
    ndims = {path: leaf.ndim for path, leaf in trees.leaves(dw).items()}
    kernels, layouts, vectors = {}, [], {}
    for use, s in zip(recorded.uses, signals, strict=True):
        if use.spec is None:
            each = jax.vmap(partial(vector, use, ndim=ndims[use.path]))(s)
            vectors[use.path] = vectors.get(use.path, 0) + each
            continue
        assert use.x is not None
        axes = layout(use)
        rows, flowing = axes.rows(use.x), jax.vmap(axes.signals)(s)
        a = jnp.einsum("b,bthi,bthj->hij", weights, rows, rows)
        g = jnp.einsum("kbtho,kbthp->hop", flowing, flowing) / rows.shape[1]
        kernels[use.path] = a, g
        layouts.append((use.path, axes))
    blocks = {path: outer(v.reshape(-1, *v.shape[2:])) for path, v in vectors.items()}
    return Curvature(kernels, blocks, jnp.sum(weights), tuple(sorted(layouts)))


def outer(v: Array) -> Array:
    """sum_n v_n v_n^T as "h p p": one block, or where that is too large one for each row of the last axis."""
    size = int(np.prod(v.shape[1:]))
    v = v.reshape(len(v), 1, size) if size <= LARGEST_BLOCK else v.reshape(len(v), -1, v.shape[-1])
    return jnp.einsum("nhp,nhq->hpq", v, v)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inverse:
    """(H + damping I)^-1 for any damping: the eigenvectors and eigenvalues of the factors, once."""

    curvature: Curvature
    vectors: dict[str, Any]
    values: dict[str, Array]

    def times(self, v: Tree, damping: Array) -> Tree:
        """(H + damping I)^-1 v."""
        solved, c = {}, self.curvature
        for path, leaf in trees.leaves(v).items():
            block, q, values = c.split(path, leaf), self.vectors.get(path), self.values.get(path, 0)
            if q is None:
                block = block / damping
            elif path in c.kernels:
                turned = jnp.einsum("hji,hjp,hpo->hio", q[0], block, q[1]) / (values + damping)
                block = jnp.einsum("hij,hjp,hop->hio", q[0], turned, q[1])
            else:
                block = jnp.einsum("hpq,hq->hp", q, jnp.einsum("hqp,hq->hp", q, block) / (values + damping))
            solved[path] = c.join(path, block, leaf.shape)
        return jax.tree.unflatten(jax.tree.structure(v), list(solved.values()))


def invert(curvature: Curvature) -> Inverse:
    """The factors, diagonalised: two eigendecompositions a kernel, one a gain or bias."""
    vectors, values = {}, {}
    for path, factors in curvature.kernels.items():
        (la, qa), (lg, qg) = map(diagonalised, factors)
        vectors[path] = qa, qg
        values[path] = la[:, :, None] * lg[:, None, :] / curvature.weight
    for path, block in curvature.blocks.items():
        values[path], vectors[path] = diagonalised(block)
    return Inverse(curvature, vectors, values)


def diagonalised(a: Array) -> tuple[Array, Array]:
    """Eigenvalues, none below 0, and eigenvectors of symmetric matrices "h p p".

    One at a time: XLA's CPU runtime can wait forever on several LAPACK calls of one program.
    """
    values, vectors = jax.block_until_ready(_eigh(a))
    return jnp.maximum(values, 0), vectors


_eigh = jax.jit(jnp.linalg.eigh)
