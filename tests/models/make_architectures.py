"""Writes tangent_jax/assets/timm.json: of each Vision Transformer and ResNet of timm what its tensors do not say.

    NAME: {"family", "key": of names and shapes of its tensors, "facts": fields of a configuration,
           "images": how they are normalised, "refused": why our parts cannot express it}

Run it by `make parity`, after `timm` has changed (on meta tensors: no weights are made).
"""

import json
from pathlib import Path

import torch
from timm_models import NAMES, timm

from tangent_jax.pretrained.architectures import key_of

PATH = Path(__file__).parents[2] / "tangent_jax" / "assets" / "timm.json"
ACTIVATIONS = {"GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}


def activation(module):
    kind = type(module).__name__
    if kind == "GELU":
        return {"none": "gelu", "tanh": "gelu_tanh"}[getattr(module, "approximate", "none")]
    assert kind in ACTIVATIONS, f"activation {kind}"
    return ACTIVATIONS[kind]


def is_nothing(module):
    return module is None or isinstance(module, torch.nn.Identity)


def facts_of_vit(model):
    """The fields that tensors do not show; an assertion says what our parts have not."""
    kind, block = type(model).__name__, model.blocks[0]
    rotary = getattr(model, "rope", None) is not None or getattr(model, "rope_mixed", False)
    assert kind in ("VisionTransformer", "Eva", "VisionTransformerDistilled"), kind
    assert type(block).__name__ in ("Block", "EvaBlock"), type(block).__name__
    attention, mlp = block.attn, block.mlp
    assert type(attention).__name__ in ("Attention", "EvaAttention"), type(attention).__name__
    norms = [m for m in model.modules() if "Norm" in type(m).__name__]
    assert {type(m).__name__ for m in norms} == {"LayerNorm"}, "another norm"
    assert len({m.eps for m in norms}) == 1, "norms of several eps"
    for name in ("q_norm", "k_norm", "norm"):
        assert is_nothing(getattr(attention, name, None)), f"attention with {name}"
    assert is_nothing(getattr(mlp, "norm", None)), "a norm in the MLP"
    assert type(mlp).__name__ in ("Mlp", "GluMlp", "SwiGLU"), type(mlp).__name__
    assert getattr(mlp, "gate_last", False) is False or type(mlp).__name__ == "SwiGLU", "a gate that comes last"
    assert type(model.patch_embed).__name__ == "PatchEmbed", "another embedding"
    assert is_nothing(model.patch_embed.norm), "another embedding"
    assert not getattr(model, "pool_include_prefix", False), "a prefix in the pool"
    for name in ("head_norm", "pre_logits"):
        assert is_nothing(getattr(model, name, None)), f"a {name}"
    pool = "map" if model.attn_pool is not None else model.global_pool
    assert pool in ("token", "avg", "map"), f"pool {pool or 'none'}"
    if pool == "map":
        assert model.cls_token is None, "attention pool with a class token"
        of = model.attn_pool
        assert of.pool == "token", "another attention pool"
        assert of.latent_len == 1, "another attention pool"
        assert of.pos_embed is None, "another attention pool"
        assert is_nothing(of.q_norm), "another attention pool"
        assert is_nothing(of.k_norm), "another attention pool"
        assert activation(of.mlp.act) == activation(mlp.act), "a pool of another activation"
    assert pool != "token" or model.cls_token is not None, "pool token without one"
    if rotary:
        assert type(model.rope).__name__ == "RotaryEmbeddingDinoV3", "rotary positions of another kind"
        assert model.pos_embed is None, "learned and rotary positions"
    else:
        assert model.pos_embed is not None, "no positions"
    if pool == "map":
        assert of.num_heads == attention.num_heads, "a pool of other heads"
    size = model.patch_embed.img_size
    return {
        "width": model.embed_dim, "heads": attention.num_heads,
        "activation": activation(mlp.act), "eps": norms[0].eps, "pool": pool,
        "image_size": list(size) if size[0] != size[1] else size[0], "positions": "rotary" if rotary else "learned",
        "rope_theta": float(model.rope.temperature) if rotary else None,
        "class_position": not getattr(model, "no_embed_class", False),
    }  # fmt: skip


def facts_of_resnet(model):
    blocks = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    assert type(model).__name__ == "ResNet", type(model).__name__
    assert isinstance(model.conv1, torch.nn.Conv2d), "a deep stem"
    assert model.conv1.kernel_size == (7, 7), "a deep stem"
    assert isinstance(model.maxpool, torch.nn.MaxPool2d), "another pool in the stem"
    assert type(model.act1).__name__ == "ReLU", f"activation {type(model.act1).__name__}"
    assert model.global_pool.pool_type == "avg", "another pool"
    for block in blocks:
        assert type(block).__name__ in ("BasicBlock", "Bottleneck"), type(block).__name__
        assert is_nothing(block.se), "attention of channels"
        assert is_nothing(getattr(block, "aa", None)), "anti-aliasing"
        assert block.conv2.groups == 1, "grouped convolutions"
        assert block.downsample is None or isinstance(block.downsample[0], torch.nn.Conv2d), "pools in shortcuts"
        if type(block).__name__ == "Bottleneck":
            assert block.conv3.out_channels == 4 * block.conv2.out_channels, "another width"
    strides = [
        next(
            b.conv1.stride if hasattr(b, "conv1") and type(b).__name__ == "BasicBlock" else b.conv2.stride
            for b in layer
        )
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4)
    ]
    assert strides == [(1, 1), (2, 2), (2, 2), (2, 2)], "other strides"
    kinds = {type(m).__name__ for m in model.modules() if "Norm" in type(m).__name__}
    assert kinds <= {"BatchNorm2d", "BatchNormAct2d"}, "another norm"
    assert model.conv1.out_channels == blocks[0].conv1.out_channels, "another width"
    return {}


def row(name, family):
    try:
        with torch.device("meta"):
            model = timm.create_model(name)
    except Exception as error:
        return {"family": family, "key": "", "refused": f"{type(error).__name__}"}
    config, shapes = model.pretrained_cfg, {n: tuple(v.shape) for n, v in model.state_dict().items()}
    images = {ours: config[theirs] for ours, theirs in (("mean", "mean"), ("std", "std"), ("crop", "crop_pct"))}
    images |= {"interpolation": config["interpolation"]} | (
        {"resize": "exact"} if config["crop_mode"] == "squash" else {}
    )
    made = {"family": family, "key": key_of(shapes), "images": images}
    try:
        return made | {"facts": facts_of_vit(model) if family == "vit" else facts_of_resnet(model)}
    except AssertionError as reason:
        return made | {"refused": str(reason)}


def main():
    table = {name: row(name, family) for name, family in sorted(NAMES.items())}
    PATH.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in table.items()) + "\n}\n")
    refused = {name: made["refused"] for name, made in table.items() if "refused" in made}
    print(PATH, PATH.stat().st_size, len(table), "architectures,", len(refused), "refused")
    for reason in sorted({*refused.values()}):
        print(" ", reason, [n for n, r in refused.items() if r == reason][:6])


if __name__ == "__main__":
    main()
