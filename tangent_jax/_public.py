"""The public names of tangent_jax, which `tangent_jax` gives at their first use."""

from tangent_jax._version import __version__
from tangent_jax.audit.audit import canary_scores, epsilon_lower_bound, noise_scale, recovered_noise, run_openly
from tangent_jax.audit.bounds import OneRunBound, one_run_bound
from tangent_jax.audit.canaries import make_canaries
from tangent_jax.audit.membership import Membership, membership_attack
from tangent_jax.audit.one_run import fit_audited
from tangent_jax.core import Dual, InputError, show_progress
from tangent_jax.data import shards
from tangent_jax.data.arrays import examples
from tangent_jax.data.preprocessing import Preprocessing
from tangent_jax.data.registry import open_dataset
from tangent_jax.exports.folder import export, load_export
from tangent_jax.exports.peft import read_peft
from tangent_jax.linearization import jacobian, linearize
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.features import Cache, Features, features
from tangent_jax.models.frozen_head import FrozenHead, read_frozen_head
from tangent_jax.models.functions import model_of
from tangent_jax.models.heads import body, of_classes, restricted, widened
from tangent_jax.models.load import load, save
from tangent_jax.models.predict import Predictor, nonlinear, tangent
from tangent_jax.models.protocol import Arrays, Model
from tangent_jax.models.resnet.config import ResNetConfig, resnet_config
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.subsets import Subset, make_subset
from tangent_jax.models.vit.config import ViTConfig, vit_config
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.modules import TangentViT, ViT
from tangent_jax.privacy.accounting import epsilon_of, noise_multiplier_of
from tangent_jax.privacy.clipping import ClippedSum, clipped_sum
from tangent_jax.privacy.fit_many import fit_private_many
from tangent_jax.privacy.mechanism import Mechanism, PrivacyCost, Spent, make_mechanism, spent_together
from tangent_jax.privacy.norms import clipped_sum_closed_form
from tangent_jax.privacy.public import unwhitened, whitened
from tangent_jax.privacy.train import fit_private
from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.influence import datamodeling_score
from tangent_jax.solver.kernel import Kernel, KernelSolution, make_kernel
from tangent_jax.solver.many import solve_many
from tangent_jax.solver.optimum import solve
from tangent_jax.solver.posterior import KernelPosterior, SolverPosterior, posterior, probabilities
from tangent_jax.solver.problem import curvature
from tangent_jax.store.apart import fill
from tangent_jax.store.factors import read_factors, widened_factors, write_factors
from tangent_jax.store.files import read_component, write_component
from tangent_jax.store.heads import Joined, join, union
from tangent_jax.store.merge import merge
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.receipts import Receipt
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import RemovalPlan, plan_removal, remove
from tangent_jax.store.retraining import predictor_of
from tangent_jax.store.store import Factors, Store
from tangent_jax.store.sums import compose, greedy_soup, weighted_sum
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import Measure, accuracy, evaluate, outputs, squared_error
from tangent_jax.train.fit import fit
from tangent_jax.train.fit_many import fit_many
from tangent_jax.train.log import log_steps
from tangent_jax.train.losses import CrossEntropy, Loss, MeanSquared, RescaledSquare, SquareLoss
from tangent_jax.train.metrics import auc, brier_score, calibration_error, entropy
from tangent_jax.train.objective import Keyed, Objective, distance_bound, make_objective
from tangent_jax.train.optimizers import adam, momentum, projected
from tangent_jax.train.run import Fitted

__all__ = [
    "Arrays", "Batches", "Cache", "ClippedSum", "CrossEntropy", "Curvature", "Dual", "Factors", "Features",
    "Fitted", "FrozenHead", "InputError", "Joined", "Kernel", "KernelPosterior", "KernelSolution", "Keyed", "Loss",
    "MeanSquared", "Measure", "Mechanism", "Membership", "Model", "Objective", "OneRunBound", "Predictor",
    "Preprocessing", "Pretrained", "PrivacyCost", "Provenance", "Receipt", "Recipe", "RemovalPlan",
    "ResNet", "ResNetConfig", "RescaledSquare", "SolverPosterior", "Spent", "SquareLoss", "Store", "Subset",
    "TangentViT", "ViT", "ViTConfig", "VisionTransformer", "__version__", "accuracy", "adam", "auc", "body",
    "brier_score", "calibration_error", "canary_scores", "clipped_sum", "clipped_sum_closed_form", "compose",
    "curvature", "datamodeling_score", "distance_bound", "entropy", "epsilon_lower_bound", "epsilon_of", "evaluate",
    "examples", "export", "features", "fill", "fit", "fit_audited", "fit_many", "fit_private", "fit_private_many",
    "greedy_soup", "jacobian", "join", "linearize", "load", "load_export", "log_steps", "make_canaries", "make_kernel",
    "make_mechanism", "make_objective", "make_provenance", "make_subset", "membership_attack", "merge", "model_of",
    "momentum", "noise_multiplier_of", "noise_scale", "nonlinear", "of_classes", "one_run_bound", "open_dataset",
    "outputs", "plan_removal", "posterior", "predictor_of", "probabilities", "projected", "read_component",
    "read_factors", "read_frozen_head", "read_peft", "recovered_noise", "remove", "resnet_config", "restricted",
    "run_openly", "save", "shards", "show_progress", "solve", "solve_many", "spent_together", "squared_error",
    "tangent", "union", "unwhitened", "vit_config", "weighted_sum", "whitened", "widened", "widened_factors",
    "write_component", "write_factors",
]  # fmt: skip
