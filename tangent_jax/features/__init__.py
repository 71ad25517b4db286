"""Features on disk: the inputs of a model's first trained stage, computed once for each image."""

from tangent_jax.features.row_store import RowStore, erase

__all__ = ["RowStore", "erase"]
