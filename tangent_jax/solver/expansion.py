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
from tangent_jax.train.objective import Objective, check_penalty


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
