"""The optimum by the tangent kernel (NTK), exact in f64, and all leave-out fits from one factorisation.

    dw = J^T a,   M a = t - f_0,   M = K + Lambda W^-1,   K = J J^T,   W = diag(v_i p_ic)

for a square loss sum_c p_c / 2 (f_c - t_c)^2 (of the rescaled one t is kappa one-hot, p is 2 alpha / C); f_0 are the
outputs at dw = 0. One Cholesky factorisation gives M^-1, and with it the outputs of a fit without a set S of examples:

    at S itself    t_S - f^(-S)(S) = ([M^-1]_SS)^-1 a_S
    elsewhere      f^(-S)(x) = f(x) - k(x, X) [M^-1]_(X,S) ([M^-1]_SS)^-1 a_S

Lambda stays the same when S leaves. Not in the paper; the identities are those of kriging (Dubrule 1983).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float64, Int

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
from tangent_jax.train.features import Features, numbered
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
        groups: The group of each example, such as the track of a frame, if known: `left_out` leaves it out whole.

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
    groups: Sequence[Any] | None = None

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
        """The penalty with the best score of left-out examples, the larger on ties; {"penalty", "score"} of each one.

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
        """The outputs of each training example by the fit without it, or without its group if that is known, "n c"."""
        return self.kernel.centers - self.residuals(self.kernel.groups)

    def residuals(self, groups: Sequence[Any] | None = None) -> Float64[np.ndarray, "n c"]:
        """t - f^(-S) of each training example, "n c", by the fit without its group S; None: without it alone."""
        residuals = np.empty_like(self.a)
        for rows, held in self.held(groups):
            solved = np.linalg.solve(held, self.a[rows].reshape(len(rows), -1, 1))
            residuals[rows] = solved.reshape(*rows.shape, -1)
        return residuals

    def variances(self, groups: Sequence[Any] | None = None) -> Float64[np.ndarray, "n c c"]:
        """The block of each training example in ([M^-1]_SS)^-1, "n c c"; S: its group, None: it alone."""
        variances = np.empty((*self.a.shape, self.a.shape[1]))
        for rows, held in self.held(groups):
            whole = np.linalg.inv(held).reshape(len(rows), *(rows.shape[1], self.a.shape[1]) * 2)
            variances[rows] = np.einsum("gscsd->gscd", whole)
        return variances

    def held(self, groups: Sequence[Any] | None) -> Iterator[tuple[Int[np.ndarray, "g s"], np.ndarray]]:
        """Yields (the examples of all groups of one size s, their [M^-1]_SS "g sc sc"); None: each example alone."""
        n, c = self.a.shape
        numbers = np.arange(n) if groups is None else numbered(groups)
        sizes = np.bincount(numbers)[numbers]
        for size in np.unique(sizes):
            at = np.flatnonzero(sizes == size)
            rows = at[np.argsort(numbers[at], kind="stable")].reshape(-1, size)
            blocks = self.inverse.reshape(n, c, n, c)[rows[:, :, None], :, rows[:, None]]  # "g s s c c"
            yield rows, blocks.swapaxes(2, 3).reshape(len(rows), size * c, size * c)

    def changes(self, cross: np.ndarray) -> np.ndarray:
        """The changes of other examples' outputs when each training example leaves alone, "m c n".

            -B_i ([M^-1]_ii)^-1 a_i        B = k(x, X) M^-1

        Args:
            cross: The kernel of the others with the training examples, "mc nc".
        """
        n, c = self.a.shape
        b = (cross @ self.inverse).reshape(-1, c, n, c)
        return -np.einsum("mknc,nc->mkn", b, self.residuals(), optimize=True)

    def score(self, metric: Metric | None = None) -> float:
        """The mean of a metric over the outputs of `left_out`.

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


@promotes
def make_kernel(
    predict: Predictor,
    data: Batches | Data,
    objective: Objective | None = None,
    *,
    example_weights: Any = None,
    progress: Progress = silent,
) -> Kernel:
    """The tangent kernel on all training examples; groups, owners or copies in Features are left out whole.

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
    groups = data.whole_groups if isinstance(data, Features) else None
    k = rows.gram(progress=progress)
    return Kernel(predict, rows, k, targets, centers, weighted, float(objective.penalty), groups)
