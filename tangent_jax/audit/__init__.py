"""Audits of private training (canaries and lower bounds of epsilon), and membership inference."""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
