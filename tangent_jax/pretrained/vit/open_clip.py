"""Facts of open_clip's visual towers that their tensors do not show: open_clip_config.json, or timm's name for one.

    {"model_cfg": {"embed_dim", "quick_gelu", "vision_cfg": {"layers", "width", "head_width", ...}, "text_cfg"},
     "preprocess_cfg": {"mean", "std", "interpolation", "resize_mode", "size"}}

Source: open_clip's model.py, CLIPVisionCfg and _build_vision_tower.
"""

from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import CLIP, Preprocessing, check_image_size
from tangent_jax.io.records import convert
from tangent_jax.pretrained.architectures import check_understood, find
from tangent_jax.pretrained.files import Tensors
from tangent_jax.pretrained.processors import Images, as_size

NAME = "open_clip_config"
MODEL = ("embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "custom_text", "init_logit_scale", "init_logit_bias")
MODEL += ("cast_dtype", "output_dict", "nonscalar_logit_scale")
SHOWN = ("layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "ls_init_value", "no_ln_pre")
SHOWN += ("pos_embed_type", "act_kwargs", "pool_type", "final_ln_after_pool", "timm_model_name")
"""Fields of vision_cfg that are read, or that the tensors show; the normalised class token is the same in any order."""
WITHOUT_EFFECT = ("patch_dropout", "attn_pooler_queries", "attn_pooler_heads", "output_tokens", "timm_model_pretrained")
WITHOUT_EFFECT += ("timm_pool", "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path")
OFF = ("attentional_pool", "input_patchnorm", "global_average_pool")
"""Fields that may be there if they are false."""
IMAGES = ("mean", "std", "interpolation", "resize_mode", "size", "mode", "fill_color")


def timm_name(file: Tensors) -> str | None:
    """timm's architecture in open_clip_config.json, for towers that timm builds; or None."""
    return vision_of(file)[0].get("timm_model_name")


def vision_of(file: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
    """(vision_cfg, model_cfg) of open_clip_config.json beside the file; both are empty without it."""
    where = f"{NAME}.json beside {file.path}"
    whole = file.beside.get(NAME, {})
    model: dict[str, Any] = convert(dict[str, Any], whole.get("model_cfg", {}), f"model_cfg of {where}")
    vision: dict[str, Any] = convert(dict[str, Any], model.get("vision_cfg", {}), f"vision_cfg of {where}")
    return vision, model


def facts_of(file: Tensors) -> tuple[dict[str, Any], Images]:
    """(fields of a configuration, its images) of a visual tower under open_clip's names.

    Raises:
        InputError: If neither the JSON nor the caller says the activation and the heads, and for unknown fields.
    """
    if NAME in file.beside:
        return of_json(file)
    if file.architecture is None:
        raise InputError(
            f"the activation and heads of {file.path} must be said, as open_clip's tensors do not show them; put "
            f"{NAME}.json beside it, or say architecture=NAME of timm's, such as vit_base_patch32_clip_quickgelu_224"
        )
    facts = dict(find("vit", "Vision Transformers", file.architecture, "architecture=").facts)
    width = facts.pop("width")
    got = file.shapes.get("class_embedding", ())
    if got != (width,):
        raise InputError(
            f"{file.architecture} must have {width} features; got a class token of shape {got} in {file.path}"
        )
    fields = {name: facts[name] for name in ("heads", "activation", "eps")}
    return fields, Images(Preprocessing(*CLIP, 1.0), None)


def of_json(file: Tensors) -> tuple[dict[str, Any], Images]:
    """The facts in open_clip_config.json."""
    where = f"{NAME}.json beside {file.path}"
    vision, model = vision_of(file)
    check_understood(model, MODEL, f"model_cfg of {where}")
    off = [name for name in OFF if not vision.get(name)]
    check_understood(vision, (*SHOWN, *WITHOUT_EFFECT, *off), f"vision_cfg of {where}")
    pool = vision.get("pool_type", "tok")
    if pool != "tok":
        raise InputError(f"pool_type of {where} must be tok, the class token; got {pool}")
    width = convert(int, vision.get("width"), f"width of vision_cfg of {where}")
    per_head = convert(int, vision.get("head_width", 64), f"head_width of vision_cfg of {where}")
    layers = convert(int, vision.get("layers"), f"layers of vision_cfg of {where}")
    depth = len({name.split(".")[2] for name in file.tensors if name.startswith("transformer.resblocks.")})
    if layers != depth or file.shapes.get("class_embedding") != (width,):
        raise InputError(
            f"the tensors of {file.path} must be those of {layers} layers of {width} features, as {where} says; got "
            f"{depth} layers, and a class token of shape {file.shapes.get('class_embedding')}"
        )
    options = convert(dict[str, Any] | None, vision.get("act_kwargs"), f"act_kwargs of {where}") or {}
    check_understood(options, ("approximate",), f"act_kwargs of {where}")
    is_tanh = options.get("approximate") == "tanh"
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu_tanh" if is_tanh else "gelu"
    return {"heads": width // max(per_head, 1), "activation": activation, "eps": 1e-5}, images_of(file)


def images_of(file: Tensors) -> Images:
    """The images of open_clip_config.json: by preprocess_cfg, CLIP's by default, of the size of vision_cfg."""
    where = f"preprocess_cfg of {NAME}.json beside {file.path}"
    whole = file.beside.get(NAME, {})
    said: dict[str, Any] = convert(dict[str, Any], whole.get("preprocess_cfg", {}), where)
    check_understood(said, IMAGES, where)
    mode = said.get("resize_mode") or "shortest"
    if mode not in ("shortest", "squash"):
        raise InputError(f"resize_mode of {where} must be shortest or squash; got {mode}")
    fields = {"mean": said.get("mean") or [*CLIP[0]], "std": said.get("std") or [*CLIP[1]], "crop": 1.0}
    fields |= {"interpolation": said.get("interpolation") or "bicubic"}
    fields |= {"resize": "exact" if mode == "squash" else "short"}
    given = vision_of(file)[0].get("image_size", 224)
    size = convert(int | tuple[int, int], given, f"image_size of vision_cfg of {NAME}.json beside {file.path}")
    check_image_size(size)
    return Images(convert(Preprocessing, fields, where), size if isinstance(size, int) else as_size(*size))
