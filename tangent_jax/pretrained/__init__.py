"""Pre-trained weights: files, folders, hubs and their configurations, read into models."""

from tangent_jax.pretrained.frozen_head import read_frozen_head

__all__ = ["read_frozen_head"]
