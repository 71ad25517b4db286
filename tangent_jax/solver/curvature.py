"""Kronecker factors (K-FAC) of the objective's curvature, leaf by leaf; they add over examples.

    H = sum_i v_i J_i^T H_i J_i,    H_i the Hessian of the loss in the outputs, v_i the example's weight

    kernels         H ~ A (x) G / N     A = sum_i v_i sum_t x_t x_t^T,  G = sum_i v_i sum_(k,t) s_k s_k^T / T
    gains, biases   H = sum_i v_i sum_k g_k g_k^T, exact
    layers x W + b  H ~ A' (x) G / N    A' = sum_i v_i sum_t (x_t, 1) (x_t, 1)^T    W and b as one block, to be merged

N = sum_i v_i. The sums run over the tokens t = 1..T of example i, head by head where the kernel has heads. s_k are the
signals of cotangents u_k with sum_k u_k u_k^T = H_i: one for each output, or random ones with this mean. Source:
Martens and Grosse 2015 (K-FAC); with weight sharing Eschenhagen et al. 2023 ("expand"). The factors are exact if every
example has one token and inputs are independent of signals. They reveal second moments of the data's features.
"""

import dataclasses
import operator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg  # before its threads are limited, as another number of threads has other bits
from jax import Array
from jaxtyping import Float64
from threadpoolctl import threadpool_limits

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, of_shape
from tangent_jax.core.notation import Tree
from tangent_jax.linear.signals import Layout, Probed, layout
from tangent_jax.rules.probe import widen

ROUNDING = 1e-4  # of a matrix's norm: sums of 100,000 batches in float32 round by less
MADE = "Make them by tj.solver.make_curvature"
LARGEST_BLOCK = 4096  # numbers of a gain or bias; larger leaves have one block per row of the last axis


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["kernels", "blocks", "count", "sums"],
    meta_fields=["layouts", "anchor", "biases"],
)
@dataclasses.dataclass(frozen=True)
class Curvature:
    """Sums over examples: `kernels` {path: (A "h i i", G "h o o")}, `blocks` {path: "h p p"}, N = `count`.

    Attributes:
        layouts: (path, how the axes of that kernel meet its input and output).
        anchor: The fingerprint of w, "" if unknown.
        biases: (path of a kernel, path of its bias), if both are trained.
        sums: For these kernels the last row of A', {path: "h i+1"}.

    >>> a, g = demo.curvature.kernels["head/kernel"]
    >>> a.shape, g.shape, float((demo.curvature + demo.curvature).count)
    ((1, 6, 6), (1, 3, 3), 48.0)
    """

    kernels: dict[str, tuple[Any, Any]]
    blocks: dict[str, Any]
    count: Any
    layouts: tuple[tuple[str, Layout], ...]
    anchor: str = ""
    sums: dict[str, Any] = dataclasses.field(default_factory=dict)
    biases: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: "Curvature") -> "Curvature":
        """The factors of both sets of examples together."""
        if self.layouts != other.layouts or trees.leaves(self).keys() != trees.leaves(other).keys():
            raise InputError("factors that are added must be of one model and subset; got others")
        if self.anchor != other.anchor:
            raise InputError("factors that are added must be at one anchor; got two")
        return jax.tree.map(operator.add, self, other)  # NumPy arrays stay NumPy arrays, in f64 without x64

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    def as_blocks(self, path: str, leaf: Any) -> Any:
        """A leaf of dw as blocks: a kernel "h i o", others "h p"; a leaf that reaches no output stays as it is."""
        if path in self.kernels:
            return dict(self.layouts)[path].blocks(leaf)
        return leaf.reshape(self.blocks[path].shape[:2]) if path in self.blocks else leaf

    def from_blocks(self, path: str, blocks: Any, shape: tuple[int, ...]) -> Any:
        """A leaf of dw from its blocks: inverts `as_blocks`."""
        return dict(self.layouts)[path].kernel(blocks, shape) if path in self.kernels else blocks.reshape(shape)

    def layers(self) -> "Curvature":
        """Each kernel with its bias as one block: with A' instead of A, and no block of the bias. On the host."""
        kernels, biases = dict(self.kernels), {bias for _, bias in self.biases}
        for path, _ in self.biases:
            (a, g), last = self.kernels[path], self.sums[path]
            wide = np.pad(a, ((0, 0), (0, 1), (0, 1)))
            wide[:, -1, :] = wide[:, :, -1] = last
            kernels[path] = wide, g
        blocks = {path: block for path, block in self.blocks.items() if path not in biases}
        return dataclasses.replace(self, kernels=kernels, blocks=blocks, sums={})

    def matrices(self) -> list[tuple[str, Any]]:
        """(path, matrices "h p p") of A and G of each kernel, and of each block."""
        return [(path, a) for path, pair in self.kernels.items() for a in pair] + [*self.blocks.items()]

    def times(self, dw: Tree) -> Tree:
        """H dw, by the factors."""
        product = {}
        for path, leaf in trees.leaves(dw).items():
            v = self.as_blocks(path, leaf)
            if path in self.kernels:
                a, g = self.kernels[path]
                v = jnp.einsum("hij,hjo,hop->hip", a, v, g) / self.count
            elif path in self.blocks:
                v = jnp.einsum("hpq,hq->hp", self.blocks[path], v)
            else:  # such as the bias of a key, which softmax ignores
                v = jnp.zeros_like(v)
            product[path] = self.from_blocks(path, v, leaf.shape)
        return jax.tree.unflatten(jax.tree.structure(dw), list(product.values()))


def check_factors(dw: Tree, curvature: Curvature) -> None:
    """Raises InputError for factors of other leaves or shapes."""
    leaves = trees.leaves(dw)
    extra = sorted({*curvature.kernels, *curvature.blocks} - {*leaves})
    if extra:
        raise InputError(f"factors must be of the step's leaves; got those of {extra[0]}")
    for path, leaf in leaves.items():
        size = leaf.size
        if path in curvature.kernels:
            a, g = curvature.kernels[path]
            size = a.shape[0] * a.shape[-1] * g.shape[-1]
        elif path in curvature.blocks:
            size = int(np.prod(curvature.blocks[path].shape[:2]))
        if size != leaf.size:
            raise InputError(f"factors of {path} must have {leaf.size} numbers; got {size}")


@threadpool_limits.wrap(limits=1, user_api="blas")
def check_sums(curvature: Curvature) -> None:
    """Raises InputError for factors that no examples sum to: not finite, not symmetric, or with negative eigenvalues.

    It takes one Cholesky factorisation of each matrix, and of A' instead of A: 0.5 s for 3,072 inputs.
    """
    sums = jax.tree.map(partial(np.asarray, dtype=np.float64), curvature)
    for path, a in sums.matrices():
        if a.ndim != 3 or a.shape[1] != a.shape[2]:
            raise InputError(f"factors of {path} must be square matrices, one a head; got shape {a.shape}. {MADE}.")
    for path, last in sums.sums.items():
        heads, size = sums.kernels[path][0].shape[:2]
        of_shape(f"sums of {path}", last, (heads, size + 1), MADE)
    wrong = [("their number of examples", f"{sums.count:g}")] if not 0 < sums.count < np.inf else []
    for path, a in [*sums.layers().matrices(), *((bias, sums.blocks[bias]) for _, bias in sums.biases)]:
        wrong += [(path, fault)] if (fault := fault_of(a)) else []
    if wrong:
        raise InputError(
            f"factors must be finite, symmetric and positive semi-definite to rounding; got {wrong[0][1]} in "
            f"{wrong[0][0]}. {MADE}."
        )


def fault_of(a: Float64[np.ndarray, "h p p"]) -> str:
    """What no sum of outer products has, beyond rounding; "" for nothing."""
    if not np.isfinite(a).all():
        return "NaN or infinity"
    rounding = ROUNDING * np.linalg.norm(a, axis=(1, 2))
    if (np.abs(a - a.swapaxes(1, 2)) > rounding[:, None, None]).any():
        return "an asymmetry"
    shifted, n = a.copy(), a.shape[-1]
    shifted[:, range(n), range(n)] += rounding[:, None] + np.finfo(a.dtype).tiny
    (potrf,) = scipy.linalg.get_lapack_funcs(("potrf",), (shifted,))
    failed = [potrf(matrix.T, lower=0, clean=0, overwrite_a=1)[1] for matrix in shifted]
    return "a negative eigenvalue" if any(failed) else ""


def batch_curvature(probed: Probed, cotangents: Array, example_weights: Array, most: int) -> Curvature:
    """The factors of one batch.

    Args:
        cotangents: "k b c", with sum_k u_k u_k^T the Hessian of each example's loss; example weights "b", 0 where
            padded.
        most: The bytes of signals that exist at once, or those of one cotangent if they are more.
    """
    root = jnp.sqrt(example_weights)[:, None]
    blocks = signal_sums(probed, cotangents * root, most)
    kernels, layouts, sums = {}, [], {}
    for use in probed.uses:
        if use.spec is None:
            continue
        assert use.x is not None
        axes = layout(use)
        x = widen(axes.rows(use.x)) * root[:, :, None, None]  # sums in half precision would overflow
        if use.path in probed.biases:
            last, tokens = jnp.einsum("bthi,b->hi", x, root[:, 0]), x.shape[1] * jnp.sum(example_weights)
            sums[use.path] = jnp.pad(last, ((0, 0), (0, 1)), constant_values=tokens.astype(last.dtype))
        kernels[use.path] = jnp.einsum("bthi,bthj->hij", x, x), blocks.pop(use.path)
        layouts.append((use.path, axes))
    of_all = jnp.sum(example_weights), tuple(sorted(layouts)), ""
    return Curvature(kernels, blocks, *of_all, sums, tuple(sorted(probed.biases.items())))


def signal_sums(probed: Probed, cotangents: Array, most: int) -> dict[str, Array]:
    """G of each kernel and the block of each other leaf, by path; the signals of some cotangents at a time."""

    def of_some(u: Array) -> dict[str, Array]:
        sums = {}
        for path, leaf in probed.rows(u).items():
            if leaf.layout is None:
                sums[path] = outer(leaf.s.reshape(-1, *probed.shapes[path]))
            else:
                s = widen(leaf.s)
                sums[path] = jnp.einsum("bktho,bkthp->hop", s, s) / s.shape[2]
        return sums

    of_one = sum(s.size * s.dtype.itemsize for s in jax.eval_shape(probed.back, cotangents[0]))
    parts = -(-len(cotangents) // max(1, most // max(1, of_one)))
    if parts == 1:
        return of_some(cotangents)
    size = -(-len(cotangents) // parts)
    padded = jnp.pad(cotangents, ((0, size * parts - len(cotangents)), (0, 0), (0, 0)))
    groups = padded.reshape(parts, size, *cotangents.shape[1:])
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(of_some, groups[0]))
    return jax.lax.scan(lambda total, u: (trees.plus(total, of_some(u)), None), zeros, groups)[0]


def outer(v: Array) -> Array:
    """sum_n v_n v_n^T as "h p p": one block, or, if that is too large, one per row of the last axis."""
    size = int(np.prod(v.shape[1:]))
    v = v.reshape(len(v), 1, size) if size <= LARGEST_BLOCK else v.reshape(len(v), -1, v.shape[-1])
    return jnp.einsum("nhp,nhq->hpq", v, v)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inverse:
    """The preconditioner of conjugate gradients: near (H + damping I)^-1, symmetric and positive.

        kernels         (A + pi s I)^-1 (x) (G / N + s / pi I)^-1,    s^2 = damping / 2,    pi^2 = tr A / i : tr G / N o
        gains, biases   (H + damping I)^-1, exact

    It needs Cholesky factorisations only, a tenth of the work of eigenvectors. s and pi are from Martens and Grosse
    2015, section 6.3, except the half in s, with which it takes as few passes as the exact inverse of
    A (x) G / N + damping I.
    """

    inverses: Curvature
    damping: Any

    def times(self, v: Tree) -> Tree:
        """(H + damping I)^-1 v."""
        solved, known = trees.leaves(self.inverses.times(v)), {*self.inverses.kernels, *self.inverses.blocks}
        leaves = [solved[path] if path in known else leaf / self.damping for path, leaf in trees.leaves(v).items()]
        return jax.tree.unflatten(jax.tree.structure(v), leaves)


@threadpool_limits.wrap(limits=1, user_api="blas")
def invert(curvature: Curvature, damping: float) -> Inverse:
    """The inverse of the damped factors, by LAPACK on the host.

    It uses one thread: BLAS threads wait for one another, and on a busy machine 0.04 s became 0.3 to 11 s.
    """
    kernels, blocks = {}, {}
    for path, (a, g) in curvature.kernels.items():
        a, g = np.asarray(a), np.asarray(g) / np.asarray(curvature.count)
        pi, s = np.sqrt(mean_value(a) / mean_value(g)), (damping / 2) ** 0.5
        kernels[path] = invert_shifted(a, s * pi), invert_shifted(g, s / pi)
    for path, block in curvature.blocks.items():
        blocks[path] = invert_shifted(np.asarray(block), damping)
    return Inverse(Curvature(kernels, blocks, 1.0, curvature.layouts), damping)


def mean_value(a: np.ndarray) -> np.ndarray:
    """The mean eigenvalue of each head's matrix, "h"; a small number where it is 0."""
    return np.trace(a, axis1=1, axis2=2) / a.shape[-1] + np.finfo(a.dtype).tiny ** 0.5


def invert_shifted(a: np.ndarray, shift: Any) -> Array:
    """(a + shift I)^-1 of symmetric matrices "h p p"; one shift or "h", enlarged if rounding requires it."""
    a, n = a.copy(), a.shape[-1]
    least = 10 * np.finfo(a.dtype).eps * np.trace(a, axis1=1, axis2=2)
    a[:, range(n), range(n)] += np.maximum(shift, least)[:, None]
    potrf, potri = scipy.linalg.get_lapack_funcs(("potrf", "potri"), (a,))
    for matrix in a:
        root, failed = potrf(matrix.T, lower=0, clean=0, overwrite_a=1)  # the transpose, so that LAPACK works in place
        if failed:
            raise InputError("factors must be positive and finite; got others")
        potri(root, lower=0, overwrite_c=1)
        mirror(matrix)
    return jnp.asarray(a)


def mirror(lower: np.ndarray) -> None:
    """Fills the upper triangle of a symmetric matrix, some rows at a time."""
    n, size = len(lower), 512
    for start in range(0, n, size):
        stop = min(start + size, n)
        block = lower[start:stop, start:stop]
        lower[start:stop, start:stop] = np.tril(block) + np.tril(block, -1).T
        lower[start:stop, stop:] = lower[stop:, start:stop].T
