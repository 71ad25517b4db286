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
from tangent_jax.pretrained.config_fields import is_without_effect

APART = re.compile(r"head(_dist)?\.|fc\.|decoder_|mask_token$|pre_logits|.*num_batches_tracked$")
"""Tensors that do not distinguish architectures: the head, whose size is the classes, and unused parts."""

WHOLE = ("architecture", "num_classes", "num_features", "global_pool", "model_args", "pretrained_cfg")
"""The fields of timm's config.json."""
LABELS = ("label_names", "label_descriptions", "license", "tags")
CFG = (
    "url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load",
    "input_size", "test_input_size", "min_input_size", "fixed_input_size", "interpolation", "crop_pct",
    "test_crop_pct", "crop_mode", "mean", "std", "num_classes", "label_offset", "label_names", "label_descriptions",
    "pool_size", "test_pool_size", "first_conv", "classifier", "license", "description", "origin_url", "paper_name",
    "paper_ids", "notes",
)  # fmt: skip
"""The fields of timm's pretrained_cfg."""
OF_IMAGES = (
    "mean", "std", "crop_pct", "crop_mode", "interpolation", "input_size", "fixed_input_size"
)  # fmt: skip
"""The fields of timm's pretrained_cfg that are read."""
ARGUMENTS = {"img_size": "image_size", "num_heads": "heads", "act_layer": "activation", "global_pool": "pool"}
"""Arguments of timm's models that are read, and our names."""
READ = (
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "image_size", "patch_size",
    "num_attention_heads", "hidden_act", "layer_norm_eps", "num_register_tokens", "use_swiglu_ffn", "use_gated_mlp",
    "rope_theta", "rope_parameters",
)  # fmt: skip
"""The fields of Hugging Face's Vision Transformers that are read."""


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
        raise InputError(
            f"architecture in {where} must be one of timm's {title}; got {name}. Pass a model of your own: "
            "docs/tutorials/your_model.ipynb"
        )
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

    timm tells the old form by the field that it lacks. A field that neither form has stays at the top. Labels say
    nothing about images; without other fields there is no pretrained_cfg.
    """
    if "architecture" not in config or "model_type" in config or "pretrained_cfg" in config:
        return config
    inner = {name: value for name, value in config.items() if name in CFG and name not in (*WHOLE, *LABELS)}
    if not inner:
        return config
    outer = {name: value for name, value in config.items() if name not in inner}
    if "labels" in outer:
        outer["label_names"] = outer.pop("labels")
    return {**outer, "pretrained_cfg": inner}


def check_understood(fields: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raises InputError naming a field that is neither known, nor without effect, nor null or empty.

    A value of false is refused too: it may switch off a feature that is on by default.
    """
    for name in sorted(fields.keys() - {*known}):
        value = fields[name]
        is_off = value is None or value in ({}, [], "")
        if not is_off and not is_without_effect(name):
            raise InputError(
                f"there must be no {name} in {where}, since its effect on the outputs is not known here; got "
                f"{short(value)}. If it has none, ignore it: --ignore_config={name}, or ignore_config=[{name!r}] of "
                "tj.load"
            )
