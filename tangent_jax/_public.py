"""The public names of tangent_jax, imported at their first use: about forty, and ten namespaces."""

from tangent_jax import audit, exports, features, losses, metrics, models, pretrained, privacy, solver, store
from tangent_jax._version import __version__
from tangent_jax.core.checks import InputError
from tangent_jax.data import shards
from tangent_jax.data.arrays import examples
from tangent_jax.data.registry import open_dataset
from tangent_jax.exports.folder import export
from tangent_jax.features.extract import Cache, extract
from tangent_jax.io.progress import show_progress
from tangent_jax.linearization import linearize
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.functions import model_of
from tangent_jax.models.predict import Predictor, nonlinear, tangent
from tangent_jax.models.protocol import Model
from tangent_jax.pretrained.load import load, save
from tangent_jax.privacy.mechanism import make_mechanism
from tangent_jax.privacy.train import fit_private
from tangent_jax.solver.optimum import solve
from tangent_jax.store.heads import join
from tangent_jax.store.merge import merge
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.store import Store
from tangent_jax.store.sums import compose
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import evaluate, outputs
from tangent_jax.train.features import Features
from tangent_jax.train.fit import fit
from tangent_jax.train.fit_many import fit_many
from tangent_jax.train.log import log_steps
from tangent_jax.train.objective import Objective, make_objective
from tangent_jax.train.optimizers import adam, project
from tangent_jax.train.run import Fitted

__all__ = [
    "Batches",
    "Cache",
    "Features",
    "Fitted",
    "InputError",
    "Model",
    "Objective",
    "Predictor",
    "Pretrained",
    "Recipe",
    "Store",
    "__version__",
    "adam",
    "audit",
    "compose",
    "evaluate",
    "examples",
    "export",
    "exports",
    "extract",
    "features",
    "fit",
    "fit_many",
    "fit_private",
    "join",
    "linearize",
    "load",
    "log_steps",
    "losses",
    "make_mechanism",
    "make_objective",
    "merge",
    "metrics",
    "model_of",
    "models",
    "nonlinear",
    "open_dataset",
    "outputs",
    "pretrained",
    "privacy",
    "project",
    "save",
    "shards",
    "show_progress",
    "solve",
    "solver",
    "store",
    "tangent",
]
