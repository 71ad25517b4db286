"""Pre-trained weights: files, folders, hubs and their configurations, read into models."""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
