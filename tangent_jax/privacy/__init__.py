"""DP-SGD of tangent weights: mechanism, clipped sums, noise, accounting, and a trainer with a ledger."""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
