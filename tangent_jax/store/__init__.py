"""Components (the tangent weights of one contributor or shard): sums, merges, provenance, stores and removal."""

from tangent_jax.composition.compose import greedy_soup
from tangent_jax.composition.factors import body_factors, widen_factors
from tangent_jax.composition.kinds import kind_of
from tangent_jax.composition.merge import MERGES, WEIGHTED, Merger
from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.claims import Claims
from tangent_jax.store.copies import pull, push
from tangent_jax.store.disk import is_store
from tangent_jax.store.factors import read_factors, write_factors
from tangent_jax.store.files import read_component, write_component
from tangent_jax.store.heads import Joined, union
from tangent_jax.store.packing import pack, unpack
from tangent_jax.store.plans import WAYS, RemovalPlan, plan_removal
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.receipts import Receipt, read_receipt
from tangent_jax.store.recipe import SOLVERS, Anchor, StatisticsRecipe, recipe_of
from tangent_jax.store.removal import erase_cached, preview_removal, remove
from tangent_jax.store.retraining import Retrained, predictor_of
from tangent_jax.store.trained import Adapters, HeadAlone, HeadFile, LowRank, Network, NewHead, OwnLeaves, Tangent
from tangent_jax.store.trainers import Adam, Optimum

__all__ = [
    "MERGES",
    "SOLVERS",
    "WAYS",
    "WEIGHTED",
    "Adam",
    "Adapters",
    "Anchor",
    "Claims",
    "HeadAlone",
    "HeadFile",
    "Joined",
    "LowRank",
    "Merger",
    "Network",
    "NewHead",
    "Optimum",
    "OwnLeaves",
    "Provenance",
    "Receipt",
    "RemovalPlan",
    "Retrained",
    "Shards",
    "StatisticsRecipe",
    "Tangent",
    "body_factors",
    "erase_cached",
    "fill",
    "greedy_soup",
    "is_store",
    "kind_of",
    "make_provenance",
    "pack",
    "plan_removal",
    "predictor_of",
    "preview_removal",
    "pull",
    "push",
    "read_component",
    "read_factors",
    "read_receipt",
    "recipe_of",
    "remove",
    "union",
    "unpack",
    "widen_factors",
    "write_component",
    "write_factors",
]
