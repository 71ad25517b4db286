"""A Vision Transformer from the tensors of a file: every layout in use, read into one parameter tree.

The architecture is inferred from the tensors; a missing, extra or misshapen one is named.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from tangent_jax.core import require
from tangent_jax.core.records import typed
from tangent_jax.data.preprocessing import CLIP, IMAGENET, INCEPTION, Preprocessing
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.files import Tensors, assemble
from tangent_jax.models.vit.config import SIZES, ViTConfig, vit_config
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.names import HUGGING_FACE, NPZ, TIMM, Flat, translate

OPTIONAL_BIASES = tuple(f"{name}/bias" for name in ("patch_embedding", "query", "key", "value", "head"))


@dataclasses.dataclass(frozen=True)
class Beside:
    """What is read of a config.json: Hugging Face's fields, and timm's."""

    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    num_attention_heads: int | None = None
    architecture: str | None = None


def from_ours(file: Tensors) -> Pretrained:
    """What `save` wrote, or an export of ours: our names or timm's, the configuration in the metadata."""
    where, fields = f"the metadata of {file.path}", file.metadata["config"]
    if isinstance(fields, dict) and "epsilon" in fields:  # version 0.1's name
        fields = {"eps" if name == "epsilon" else name: value for name, value in fields.items()}
    flat = translate(file.tensors, TIMM, file.path) if "cls_token" in file.tensors else file.tensors
    config = typed(ViTConfig, fields, "load", f"config of {where}")
    preprocessing = typed(Preprocessing, file.metadata.get("preprocessing"), "load", f"preprocessing of {where}")
    return built(flat, file.path, config, preprocessing)


def from_torch(file: Tensors) -> Pretrained:
    """timm's or Hugging Face's names, told apart by the tensors."""
    hugging_face = any("encoder.layer." in name for name in file.tensors)
    flat = translate(file.tensors, HUGGING_FACE if hugging_face else TIMM, file.path)
    config: Beside = file.config(Beside)
    fields: dict[str, Any] = {}
    if "fc_norm.weight" in file.tensors:
        fields["pool"] = "avg"
    if hugging_face:
        fields["eps"], act = config.layer_norm_eps, config.hidden_act
        fields["activation"] = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}.get(act, act)
        if config.num_attention_heads is not None:
            fields["heads"] = config.num_attention_heads
    words = " ".join(map(str, file.metadata.values()))
    name = f"{config.architecture or ''} {file.path.rpartition('/')[2]} {words}".lower()
    if "pre_norm/scale" in flat:
        fields["eps"] = 1e-5  # timm's CLIP towers use torch's default
    if "quickgelu" in name:
        fields["activation"] = "quick_gelu"
    preprocessing = guess_preprocessing(flat, name, file)
    return built(flat, file.path, infer(flat, file.path, **fields), preprocessing)


def from_google(file: Tensors) -> Pretrained:
    """Google's vision_transformer and big_vision layouts (their GELU is the tanh form)."""
    tensors = {re.sub(r"^(opt/target/|params/)", "", name): value for name, value in file.tensors.items()}
    flat = translate(tensors, NPZ, file.path)
    position = flat.get("position_embedding")
    if position is not None and int(np.sqrt(np.prod(position.shape[:-1]))) ** 2 == np.prod(position.shape[:-1]):
        # big_vision adds positions to the patches alone: the class token's is zero
        flat["position_embedding"] = np.pad(position.reshape(-1, position.shape[-1]), ((1, 0), (0, 0)))
    return built(flat, file.path, infer(flat, file.path, activation="gelu_tanh"), Preprocessing())


def infer(flat: Flat, path: str, **known: Any) -> ViTConfig:
    """The architecture that the tensors have; `known` are fields that the file says itself."""
    needed = ("patch_embedding/kernel", "position_embedding", "block_0/mlp_in/kernel", "class_token")
    for name in needed:
        require(name in flat, "load", f"the tensor of {name}", f"none in {path}", "Pass a Vision Transformer's weights")
    for name, axes in (("patch_embedding/kernel", 4), ("position_embedding", 2), ("block_0/mlp_in/kernel", 2)):
        shape = flat[name].shape
        require(len(shape) >= axes and 0 not in shape, "load", f"{name} of {axes} axes", f"shape {shape} in {path}")
    numbers = {int(name.split("/")[0][6:]) for name in flat if name.startswith("block_")}
    require(numbers == {*range(len(numbers))}, "load", "blocks 0, 1, 2, ...", f"block {max(numbers)} in {path}")
    patch, _, _, width = flat["patch_embedding/kernel"].shape
    heads = {size[0]: size[2] for size in SIZES.values()}.get(width, width // 64 if width % 64 == 0 else 0)
    query = flat.get("block_0/attention/query/kernel", np.zeros(0))
    heads = known.pop("heads", query.shape[1] if query.ndim == 3 else heads)
    require(heads >= 1, "load", "a width with known heads (64 features each)", f"width {width} in {path}")
    rows = int(np.prod(flat["position_embedding"].shape[:-1]))
    require(rows >= 2, "load", "a position_embedding of two rows or more", f"{rows} in {path}")
    grid = round((rows - 1) ** 0.5)
    return ViTConfig(
        width=width,
        depth=len(numbers),
        heads=heads,
        mlp_width=flat["block_0/mlp_in/kernel"].shape[-1],
        patch_size=patch,
        image_size=grid * patch,
        classes=flat["head/kernel"].shape[-1] if "head/kernel" in flat else 0,
        pre_norm="pre_norm/scale" in flat,
        layer_scale="block_0/layer_scale1/scale" in flat,
        **known,
    )


def built(flat: Flat, path: str, config: ViTConfig, preprocessing: Preprocessing) -> Pretrained:
    reshaped = ("/attention/", "class_token", "position_embedding")
    return assemble(VisionTransformer(config, preprocessing), flat, path, OPTIONAL_BIASES, reshaped)


def guess_preprocessing(flat: Flat, name: str, file: Tensors) -> Preprocessing:
    """What the JSON beside the weights says; else by family: CLIP, MAE and DINO, or AugReg (0.5, 0.5)."""
    beside = file.preprocessing()
    if beside is not None:
        return beside
    if "pre_norm/scale" in flat:
        return Preprocessing(*CLIP)
    return Preprocessing(*(IMAGENET if re.search(r"mae|dino|deit", name) else INCEPTION))


def check_architecture(asked: str, config: ViTConfig, source: str) -> None:
    """Raises InputError naming the first size in which a model is not the architecture asked for, such as L/16."""
    for field in ("width", "depth", "heads", "mlp_width", "patch_size"):
        want, got = getattr(vit_config(asked), field), getattr(config, field)
        require(want == got, "load", f"{asked} with {field} {want}", f"{field} {got} in {source}")
