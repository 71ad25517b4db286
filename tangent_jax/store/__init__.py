"""Components, tangent weights that leave training: their sums, their provenance, their store, their removal."""

from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.factors import read_factors, widen_factors, write_factors
from tangent_jax.store.files import read_component, write_component
from tangent_jax.store.heads import Joined, union
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.receipts import Receipt
from tangent_jax.store.removal import RemovalPlan, plan_removal, remove
from tangent_jax.store.retraining import predictor_of
from tangent_jax.store.store import Factors
from tangent_jax.store.sums import greedy_soup

__all__ = [
    "Factors",
    "Joined",
    "Provenance",
    "Receipt",
    "RemovalPlan",
    "Shards",
    "fill",
    "greedy_soup",
    "make_provenance",
    "plan_removal",
    "predictor_of",
    "read_component",
    "read_factors",
    "remove",
    "union",
    "widen_factors",
    "write_component",
    "write_factors",
]
