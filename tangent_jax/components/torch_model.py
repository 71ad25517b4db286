"""An export that PyTorch computes f_lin of: the files under timm's names, and assets/tangent_torch.py beside them."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from tangent_jax.core import Tree, require, trees
from tangent_jax.core.files import write_whole
from tangent_jax.models.load import encoded
from tangent_jax.models.parametrize import unwrapped
from tangent_jax.models.predict import Predictor

MODULE = "tangent_torch.py"


def write_torch(folder: Path, predict: Predictor, dw: Tree, classes: Sequence[str] = ()) -> None:
    """Writes model.safetensors, tangent.safetensors and the module that reads both; names of classes have no place.

    Raises: InputError for a model that the module does not know, and for one that is not linear in dw.
    """
    base, _ = unwrapped(predict.model)
    is_known = "patch_size" in base.settings
    require(is_known, "write_torch", "a Vision Transformer", type(base).__name__, "Export it as StableHLO or ONNX")
    do = "Load w + dw into timm's own model"
    require(predict.method == "taft", "write_torch", "a tangent model, method taft", predict.method, do)
    for name, tree in (("model", predict.w), ("tangent", dw)):
        content = encoded("write_torch", predict.model, trees.leaves(tree), "world")
        write_whole(folder / f"{name}.safetensors", content)
    write_whole(folder / MODULE, (resources.files("tangent_jax") / "assets" / MODULE).read_text())
