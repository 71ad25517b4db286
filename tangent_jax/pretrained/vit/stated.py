"""Fields of a file that state what the tensors of a Vision Transformer do not show: timm's and Hugging Face's.

A field that the tensors contradict is refused by name, and one that changes the outputs by a part that no network here
has; others are not read. timm's model_args are the arguments of a network: an unknown one is refused.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import CLIP, IMAGENET, Preprocessing
from tangent_jax.io.records import convert
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.pretrained.architectures import (
    ARGUMENTS,
    NAME_IT,
    alike,
    check_arguments,
    check_stray,
    check_supported,
    find,
    key_of,
    model_args_of,
)
from tangent_jax.pretrained.files import Tensors
from tangent_jax.pretrained.processors import Published
from tangent_jax.pretrained.vit.open_clip import timm_name

SHOWN = ("patch_size", "embed_dim", "depth", "mlp_ratio", "class_token", "reg_tokens", "num_reg_tokens", "fc_norm")
SHOWN += ("init_values", "qkv_bias", "qkv_fused", "proj_bias", "pre_norm", "num_classes", "in_chans", "use_fc_norm")
"""Arguments of timm's models that the tensors show; those of STATED are compared with the tensors."""
STATED = {"embed_dim": "width", "depth": "depth", "num_classes": "classes", "class_token": "class_token"}
STATED |= {"reg_tokens": "registers", "num_reg_tokens": "registers", "pre_norm": "pre_norm", "patch_size": "patch_size"}
STATED |= {"hidden_size": "width", "num_hidden_layers": "depth", "intermediate_size": "mlp_width"}
STATED |= {"num_register_tokens": "registers", "use_swiglu_ffn": "gated", "use_gated_mlp": "gated"}
"""Fields of config.json, and of its model_args, that the tensors decide, and our names: timm's, then Hugging Face's."""
TRAINING = ("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate")
TRAINING += ("weight_init", "fix_init", "dynamic_img_size", "pos_embed_interp")
"""Arguments of timm's models for training or other image sizes only."""


WRAPPER = "timm_wrapper"
"""The model_type of timm's models that transformers saves."""


def of_timm(file: Tensors, is_ours: bool = False) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(facts, normalisation of its images or None) of a file under timm's names.

    Args:
        is_ours: The caller's name is one of this library's; its sizes are compared when the file is read.

    Raises:
        InputError: An architecture that is unsupported or differs from the tensors, an unnamed one if several match,
            and an unsupported field or argument.
    """
    where = f"config.json beside {file.path}"
    config = file.beside.get("config", {})
    kind = config.get("model_type", WRAPPER)
    if kind != WRAPPER:
        raise InputError(f"model_type in {where} must be {WRAPPER}, for tensors under timm's names; got {kind}")
    check_supported(config, where)
    named = config.get("architecture", timm_name(file))
    said: str | None = convert(str | None, named, f"architecture of {where}")
    name = said if is_ours else file.architecture or said
    check_stray(config, where, () if name is None else ("global_pool",))
    if not (name == said or said is None):
        raise InputError(f"architecture must be {said}, as config.json says; got {name}")
    args = model_args_of(config, where)
    cfg: dict[str, Any] = (
        convert(dict[str, Any] | None, config.get("pretrained_cfg"), f"pretrained_cfg of {where}") or {}
    )
    if name is None:
        return by_shapes(file)
    own = find("vit", "Vision Transformers", name, where if said else "architecture=")
    if not (bool(args) or key_of(file.shapes) == own.key):
        raise InputError(f"{file.path} must hold the tensors of {name}; it holds others. {NAME_IT}")
    facts = dict(own.facts)
    if cfg.get("fixed_input_size") and isinstance(cfg.get("input_size"), list):
        facts["image_size"] = cfg["input_size"][1:]
    facts |= {"pool": config["global_pool"]} if "global_pool" in config else {}
    width = facts.pop("width")
    width = args.get("embed_dim") or width
    shape = file.shapes.get("patch_embed.proj.weight", (width,))
    if shape[:1] != (width,):
        raise InputError(f"{file.path} must have {width} features, as {name} has; got shape {shape}")
    return facts | overridden(args, where), own.images


def overridden(args: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The facts that model_args change; InputError for an unknown argument."""
    check_arguments(args, (*ARGUMENTS, "no_embed_class", *SHOWN, *TRAINING), f"model_args of {where}")
    changed = {ours: args[theirs] for theirs, ours in ARGUMENTS.items() if args.get(theirs) is not None}
    if args.get("dynamic_img_size"):
        changed["dynamic"] = True
    return changed | ({"class_position": not args["no_embed_class"]} if "no_embed_class" in args else {})


def check_stated(config: ViTConfig, file: Tensors) -> None:
    """Raises InputError naming a field of config.json, or of its model_args, that the tensors contradict."""
    fields = file.beside.get("config", {})
    said = fields | model_args_of(fields, f"config.json beside {file.path}")
    for theirs, ours in STATED.items():
        value, own = said.get(theirs), getattr(config, ours)
        is_headless = theirs == "num_classes" and not own  # features only: the head may be missing
        if value not in (None, own, [own, own]) and not is_headless:  # timm's patch_size may be a pair
            raise InputError(
                f"{theirs} of {file.path} must be {value!r}, as config.json says; got {own} by its tensors"
            )


def by_shapes(file: Tensors) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The facts of the only network whose tensors have these names and shapes, as written or as timm spells them.

    A DeiT III by its first authors has the names of timm's vit_*_rope_ape, which differs in what no tensor shows.
    """
    own = alike(file.shapes) | alike(file.written)
    got = f"{', '.join([*own][:3])}, which are alike" if own else "names and shapes of none"
    if len({str((a.facts, a.refused)) for a in own.values()}) != 1:
        raise InputError(
            f"{file.path} must hold tensors of one architecture of timm's; got {got}. Say which it is: "
            "architecture=NAME of timm's, or put its config.json beside it"
        )
    first = next(iter(own))
    facts = find("vit", "Vision Transformers", first, file.path).facts
    images = [a.images for a in own.values()]
    shown = {fact: value for fact, value in facts.items() if fact != "width"}
    return shown, images[0] if all(a == images[0] for a in images) else None


def pool_of(file: Tensors, pool: Any) -> str:
    """Our name of timm's pool; InputError for an unsupported one."""
    has_token, after = "cls_token" in file.tensors, "fc_norm.weight" in file.tensors
    both = after and "norm.weight" in file.tensors
    if both:
        raise InputError(f"{file.path} must have one norm after the blocks; got norm and fc_norm")
    known = {"token": "token", "avg": "avg" if after else "norm_avg", "map": "attention"}
    is_valid = (
        isinstance(pool, str) and pool in known and has_token >= (pool == "token") and not (has_token and pool == "map")
    )
    if not is_valid:
        raise InputError(f"pool of {file.path} must be token, avg, or (without a class token) map; got {pool}")
    return known[pool]


# Hugging Face's config.json

PLAIN = ("vit", "deit", "vit_mae", "vit_msn", "ijepa", "dinov2", "dinov2_with_registers")
TOWERS = ("siglip_vision_model", "siglip2_vision_model", "clip_vision_model")
WHOLES = ("siglip", "siglip2", "clip")
"""The model_type of files under each naming of Hugging Face's: ViTs, vision towers, whole models with a tower."""
DEFAULT_HEADS = 12  # of PLAIN and TOWERS in transformers; the config.json of a whole model leaves them out


VIT = Published("ViTImageProcessor", Preprocessing(crop=1.0, interpolation="bilinear", resize="exact"))
OF_IMAGENET = VIT._replace(preprocessing=dataclasses.replace(VIT.preprocessing, mean=IMAGENET[0], std=IMAGENET[1]))
PUBLISHED = {
    "clip": Published("CLIPImageProcessor", Preprocessing(*CLIP, crop=1.0, centre="floor")),
    "deit": Published("DeiTImageProcessor", Preprocessing(*IMAGENET, crop=0.875, resize="exact", centre="floor")),
    "dinov2": Published("BitImageProcessor", Preprocessing(*IMAGENET, crop=0.875, centre="floor")),
    "dinov3_vit": OF_IMAGENET._replace(title="DINOv3ViTImageProcessor"),
    "ijepa": OF_IMAGENET,
    "siglip": Published("SiglipImageProcessor", Preprocessing(crop=1.0, resize="exact")),
    "siglip2": VIT._replace(title="Siglip2ImageProcessor"),
    "vit": VIT,
    "vit_mae": OF_IMAGENET,
    "vit_msn": OF_IMAGENET,
}
"""The processors of a model_type."""


def check_hugging_face(file: Tensors, types: tuple[str, ...]) -> str:
    """The model_type in config.json, one of `types`: those whose tensors have such names.

    Raises:
        InputError: Another type, and an unsupported field.
    """
    where, config = f"config.json beside {file.path}", file.beside.get("config", {})
    kind = config.get("model_type")
    if not (kind is None or kind in types):
        raise InputError(f"model_type in {where} must be one of {', '.join(types)}; got {kind}")
    check_supported(config, where)
    return kind or ""


def tower_of(file: Tensors) -> Tensors:
    """The file with the config.json of its vision tower, which may be part of a whole model's."""
    where, outer = f"config.json beside {file.path}", file.beside.get("config", {})
    if "vision_config" not in outer and "vision_config_dict" not in outer:
        return file
    given = convert(dict[str, Any] | None, outer.get("vision_config"), f"vision_config of {where}")
    kind = outer.get("model_type")
    if not (kind is None or kind in WHOLES):
        raise InputError(f"model_type in {where} must be one of {', '.join(WHOLES)}; got {kind}")
    check_supported(outer, where)
    inner = with_config_dict(given or {}, outer.get("vision_config_dict"), where)
    return file._replace(beside={**file.beside, "config": inner})


def with_config_dict(inner: dict[str, Any], given: Any, where: str) -> dict[str, Any]:
    """The fields of a vision tower, where a file of 2021 or 2022 has them in vision_config_dict, too.

    As transformers reads it, a field of the dict wins, and one that the dict lacks has its default, not the value of
    vision_config. Fields that the tensors show are taken from either.
    """
    given = convert(dict[str, Any] | None, given, f"vision_config_dict of {where}")
    if given is None:
        return inner
    unseen = ("num_attention_heads", "hidden_act", "layer_norm_eps")
    shown = {name: value for name, value in inner.items() if name not in unseen}
    return {**shown, "model_type": inner.get("model_type", "clip_vision_model"), **given}
