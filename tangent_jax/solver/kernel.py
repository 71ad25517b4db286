"""The optimum by the tangent kernel (NTK), exact in f64, and all leave-out fits from one factorisation.

    dw = J^T a,   M a = t - f_0,   M = K + Lambda W^-1,   K = J J^T,   W = diag(v_i p_ic)

for a square loss sum_c p_c / 2 (f_c - t_c)^2 (of the rescaled one t is kappa one-hot, p is 2 alpha / C); f_0 are the
outputs at dw = 0. One Cholesky factorisation gives M^-1, and with it the outputs of a fit without a set S of examples:

    at S itself    t_S - f^(-S)(S) = ([M^-1]_SS)^-1 a_S
    elsewhere      f^(-S)(x) = f(x) - k(x, X) [M^-1]_(X,S) ([M^-1]_SS)^-1 a_S

Lambda stays the same when S leaves. Not in the paper; the identities are those of kriging (Dubrule 1983).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float64

from tangent_jax.core.checks import InputError, instance
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.linear.gram import Rows, penalized_factor
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.curvature import mirror
from tangent_jax.solver.problem import make_problem
from tangent_jax.solver.rows import jacobian_rows
from tangent_jax.train.batches import Batches, Data
from tangent_jax.train.evaluate import Metric, accuracy
from tangent_jax.train.objective import Objective, as_objective, make_objective

LARGEST = 20_000  # examples x outputs


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The tangent kernel on the training examples, with the loss's targets and weights.

    Attributes:
        rows: J.
        k: K, "nc nc".
        targets: The data's, "n ...".
        centers: t, "n c".
        precision: The diagonal of W, "n c".
        penalty: The objective's.

    >>> demo.kernel.k.shape
    (72, 72)
    >>> solution, tried = demo.kernel.choose([1e-3, 0.1, 10.0])
    >>> [round(float(row["score"]), 2) for row in tried]
    [1.0, 0.92, 0.33]
    """

    predict: Predictor
    rows: Rows
    k: np.ndarray
    targets: np.ndarray
    centers: np.ndarray
    precision: np.ndarray
    penalty: float

    def solve(self, penalty: float | None = None) -> "KernelSolution":
        """The optimum for a penalty (None: the objective's), Lambda = n penalty.

        Raises:
            InputError: A penalty that is not above 0, or so small that rounding hides it.
        """
        penalty = self.penalty if penalty is None else penalty
        if not 0 < penalty < np.inf:
            raise InputError(f"penalty must be > 0 and finite; got {penalty:g}. Give the objective a penalty.")
        total = penalty * len(self.centers)
        m, right = self.k.copy(order="F"), (self.centers - self.rows.outputs).ravel()
        factor = penalized_factor(m, total / self.precision.ravel(), penalty)
        a = scipy.linalg.cho_solve((factor, True), right, check_finite=False)
        inverse, info = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)  # pyright: ignore
        assert info == 0, info
        mirror(inverse)
        residual = self.k @ a + total / self.precision.ravel() * a - right
        relative = float(np.linalg.norm(residual) / np.linalg.norm(right))
        return KernelSolution(self, total, a.reshape(self.centers.shape), inverse, relative)

    def choose(
        self, penalties: Sequence[float], metric: Metric | None = None
    ) -> tuple["KernelSolution", list[dict[str, float]]]:
        """The penalty with the best leave-one-out score, the larger on ties; and {"penalty", "score"} of each one.

        Args:
            metric: As for `KernelSolution.score`; larger is better.
        """
        if not len(penalties):
            raise InputError("penalties must be at least one; got none")
        best, rows = None, []
        for penalty in sorted(penalties, reverse=True):
            solution = self.solve(penalty)
            rows.append({"penalty": penalty, "score": solution.score(metric)})
            if best is None or rows[-1]["score"] > best[0]:
                best = rows[-1]["score"], solution
            del solution
        assert best is not None
        return best[1], rows[::-1]


@dataclasses.dataclass(frozen=True)
class KernelSolution:
    """An optimum by the kernel: `a`, "n c", `inverse` M^-1, and the relative `residual` of M a = t - f_0.

    >>> solution = demo.kernel.solve()
    >>> solution.outputs().shape, float(solution.score())  # leave-one-out accuracy
    ((24, 3), 0.917)
    """

    kernel: Kernel
    total_penalty: float
    a: np.ndarray
    inverse: np.ndarray
    residual: float

    def dw(self) -> Tree:
        """dw = J^T a, NumPy arrays in float64."""
        return self.kernel.rows.transposed_product(self.a, self.kernel.predict.zeros())

    def outputs(self) -> Float64[np.ndarray, "n c"]:
        """The outputs of the training examples, "n c": t - Lambda W^-1 a."""
        return self.kernel.centers - self.total_penalty / self.kernel.precision * self.a

    def predict(self, rows: Rows, cross: np.ndarray) -> np.ndarray:
        """The outputs of other examples, "m c"; cross: their kernel with the training examples."""
        return rows.outputs + (cross @ self.a.ravel()).reshape(rows.shape)

    def left_out(self) -> Float64[np.ndarray, "n c"]:
        """The leave-one-out outputs of each training example, "n c"."""
        return self.kernel.centers - self.residuals()

    def residuals(self) -> Float64[np.ndarray, "n c"]:
        """The leave-one-out residuals t_i - f^(-i)(x_i), "n c"."""
        return np.linalg.solve(self.own_inverse(), self.a[:, :, None])[:, :, 0]

    def changes(self, cross: np.ndarray) -> np.ndarray:
        """The changes of other examples' outputs when each training example leaves, "m c n".

            -B_i ([M^-1]_ii)^-1 a_i        B = k(x, X) M^-1

        Args:
            cross: The kernel of the others with the training examples, "mc nc".
        """
        n, c = self.a.shape
        b = (cross @ self.inverse).reshape(-1, c, n, c)
        return -np.einsum("mknc,nc->mkn", b, self.residuals(), optimize=True)

    def own_inverse(self) -> Float64[np.ndarray, "n c c"]:
        """[M^-1]_ii of each example, "n c c"."""
        n, c = self.a.shape
        blocks = self.inverse.reshape(n, c, n, c)
        return blocks[np.arange(n), :, np.arange(n)]

    def score(self, metric: Metric | None = None) -> float:
        """The mean of a metric over the leave-one-out outputs.

        Args:
            metric: (outputs "n c", targets "n ...") -> "n"; None: accuracy for class indices, else minus the squared
                error |f - t|^2.
        """
        kernel, outputs = self.kernel, self.left_out()
        is_class = kernel.targets.ndim == 1 and kernel.targets.dtype.kind in "iu" and outputs.shape[1] > 1
        if metric is None and not is_class:
            return -float(np.mean(np.sum((outputs - kernel.centers) ** 2, 1)))
        return float(np.mean(np.asarray((metric or accuracy)(jnp.asarray(outputs), jnp.asarray(kernel.targets)))))

    def without(self, gone: np.ndarray, rows: Rows, cross: np.ndarray) -> np.ndarray:
        """The outputs "m c" of other examples by the fit without the training examples `gone`."""
        c = self.a.shape[1]
        flat = (np.asarray(gone)[:, None] * c + np.arange(c)).ravel()
        held = self.inverse[np.ix_(flat, flat)]
        moved = scipy.linalg.solve(held, self.a.ravel()[flat], assume_a="pos", check_finite=False)
        # f^(-S) = f - k(x, X) M^-1[:, S] ([M^-1]_SS)^-1 a_S
        change = cross @ (self.inverse[:, flat] @ moved)
        return self.predict(rows, cross) - change.reshape(rows.shape)

    def refit(self, left: np.ndarray, rows: Rows, cross: np.ndarray) -> np.ndarray:
        """The outputs "m c" by solving again on the examples `left`: the reference for `without`."""
        k = self.kernel
        c = self.a.shape[1]
        flat = (np.asarray(left)[:, None] * c + np.arange(c)).ravel()
        m = k.k[np.ix_(flat, flat)]
        m[np.diag_indices_from(m)] += (self.total_penalty / k.precision).ravel()[flat]
        right = (k.centers - k.rows.outputs).ravel()[flat]
        a = scipy.linalg.solve(m, right, assume_a="pos", overwrite_a=True, check_finite=False)
        return rows.outputs + (cross[:, flat] @ a).reshape(rows.shape)


@promotes
def make_kernel(
    predict: Predictor,
    data: Batches | Data,
    objective: Objective | None = None,
    *,
    example_weights: Any = None,
    progress: Progress = silent,
) -> Kernel:
    """The tangent kernel on all training examples.

    Args:
        predict, data, objective, progress: As `solve`.
        example_weights: Above 0.

    Raises:
        InputError: If examples x outputs exceed `LARGEST`, for losses other than square ones, for outputs or targets
            that are not finite, and as `solve`.

    >>> solution = tj.solver.make_kernel(demo.predict, demo.train, demo.objective).solve()
    >>> bool(np.allclose(solution.outputs(), tj.outputs(demo.predict, demo.dw, demo.train), atol=0.01))
    True
    """
    objective = as_objective(objective, make_objective)
    instance("predict", predict, Predictor, "Use tj.solve")
    problem = make_problem(predict, data, objective, example_weights, predict.zeros())
    if not problem.is_quadratic:
        raise InputError(
            f"the loss must be a square; got {type(objective.loss).__name__}."
            " Use tj.solve, or state the loss's `quadratic`."
        )
    lightest = problem.example_weights.min()
    if lightest <= 0:
        raise InputError(f"example_weights must be > 0; got {lightest}")
    batches, classes = problem.batches, problem.classes
    targets = batches.targets[batches.rows]
    outputs = len(batches) * classes
    if outputs > LARGEST:
        raise InputError(
            f"examples x outputs must be at most {LARGEST}; got {len(targets)} x {classes} = {outputs},"
            f" whose kernel and its inverse take {16e-9 * outputs**2:.0f} GB. Use tj.solve."
        )
    rows = jacobian_rows(predict, batches.inputs[batches.rows], progress)
    with jax.enable_x64(True):
        stated = objective.loss.quadratic(targets, classes)
        assert stated is not None
        centers, precision = (np.asarray(part, np.float64) for part in stated)
    if not np.isfinite(centers).all():
        raise InputError("targets must be finite; got NaN or infinity. Leave such examples out.")
    if not (precision > 0).all():
        raise InputError(f"the precision of the loss must be above 0; got {precision.min()}. Use tj.solve.")
    weighted = precision * problem.example_weights[:, None]
    return Kernel(predict, rows, rows.gram(progress=progress), targets, centers, weighted, float(objective.penalty))
