"""The optimum of the convex problem: solved, certified, and what follows from it for examples, sums and predictions."""

from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.kernel import Kernel, KernelSolution, make_kernel
from tangent_jax.solver.posterior import KernelPosterior, SolverPosterior, make_posterior, probabilities
from tangent_jax.solver.problem import make_curvature
from tangent_jax.solver.rounds import Round, fit_rounds, move_anchor, network
from tangent_jax.solver.statistics import Settings, Statistics, choose_settings, make_statistics
from tangent_jax.train.objective import distance_bound

__all__ = [
    "Curvature",
    "Kernel",
    "KernelPosterior",
    "KernelSolution",
    "Round",
    "Settings",
    "SolverPosterior",
    "Statistics",
    "choose_settings",
    "distance_bound",
    "fit_rounds",
    "make_curvature",
    "make_kernel",
    "make_posterior",
    "make_statistics",
    "move_anchor",
    "network",
    "probabilities",
]
