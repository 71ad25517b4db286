"""Data sets of images: sources, decoding, preprocessing, shards.

Users need `tj.open_dataset`, `tj.examples` and `tj.shards`; authors of commands also use the rest.
"""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
