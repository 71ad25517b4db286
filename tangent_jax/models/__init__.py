"""Models, the subsets of their leaves that are trained, and their outputs."""

from tangent_jax.data.preprocessing import Preprocessing
from tangent_jax.models.frozen_head import FrozenHead, read_frozen_head
from tangent_jax.models.heads import body, of_classes, restrict, widen
from tangent_jax.models.ntk import FeatureMap, FeatureSettings, feature_map
from tangent_jax.models.protocol import Arrays
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.subsets import Subset, make_subset
from tangent_jax.models.vit.config import ViTConfig, vit_config
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.modules import TangentViT, ViT

__all__ = [
    "Arrays",
    "FeatureMap",
    "FeatureSettings",
    "FrozenHead",
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
    "make_subset",
    "of_classes",
    "read_frozen_head",
    "restrict",
    "vit_config",
    "widen",
]
