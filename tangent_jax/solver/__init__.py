"""The optimum of the convex problem: solvers with certificates, kernels, influence, posteriors and statistics."""

from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.expansion import Expansion, expand
from tangent_jax.solver.formed import make_changes
from tangent_jax.solver.kernel import Kernel, KernelSolution, make_kernel
from tangent_jax.solver.many import solve_many
from tangent_jax.solver.mapped import MappedOnce, map_once, rows_by_depth, rows_of
from tangent_jax.solver.posterior import KernelPosterior, SolverPosterior, fitted_beta, make_posterior, probabilities
from tangent_jax.solver.problem import make_curvature
from tangent_jax.solver.rows import jacobian_rows
from tangent_jax.solver.statistics import (
    BALANCES,
    SHRINKAGES,
    Settings,
    Statistics,
    choose_settings,
    make_statistics,
    statistics_of_rows,
)
from tangent_jax.train.objective import distance_bound

__all__ = [
    "BALANCES",
    "SHRINKAGES",
    "Curvature",
    "Expansion",
    "Kernel",
    "KernelPosterior",
    "KernelSolution",
    "MappedOnce",
    "Settings",
    "SolverPosterior",
    "Statistics",
    "choose_settings",
    "distance_bound",
    "expand",
    "fitted_beta",
    "jacobian_rows",
    "make_changes",
    "make_curvature",
    "make_kernel",
    "make_posterior",
    "make_statistics",
    "map_once",
    "probabilities",
    "rows_by_depth",
    "rows_of",
    "solve_many",
    "statistics_of_rows",
]
