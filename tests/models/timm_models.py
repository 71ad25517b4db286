"""timm without torchvision, which it imports for image transforms that no model needs; its models of our families."""

import importlib.machinery
import sys

FILTERS = ("BILINEAR", "BICUBIC", "NEAREST", "LANCZOS", "BOX", "HAMMING")


class Absent:
    """A module of any names, in the place of torchvision."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        def member(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {filter: filter.lower() for filter in FILTERS})

        module.__path__, module.__getattr__ = [], member


class Finder:
    def find_spec(self, name, path, target=None):
        return (
            importlib.machinery.ModuleSpec(name, Absent(), is_package=True)
            if name.split(".")[0] == "torchvision"
            else None
        )


if importlib.machinery.PathFinder.find_spec("torchvision") is None:
    sys.meta_path.insert(0, Finder())

import timm  # noqa: E402
from timm.models._registry import _model_to_module  # noqa: E402

MODULES = {"vision_transformer": "vit", "deit": "vit", "beit": "vit", "eva": "vit", "resnet": "resnet"}
NAMES = {name: MODULES[_model_to_module[name]] for name in timm.list_models() if _model_to_module[name] in MODULES}
"""The family of each model of timm's that could be ours."""
