"""DINOv3's own names, which EUPE has too: timm's, but for registers, the bias of keys, gates and positions.

    theirs                         timm's                 is
    storage_tokens                 reg_token              the registers
    blocks.0.attn.qkv.bias_mask    -                      what the bias of qkv is multiplied with: 0 for keys
    blocks.0.mlp.w1, w2, w3        mlp.fc1_g, fc1_x, fc2  a gated MLP
    rope_embed.periods             -                      theta^(4 j / e), j = 0 .. e/4 - 1, of e features per head

So the tensors show all that decides the outputs but the norms' eps, 1e-5 in all published models. Source: DINOv3's
`DinoVisionTransformer`, whose output is the class token.
"""

import re
from typing import Any

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.models.vit.config import vit_config
from tangent_jax.pretrained.architectures import architectures, find
from tangent_jax.pretrained.files import Tensors
from tangent_jax.pretrained.vit.timm_names import renamed

PERIODS = "rope_embed.periods"
MASK = ".bias_mask"
RENAMED = (
    (r"storage_tokens", "reg_token"),
    (r"(blocks\.\d+\.mlp\.)w1\.(weight|bias)", r"\1fc1_g.\2"),
    (r"(blocks\.\d+\.mlp\.)w2\.(weight|bias)", r"\1fc1_x.\2"),
    (r"(blocks\.\d+\.mlp\.)w3\.(weight|bias)", r"\1fc2.\2"),
    (r"(blocks\.\d+\.)ls([12])\.gamma", r"\1gamma_\2"),
)
"""(their name, that of timm's EVA networks)."""


def is_constant(name: str) -> bool:
    """Returns True for a tensor that is not trained: the periods of the positions, and the masks of biases."""
    return name == PERIODS or bool(re.fullmatch(r"blocks\.\d+\.attn\.qkv" + re.escape(MASK), name))


def with_timm_names(file: Tensors) -> dict[str, np.ndarray]:
    """Returns the trained tensors under timm's names, with masked biases.

    Raises:
        InputError: A mask of another shape than its bias.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, value in file.tensors.items():
        if is_constant(name):
            continue
        mask = file.tensors.get(f"{name.removesuffix('.bias')}{MASK}") if name.endswith(".qkv.bias") else None
        if mask is not None:
            if mask.shape != value.shape:
                raise InputError(
                    f"{name} in {file.path} must have the shape of its mask, {mask.shape}; got {value.shape}"
                )
            value = np.where(mask == 0, 0, np.asarray(value, np.float32) * np.asarray(mask, np.float32))
        tensors[renamed(name, RENAMED)] = value
    return tensors


def facts_of(file: Tensors) -> dict[str, Any]:
    """Returns the fields of a configuration: heads and theta by the periods, or by the architecture that is named.

    Raises:
        InputError: Neither is there, they differ, or the periods are not those of one theta.
    """
    width = file.shapes.get("cls_token", (0,))[-1]
    is_gated = any(".mlp.w1." in name for name in file.tensors)
    shown = shown_by_periods(file, width) if PERIODS in file.tensors else {}
    named = {} if file.architecture is None else named_sizes(file.architecture)
    for field, want in named.items():
        got = {"width": width, **shown}.get(field, want)
        if got != want:
            raise InputError(f"{field} of {file.path} must be {want}, as {file.architecture} has; got {got}")
    heads = shown.get("heads") or named.get("heads")
    if heads is None:
        raise InputError(
            f"{file.path} must hold {PERIODS}, which shows the number of heads; it does not. Say architecture=NAME, "
            "such as dinov3-S/16"
        )
    return {"positions": "rotary", "eps": 1e-5, "activation": "silu" if is_gated else "gelu", "heads": heads} | shown


def shown_by_periods(file: Tensors, width: int) -> dict[str, Any]:
    """Returns the heads and theta."""
    is_rounded = file.tensors[PERIODS].dtype.itemsize == 2  # in a file of 16 bits
    digits, error = (2, 1e-2) if is_rounded else (6, 1e-4)
    periods = np.asarray(file.tensors[PERIODS], np.float64).reshape(-1)
    count = max(len(periods), 1)
    theta = float(f"{abs(periods[-1]) ** (count / (count - 1)):.{digits}g}") if count > 1 else 100.0
    if width % (4 * count) or not np.allclose(periods, theta ** (np.arange(count) / count), error):
        raise InputError(
            f"{PERIODS} in {file.path} must be powers of one number from 1 on, a quarter of a head's features of "
            f"{width}; got {periods[:4].tolist()}, {len(periods)} in all"
        )
    return {"heads": width // (4 * count), "rope_theta": theta}


def named_sizes(name: str) -> dict[str, int]:
    """Returns the width and heads of an architecture of ours or timm's."""
    is_of_timm = name in architectures()
    facts = find("vit", "Vision Transformers", name, "architecture=").facts if is_of_timm else vars(vit_config(name))
    return {field: facts[field] for field in ("width", "heads")}
