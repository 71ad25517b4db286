"""Writes fixtures.npz: what Hugging Face's PyTorch models answer on small random weights (`make parity`).

    vit    token pooling                                  ViTForImageClassification
    clip   pre-norm, quick GELU                           CLIPVisionModel, and a linear head
    beit   average pooling, LayerScale, no key bias       BeitForImageClassification
    grid   positions resampled: bicubic, antialiased      torch.nn.functional.interpolate
    resnet bottlenecks; basic: pairs of 3 x 3             ResNetForImageClassification, under its own names
    modern DINOv2, with registers and SwiGLU, DINOv3, SigLIP, SigLIP 2, CLIP with its projection: the files they save

So CI holds our model against another's without PyTorch. The weights are drawn here, and set in both.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

PATH = Path(__file__).with_name("fixtures.npz")
D, DEPTH, HEADS, F, SIZE, PATCH, CLASSES = 24, 2, 3, 20, 12, 4, 5
GRID = SIZE // PATCH
RNG = np.random.default_rng(0)


def draw(*shape, centre=0.0):
    return (centre + 0.3 * RNG.standard_normal(shape)).astype(np.float32)


def weights(pre_norm=False, layer_scale=False):
    """Our leaves by path."""
    w = {"class_token": draw(D), "position_embedding": draw(GRID**2 + 1, D)}
    w |= {"patch_embedding/kernel": draw(PATCH, PATCH, 3, D), "patch_embedding/bias": draw(D)}
    norms = ["norm", *["pre_norm"] * pre_norm, *(f"block_{i}/norm{j}" for i in range(DEPTH) for j in (1, 2))]
    for name in norms:
        w |= {f"{name}/scale": draw(D, centre=1.0), f"{name}/bias": draw(D)}
    for i in range(DEPTH):
        b, e = f"block_{i}", D // HEADS
        for name in ("query", "key", "value"):
            w |= {f"{b}/attention/{name}/kernel": draw(D, HEADS, e), f"{b}/attention/{name}/bias": draw(HEADS, e)}
        w |= {f"{b}/attention/out/kernel": draw(HEADS, e, D), f"{b}/attention/out/bias": draw(D)}
        w |= {f"{b}/mlp_in/kernel": draw(D, F), f"{b}/mlp_in/bias": draw(F)}
        w |= {f"{b}/mlp_out/kernel": draw(F, D), f"{b}/mlp_out/bias": draw(D)}
        w |= {f"{b}/layer_scale{j}/scale": draw(D, centre=0.7) for j in (1, 2) if layer_scale}
    return w | {"head/kernel": draw(D, CLASSES), "head/bias": draw(CLASSES)}


def torch_of(path, value):
    """A leaf in torch's layout."""
    if path == "patch_embedding/kernel":
        return value.transpose(3, 2, 0, 1)
    if path.endswith("kernel"):
        rows = -1 if path.endswith("out/kernel") else value.shape[0]
        flat = (
            value.reshape(rows, value.shape[-1]) if "out" in path.split("/")[-2] else value.reshape(value.shape[0], -1)
        )
        return flat.T
    return value.reshape(-1) if "attention" in path else value


def fill(module, w, names):
    """Sets every parameter of a torch module; `names`: our path -> theirs, {i} the block."""
    state = {}
    for path, value in w.items():
        i = path.split("/")[0].removeprefix("block_") if path.startswith("block_") else ""
        theirs = names(path.removeprefix(f"block_{i}/") if i else path, i)
        if theirs is not None:
            state[theirs] = torch.from_numpy(np.ascontiguousarray(torch_of(path, value)))
    expected = module.state_dict()
    state = {name: value.reshape(expected[name].shape) for name, value in state.items()}
    missing, extra = module.load_state_dict(state, strict=False)
    missing = [name for name in missing if "position_ids" not in name and "relative_position" not in name]
    assert not missing, missing
    assert not extra, extra
    return module.eval()


KIND = {"kernel": "weight", "bias": "bias", "scale": "weight"}
INSIDE = {
    "norm1": "layernorm_before", "norm2": "layernorm_after", "attention/query": "attention.q_proj",
    "attention/key": "attention.k_proj", "attention/value": "attention.v_proj", "attention/out": "attention.o_proj",
    "mlp_in": "mlp.fc1", "mlp_out": "mlp.fc2",
}  # fmt: skip
CLIP_INSIDE = {
    "norm1": "layer_norm1", "norm2": "layer_norm2", "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj", "attention/value": "self_attn.v_proj", "attention/out": "self_attn.out_proj",
    "mlp_in": "mlp.fc1", "mlp_out": "mlp.fc2",
}  # fmt: skip
OUTSIDE = {"patch_embedding": "{m}.embeddings.patch_embeddings.projection", "norm": "{m}.layernorm"}
CLIP_OUTSIDE = {"pre_norm": "pre_layrnorm", "norm": "post_layernorm", "patch_embedding": "embeddings.patch_embedding"}
ALONE = {"class_token": "{m}.embeddings.cls_token", "position_embedding": "{m}.embeddings.position_embeddings"}
CLIP_ALONE = {"class_token": "embeddings.class_embedding", "position_embedding": "embeddings.position_embedding.weight"}


def vit_names(path, i, model="vit"):
    name, _, kind = path.rpartition("/")
    if path in ALONE:
        return ALONE[path].format(m=model)
    if name.startswith("layer_scale"):
        return f"{model}.layers.{i}.lambda_{name[-1]}"
    inside = f"{model}.layers.{i}.{INSIDE.get(name)}"
    return f"{inside if i else {**OUTSIDE, 'head': 'classifier'}[name].format(m=model)}.{KIND[kind]}"


def beit_names(path, i):
    name, _, kind = path.rpartition("/")
    if path == "attention/key/bias":
        return None
    return f"beit.pooler.layernorm.{KIND[kind]}" if name == "norm" else vit_names(path, i, "beit")


def clip_names(path, i):
    name, _, kind = path.rpartition("/")
    if name == "head" or path == "patch_embedding/bias":
        return None
    if path in CLIP_ALONE:
        return CLIP_ALONE[path]
    return f"{f'encoder.layers.{i}.{CLIP_INSIDE.get(name)}' if i else CLIP_OUTSIDE[name]}.{KIND[kind]}"


def resnets():
    """Answers of small ResNets of random weights and statistics, and those by Hugging Face's names."""
    x = RNG.standard_normal((3, 21, 21, 3)).astype(np.float32)
    out = {"resnet images": x}
    for name, kind, widths in (("resnet", "bottleneck", [16, 32]), ("basic", "basic", [4, 8])):
        shared = {"embedding_size": 4, "hidden_sizes": widths, "depths": [2, 1], "num_labels": CLASSES}
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig(layer_type=kind, **shared)).eval()
        state = {key: value for key, value in model.state_dict().items() if value.ndim}
        for key, value in state.items():
            drawn = draw(*value.shape, centre=float("running_var" in key or key.endswith("normalization.weight")))
            value.copy_(torch.from_numpy(np.abs(drawn) + 0.1 if "running_var" in key else drawn))
        with torch.no_grad():
            logits = model(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).logits.numpy()
        out |= {f"{name}/{key}": value.numpy() for key, value in state.items()} | {f"{name} logits": logits}
    return out


def rounded(model):
    """The model with drawn weights of few digits, which take little room; gains near 1."""
    for name, value in model.state_dict().items():
        if value.is_floating_point() and value.ndim:
            gain = ("norm" in name and name.endswith("weight")) or "lambda" in name
            value.copy_(torch.from_numpy(np.round(8 * draw(*value.shape, centre=float(gain))) / 8))
    return model.eval()


def patches_of(images, side=PATCH):
    """What SigLIP 2 takes: the patches of each image one after another, a mask, and the grid."""
    b, _, height, width = images.shape
    cut = images.reshape(b, 3, height // side, side, width // side, side).permute(0, 2, 4, 3, 5, 1)
    patches = cut.reshape(b, -1, 3 * side**2)
    grid = torch.tensor([[height // side, width // side]] * b)
    return {"pixel_values": patches, "pixel_attention_mask": torch.ones(patches.shape[:2]), "spatial_shapes": grid}


def modern(shared):
    """Answers of models of this decade, each with the file that it saves and its config.json."""
    t = transformers
    classes, tower = {**shared, "num_labels": CLASSES}, {**shared, "intermediate_size": F}
    gated = {**tower, "use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 2}
    del classes["intermediate_size"]
    small = {name: value for name, value in tower.items() if name != "image_size"}
    models = {
        "dinov2": t.Dinov2ForImageClassification(t.Dinov2Config(**classes, mlp_ratio=1)),
        "dinov2 registers": t.Dinov2WithRegistersForImageClassification(
            t.Dinov2WithRegistersConfig(**classes, mlp_ratio=1, use_swiglu_ffn=True, num_register_tokens=2)
        ),
        "dinov3": t.DINOv3ViTModel(t.DINOv3ViTConfig(**gated)),
        "siglip": t.SiglipVisionModel(t.SiglipVisionConfig(**tower)),
        "siglip2": t.Siglip2VisionModel(t.Siglip2VisionConfig(**small, num_patches=GRID**2)),
        "clip": t.CLIPVisionModelWithProjection(t.CLIPVisionConfig(**tower, projection_dim=CLASSES)),
    }
    out = {}
    for name, model in models.items():
        size = (SIZE, 2 * SIZE) if name == "dinov3" else (SIZE, SIZE)
        x = RNG.standard_normal((2, *size, 3)).astype(np.float32)
        images = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
        with torch.no_grad():
            given = patches_of(images) if name == "siglip2" else {"pixel_values": images}
            answer = rounded(model)(**given)
        logits = next(answer[key] for key in ("logits", "image_embeds", "pooler_output") if key in answer)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            config, file = ((Path(folder) / name).read_bytes() for name in ("config.json", "model.safetensors"))
        out |= {f"modern {name}": np.frombuffer(file, np.uint8), f"config of {name}": np.frombuffer(config, np.uint8)}
        out |= {f"images of {name}": x, f"logits of {name}": logits.numpy()}
    return out


def main():
    x = RNG.standard_normal((3, SIZE, SIZE, 3)).astype(np.float32)
    images = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    shared = {
        "hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "intermediate_size": F,
        "image_size": SIZE, "patch_size": PATCH, "num_labels": CLASSES,
    }  # fmt: skip
    out = {"images": x}
    w = weights()
    model = fill(transformers.ViTForImageClassification(transformers.ViTConfig(**shared)), w, vit_names)
    with torch.no_grad():
        out |= {f"vit/{k}": v for k, v in w.items()} | {"vit logits": model(images).logits.numpy()}
    w = weights(layer_scale=True)
    for i in range(DEPTH):
        w[f"block_{i}/attention/key/bias"][:] = 0
    config = transformers.BeitConfig(
        **shared, use_absolute_position_embeddings=True, use_mean_pooling=True, layer_scale_init_value=0.1,
        use_relative_position_bias=False, use_shared_relative_position_bias=False, use_mask_token=False,
    )  # fmt: skip
    model = fill(transformers.BeitForImageClassification(config), w, beit_names)
    with torch.no_grad():
        out |= {f"beit/{k}": v for k, v in w.items()} | {"beit logits": model(images).logits.numpy()}
    w = weights(pre_norm=True)
    w["patch_embedding/bias"][:] = 0
    del shared["num_labels"]
    vision = fill(transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**shared)), w, clip_names)
    with torch.no_grad():
        pooled = vision(images).pooler_output.numpy()
    out |= {f"clip/{k}": v for k, v in w.items()} | {"clip logits": pooled @ w["head/kernel"] + w["head/bias"]}
    grid = draw(5, 5, 4)
    for size in (3, 8):
        resized = torch.nn.functional.interpolate(
            torch.from_numpy(grid.transpose(2, 0, 1))[None], size=(size, size), mode="bicubic", antialias=True,
            align_corners=False,
        )  # fmt: skip
        out |= {"grid": grid, f"grid {size}": resized[0].numpy().transpose(1, 2, 0)}
    out |= resnets() | modern(shared)
    eps = {"vit": 1e-12, "beit": 1e-12, "clip": 1e-5}
    out |= {f"{name} eps": np.array(value) for name, value in eps.items()}
    np.savez_compressed(PATH, **out)
    print(PATH, PATH.stat().st_size)


if __name__ == "__main__":
    main()
