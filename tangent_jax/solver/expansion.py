"""Influence: the objective's quadratic expansion at its optimum, and the change when examples leave.

    F(dw* + d) ~ F(dw*) + d^T H d / 2        H = sum_i J_i^T W_i J_i + Lambda,   W_i = R_i R_i^T
    J_z H^-1 J_i^T = (k(z,i) - k(z,X) R M^-1 R^T k(X,i)) / Lambda                M = R^T K R + Lambda

W_i is the Hessian of example i's loss in its outputs and r_i its gradient. When the example leaves, dw moves by

    first order     H^-1 J_i^T r_i                          the influence function
    Newton          (H - J_i^T W_i J_i)^-1 J_i^T r_i        of a square loss exact

for any convex loss; H is never formed. Source: Koh and Liang 2017; Pregibon 1981 (Newton's step).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float64

from tangent_jax.linear.gram import Rows, penalized_factor
from tangent_jax.linear.signals import Leaf
from tangent_jax.train.objective import Objective, check_penalty

CHUNK = 1 << 24  # numbers of a temporary array


class Expansion(NamedTuple):
    """The expansion on the training examples, f64.

    Attributes:
        rows: J.
        outputs: f.
        gradients: r, "n c" each.
        roots: R, "n c k".
        bent: K R, "nc nk".
        factor: The lower Cholesky factor of M, "nk nk".
        own: J_i H^-1 J_i^T, "n c c".

    >>> expansion = tj.solver.expand(*demo.solved_rows, demo.objective)
    >>> expansion.reach(demo.solved_rows[0]).shape, expansion.left_out().shape
    ((72, 24, 3), (24, 3))
    """

    rows: Rows
    outputs: np.ndarray
    gradients: np.ndarray
    roots: np.ndarray
    bent: np.ndarray
    factor: np.ndarray
    own: np.ndarray
    total_penalty: float

    def pulls(self) -> Float64[np.ndarray, "n c"]:
        """(I - W_i J_i H^-1 J_i^T)^-1 r_i, "n c": replaces r_i in Newton's step."""
        inner = np.eye(self.own.shape[1]) - self.roots @ self.roots.swapaxes(1, 2) @ self.own
        return np.linalg.solve(inner, self.gradients[:, :, None])[:, :, 0]

    def left_out(self) -> Float64[np.ndarray, "n c"]:
        """The leave-one-out outputs of each example, "n c", by Newton's step."""
        return self.outputs + np.einsum("ncd,nd->nc", self.own, self.pulls())

    def reach(self, others: Rows) -> np.ndarray:
        """J_z H^-1 J_i^T for the outputs of other examples, "mc n c"."""
        n, c = self.outputs.shape
        cross = others.gram(self.rows)
        bent = np.einsum("pnc,nck->pnk", cross.reshape(-1, n, c), self.roots).reshape(len(cross), -1)
        known = scipy.linalg.cho_solve((self.factor, True), bent.T, check_finite=False)
        return ((cross - (self.bent @ known).T) / self.total_penalty).reshape(-1, n, c)

    def eigen_effects(self, others: Rows) -> np.ndarray:
        """The first-order effects on other examples' outputs, "mc n", with EK-FAC's approximation of H.

        Gradients of a kernel are rotated into the eigenvectors of its Kronecker factors. There H counts as diagonal,
        with the gradients' own squares (George et al. 2018); gains and biases have exact blocks. Source: Grosse et al.
        2023.
        """
        rows, roots, damping = self.rows, self.roots, self.total_penalty
        pulled = rows.along(self.gradients)
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


@jax.default_matmul_precision("highest")
def expand(rows: Rows, k: np.ndarray, outputs: np.ndarray, targets: np.ndarray, objective: Objective) -> Expansion:
    """The expansion of a convex objective at its optimum.

    Args:
        rows: J of the training examples.
        k: `gram` of them.
        outputs: The outputs of the optimum, "n c".
        targets: "n ...".

    Raises:
        InputError: A penalty that is not above 0, or so small that rounding hides it.

    >>> expansion = tj.solver.expand(*demo.solved_rows, demo.objective)
    >>> float(tj.metrics.accuracy(expansion.left_out(), demo.train.targets).mean())  # leave-one-out accuracy
    0.917
    """
    check_penalty(objective)
    n, c = outputs.shape
    total = float(objective.penalty) * n
    with jax.enable_x64(True):
        f, y = jnp.asarray(outputs, jnp.float64), jnp.asarray(targets)
        gradients = np.asarray(jax.grad(lambda f: jnp.sum(objective.losses(f, y)))(f))
        roots = np.asarray(objective.loss.hessian_root(f, y)).transpose(1, 2, 0)
    bent = np.einsum("pnc,nck->pnk", k.reshape(-1, n, c), roots).reshape(n * c, -1)
    m = np.einsum("nck,ncq->nkq", roots, bent.reshape(n, c, -1)).reshape(bent.shape[1], -1)
    factor = penalized_factor(m, total, float(objective.penalty))
    half = scipy.linalg.solve_triangular(factor, bent.T, lower=True, check_finite=False).T.reshape(n, c, -1)
    own = k.reshape(n, c, n, c)[np.arange(n), :, np.arange(n)] - half @ half.swapaxes(1, 2)
    return Expansion(rows, np.asarray(outputs, np.float64), gradients, roots, bent, factor, own / total, total)


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
