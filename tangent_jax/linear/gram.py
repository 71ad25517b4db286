"""Rows of J on the host, in f64, and their Gram matrix, the tangent kernel K = J J^T.

    K[(i,c),(j,c')] = sum over kernels (x_i . x_j) (s_ic . s_jc')  +  sum over gains, biases  g_ic . g_jc'

Rows are not formed: a leaf's part is an input times a signal (signals.py). If a kernel reads several tokens, the sum
over them is formed, for some inputs at a time.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.linalg
from jaxtyping import Float, Float64

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.linear.signals import Leaf

CHUNK = 1 << 25  # the most numbers of a temporary array


class Rows(NamedTuple):
    """The rows of J for some examples, one for each output: outputs at dw = 0, "n c", and inputs and signals by leaf.

    Computations with them run on the host.
    """

    outputs: Any
    leaves: dict[str, Leaf]

    @property
    def shape(self) -> tuple[int, int]:
        """(examples, outputs)."""
        return self.outputs.shape

    def take(self, rows: Any) -> "Rows":
        """The examples at `rows`."""
        return Rows(self.outputs[rows], {path: leaf.take(rows) for path, leaf in self.leaves.items()})

    def along(self, directions: Float[np.ndarray, "n c"]) -> "Rows":
        """The rows of sum_c u_ic f_ic, for directions u: one output for each example."""
        leaves = {
            path: dataclasses.replace(leaf, s=np.einsum("nc,nc...->n...", directions, leaf.s)[:, None])
            for path, leaf in self.leaves.items()
        }
        return Rows(np.einsum("nc,nc->n", directions, self.outputs)[:, None], leaves)

    def transposed_product(self, a: Float[np.ndarray, "n c"], like: Tree) -> Tree:
        """J^T a, a tree like `like` of NumPy arrays in float64."""
        values = []
        for path, leaf in trees.leaves(like).items():
            own = self.leaves.get(path)
            if own is None:  # does not reach the outputs
                value = np.zeros(leaf.shape)
            elif own.layout is None:
                value = np.einsum("nc,ncp->p", a, own.s).reshape(leaf.shape)
            else:
                summed = np.einsum("nc,nctho->ntho", a, own.s)
                blocks = np.einsum("nthi,ntho->hio", own.x, summed, optimize=True)
                value = own.layout.kernel(blocks, leaf.shape)
            values.append(value)
        return jax.tree.unflatten(jax.tree.structure(like), values)

    def gram(self, others: "Rows | None" = None, progress: Progress = silent) -> Float[np.ndarray, "nc mc"]:
        """J J_others^T, "n c, m c" flattened to a matrix; others: None for these rows, where half is computed."""
        other = self if others is None else others
        (n, c), (m, k) = self.shape, other.shape
        result = np.empty((n * c, m * k))
        size = max(1, CHUNK // (c * m * k))
        with progress(total=n, unit="row") as bar:
            for start in range(0, n, size):
                stop = min(start + size, n)
                columns = m if others is not None else stop
                block = np.zeros((stop - start, c, columns, k))
                for path in self.leaves:
                    add_products(block, self.leaves[path], other.leaves[path], slice(start, stop), columns)
                flat = block.reshape((stop - start) * c, columns * k)
                result[start * c : stop * c, : columns * k] = flat
                if others is None:
                    result[: start * c, start * c : stop * c] = flat[:, : start * c].T
                bar.update(stop - start)
        return result


def add_products(block: Float[np.ndarray, "n c m k"], a: Leaf, b: Leaf, rows: slice, columns: int) -> None:
    """Adds one leaf's part of J_a J_b^T, for some rows and the first columns, to `block`."""
    n, c, m, k = block.shape
    sa, sb = a.s[rows], b.s[:columns]
    if a.x is None or b.x is None:
        block += (sa.reshape(n * c, -1) @ sb.reshape(m * k, -1).T).reshape(block.shape)
        return
    xa, xb = a.x[rows], b.x[:columns]
    tokens, heads = xa.shape[1:3]
    for h in range(heads):
        if tokens == 1:  # (x . x') (s . s')
            products = sa[:, :, 0, h].reshape(n * c, -1) @ sb[:, :, 0, h].reshape(m * k, -1).T
            products = products.reshape(block.shape)
            products *= (xa[:, 0, h] @ xb[:, 0, h].T)[:, None, :, None]
            block += products
            continue
        size = max(1, CHUNK // (max(n * c, m * k) * sa.shape[-1]))
        for i in range(0, xa.shape[-1], size):  # sum_t x_t (x) s_t, some inputs at a time
            left = np.einsum("nti,ncto->ncio", xa[:, :, h, i : i + size], sa[:, :, :, h], optimize=True)
            right = np.einsum("nti,ncto->ncio", xb[:, :, h, i : i + size], sb[:, :, :, h], optimize=True)
            block += (left.reshape(n * c, -1) @ right.reshape(m * k, -1).T).reshape(block.shape)


def own_gram(a: Rows) -> Float[np.ndarray, "n c c"]:
    """Each example's own block of the kernel."""
    n, c = a.shape
    total = np.zeros((n, c, c))
    for i in range(n):
        for leaf in a.take(slice(i, i + 1)).leaves.values():
            add_products(total[i].reshape(1, c, 1, c), leaf, leaf, slice(0, 1), 1)
    return total


def penalized_factor(
    m: Float64[np.ndarray, "k k"], ridge: float | Float64[np.ndarray, "k"], penalty: float
) -> Float64[np.ndarray, "k k"]:
    """The lower Cholesky factor of a kernel, overwritten, with a ridge on its diagonal, which a penalty gives.

    Raises:
        InputError: A ridge below the rounding of the kernel, k eps times its largest diagonal.
    """
    if not np.min(ridge) > len(m) * np.finfo(m.dtype).eps * np.diag(m).max():
        raise InputError(f"penalty must be above the rounding of the kernel; got {penalty:g}. Raise it")
    m[np.diag_indices_from(m)] += ridge
    return scipy.linalg.cholesky(m, lower=True, overwrite_a=True, check_finite=False)
