"""Tangent Vision Transformers in JAX."""
