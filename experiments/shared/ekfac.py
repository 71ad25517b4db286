"""EK-FAC's estimate of what changes when examples leave: a rival of the exact expansion (solver/expansion.py)."""

import numpy as np

from tangent_jax.linear.gram import Rows
from tangent_jax.linear.signals import Leaf
from tangent_jax.solver.expansion import Expansion

CHUNK = 1 << 24  # numbers of a temporary array


def ekfac_effects(expansion: Expansion, others: Rows) -> np.ndarray:
    """The first-order effects on other examples' outputs, "mc n", with EK-FAC's approximation of H.

    Gradients of a kernel are rotated into the eigenvectors of its Kronecker factors. There H counts as diagonal,
    with the gradients' own squares (George et al. 2018); gains and biases have exact blocks. Source: Grosse et al.
    2023.
    """
    rows, roots, damping = expansion.rows, expansion.roots, expansion.total_penalty
    pulled = rows.along(expansion.gradients)
    effects = np.zeros((others.outputs.size, rows.shape[0]))
    for path, leaf in rows.leaves.items():
        other, own = others.leaves[path], pulled.leaves[path]
        if leaf.x is None:
            g = np.einsum("ncp,nck->nkp", leaf.s, roots).reshape(-1, leaf.s.shape[-1])
            block = g.T @ g + damping * np.eye(g.shape[1])
            effects += other.s.reshape(len(effects), -1) @ np.linalg.solve(block, own.s[:, 0].T)
            continue
        for h in range(leaf.x.shape[2]):
            flowing = np.einsum("ncto,nck->nkto", leaf.s[:, :, :, h], roots)
            bases = tuple(np.linalg.eigh(second_moment(a))[1] for a in (leaf.x[:, :, h], flowing))
            scales = squares(leaf.x[:, :, h] @ bases[0], flowing @ bases[1]) + damping
            effects += scaled_gram(rotate(other, h, bases), rotate(own, h, bases), scales)
    return effects


def second_moment(a: np.ndarray) -> np.ndarray:
    """sum a a^T over all but the last axis."""
    flat = a.reshape(-1, a.shape[-1])
    return flat.T @ flat


def squares(x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """sum_nk (sum_t x_nt (x) s_nkt)^2, "i o", of inputs "n t i" and signals "n k t o"."""
    if x.shape[1] == 1:
        return (x[:, 0] ** 2).T @ (s[:, :, 0] ** 2).sum(1)
    return np.asarray(sum((np.einsum("ti,kto->kio", *pair) ** 2).sum(0) for pair in zip(x, s, strict=True)))


def rotate(leaf: Leaf, h: int, bases: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs "n t i" and signals "n c t o" of one head in other bases."""
    return leaf.x[:, :, h] @ bases[0], leaf.s[:, :, :, h] @ bases[1]


def scaled_gram(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], scales: np.ndarray) -> np.ndarray:
    """sum_io A_io B_io / scales_io of gradients A, B = sum_t x_t (x) s_t, "ac bc"; each pair as `rotate` gives it."""
    (inputs, width), total = scales.shape, 0
    largest = max(s.shape[0] * s.shape[1] for _, s in (a, b)) * width
    size = max(1, CHUNK // largest)
    for start in range(0, inputs, size):
        at = slice(start, start + size)
        left, right = (np.einsum("nti,ncto->ncio", x[:, :, at], s, optimize=True) for x, s in (a, b))
        left /= scales[at]
        total = total + left.reshape(-1, left.shape[2] * width) @ right.reshape(-1, left.shape[2] * width).T
    return np.asarray(total)
