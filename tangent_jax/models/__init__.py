"""Models, the trained subsets of their leaves, and predictors of their outputs."""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
