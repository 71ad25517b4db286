"""timm's models of our families, with torchvision less its operators, which are built for CUDA."""

import sys
import types

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

import timm  # noqa: E402
from timm.models._registry import _model_to_module  # noqa: E402

MODULES = {"vision_transformer": "vit", "deit": "vit", "beit": "vit", "eva": "vit", "resnet": "resnet"}
NAMES = {name: MODULES[_model_to_module[name]] for name in timm.list_models() if _model_to_module[name] in MODULES}
"""The family of each model of timm's that could be ours."""
