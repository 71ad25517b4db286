"""timm's models of our families, with a torchvision that is without its operators: those of PyPI are built for CUDA.

`make parity` puts torchvision and open_clip into build/programs, where transformers does not find them.
"""

import sys
import types
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "build/programs"))
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

import timm  # noqa: E402
from timm.models._registry import _model_to_module  # noqa: E402

MODULES = {"vision_transformer": "vit", "deit": "vit", "beit": "vit", "eva": "vit", "resnet": "resnet"}
NAMES = {name: MODULES[_model_to_module[name]] for name in timm.list_models() if _model_to_module[name] in MODULES}
"""The family of each model of timm's that could be ours."""
