"""Models, the trained subsets of their leaves, and predictors of their outputs."""

from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.models.frozen_head import FrozenHead
from tangent_jax.models.heads import body, restrict, widen
from tangent_jax.models.ntk import FeatureMap, FeatureSettings, feature_map, score_rows
from tangent_jax.models.predict import LINEARIZATIONS, OUTPUTS
from tangent_jax.models.protocol import Arrays, initial_weights
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.session import FirstSession, Paid
from tangent_jax.models.subsets import KINDS, Subset, make_subset
from tangent_jax.models.vit.config import ViTConfig, vit_config
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.modules import TangentViT, ViT

__all__ = [
    "KINDS",
    "LINEARIZATIONS",
    "OUTPUTS",
    "Arrays",
    "FeatureMap",
    "FeatureSettings",
    "FirstSession",
    "FrozenHead",
    "Paid",
    "Preprocessing",
    "ResNet",
    "ResNetConfig",
    "Subset",
    "TangentViT",
    "ViT",
    "ViTConfig",
    "VisionTransformer",
    "body",
    "feature_map",
    "initial_weights",
    "make_subset",
    "restrict",
    "score_rows",
    "vit_config",
    "widen",
]
