from tangent_jax.features.mapped import keep_rows as keep_rows
from tangent_jax.features.row_store import RowStore as RowStore
from tangent_jax.features.row_store import erase as erase
