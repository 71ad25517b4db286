"""Features on disk, computed once for each image: the inputs of the first trained stage, and rows of feature maps."""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
