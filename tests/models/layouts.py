"""A small model's weights in the layouts of other programs, by hand."""

import functools
import json
from pathlib import Path

import jax
import numpy as np

from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer


@functools.cache
def model(**changes):
    """A small ViT that the name tables can carry: width 128 in two heads."""
    config = ViTConfig(128, 2, 2, 24, **{"patch_size": 4, "image_size": 8, "classes": 7, **changes})
    w = initial_weights(VisionTransformer(config), jax.random.key(0))
    return config, jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape), w)


def timm(config, w):
    """The state dict that timm would hold for our parameters, built by hand, not by the loader's tables."""
    out = {"patch_embed.proj.weight": w["patch_embedding"]["kernel"].transpose(3, 2, 0, 1)}
    out["patch_embed.proj.bias"] = w["patch_embedding"]["bias"]
    is_dinov3 = config.positions == "rotary"

    def layer(name, *leaves):  # several: timm fuses them
        biases = [leaf["bias"].reshape(-1) for leaf in leaves]
        kernels = [leaf["kernel"].reshape(-1, bias.size).T for leaf, bias in zip(leaves, biases, strict=True)]
        out[f"{name}.weight"], out[f"{name}.bias"] = np.concatenate(kernels), np.concatenate(biases)

    def norm(name, leaf):
        out[f"{name}.weight"], out[f"{name}.bias"] = leaf["scale"], leaf["bias"]

    norm("norm", w["norm"])
    if config.pre_norm:
        norm("norm_pre", w["pre_norm"])
    if "class_token" in w:
        out["cls_token"] = w["class_token"].reshape(1, 1, -1)
    if "registers" in w:
        out["reg_token"] = w["registers"][None]
    if "position_embedding" in w:  # a class token beside registers has none
        out["pos_embed"] = w["position_embedding"][None, int("registers" in w) :]
    for i in range(config.depth):
        block, name = w[f"block_{i}"], f"blocks.{i}"
        attention = block["attention"]
        layer(f"{name}.attn.qkv", *(attention[part] for part in ("query", "key", "value")))
        layer(f"{name}.attn.proj", attention["out"])
        if is_dinov3:  # which has no bias of keys
            del out[f"{name}.attn.qkv.bias"]
            out |= {f"{name}.attn.{part[0]}_bias": attention[part]["bias"].reshape(-1) for part in ("query", "value")}
        layer(f"{name}.mlp.fc1", *(block[part] for part in ("mlp_gate", "mlp_in") if part in block))
        layer(f"{name}.mlp.fc2", block["mlp_out"])
        for j in (1, 2):
            norm(f"{name}.norm{j}", block[f"norm{j}"])
            if config.layer_scale:
                out[f"{name}.gamma_{j}" if is_dinov3 else f"{name}.ls{j}.gamma"] = block[f"layer_scale{j}"]["scale"]
    if "pool" in w:
        pool, attention = w["pool"], w["pool"]["attention"]
        out["attn_pool.latent"] = pool["query_token"].reshape(1, 1, -1)
        layer("attn_pool.q", attention["query"])
        layer("attn_pool.kv", attention["key"], attention["value"])
        layer("attn_pool.proj", attention["out"])
        norm("attn_pool.norm", pool["norm"])
        layer("attn_pool.mlp.fc1", pool["mlp_in"])
        layer("attn_pool.mlp.fc2", pool["mlp_out"])
    if "head" in w:
        layer("head", w["head"])
    return {name: np.ascontiguousarray(value) for name, value in out.items()}


ARGS = {"embed_dim": 128, "depth": 2, "num_heads": 2, "img_size": 8, "patch_size": 4}


def said(folder, architecture="vit_tiny_patch16_224", config=None, **args):
    """config.json as timm's hub code writes it; returns the folder."""
    whole = {"architecture": architecture, "num_classes": 7, "model_args": {**ARGS, **args}, **(config or {})}
    (folder / "config.json").write_text(json.dumps(whole))
    return folder


def hugging_face(config, w):
    d, flat = config.width, timm(config, w)
    names = {
        "cls_token": "vit.embeddings.cls_token",
        "pos_embed": "vit.embeddings.position_embeddings",
        "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
        "norm": "vit.layernorm",
        "head": "classifier",
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    out = {}
    for name, value in flat.items():
        stem, _, kind = name.rpartition(".")
        if name.startswith("blocks."):
            _, i, inner = stem.split(".", 2)
            layer = f"vit.encoder.layer.{i}"
            if inner == "attn.qkv":
                for part, piece in zip(("query", "key", "value"), np.split(value, 3), strict=True):
                    out[f"{layer}.attention.attention.{part}.{kind}"] = np.ascontiguousarray(piece)
            else:
                out[f"{layer}.{names[inner]}.{kind}"] = value
        else:
            out[names.get(name) or f"{names[stem]}.{kind}"] = value
    assert out["vit.encoder.layer.0.attention.attention.query.weight"].shape == (d, d)
    return out


def google(config, w, heads_fused=False, positions="Transformer/posembed_input/pos_embedding"):
    out = {"cls": w["class_token"].reshape(1, 1, -1), positions: w["position_embedding"][None]}
    for name in ("kernel", "bias"):
        out |= {f"embedding/{name}": w["patch_embedding"][name], f"head/{name}": w["head"][name]}
    for name in ("scale", "bias"):
        out[f"Transformer/encoder_norm/{name}"] = w["norm"][name]
    for i in range(config.depth):
        b, root = w[f"block_{i}"], f"Transformer/encoderblock_{i}"
        for layer, theirs in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_2")):
            out |= {f"{root}/{theirs}/{name}": b[layer][name] for name in ("scale", "bias")}
        for layer, theirs in (("mlp_in", "Dense_0"), ("mlp_out", "Dense_1")):
            out |= {f"{root}/MlpBlock_3/{theirs}/{name}": b[layer][name] for name in ("kernel", "bias")}
        for part in ("query", "key", "value", "out"):
            for name, value in b["attention"][part].items():
                fused = value.reshape(-1) if name == "bias" else value.reshape(config.width, config.width)
                out[f"{root}/MultiHeadDotProductAttention_1/{part}/{name}"] = fused if heads_fused else value
    return {name: np.asarray(value) for name, value in out.items()}


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


def conversion(title, folder, **replaced):
    """Runs a program of "Convert other formats" in docs/reference/models.md on a folder, with replaced texts."""
    text = PAGE.read_text().split(f"\n#### {title}\n")[1].split("```py\n")[1].split("```")[0]
    for old, new in {"FOLDER": str(folder), **replaced}.items():
        assert old in text, f"{title} has no {old}"
        text = text.replace(old, new)
    exec(compile(text, title, "exec"), {})
