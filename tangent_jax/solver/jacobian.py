"""The Jacobian of a tangent model as inputs and signals, and the tangent kernel K = J J^T, in f64.

    K[(i,c),(j,c')] = sum over kernels (x_i . x_j) (s_ic . s_jc')  +  sum over gains, biases  g_ic . g_jc'

No row of J is formed: a leaf's part of it is an input times a signal (models/signals.py). Where a kernel reads several
tokens, the sum over them is formed, some inputs at a time. Of a model without a closed form the rows are formed, by
autodiff.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import Tree, placement, progress_bar, require, trees
from tangent_jax.models.predict import Predictor
from tangent_jax.models.signals import Layout, layout, probe_uses, vector

BATCH, CHUNK = 32, 1 << 25  # examples whose signals are computed at once; numbers of a temporary array


@partial(jax.tree_util.register_dataclass, data_fields=["x", "s"], meta_fields=["layout"])
@dataclasses.dataclass(frozen=True)
class Part:
    """One leaf's rows of J: of a kernel inputs "n t h i" and signals "n c t h o"; of others signals "n c p" alone."""

    x: Any
    s: Any
    layout: Layout | None

    def take(self, rows: Any) -> "Part":
        """The examples at `rows`."""
        return dataclasses.replace(self, x=None if self.x is None else self.x[rows], s=self.s[rows])


class Jacobian(NamedTuple):
    """The rows of J of some examples, leaf by leaf, f64; `outputs` at dw = 0, "n c"."""

    parts: dict[str, Part]
    outputs: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """(examples, numbers of an output)."""
        return self.outputs.shape

    def take(self, rows: Any) -> "Jacobian":
        """The examples at `rows`."""
        return Jacobian({path: part.take(rows) for path, part in self.parts.items()}, self.outputs[rows])

    def along(self, directions: np.ndarray) -> "Jacobian":
        """The rows of sum_c u_ic f_ic, "n c" u: one output for each example."""
        parts = {
            path: dataclasses.replace(part, s=np.einsum("nc,nc...->n...", directions, part.s)[:, None])
            for path, part in self.parts.items()
        }
        return Jacobian(parts, np.einsum("nc,nc->n", directions, self.outputs)[:, None])

    def transposed(self, a: np.ndarray, like: Tree) -> Tree:
        """J^T a on the host, a tree like `like`; a: "n c"."""
        leaves = {}
        for path, leaf in trees.leaves(like).items():
            part = self.parts.get(path)
            if part is None:  # reaches no output
                value = np.zeros(leaf.shape)
            elif part.x is None or part.layout is None:
                value = np.einsum("nc,ncp->p", a, part.s).reshape(leaf.shape)
            else:
                summed = np.einsum("nc,nctho->ntho", a, part.s)
                blocks = np.einsum("nthi,ntho->hio", part.x, summed, optimize=True)
                value = part.layout.kernel(blocks, leaf.shape)
            leaves[path] = value
        return jax.tree.unflatten(
            jax.tree.structure(like), [jnp.asarray(leaf, jnp.float64) for leaf in leaves.values()]
        )


def jacobian_rows(predict: Predictor, inputs: Any) -> Jacobian:
    """The rows of J for every input and output, by one backward pass an output, in f64."""
    n, parts = len(inputs), []
    check_room(predict, n)
    with jax.enable_x64(True):
        exact = dataclasses.replace(predict, w=trees.cast(predict.w, jnp.float64), dtype=None)
        with progress_bar(n, "example") as bar:
            for start in range(0, n, BATCH):
                x = np.asarray(inputs[start : start + BATCH])
                padded = np.concatenate([x, np.zeros((min(BATCH, n) - len(x), *x.shape[1:]), x.dtype)])
                rows = rows_of(exact, jnp.asarray(padded))
                parts.append(jax.tree.map(np.asarray, rows))
                bar.update(len(x))
    outputs, leaves = jax.tree.map(lambda *arrays: np.concatenate(arrays)[:n], *parts)
    return Jacobian(leaves, outputs)


@jax.jit
def rows_of(predict: Predictor, x: Array) -> tuple[Array, dict[str, Part]]:
    """(outputs at dw = 0 "b c", the rows of J leaf by leaf) of a batch, in the dtype of w."""
    zeros = predict.zeros()
    if predict.model.dual is None:
        return formed_rows(predict, zeros, x)
    recorded, leaves = probe_uses(predict, zeros, x, at_zero=True), trees.leaves(zeros)
    b, c = recorded.outputs.shape
    basis = jnp.broadcast_to(jnp.eye(c, dtype=recorded.outputs.dtype)[:, None], (c, b, c))
    signals = jax.vmap(recorded.back)(basis)
    parts: dict[str, Part] = {}
    for use, s in zip(recorded.uses, signals, strict=True):
        if use.spec is not None:
            assert use.x is not None
            axes = layout(use)
            parts[use.path] = Part(axes.rows(use.x), jax.vmap(axes.signals)(s).swapaxes(0, 1), axes)
            continue
        each = jax.vmap(partial(vector, use, ndim=leaves[use.path].ndim))(s).reshape(c, b, -1).swapaxes(0, 1)
        before = parts[use.path].s if use.path in parts else 0
        parts[use.path] = Part(None, each + before, None)
    return recorded.outputs, parts


def formed_rows(predict: Predictor, zeros: Tree, x: Array) -> tuple[Array, dict[str, Part]]:
    """Outputs and rows of J, each formed whole, by one backward pass an output of each example."""

    def of_one(x: Array) -> tuple[Array, Tree]:
        outputs, back = jax.vjp(lambda dw: predict(dw, x[None])[0], zeros)
        return outputs, jax.vmap(lambda unit: back(unit)[0])(jnp.eye(len(outputs), dtype=outputs.dtype))

    outputs, rows = jax.vmap(of_one)(x)
    return outputs, {p: Part(None, j.reshape(*outputs.shape, -1), None) for p, j in trees.leaves(rows).items()}


def check_room(predict: Predictor, count: int) -> None:
    """Raises InputError where the rows of J that a model without a closed form has take half of the memory."""
    classes, room = max(1, predict.model.classes), placement.machine_memory() // 2
    needed = 0 if predict.model.dual is not None else 8 * count * classes * predict.subset.size
    got, do = f"{count} x {classes} x {predict.subset.size} numbers", "Train fewer leaves, or use tj.solve"
    require(needed <= room, "jacobian_rows", f"rows of J of at most {room >> 20} MiB in f64", got, do)


def gram(a: Jacobian, b: Jacobian | None = None) -> np.ndarray:
    """J_a J_b^T, "n c, m c" flattened to a matrix; b: None for a itself, of which half is computed."""
    other = a if b is None else b
    (n, c), (m, k) = a.shape, other.shape
    result = np.empty((n * c, m * k))
    size = max(1, CHUNK // (c * m * k))
    with progress_bar(n, "row") as bar:
        for start in range(0, n, size):
            stop = min(start + size, n)
            columns = m if b is not None else stop
            block = np.zeros((stop - start, c, columns, k))
            for path in a.parts:
                add_products(block, a.parts[path], other.parts[path], slice(start, stop), columns)
            flat = block.reshape((stop - start) * c, columns * k)
            result[start * c : stop * c, : columns * k] = flat
            if b is None:
                result[: start * c, start * c : stop * c] = flat[:, : start * c].T
            bar.update(stop - start)
    return result


def add_products(block: np.ndarray, a: Part, b: Part, rows: slice, columns: int) -> None:
    """Adds one leaf's part of J_a J_b^T for some rows and the first columns, "n c m k"."""
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


def own_gram(a: Jacobian) -> np.ndarray:
    """Each example's own block of the kernel, "n c c"."""
    n, c = a.shape
    total = np.zeros((n, c, c))
    for i in range(n):
        for part in a.take(slice(i, i + 1)).parts.values():
            add_products(total[i].reshape(1, c, 1, c), part, part, slice(0, 1), 1)
    return total
