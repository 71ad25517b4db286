"""The family of Vision Transformers: reads files of each naming scheme into one tree of weights.

The architecture is inferred from the tensors and compared with config.json; errors name a missing, extra or misshapen
tensor. To add a naming scheme, add a table in tables.py, a function here that reads it, and a line in FAMILY.
"""

import dataclasses
from typing import Any

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import IMAGENET, ImageSize, Preprocessing, check_image_size, sides
from tangent_jax.io.progress import tell
from tangent_jax.io.records import convert
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.vit.config import KINDS, PATCH_SIZES, SIZES, ViTConfig, vit_config
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.names import Flat, covers, translate, unstacked, with_gates
from tangent_jax.models.vit.tables import (
    DINOV3,
    HUGGING_FACE,
    NPZ,
    OPEN_CLIP,
    SCANNED,
    TIMM_EVA,
    TIMM_READ,
    TORCHVISION,
    TOWER,
)
from tangent_jax.pretrained.family import Family, Naming, any_name
from tangent_jax.pretrained.files import Tensors, assemble
from tangent_jax.pretrained.processors import (
    Images,
    fraction_of,
    images_assumed,
    images_of,
    images_or_published,
)
from tangent_jax.pretrained.vit import dinov3, open_clip
from tangent_jax.pretrained.vit.stated import (
    DEFAULT_HEADS,
    PLAIN,
    PUBLISHED,
    TOWERS,
    WHOLES,
    check_hugging_face,
    check_stated,
    of_timm,
    pool_of,
    tower_of,
)
from tangent_jax.pretrained.vit.stated import (
    WRAPPER as TIMM_WRAPPER,
)
from tangent_jax.pretrained.vit.timm_names import RENAMED, renamed, with_timm_names

OPTIONAL_BIASES = ("query/bias", "key/bias", "value/bias")
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
"""Activations of Hugging Face that have another name here."""


@dataclasses.dataclass(frozen=True)
class Beside:
    """The fields of config.json that are used, Hugging Face's and timm's; None: not stated."""

    layer_norm_eps: float | None = None
    hidden_act: str | None = None
    num_attention_heads: int | None = None
    model_type: str | None = None
    image_size: int | tuple[int, int] | None = None
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None
    hidden_size: int | None = None


TORCHVISION_HEADS = {
    (config.width, config.depth, config.mlp_width, config.patch_size): config.heads
    for config in map(vit_config, ("B/16", "B/32", "L/16", "L/32", "H/14"))
}
"""The heads of torchvision's ViTs, by width, depth, MLP and patch size."""
B_16, _, L_16, _, H_14 = TORCHVISION_HEADS
SWAG = ((B_16, 384), (L_16, 512), (H_14, 518), (H_14, 224))
"""Sizes and images of torchvision's weights that only SWAG's have."""


def from_timm(file: Tensors) -> Pretrained:
    """Reads tensors under timm's names; config.json, the caller or the shapes name the architecture."""
    has_registers = "register_tokens" in file.tensors
    file = with_timm_names(file)
    is_ours, is_bare = file.architecture in FAMILY.architectures, not file.beside.get("config")
    facts, images = of_ours(file) if is_ours and is_bare else of_timm(file, is_ours)
    facts["pool"] = pool_of(file, facts["pool"])
    rules = TIMM_EVA if facts.get("positions") == "rotary" else TIMM_READ
    flat = translate(file.tensors, rules, file.path, "timm's Vision Transformers")
    inner, outer = (flat.get(f"block_0/mlp_{name}/kernel", np.zeros((0, 1))) for name in ("in", "out"))
    if inner.shape[-1:] == (2 * len(outer),):
        flat = with_gates(flat, file.path)
    if "distillation" in flat:
        facts["pool"] = "token_register"
        flat = with_one_head(with_placed_registers(flat, "distillation", file.path), file.path)
    elif "registers" in flat and facts.get("positions") != "rotary" and facts["class_position"]:
        flat = with_placed_registers(flat, "registers", file.path)  # no_embed_class is false
    if "pre_norm/scale" in flat:
        flat = with_zero_biases(flat, "patch_embedding")
    prepared = images_of(file)
    if prepared is None and open_clip.NAME in file.beside:
        prepared = open_clip.images_of(file)
    if prepared is None:
        if images is None:
            line = "does not say how images are normalised: by mean and deviation 0.5, as AugReg's, is assumed"
            tell(f"{file.path} {line}")
        table = convert(Preprocessing, images or {}, f"the images of {file.path}")
        prepared = Images(table, None)
    is_of_dinov2 = "mask_token" in file.left_out and "block_0/layer_scale1/scale" in flat  # timm's files have none
    if is_of_dinov2 and not has_registers:
        facts["position_filter"] = "bicubic_offset"
    is_of_any_size = facts.pop("dynamic", False) or facts.get("positions") == "rotary"
    return build(flat, file, facts, prepared, is_of_any_size)


def of_ours(file: Tensors) -> tuple[dict[str, Any], None]:
    """The facts of an architecture that this library names, such as L/16."""
    assert file.architecture is not None
    config = vit_config(file.architecture)
    if "fc_norm.weight" in file.tensors:
        raise InputError(
            f"{file.path} must normalise before its pool, as {file.architecture} does; got fc_norm. Name the "
            "architecture of timm's"
        )
    fields = ("heads", "activation", "eps", "pool", "positions", "rope_theta")
    pools = {"token": "token", "avg": "avg", "attention": "map"}
    return {name: getattr(config, name) for name in fields} | {"pool": pools[config.pool], "class_position": None}, None


def from_hugging_face(file: Tensors) -> Pretrained:
    """Reads tensors under Hugging Face's names of ViT and DINOv2, with the fields of config.json."""
    kind = check_hugging_face(file, PLAIN)
    flat = translate(file.tensors, HUGGING_FACE, file.path, "Hugging Face's ViT, DeiT, I-JEPA or DINOv2")
    is_dino = "block_0/layer_scale1/scale" in flat
    is_gated = "block_0/mlp_gate/kernel" in flat or any(".weights_in." in name for name in file.tensors)
    if kind and kind.startswith("dinov2") != is_dino:
        raise InputError(
            f"{file.path} must hold tensors of {kind}, as config.json says; got "
            f"{'layer' if is_dino else 'no layer'} scales"
        )
    fields: dict[str, Any] = {"eps": 1e-6 if is_dino else 1e-12, **read_fields(file)}
    if kind == "ijepa":
        fields["pool"] = "norm_avg"
    if "distillation" in flat:  # DeiT's token with a position, which the head of one token does not read
        flat = with_placed_registers(flat, "distillation", file.path)
    if any(name.startswith("head_dist/") for name in flat):
        flat, fields["pool"] = with_one_head(flat, file.path), "token_register"
    if is_gated:
        flat, fields["activation"] = with_gates(flat, file.path), "silu"  # config.json is ignored here
    kind = kind or ("dinov2" if is_dino else "vit")
    has_registers = kind == "dinov2_with_registers" or "registers" in flat
    fields["position_filter"] = "bicubic" if is_dino and has_registers else "bicubic_plain"
    kind = "dinov2" if is_dino else kind
    images = images_or_published(file, kind, PUBLISHED[kind])
    tell_of_own_class(file, flat)
    return build(flat, file, fields, images, is_of_any_size=is_dino)


def with_placed_registers(flat: Flat, name: str, path: str) -> Flat:
    """The leaves with tokens of this name that have positions, DeiT's or registers: each is the sum of both."""
    rest = {other: value for other, value in flat.items() if other not in (name, "position_embedding")}
    position = flat.get("position_embedding", np.zeros((0, 0)))
    rows, tokens = (value.reshape(-1, value.shape[-1]) for value in (position, flat[name]))
    own = slice(int("class_token" in flat), int("class_token" in flat) + len(tokens))
    if not (len(rows) > own.stop and tokens.shape[-1] == rows.shape[-1] and "registers" not in rest):
        raise InputError(
            f"{path} must hold a position of each {name} token; got positions {rows.shape} and tokens {tokens.shape}"
        )
    return {**rest, "registers": tokens + rows[own], "position_embedding": np.delete(rows, own, 0)}


def with_one_head(flat: Flat, path: str) -> Flat:
    """The leaves with DeiT's two heads as one head on class and distillation token side by side.

    ::

        (x W + b + x' W' + b') / 2 = [x, x'] [W / 2; W' / 2] + (b + b') / 2
    """
    heads = [flat.get(f"{name}/{leaf}") for name in ("head", "head_dist") for leaf in ("kernel", "bias")]
    if not any("head" in name.split("/")[0] for name in flat):
        return flat
    kernel, bias, other, other_bias = heads
    if kernel is None or bias is None or other is None or other_bias is None or kernel.shape != other.shape:
        raise InputError(f"{path} must have two heads of one shape, of the class and the distillation token")
    if "registers" not in flat:
        raise InputError(f"{path} must have a distillation token, which its second head reads; it has none")
    rest = {name: value for name, value in flat.items() if not name.startswith("head")}
    kernels = np.concatenate([np.asarray(part, np.float32) for part in (kernel, other)])
    biases = np.asarray(bias, np.float32) + np.asarray(other_bias, np.float32)
    return {**rest, "head/kernel": kernels / 2, "head/bias": biases / 2}


def from_dinov3(file: Tensors) -> Pretrained:
    """Reads tensors under Hugging Face's names of DINOv3."""
    check_hugging_face(file, ("dinov3_vit",))
    flat, config = translate(file.tensors, DINOV3, file.path, "Hugging Face's DINOv3"), file.config(Beside)
    theta = (config.rope_parameters or {}).get("rope_theta", config.rope_theta)
    default = {"activation": "silu"} if "block_0/mlp_gate/kernel" in flat else {}
    fields = {"positions": "rotary", "eps": 1e-5, "rope_theta": theta or 100.0, **default, **read_fields(file)}
    return build(
        flat, file, fields, images_or_published(file, "dinov3_vit", PUBLISHED["dinov3_vit"]), is_of_any_size=True
    )


def from_own_dinov3(file: Tensors) -> Pretrained:
    """Reads tensors under DINOv3's own names, and EUPE's."""
    flat = translate(dinov3.with_timm_names(file), TIMM_EVA, file.path, "DINOv3's own program")
    line = "as DINOv3's for LVD-1689M (ImageNet's colours) is assumed; those for SAT-493M have others"
    images = images_of(file) or images_assumed(file.path, PUBLISHED["dinov3_vit"].preprocessing, line)
    return build(flat, file._replace(beside={}), dinov3.facts_of(file), images, is_of_any_size=True)


def from_tower(file: Tensors) -> Pretrained:
    """Reads the vision tower of CLIP or SigLIP under Hugging Face's names; CLIP's projection is the head."""
    whole, file = file, tower_of(file)
    check_hugging_face(file, TOWERS)
    kernels = {name: value for name, value in file.tensors.items() if "patch_embedding.w" in name}
    is_of_any_shape = any(kernel.ndim == 2 for kernel in kernels.values())  # SigLIP 2's "naflex" models
    tensors = {**file.tensors, **{name: as_images(kernel) for name, kernel in kernels.items()}}
    flat = translate(tensors, TOWER, file.path, "Hugging Face's CLIP or SigLIP")
    if "class_token" in flat:
        kind, fields = "clip", {"eps": 1e-5, "activation": "quick_gelu"}
    else:
        kind, fields = "siglip", {"eps": 1e-6, "activation": "gelu_tanh"}
        fields |= {} if "pool/query_token" in flat else {"pool": "norm_avg"}
    if is_of_any_shape:
        kind = "siglip2"
    fields["position_filter"] = "bilinear" if is_of_any_shape else "bicubic_plain"
    pool = {}
    if "head/kernel" in flat:
        tell_of_own_class(whole, flat)
        flat, pool = with_head_of_mean(flat)
    elif "class_token" in flat:  # CLIP's projection is the head
        flat = {name.replace("projection/", "head/"): value for name, value in flat.items()}
        flat = with_zero_biases(flat, "head")
    if "class_token" in flat:
        flat = with_zero_biases(flat, "patch_embedding")
    images = images_or_published(file, kind, PUBLISHED[kind])
    return build(flat, file, {**fields, **read_fields(file), **pool}, images, is_of_any_size=is_of_any_shape)


def with_head_of_mean(flat: Flat) -> tuple[Flat, dict[str, Any]]:
    """(the leaves, the pool) of `...ForImageClassification`, whose classifier reads the mean of the patches.

    SigLIP's are normalised, and its attention pool is not read; CLIP's are not, and its last norm is not read.
    """
    if "class_token" in flat:
        return {name: value for name, value in flat.items() if not name.startswith("norm/")}, {"pool": "plain_avg"}
    return {name: value for name, value in flat.items() if not name.startswith("pool/")}, {"pool": "norm_avg"}


def with_zero_biases(flat: Flat, *layers: str) -> Flat:
    """The leaves with biases of zeros for layers that have none in their program, such as CLIP's projection."""
    kernels = {f"{layer}/bias": flat.get(f"{layer}/kernel") for layer in layers}
    return {bias: np.zeros(kernel.shape[-1:]) for bias, kernel in kernels.items() if kernel is not None} | flat


def tell_of_own_class(file: Tensors, flat: Flat) -> None:
    """Tells of a classifier whose class config.json does not name: a network of one's own may read other features."""
    classes = str(file.beside.get("config", {}).get("architectures"))
    if "head/kernel" in flat and "ForImageClassification" not in classes:
        tell(
            f"{file.path} has a classifier, and no config.json beside it names its class: it is read as that of "
            "transformers' ...ForImageClassification. One that reads other features has other outputs"
        )


def as_images(kernel: np.ndarray) -> np.ndarray:
    """A patch embedding (d, 3, p, p); SigLIP 2 stores it as (d, p p 3), for any number of patches."""
    side = round((kernel.shape[-1] / 3) ** 0.5) if kernel.ndim == 2 else 0
    is_flat = kernel.size and 3 * side**2 == kernel.shape[-1]
    return kernel.reshape(-1, side, side, 3).transpose(0, 3, 1, 2) if is_flat else kernel


def from_google(file: Tensors) -> Pretrained:
    """Reads Google's vision_transformer and big_vision layouts (their GELU is the tanh form).

    Both normalise all tokens, and then pool: the class token, attention, or without both the mean.
    """
    flat = translate(unstacked(file.tensors, file.path), NPZ, file.path, "Google's vision_transformer or big_vision")
    fields: dict[str, Any] = {"activation": "gelu_tanh", "position_filter": "linear_corners", "class_position": None}
    is_siglip = "pool/query_token" in flat
    fields |= {} if "class_token" in flat or is_siglip else {"pool": "norm_avg"}
    default = Preprocessing(crop=1.0, resize="exact") if is_siglip else Preprocessing()
    return build(flat, file, fields, images_of(file, PUBLISHED["vit"]) or Images(default, None))


def from_open_clip(file: Tensors) -> Pretrained:
    """Reads open_clip's visual tower, with open_clip_config.json or the caller's name; its projection is the head."""
    fields, images = open_clip.facts_of(file)
    flat = translate(file.tensors, OPEN_CLIP, file.path, "open_clip's visual tower")
    flat = with_zero_biases(flat, "patch_embedding", "head")
    return build(flat, file._replace(beside={}), fields, images)


def from_torchvision(file: Tensors) -> Pretrained:
    """Reads torchvision's ViT; its sizes are those of one of its builders, or the caller names an architecture."""
    flat = translate(file.tensors, TORCHVISION, file.path, "torchvision's ViT")
    shape = flat.get("patch_embedding/kernel", np.zeros((0, 0, 0, 0))).shape
    depth = len({name.split("/")[0] for name in flat if name.startswith("block_")})
    sizes = (shape[-1], depth, flat.get("block_0/mlp_in/kernel", np.zeros((0, 0))).shape[-1], shape[0])
    heads = TORCHVISION_HEADS.get(sizes)
    if file.architecture is not None and file.architecture in FAMILY.architectures:
        heads = vit_config(file.architecture).heads
    if heads is None:
        raise InputError(
            f"the heads of {file.path} must be known: torchvision's tensors do not show them, and none of vit_b_16, "
            f"vit_b_32, vit_l_16, vit_l_32 and vit_h_14 has (width, depth, MLP, patch) {sizes}. Say architecture=NAME "
            "of ours, such as S/16, if it has these sizes"
        )
    fields = {"heads": heads, "eps": 1e-6, "position_filter": "bicubic_corners"}
    bare = file._replace(beside={})
    prepared = images_of(file)
    if prepared is None:
        side = image_size(flat, bare, shape[0], {}, None)
        prepared = images_assumed(file.path, *of_torchvision(sizes, side))
    return build(flat, bare, fields, prepared)


def of_torchvision(sizes: tuple[int, ...], side: ImageSize) -> tuple[Preprocessing, str]:
    """(the preprocessing of torchvision's weights of such tensors, what a line says where others are like them).

    Source: `transforms()` of torchvision's ViT_*_Weights. SWAG's take bicubic without a margin, others bilinear.
    """
    if (sizes, side) in SWAG:
        return Preprocessing(*IMAGENET, crop=1.0), ""
    before = 242 if sizes == L_16 else 256
    prepared = Preprocessing(*IMAGENET, crop=fraction_of(224, before), interpolation="bilinear")
    others = "" if sizes[-1] == 32 and side == 224 else "; SWAG's are bicubic, without a margin"
    line = f"as by torchvision's IMAGENET1K_V1 (bilinear, 224 of {before} pixels) is assumed{others}"
    return prepared, line if others else ""


def read_fields(file: Tensors) -> dict[str, Any]:
    """The fields of a configuration that config.json states and the tensors do not show."""
    config: Beside = file.config(Beside)
    act = ACTIVATIONS.get(config.hidden_act or "", config.hidden_act)
    heads = config.num_attention_heads
    eps = config.layer_norm_eps
    if file.architecture is not None and file.architecture in FAMILY.architectures:
        named = vit_config(file.architecture)
        heads = heads or named.heads
        if not file.beside.get("config"):  # whose missing fields have transformers' defaults
            eps = named.eps
    heads = heads or (DEFAULT_HEADS if config.model_type in (*PLAIN, *TOWERS) else None)
    fields = {"eps": eps, "activation": act, "heads": heads}
    return {name: value for name, value in fields.items() if value is not None}


def infer(flat: Flat, file: Tensors, known: dict[str, Any], prepared: ImageSize | None) -> ViTConfig:
    """Infers the architecture from the tensors.

    Args:
        known: Fields that the file states.
        prepared: The size of its images, where it states one.
    """
    path, rotary = file.path, known.get("positions") == "rotary"
    needed = ["patch_embedding/kernel", "block_0/mlp_in/kernel"] + ["position_embedding"] * (not rotary)
    for name in needed:
        if name not in flat:
            raise InputError(
                f"{path} must hold the tensor of {name}; it does not. Pass a Vision Transformer's weights; timm's "
                "DINOv3, which has no positions, with its config.json"
            )
        shape, axes = flat[name].shape, 4 if "patch" in name else 2
        if not (len(shape) >= axes and 0 not in shape):
            raise InputError(f"{name} in {path} must have {axes} axes; got shape {shape}")
    numbers = {int(name.split("/")[0][6:]) for name in flat if name.startswith("block_")}
    if numbers != {*range(len(numbers))}:
        raise InputError(f"blocks in {path} must be 0, 1, 2, ...; got block {max(numbers)} of {len(numbers)}")
    patch, _, _, width = flat["patch_embedding/kernel"].shape
    query = flat.get("block_0/attention/query/kernel", np.zeros(0))
    heads = known.pop("heads", query.shape[1] if query.ndim == 3 else None)
    if heads is None:
        raise InputError(
            f"{path} must say its number of heads; it does not. Say architecture=NAME, or put a config.json with "
            "num_attention_heads beside it"
        )
    head, pool = flat.get("head/kernel", np.zeros((0, 0))), "token" if "class_token" in flat else "avg"
    pool = "attention" if "pool/query_token" in flat else "token_avg" if head.shape[0] == 2 * width else pool
    fields: dict[str, Any] = {"pool": pool, "image_size": image_size(flat, file, patch, known, prepared), **known}
    return ViTConfig(
        width=width,
        depth=len(numbers),
        heads=heads,
        mlp_width=flat["block_0/mlp_in/kernel"].shape[-1],
        patch_size=patch,
        classes=head.shape[-1],
        pre_norm="pre_norm/scale" in flat,
        layer_scale="block_0/layer_scale1/scale" in flat,
        class_token="class_token" in flat,
        registers=int(np.prod(flat["registers"].shape[:-1])) if "registers" in flat else 0,
        gated="block_0/mlp_gate/kernel" in flat,
        **fields,
    )


def image_size(flat: Flat, file: Tensors, patch: int, known: dict[str, Any], prepared: ImageSize | None) -> Any:
    """The stated image size, else that of prepared images, if it has as many patches as positions; else a square."""
    of_architecture = known.pop("image_size", None)
    said = of_architecture or file.config(Beside).image_size or prepared
    said = tuple(said) if isinstance(said, list) else said
    said = said[0] if isinstance(said, tuple) and said[0] == said[1] else said
    check_image_size(said or 224)
    if "position_embedding" not in flat:
        return said or 224
    rows = int(np.prod(flat["position_embedding"].shape[:-1])) - ("class_token" in flat)
    if rows < 1:
        raise InputError(f"position_embedding in {file.path} must have two rows or more; got {rows + 1}")
    if said and np.prod([side // patch for side in sides(said)]) == rows:
        return said
    side = round(rows**0.5)
    if not (side**2 == rows and not of_architecture):
        raise InputError(
            f"image size of {file.path} must give {rows} patches of {patch} pixels; got {said}. State it in config.json"
        )
    return side * patch


def with_class_row(flat: Flat, said: bool | None) -> Flat:
    """The leaves with a position of 0 for the class token, if the file has positions for patches only.

    Args:
        said: True if the class token has a position; None if nothing says so: in Google's files the patches then form
            a square.
    """
    position = flat.get("position_embedding")
    if position is None or position.ndim < 2 or "class_token" not in flat or said:
        return flat
    rows = position.reshape(-1, position.shape[-1])
    is_square = len(rows) > 1 and round(len(rows) ** 0.5) ** 2 == len(rows)
    return {**flat, "position_embedding": np.pad(rows, ((1, 0), (0, 0)))} if is_square or said is False else flat


def build(flat: Flat, file: Tensors, known: dict[str, Any], images: Images, is_of_any_size: bool = False) -> Pretrained:
    """The model of these leaves and this preprocessing.

    If the positions are for another size, one line says both.

    Args:
        is_of_any_size: Its program resamples the positions by itself, so that it runs at the size of the images.
    """
    if "head/kernel" in flat and "head/bias" not in flat:
        raise InputError(
            f"the head of {file.path} must have a bias, as its program's has; it has none, so it may be of cosines "
            "(ArcFace). If it is linear, add a bias of zeros; if not, save the network without it"
        )
    flat = with_class_row(flat, known.pop("class_position", True))
    known = {name: value for name, value in known.items() if value is not None}
    config = infer(flat, file, known, images.size)
    check_stated(config, file)
    check_positions(config, file)
    for name in OPTIONAL_BIASES:
        count = sum(f"block_{i}/attention/{name}" in flat for i in range(config.depth))
        if count not in (0, config.depth):
            raise InputError(
                f"{file.path} must hold {name} of attention in all blocks or in none; got {count} of {config.depth}. "
                "Fetch or make it again"
            )
    reshaped = ("/attention/", "class_token", "position_embedding", "registers", "query_token")
    model = VisionTransformer(config, images.preprocessing)
    pretrained = assemble(model, flat, file.path, OPTIONAL_BIASES, reshaped)
    if images.size is None or sides(images.size) == sides(config.image_size):
        return pretrained
    if config.positions != "learned" or config.replace(image_size=images.size).grid == config.grid:
        return pretrained.with_image_size(images.size)
    chosen = images.size if is_of_any_size else config.image_size
    positions, prepared, loaded = map(in_pixels, (config.image_size, images.size, chosen))
    line = f"{file.path} has positions for {positions}, and the JSON beside it prepares images of {prepared}"
    tell(f"{line}: it is loaded for {loaded}. with_image_size, or image_size in a recipe, changes that")
    return pretrained.with_image_size(chosen)


def in_pixels(image_size: ImageSize) -> str:
    """An image size in words."""
    height, width = sides(image_size)
    return f"{height} x {width} pixels"


def check_positions(config: ViTConfig, file: Tensors) -> None:
    """Raises InputError for positions of another kind or image size than config.json says."""
    beside, where = file.config(Beside), f"in {file.path}"
    rotary, is_stated = config.positions == "rotary", beside.rope_theta is not None
    stated = "state" if rotary else "not state"
    if not (is_stated == rotary or (rotary and beside.hidden_size is None)):
        raise InputError(
            f"config.json must {stated} rope_theta, of rotary positions; got {beside.rope_theta} beside positions "
            f"{config.positions} {where}"
        )
    said = beside.image_size
    if not (said is None or rotary or sides(said) == sides(config.image_size)):
        raise InputError(
            f"image_size must be {said}, as config.json says; got positions for {config.image_size} {where}"
        )


def covers_of_timm(name: str) -> bool:
    """True for a name of timm's, or of a program whose names are read as timm's."""
    return covers(TIMM_EVA)(name) or covers(TIMM_EVA)(renamed(name, RENAMED))


def covers_of_own_dinov3(name: str) -> bool:
    """True for a name of DINOv3's own program."""
    return dinov3.is_constant(name) or covers(TIMM_EVA)(renamed(name, dinov3.RENAMED))


def covers_of_google(name: str) -> bool:
    """True for a name of Google's, of a block or of all blocks in one."""
    return covers(NPZ)(SCANNED.sub(r"Transformer/encoderblock_0/\1", name))


FAMILY = Family(
    name="vit",
    title="a Vision Transformer",
    small=ViTConfig(width=12, depth=2, heads=3, mlp_width=20, patch_size=4, image_size=8, classes=7),
    model=VisionTransformer,
    config=ViTConfig,
    namings=(
        Naming(
            "timm",
            any_name(r"(cls_token|pos_embed)$|patch_embed\.|blocks\.\d"),
            from_timm,
            of_timm=True,
            covers=covers_of_timm,
            model_types=(TIMM_WRAPPER,),
        ),
        Naming(
            "DINOv3's own",
            any_name(r"storage_tokens$|rope_embed\.periods$"),
            from_own_dinov3,
            of_timm=True,
            covers=covers_of_own_dinov3,
        ),
        Naming(
            "Hugging Face (CLIP, SigLIP)",
            any_name(r"vision_model\.|encoder\.layers\.\d"),
            from_tower,
            covers=covers(TOWER),
            model_types=(*TOWERS, *WHOLES),
        ),
        Naming(
            "Hugging Face (DINOv3)",
            any_name(r"(model\.)?layer\.\d"),
            from_dinov3,
            covers=covers(DINOV3),
            model_types=("dinov3_vit",),
        ),
        Naming(
            "Hugging Face (ViT, DeiT, I-JEPA, DINOv2)",
            any_name(r"((vit|deit|ijepa|beit|dinov2\w*)\.)?(embeddings\.|encoder\.layer\.|layers\.\d)"),
            from_hugging_face,
            covers=covers(HUGGING_FACE),
            model_types=PLAIN,
        ),
        Naming("Google", any_name(r"Transformer/|embedding/|cls$"), from_google, covers=covers_of_google),
        Naming(
            "torchvision",
            any_name(r"encoder\.layers\.encoder_layer_\d"),
            from_torchvision,
            covers=covers(TORCHVISION),
        ),
        Naming(
            "open_clip",
            any_name(r"transformer\.resblocks\.\d"),
            from_open_clip,
            of_timm=True,
            covers=covers(OPEN_CLIP),
        ),
    ),
    architectures={
        name: vit_config(name)
        for name in (
            *(f"{size}/{patch}" for size in SIZES for patch in PATCH_SIZES),
            *(f"{kind}-{size}" for kind, (_, sizes) in KINDS.items() for size in sizes),
        )
    },
    sizes=("positions", "width", "depth", "heads", "mlp_width", "patch_size", "registers", "gated"),
    embedded={"builtin": "vit_builtin.safetensors"},
)
