"""The family of Vision Transformers: their files under each naming in use, read into one tree of weights.

The architecture is inferred from the tensors; a missing, extra or misshapen one is named. One more naming is a table of
names in names.py, a function here that reads it, and a line in FAMILY.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from tangent_jax.core import require
from tangent_jax.data.preprocessing import CLIP, IMAGENET, INCEPTION, Preprocessing
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.family import Family, Naming, any_name
from tangent_jax.models.files import Tensors, assemble
from tangent_jax.models.vit.config import PATCH_SIZES, SIZES, ViTConfig, vit_config
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.names import HUGGING_FACE, NPZ, TIMM, Flat, translate

OPTIONAL_BIASES = tuple(f"{name}/bias" for name in ("patch_embedding", "query", "key", "value", "head"))


@dataclasses.dataclass(frozen=True)
class Beside:
    """The fields of config.json that are read, Hugging Face's and timm's."""

    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    num_attention_heads: int | None = None
    architecture: str | None = None


def from_timm(file: Tensors) -> Pretrained:
    """Reads tensors under timm's names."""
    flat = translate(file.tensors, TIMM, file.path)
    fields: dict[str, Any] = {"pool": "avg"} if "fc_norm.weight" in file.tensors else {}
    if "pre_norm/scale" in flat:
        fields["eps"] = 1e-5  # timm's CLIP towers use torch's default
    if "quickgelu" in words_of(file):
        fields["activation"] = "quick_gelu"
    return built(flat, file.path, infer(flat, file.path, **fields), guess_preprocessing(flat, file))


def from_hugging_face(file: Tensors) -> Pretrained:
    """Reads tensors under Hugging Face's names, with the fields of config.json."""
    flat = translate(file.tensors, HUGGING_FACE, file.path)
    config: Beside = file.config(Beside)
    act = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}.get(config.hidden_act, config.hidden_act)
    fields: dict[str, Any] = {"eps": config.layer_norm_eps, "activation": act}
    if config.num_attention_heads is not None:
        fields["heads"] = config.num_attention_heads
    return built(flat, file.path, infer(flat, file.path, **fields), guess_preprocessing(flat, file))


def from_google(file: Tensors) -> Pretrained:
    """Reads Google's vision_transformer and big_vision layouts (their GELU is the tanh form)."""
    tensors = {re.sub(r"^(opt/target/|params/)", "", name): value for name, value in file.tensors.items()}
    flat = translate(tensors, NPZ, file.path)
    position = flat.get("position_embedding")
    if position is not None and int(np.sqrt(np.prod(position.shape[:-1]))) ** 2 == np.prod(position.shape[:-1]):
        # big_vision adds positions to the patches alone: the class token's is zero
        flat["position_embedding"] = np.pad(position.reshape(-1, position.shape[-1]), ((1, 0), (0, 0)))
    return built(flat, file.path, infer(flat, file.path, activation="gelu_tanh"), Preprocessing())


def infer(flat: Flat, path: str, **known: Any) -> ViTConfig:
    """Infers the architecture from the tensors; `known` are fields that the file states."""
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
    """The model of a configuration, with these leaves."""
    reshaped = ("/attention/", "class_token", "position_embedding")
    return assemble(VisionTransformer(config, preprocessing), flat, path, OPTIONAL_BIASES, reshaped)


def words_of(file: Tensors) -> str:
    """The names of a file's architecture and of the file, and its metadata, in small letters."""
    words = " ".join(map(str, file.metadata.values()))
    return f"{file.config(Beside).architecture or ''} {file.path.rpartition('/')[2]} {words}".lower()


def guess_preprocessing(flat: Flat, file: Tensors) -> Preprocessing:
    """The preprocessing in the JSON beside the weights; else by pre-training: CLIP, MAE and DINO, or AugReg (0.5)."""
    stated = file.preprocessing()
    if stated is not None:
        return stated
    if "pre_norm/scale" in flat:
        return Preprocessing(*CLIP)
    return Preprocessing(*(IMAGENET if re.search(r"mae|dino|deit", words_of(file)) else INCEPTION))


FAMILY = Family(
    name="vit",
    title="a Vision Transformer",
    model=VisionTransformer,
    config=ViTConfig,
    namings=(
        Naming("timm", any_name(r"(cls_token|pos_embed)$|patch_embed\.|blocks\.\d"), from_timm),
        Naming("Hugging Face", any_name(r"(vit\.)?(embeddings|encoder\.layer)\."), from_hugging_face),
        Naming("Google", any_name(r"(opt/target/|params/)?(Transformer/|embedding/|cls$)"), from_google),
    ),
    architectures={f"{size}/{patch}": vit_config(f"{size}/{patch}") for size in SIZES for patch in PATCH_SIZES},
    sizes=("width", "depth", "heads", "mlp_width", "patch_size"),
    embedded={"builtin": "vit_builtin.safetensors"},
)
