"""Components (the tangent weights of one contributor or shard): sums, merges, provenance, stores and removal."""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
