"""Names of a Vision Transformer's tensors in other libraries, and our path for each.

One table a layout: (pattern, our path, transform). A transform turns torch's (out, in) round to our
(in, out); a fused qkv becomes three; heads are unfolded later, by the shapes of the architecture.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tangent_jax.core import refusal, require

Flat = dict[str, np.ndarray]


def T(x: np.ndarray) -> np.ndarray:
    """(out, ...) -> (..., out)."""
    return np.moveaxis(x, 0, -1)


def conv(x: np.ndarray) -> np.ndarray:
    """(d, 3, p, p) -> (p, p, 3, d)."""
    return x.transpose(2, 3, 1, 0)


def same(x: np.ndarray) -> np.ndarray:
    """x itself."""
    return x


Rule = tuple[str, str, Callable[[np.ndarray], np.ndarray]]


def torch_layer(name: str, path: str) -> list[Rule]:
    """The rules of a dense layer's weight and bias."""
    return [(rf"{name}\.weight", f"{path}/kernel", T), (rf"{name}\.bias", f"{path}/bias", same)]


def torch_norm(name: str, path: str) -> list[Rule]:
    """The rules of a norm's weight and bias."""
    return [(rf"{name}\.weight", f"{path}/scale", same), (rf"{name}\.bias", f"{path}/bias", same)]


TIMM: list[Rule] = [
    ("cls_token", "class_token", same),
    ("new_class_token", "new_class_token", same),
    ("pos_embed", "position_embedding", same),
    (r"patch_embed\.proj\.weight", "patch_embedding/kernel", conv),
    (r"patch_embed\.proj\.bias", "patch_embedding/bias", same),
    *torch_norm("norm_pre", "pre_norm"),
    *torch_norm(r"(?:fc_)?norm", "norm"),
    *torch_layer("head", "head"),
    *torch_norm(r"blocks\.(\d+)\.norm([12])", r"block_\1/norm\2"),
    *torch_layer(r"blocks\.(\d+)\.attn\.qkv", r"block_\1/attention/qkv"),
    *torch_layer(r"blocks\.(\d+)\.attn\.proj", r"block_\1/attention/out"),
    *torch_layer(r"blocks\.(\d+)\.mlp\.fc1", r"block_\1/mlp_in"),
    *torch_layer(r"blocks\.(\d+)\.mlp\.fc2", r"block_\1/mlp_out"),
    (r"blocks\.(\d+)\.ls([12])\.gamma", r"block_\1/layer_scale\2/scale", same),
]
HF_BLOCK = r"(?:vit\.)?encoder\.layer\.(\d+)"
HUGGING_FACE: list[Rule] = [
    (r"(?:vit\.)?embeddings\.cls_token", "class_token", same),
    (r"(?:vit\.)?embeddings\.position_embeddings", "position_embedding", same),
    (r"(?:vit\.)?embeddings\.patch_embeddings\.projection\.weight", "patch_embedding/kernel", conv),
    (r"(?:vit\.)?embeddings\.patch_embeddings\.projection\.bias", "patch_embedding/bias", same),
    *torch_norm(r"(?:vit\.)?layernorm", "norm"),
    *torch_layer("classifier", "head"),
    *torch_norm(rf"{HF_BLOCK}\.layernorm_before", r"block_\1/norm1"),
    *torch_norm(rf"{HF_BLOCK}\.layernorm_after", r"block_\1/norm2"),
    *torch_layer(rf"{HF_BLOCK}\.attention\.attention\.(query|key|value)", r"block_\1/attention/\2"),
    *torch_layer(rf"{HF_BLOCK}\.attention\.output\.dense", r"block_\1/attention/out"),
    *torch_layer(rf"{HF_BLOCK}\.intermediate\.dense", r"block_\1/mlp_in"),
    *torch_layer(rf"{HF_BLOCK}\.output\.dense", r"block_\1/mlp_out"),
]
NPZ_BLOCK = r"Transformer/encoderblock_(\d+)"
NPZ: list[Rule] = [
    ("cls", "class_token", same),
    (r"(?:Transformer/)?(?:posembed_input/)?pos_embedding", "position_embedding", same),
    (r"embedding/(kernel|bias)", r"patch_embedding/\1", same),
    (r"Transformer/encoder_norm/(scale|bias)", r"norm/\1", same),
    (r"head/(kernel|bias)", r"head/\1", same),
    (rf"{NPZ_BLOCK}/LayerNorm_0/(scale|bias)", r"block_\1/norm1/\2", same),
    (rf"{NPZ_BLOCK}/LayerNorm_[12]/(scale|bias)", r"block_\1/norm2/\2", same),
    (
        rf"{NPZ_BLOCK}/MultiHeadDotProductAttention_[01]/(query|key|value|qkv|out)/(kernel|bias)",
        r"block_\1/attention/\2/\3",
        same,
    ),
    (rf"{NPZ_BLOCK}/MlpBlock_[03]/Dense_0/(kernel|bias)", r"block_\1/mlp_in/\2", same),
    (rf"{NPZ_BLOCK}/MlpBlock_[03]/Dense_1/(kernel|bias)", r"block_\1/mlp_out/\2", same),
]
UNDONE: dict[Any, Callable[[np.ndarray], np.ndarray]] = {
    T: lambda x: np.moveaxis(x, -1, 0),
    conv: lambda x: x.transpose(3, 2, 0, 1),
    same: same,
}
DROPPED = re.compile(r"(pre_logits|decoder_|mask_token|vit\.pooler|pooler)")
"""Parts that no classifier uses: MAE's decoder, the pre-2021 representation layer (and then its head)."""


def translate(tensors: Mapping[str, np.ndarray], rules: list[Rule], path: str) -> Flat:
    """The tensors under our paths; InputError names one that no rule knows."""
    flat: Flat = {}
    for name, value in tensors.items():
        if DROPPED.match(name):
            continue
        if re.match(r"block_\d+/adapter[12]/", name):  # timm has no adapters: they have our path
            flat[name] = np.asarray(value)
            continue
        for pattern, template, transform in rules:
            match = re.fullmatch(pattern, name)
            if match:
                value, axes = np.asarray(value), 4 if transform is conv else int(transform is T)
                got = f"shape {value.shape} in {path}"
                require(value.ndim >= axes and value.size, "load", f"{name} of at least {axes} axes, not empty", got)
                require(axes < 4 or value.ndim == 4, "load", f"{name} of 4 axes", got)
                flat[match.expand(template)] = transform(value)
                break
        else:
            raise refusal("load", "a Vision Transformer's tensors", f"the extra tensor {name} {value.shape} in {path}")
    if any(name.startswith("pre_logits") for name in tensors):
        flat = {ours: value for ours, value in flat.items() if not ours.startswith("head/")}
    for ours in [ours for ours in flat if "/qkv/" in ours]:
        divides = flat[ours].ndim and flat[ours].shape[-1] % 3 == 0
        parts = np.split(flat[ours], 3, -1) if divides else [flat[ours]]
        require(len(parts) == 3, "load", "a fused qkv of three equal parts", f"{ours} {flat[ours].shape} in {path}")
        flat.update(
            {ours.replace("qkv", part): value for part, value in zip(("query", "key", "value"), parts, strict=True)}
        )
        del flat[ours]
    return flat


def to_timm(flat: Mapping[str, np.ndarray], pool: str = "token") -> Flat:
    """Our leaves under timm's names, in torch's layout: the inverse of `translate(..., TIMM)`.

    A fused qkv of which only a part is given has zeros in the rest: right for a tangent, where absent means frozen.
    Leaves that timm has not keep our path.
    """
    joined: Flat = {}
    for ours, value in flat.items():
        value, (*_, parent, name, kind) = np.asarray(value), ["", "", *ours.split("/")]
        if parent == "attention" and (name, kind) != ("out", "bias"):
            value = value.reshape((-1, value.shape[-1]) if name == "out" else (*value.shape[:-2], -1))
        if name in ("query", "key", "value"):
            parts = joined.setdefault(ours.replace(name, "qkv"), np.zeros((3, *value.shape), value.dtype))
            parts[("query", "key", "value").index(name)] = value
        else:
            joined[ours] = value
    joined = {ours: np.concatenate([*value], -1) if "/qkv/" in ours else value for ours, value in joined.items()}
    theirs: Flat = {}
    for ours, value in joined.items():
        for pattern, template, transform in TIMM:
            known = re.fullmatch(template.replace(r"\1", r"(\d+)").replace(r"\2", "([12])"), ours)
            if known:
                numbers = iter(known.groups())
                spelled = re.sub(r"\(\?:.*?\)\?", "", pattern).replace(r"\.", ".")
                name = re.sub(r"\(.*?\)", lambda _, numbers=numbers: next(numbers), spelled)
                name = f"fc_{name}" if pool == "avg" and ours.startswith("norm/") else name
                theirs[name] = np.ascontiguousarray(UNDONE[transform](value))
                break
        else:
            theirs[ours] = value
    axes = {"cls_token": (0, 1), "pos_embed": (0,)}
    return {name: np.expand_dims(value, axes.get(name, ())) for name, value in theirs.items()}
