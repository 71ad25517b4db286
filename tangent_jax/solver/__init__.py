"""The optimum of the convex problem: solvers with certificates, kernels, influence, posteriors and statistics."""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
