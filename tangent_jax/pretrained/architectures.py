"""timm's architectures by name: facts that the tensors of a file do not show, such as heads, activation and pool.

`assets/timm.json` is the table, generated from timm (tests/models/make_architectures.py). The caller names a file's
architecture, or the config.json that timm's hub code writes. Otherwise the candidates are the architectures whose
tensors have the same names and shapes.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io.records import convert, short

APART = re.compile(r"head(_dist)?\.|fc\.|decoder_|mask_token$|pre_logits|.*num_batches_tracked$")
"""Tensors that do not distinguish architectures: the head, whose size is the classes, and unused parts."""

OF_IMAGES = ("mean", "std", "crop_pct", "crop_mode", "interpolation", "input_size", "fixed_input_size")
"""The fields of timm's pretrained_cfg that are read."""
ARGUMENTS = {"img_size": "image_size", "num_heads": "heads", "act_layer": "activation", "global_pool": "pool"}
"""Arguments of timm's models that are read, and our names."""
STRAY = (*ARGUMENTS, "no_embed_class", "norm_layer", "qk_norm", "block_fn", "block", "layers", "aa_layer", "avg_down")
STRAY += ("output_stride", "replace_stride_with_dilation")
"""Arguments of timm's models that no tensor shows, which are read below model_args alone."""
REFUSED = (
    "attention_type", "auto_map", "backbone_config", "interpolate_offset", "norm_type", "parallel_attention",
    "position_embedding_type", "pruned_heads", "quantization_config", "rms_norm_eps", "scale_attn", "use_mean_pooling",
    "use_relative_position_bias", "window_size",
)  # fmt: skip
"""Fields of config.json that change the outputs by parts that no network here has; others that are not read may stand.

Fields that are read and the tensors decide what a network computes, and no tensor may be unknown.
"""

NAME_IT = (
    "Name its architecture; or put a config.json beside it, with architecture, num_classes and, as model_args, the "
    "arguments of timm.create_model that made it"
)
"""The remedy for tensors of another architecture than the one that is named."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One architecture of timm.

    Attributes:
        key: The key of the names and shapes of its tensors.
        facts: Settings that these do not show, by name.
        images: The Preprocessing of its default weights.
        refused: A part that this library lacks, or None.
    """

    family: str
    key: str
    images: dict[str, Any] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    refused: str | None = None


def check_stray(config: Mapping[str, Any], where: str, read: Iterable[str] = ()) -> None:
    """Raises InputError for timm's arguments beside model_args, as huggingface_hub's mixin writes, but those `read`."""
    stray = [name for name in STRAY if name in config and name not in read]
    if stray:
        raise InputError(
            f"{where} must hold arguments of timm's models under model_args, and the architecture; got "
            f"{', '.join(stray)} beside them. Save the model by timm.models.save_for_hf"
        )


def model_args_of(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The model_args of timm's config.json; {} without any."""
    return convert(dict[str, Any] | None, config.get("model_args"), f"model_args of {where}") or {}


def key_of(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The key of tensors by their names and shapes."""
    lines = sorted(f"{name} {[*shape]}" for name, shape in shapes.items() if not APART.match(name))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@functools.cache
def architectures() -> dict[str, Architecture]:
    """The table."""
    content = (resources.files("tangent_jax") / "assets" / "timm.json").read_text()
    return {name: convert(Architecture, fields, name) for name, fields in json.loads(content).items()}


def find(family: str, title: str, name: str, where: str) -> Architecture:
    """The architecture of a name; InputError for a name that timm lacks, or one with parts that this library lacks.

    Args:
        title: The family's, in the plural.
    """
    known = architectures().get(name)
    if known is None or known.family != family:
        base, _, tag = name.partition(".")
        remedy = "Pass a model of your own: docs/tutorials/your_model.ipynb"
        if tag and base in architectures():
            remedy = f"Leave out the tag {tag}, which is of weights: the architecture is {base}"
        raise InputError(f"architecture in {where} must be one of timm's {title}; got {name}. {remedy}")
    if known.refused is not None:
        raise InputError(
            f"architecture in {where} must have parts that this library has; {name} does not: {known.refused}"
        )
    return known


def alike(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Architecture]:
    """The architectures whose tensors have these names and shapes, by name, including unsupported ones."""
    key = key_of(shapes)
    return {name: own for name, own in architectures().items() if own.key == key}


def with_pretrained_cfg(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json of timm with its pretrained_cfg in a field, where timm 0.5 and 0.6 wrote its fields at the top.

    timm tells the old form by the field that it lacks.
    """
    if "architecture" not in config or "model_type" in config or "pretrained_cfg" in config:
        return config
    inner = {name: value for name, value in config.items() if name in OF_IMAGES}
    return {**config, "pretrained_cfg": inner} if inner else config


def check_supported(fields: Mapping[str, Any], where: str, refused: Iterable[str] = REFUSED) -> None:
    """Raises InputError naming a field that changes the outputs in a way that this library lacks."""
    check_off(fields, [name for name in refused if fields.get(name)], where)


def check_arguments(args: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raises InputError naming an argument of another program's network that is not known; most change the outputs."""
    check_off(args, args.keys() - {*known}, where)


def check_off(fields: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Raises InputError naming the first of these fields that is not null or empty; false may switch off a default."""
    for name in sorted(names):
        if fields[name] not in (None, {}, [], ""):
            raise InputError(
                f"there must be no {name} in {where}, as no network here has it; got {short(fields[name])}. Remove it "
                "if it changes no output"
            )
