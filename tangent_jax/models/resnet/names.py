"""Names of a residual network's tensors in other libraries, and our path for each.

timm, torchvision   layer1.0.conv1.weight, layer1.0.bn1.running_mean, layer1.0.downsample.0.weight, fc.weight
Hugging Face        resnet.encoder.stages.0.layers.0.layer.0.convolution.weight, ...shortcut.normalization...
ours                layer1/block_0/conv1/kernel, layer1/block_0/norm1/mean, layer1/block_0/shortcut_conv/kernel
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tangent_jax.core.checks import InputError

Flat = dict[str, np.ndarray]
KINDS = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
"""The leaves of a batch norm, by torch's names."""

HUGGING_FACE = [  # each is translated to timm's
    (r"resnet\.", ""),
    (r"embedder\.embedder\.convolution", "conv1"),
    (r"embedder\.embedder\.normalization", "bn1"),
    (r"encoder\.stages\.(\d+)\.layers\.(\d+)", lambda m: f"layer{int(m[1]) + 1}.{m[2]}"),
    (r"shortcut\.convolution", "downsample.0"),
    (r"shortcut\.normalization", "downsample.1"),
    (r"layer\.(\d+)\.convolution", lambda m: f"conv{int(m[1]) + 1}"),
    (r"layer\.(\d+)\.normalization", lambda m: f"bn{int(m[1]) + 1}"),
    (r"classifier\.1", "fc"),
]
FIRST_BLOCK = r"layer1\.0\.|(resnet\.)?encoder\.stages\.0\.layers\.0\."
"""How the names of a residual network's first block begin."""
SPECIAL = {
    "shortcut_conv": "downsample.0",
    "shortcut_norm": "downsample.1",
    "stem_conv": "conv1",
    "stem_norm": "bn1",
}


def timm_name(name: str) -> str:
    """timm's name for a Hugging Face name; timm's own names stay."""
    for pattern, theirs in HUGGING_FACE if "embedder" in name or "encoder" in name or "classifier" in name else []:
        name = re.sub(pattern, theirs, name)
    return name


def path_of(name: str) -> str | None:
    """Our path for timm's name of a tensor; None if no residual network has it."""
    *module, kind = name.split(".")
    inside = ".".join(module)
    block = re.fullmatch(r"layer(\d+)\.(\d+)\.(.+)", inside)
    prefix = f"layer{block[1]}/block_{block[2]}/" if block else ""
    part = block[3] if block else inside
    if part == "fc" and not block:
        return {"weight": "head/kernel", "bias": "head/bias"}.get(kind)
    known = re.fullmatch(r"(conv|bn)(\d)", part)
    if known and (block or known[2] == "1"):
        ours, number = {"conv": "conv", "bn": "norm"}[known[1]], known[2]
        leaf = f"{prefix}{ours}{number}" if block else f"stem_{ours}"
    elif block and part in ("downsample.0", "downsample.1"):
        leaf = prefix + ("shortcut_conv" if part.endswith("0") else "shortcut_norm")
    else:
        return None
    if "conv" in leaf.rpartition("/")[2]:
        return f"{leaf}/kernel" if kind == "weight" else None
    return f"{leaf}/{KINDS[kind]}" if kind in KINDS else None


def is_known(name: str) -> bool:
    """True for a name of timm's, torchvision's or Hugging Face's."""
    return path_of(timm_name(name)) is not None


def name_of(path: str) -> str:
    """timm's name of a tensor by our path."""
    *module, kind = path.split("/")
    if module == ["head"]:
        return {"kernel": "fc.weight", "bias": "fc.bias"}[kind]
    *block, part = module
    prefix = f"{block[0]}.{block[1].removeprefix('block_')}." if block else ""
    part = SPECIAL.get(part, part.replace("norm", "bn"))
    kinds = {ours: theirs for theirs, ours in KINDS.items()} | {"kernel": "weight"}
    return f"{prefix}{part}.{kinds[kind]}"


def to_ours(tensors: Mapping[str, np.ndarray], where: str) -> Flat:
    """The tensors under our paths and in our layout; InputError for a tensor that no ResNet has."""
    flat: Flat = {}
    for name, value in tensors.items():
        path, value = path_of(timm_name(name)), np.asarray(value)
        if not path:
            raise InputError(
                f"expected a residual network's tensors; got the extra tensor {name} {value.shape} in {where}"
            )
        axes = {"head/kernel": 2}.get(path, 4 if path.endswith("kernel") else 1)
        if not (value.ndim == axes and value.size):
            raise InputError(f"expected {name} of {axes} axes, not empty; got shape {value.shape} in {where}")
        flat[path] = {2: lambda x: x.T, 4: lambda x: x.transpose(2, 3, 1, 0), 1: lambda x: x}[axes](value)
    return flat


def to_timm(flat: Mapping[str, Any]) -> Flat:
    """Our leaves under timm's names, in torch's layout."""
    undone = {2: lambda x: x.T, 4: lambda x: x.transpose(3, 2, 0, 1), 1: lambda x: x}
    arrays = {path: np.asarray(value) for path, value in flat.items()}
    return {name_of(path): np.ascontiguousarray(undone[value.ndim](value)) for path, value in arrays.items()}
