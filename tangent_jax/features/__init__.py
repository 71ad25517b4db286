"""Features on disk, computed once for each image: the inputs of the first trained stage, and rows of feature maps."""

from tangent_jax.features.mapped import keep_rows
from tangent_jax.features.row_store import RowStore, erase

__all__ = ["RowStore", "erase", "keep_rows"]
