"""Facts of open_clip's visual towers that their tensors do not show: open_clip_config.json, or timm's name for one.

    {"model_cfg": {"embed_dim", "quick_gelu", "vision_cfg": {"layers", "width", "head_width", ...}, "text_cfg"},
     "preprocess_cfg": {"mean", "std", "interpolation", "resize_mode", "size"}}

Source: open_clip's model.py, CLIPVisionCfg and _build_vision_tower.
"""

from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import CLIP, Preprocessing
from tangent_jax.io.records import convert
from tangent_jax.pretrained.architectures import check_arguments, check_supported, find
from tangent_jax.pretrained.files import Tensors
from tangent_jax.pretrained.processors import Images, as_size

NAME = "open_clip_config"
REFUSED = (
    "attentional_pool", "block_type", "global_average_pool", "input_patchnorm", "norm_kwargs", "qk_norm", "scale_attn",
    "scale_attn_inner", "scale_fc", "scale_heads", "scaled_cosine_attn",
)  # fmt: skip
"""Fields that change the outputs by parts that no network here has."""


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
        InputError: If neither the JSON nor the caller says the activation and the heads, and for unsupported fields.
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
    check_supported(model, f"model_cfg of {where}", REFUSED)
    check_supported(vision, f"vision_cfg of {where}", REFUSED)
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
    check_arguments(options, ("approximate",), f"act_kwargs of {where}")
    is_tanh = options.get("approximate") == "tanh"
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu_tanh" if is_tanh else "gelu"
    return {"heads": width // max(per_head, 1), "activation": activation, "eps": 1e-5}, images_of(file)


def images_of(file: Tensors) -> Images:
    """The images of open_clip_config.json: by preprocess_cfg, CLIP's by default, of the size of vision_cfg."""
    where = f"preprocess_cfg of {NAME}.json beside {file.path}"
    whole = file.beside.get(NAME, {})
    said: dict[str, Any] = convert(dict[str, Any], whole.get("preprocess_cfg", {}), where)
    mode = said.get("resize_mode") or "shortest"
    if mode not in ("shortest", "squash"):
        raise InputError(f"resize_mode of {where} must be shortest or squash; got {mode}")
    fields = {"mean": said.get("mean") or [*CLIP[0]], "std": said.get("std") or [*CLIP[1]], "crop": 1.0}
    fields |= {"interpolation": said.get("interpolation") or "bicubic"}
    fields |= {"resize": "exact" if mode == "squash" else "short"}
    given = vision_of(file)[0].get("image_size", 224)
    size = convert(int | tuple[int, int], given, f"image_size of vision_cfg of {NAME}.json beside {file.path}")
    return Images(convert(Preprocessing, fields, where), size if isinstance(size, int) else as_size(*size))
