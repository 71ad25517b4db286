"""The linearised Laplace posterior: uncertainty as a covariance of the outputs.

    p(dw | data) = N(dw*, tau H^-1),   H = J^T W J + Lambda
    Cov f(x)     = tau J(x) H^-1 J(x)^T = tau / Lambda (k(x,x) - k(x,X) M^-1 k(X,x))

For a square loss it is the exact posterior (Gaussian process regression with the tangent kernel), for other losses the
Gaussian at the optimum. tau is the noise scale. Probabilities are softmax(beta f), averaged over the posterior. For a
square loss tau and beta are chosen on the left-out predictions, whose covariance is tau / Lambda ([M^-1]_ii)^-1 -
tau W_i^-1; of an example i in a group S it has the block of i in ([M^-1]_SS)^-1. Source: Immer et al. 2021 (the
linearised model); MacKay 1992 (probit).
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax, softmax

from tangent_jax.core import trees
from tangent_jax.core.checks import of_shape
from tangent_jax.core.progress import Progress, silent
from tangent_jax.linear import cg
from tangent_jax.linear.gram import own_gram
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.curvature import invert
from tangent_jax.solver.kernel import KernelSolution
from tangent_jax.solver.optimum import curvature_of
from tangent_jax.solver.problem import make_problem
from tangent_jax.solver.rows import jacobian_rows
from tangent_jax.train.batches import Batches, Data
from tangent_jax.train.objective import Objective, check_penalty
from tangent_jax.train.run import Fitted
from tangent_jax.train.targets import check_indices


@dataclasses.dataclass(frozen=True)
class KernelPosterior:
    """The posterior of a fit by the kernel; `scale`: tau of the best leave-one-out likelihood.

    >>> posterior = tj.solver.make_posterior(demo.solution)
    >>> outputs, covariance = posterior(demo.test.inputs)
    >>> outputs.shape, covariance.shape
    ((12, 3), (12, 3, 3))
    """

    solution: KernelSolution
    scale: float
    progress: Progress = silent

    def __call__(self, inputs: Any) -> tuple[Float[np.ndarray, "m c"], Float[np.ndarray, "m c c"]]:
        """Outputs "m c" and their covariance "m c c" of inputs; f64."""
        solution, kernel = self.solution, self.solution.kernel
        rows = jacobian_rows(kernel.predict, inputs, self.progress)
        cross, (m, c) = rows.gram(kernel.rows, self.progress), rows.shape
        explained = (cross @ solution.inverse).reshape(m, c, -1) @ cross.reshape(m, c, -1).swapaxes(1, 2)
        covariance = self.scale / solution.total_penalty * (own_gram(rows) - explained)
        return solution.predict(rows, cross), covariance

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and covariance of each training example, by the fit without it, or without its group."""
        solution = self.solution
        noise = np.einsum("nc,ck->nck", 1 / solution.kernel.precision, np.eye(solution.a.shape[1]))
        whole = solution.variances(solution.kernel.groups) / solution.total_penalty
        return solution.left_out(), self.scale * (whole - noise)


def make_posterior(solution: KernelSolution, progress: Progress = silent) -> KernelPosterior:
    """The posterior of a fit by the kernel.

        tau = Lambda / (n C) sum_S r_S^T [M^-1]_SS r_S = Lambda / (n C) sum_i r_i^T a_i,   r: the left-out residuals

    >>> float(tj.solver.make_posterior(demo.solution).scale)
    15.7
    """
    r = solution.residuals(solution.kernel.groups)
    return KernelPosterior(solution, float(solution.total_penalty * np.vdot(r, solution.a) / r.size), progress)


@dataclasses.dataclass(frozen=True)
class SolverPosterior:
    """The posterior at an optimum of any size: one linear solve for each input and output; J is not stored.

    Attributes:
        data, objective, example_weights: As they were solved.
        scale: tau; a linear solve ends at `tolerance` of its right-hand side, or after `passes`.

    >>> posterior = tj.solver.SolverPosterior(demo.predict, demo.train, demo.objective, demo.fitted)
    >>> outputs, covariance = posterior(demo.test.inputs[:2])
    >>> covariance.shape
    (2, 3, 3)
    """

    predict: Predictor
    data: Batches | Data
    objective: Objective
    solved: Fitted
    scale: float = 1.0
    tolerance: float = 1e-4
    passes: int = 200
    example_weights: Any = None
    progress: Progress = silent

    @jax.default_matmul_precision("highest")
    def __call__(self, inputs: Any) -> tuple[Float[np.ndarray, "m c"], Float[np.ndarray, "m c c"]]:
        """Outputs "m c" and their covariance "m c c" of inputs."""
        check_penalty(self.objective)
        dw, v = self.solved.dw, self.example_weights
        problem = make_problem(self.predict, self.data, self.objective, v, dw, keep=True)
        at, known = problem.outputs_at(dw), curvature_of(self.solved)
        curvature = problem.curvature(at, jax.random.key(0)) if known is None and problem.predict.has_factors else known
        inverse = None if curvature is None else invert(curvature, problem.total_penalty)
        times, outputs, covariances = partial(problem.product, outputs=at), [], []
        with self.progress(total=len(inputs) * problem.classes, unit="solve") as bar:
            for i in range(len(inputs)):
                f, back = jax.vjp(lambda dw, i=i: self.predict(dw, inputs[i : i + 1])[0], dw)
                rows = [back(unit)[0] for unit in jnp.eye(problem.classes, dtype=f.dtype)]
                products = np.empty((problem.classes, problem.classes))
                for c, row in enumerate(rows):
                    solution = cg.solve(times, row, inverse, tolerance=self.tolerance, steps=self.passes)
                    products[c] = [float(trees.vdot(other, solution)) for other in rows]
                    bar.update()
                outputs.append(np.asarray(f))
                covariances.append(self.scale * (products + products.T) / 2)
        return np.stack(outputs), np.stack(covariances)


def probabilities(
    outputs: np.ndarray, covariance: np.ndarray | None, beta: float, samples: int = 0, seed: int = 0
) -> np.ndarray:
    """softmax(beta f) averaged over f ~ N(outputs, covariance), "m c".

    Args:
        covariance: None for none.
        samples: 0 for the probit approximation, which scales each logit by 1 / sqrt(1 + pi/8 beta^2 variance); else
            that many draws.

    >>> outputs, covariance = np.array([[2.0, 0.0]]), np.array([[[4.0, 0.0], [0.0, 4.0]]])
    >>> sure = tj.solver.probabilities(outputs, None, beta=1.0)
    >>> unsure = tj.solver.probabilities(outputs, covariance, beta=1.0)
    >>> [round(float(p[0, 0]), 2) for p in (sure, unsure)]
    [0.88, 0.78]
    """
    outputs = np.asarray(outputs, np.float64)
    if covariance is None:
        return softmax(beta * outputs, -1)
    if samples == 0:
        variance = np.maximum(np.einsum("mcc->mc", covariance), 0)
        return softmax(beta * outputs / np.sqrt(1 + np.pi / 8 * beta**2 * variance), -1)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))[:, None]
    draws = np.random.default_rng(seed).standard_normal((samples, *outputs.shape))
    return softmax(beta * (outputs + np.einsum("mck,smk->smc", root, draws)), -1).mean(0)


def fitted_beta(outputs: np.ndarray, covariance: np.ndarray | None, targets: np.ndarray) -> tuple[float, float]:
    """(beta, mean loss): the beta with the least mean -log p of the targets, class indices.

    It is between 1e-3 and 1e3 over the median lead of the largest output over the second.

    >>> beta, loss = tj.solver.fitted_beta(demo.solution.left_out(), None, demo.train.targets)
    >>> bool(loss < np.log(3))  # better than uniform probabilities
    True
    """
    from scipy.optimize import minimize_scalar  # a third of a second

    check_indices(outputs, targets)
    if covariance is not None:
        of_shape("covariance", covariance, (*np.shape(outputs), np.shape(outputs)[-1]))

    outputs = np.asarray(outputs, np.float64)
    leads = np.diff(np.partition(outputs, -2, -1)[:, -2:]) if outputs.shape[-1] > 1 else np.zeros(0)
    scale = np.log(np.median(leads[leads > 0])) if (leads > 0).any() else 0.0

    def loss(log_beta: float) -> float:
        if covariance is None:
            return float(-log_softmax(np.exp(log_beta) * outputs, -1)[np.arange(len(targets)), targets].mean())
        p = probabilities(outputs, covariance, float(np.exp(log_beta)))
        return float(-np.log(np.maximum(p[np.arange(len(targets)), targets], 1e-300)).mean())

    best: Any = minimize_scalar(loss, bounds=(np.log(1e-3) - scale, np.log(1e3) - scale), method="bounded")
    return float(np.exp(best.x)), float(best.fun)
