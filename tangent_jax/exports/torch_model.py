"""Exports f_lin to PyTorch: files under timm's names, with assets/tangent_torch.py beside them."""

import ast
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.io.files import write_whole
from tangent_jax.models.parametrize import unwrap
from tangent_jax.models.predict import Predictor
from tangent_jax.pretrained.load import FAMILIES, encode_model, family_of, title_of

MODULE = "tangent_torch.py"


def write_torch(folder: Path, predict: Predictor, dw: Tree, classes: Sequence[str] = ()) -> None:
    """Writes model.safetensors, tangent.safetensors and the module that reads both; class names have no place there.

    Raises: InputError for a model that the module does not support, and for one that is not linear in dw.
    """
    source = (resources.files("tangent_jax") / "assets" / MODULE).read_text()
    (base, _), known, do = unwrap(predict.model), settings_of(source), "Export it as StableHLO or ONNX"
    family = family_of(base)
    titles = " or ".join(f.title for f in FAMILIES if f.is_in_torch)
    if family is None or not family.is_in_torch:
        raise InputError(f"model must be {titles} for PyTorch; got {title_of(base)}. {do}.")
    for name, value in base.settings.items():
        is_valid = name in known and (known[name] is None or value in known[name])
        if not is_valid:
            raise InputError(f"{name} of the model must be one that {MODULE} knows; got {value}. {do}.")
    do = "Load w + dw into timm's own model"
    if predict.method != "taft":
        raise InputError(f"method must be taft, a tangent model; got {predict.method}. {do}.")
    for name, tree in (("model", predict.w), ("tangent", dw)):
        content = encode_model(predict.model, trees.leaves(tree), "world")
        write_whole(folder / f"{name}.safetensors", content)
    write_whole(folder / MODULE, source)


def settings_of(source: str) -> dict[str, Any]:
    """The literal SETTINGS in the module's source: the supported settings, and their values if they are few."""
    statements = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    return next(ast.literal_eval(s.value) for s in statements if ast.unparse(s.targets[0]) == "SETTINGS")
