"""Features on disk: the inputs of a model's first trained stage, computed once for each image."""

from tangent_jax.features.cache import CachedRows

__all__ = ["CachedRows"]
