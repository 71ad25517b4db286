"""Files of weights as programs write them, each with the program's own answers: names, prefixes, shards, formats.

    PYTHONPATH=. python tests/models/naming_cases.py [PATTERN]          (part of `make parity`; 1 minute)

Without a pattern it writes its table to docs/reference/compatibility.md.

Every case makes a small random model, writes its file to a folder, and returns what torch answers. `tj.load` of the
folder must agree within 1e-4 of the largest output. torchvision and open_clip are not imported: small modules here have
the names of torchvision 0.29 and open_clip 3.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import torch
from compatibility import BASE, LABELS, MLP, PAGE, channels_first, noisy
from safetensors.torch import save_file
from torch import nn

import tangent_jax as tj
from tangent_jax.core.checks import InputError

TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 50}
OFF_GRID = {name: value for name, value in BASE.items() if name != "image_size"}
CASES = {}
BEGIN, END = "<!-- names -->", "<!-- /names -->"
HEADER = (
    "### Names, prefixes and forms of files",
    "",
    "As above, at the file's own image size. `save_pretrained(save_original_format=False)` writes the names of",
    "transformers 5. torchvision's and open_clip's answers are those of small modules with their names.",
    "",
    "| file | difference |",
    "|---|---|",
)


def case(title):
    def kept(make):
        CASES[title] = make
        return make

    return kept


def images_of(side=16):
    return np.random.default_rng(0).standard_normal((2, side, side, 3)).astype(np.float32)


# Hugging Face's classes, each under the names of transformers 4 and of 5


def hugging_face():
    import transformers as t

    parts = {"vision_config": {**BASE, **MLP}, "text_config": TEXT}
    dino = {**BASE, "mlp_ratio": 1}
    decoder = {f"decoder_{name}": 8 for name in ("hidden_size", "intermediate_size")}
    decoder |= {"decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1, "mask_ratio": 0.0}
    registers = {**dino, "num_register_tokens": 2}
    return {
        "ViTForImageClassification": lambda: t.ViTForImageClassification(t.ViTConfig(**BASE, **MLP, **LABELS)),
        "ViTModel": lambda: t.ViTModel(t.ViTConfig(**BASE, **MLP)),
        "ViTForMaskedImageModeling": lambda: t.ViTForMaskedImageModeling(t.ViTConfig(**BASE, **MLP, encoder_stride=4)),
        "ViTMAEForPreTraining": lambda: t.ViTMAEForPreTraining(t.ViTMAEConfig(**BASE, **MLP, **decoder)),
        "ViTMAEModel": lambda: t.ViTMAEModel(t.ViTMAEConfig(**BASE, **MLP, mask_ratio=0.0)),
        "ViTMSNForImageClassification": lambda: t.ViTMSNForImageClassification(
            t.ViTMSNConfig(**BASE, **MLP, **LABELS)
        ),
        "DeiTForImageClassification": lambda: t.DeiTForImageClassification(t.DeiTConfig(**BASE, **MLP, **LABELS)),
        "DeiTForImageClassificationWithTeacher": lambda: t.DeiTForImageClassificationWithTeacher(
            t.DeiTConfig(**BASE, **MLP, **LABELS)
        ),
        "IJepaForImageClassification": lambda: t.IJepaForImageClassification(t.IJepaConfig(**BASE, **MLP, **LABELS)),
        "Dinov2Model": lambda: t.Dinov2Model(t.Dinov2Config(**dino)),
        "Dinov2ForImageClassification": lambda: t.Dinov2ForImageClassification(t.Dinov2Config(**dino, **LABELS)),
        "Dinov2ForImageClassification, SwiGLU": lambda: t.Dinov2ForImageClassification(
            t.Dinov2Config(**dino, use_swiglu_ffn=True, **LABELS)
        ),
        "Dinov2WithRegistersForImageClassification": lambda: t.Dinov2WithRegistersForImageClassification(
            t.Dinov2WithRegistersConfig(**registers, **LABELS)
        ),
        "DINOv3ViTModel": lambda: t.DINOv3ViTModel(t.DINOv3ViTConfig(**BASE, **MLP, num_register_tokens=2)),
        "CLIPModel": lambda: t.CLIPModel(t.CLIPConfig(**parts, projection_dim=5)),
        "CLIPVisionModel": lambda: t.CLIPVisionModel(t.CLIPVisionConfig(**BASE, **MLP)),
        "CLIPVisionModelWithProjection": lambda: t.CLIPVisionModelWithProjection(
            t.CLIPVisionConfig(**BASE, **MLP, projection_dim=5)
        ),
        "CLIPForImageClassification": lambda: t.CLIPForImageClassification(t.CLIPConfig(**parts, **LABELS)),
        "SiglipModel": lambda: t.SiglipModel(t.SiglipConfig(**parts)),
        "SiglipVisionModel": lambda: t.SiglipVisionModel(t.SiglipVisionConfig(**BASE, **MLP)),
        "SiglipForImageClassification": lambda: t.SiglipForImageClassification(t.SiglipConfig(**parts, **LABELS)),
        "Siglip2ForImageClassification": lambda: t.Siglip2ForImageClassification(
            t.Siglip2Config(
                vision_config={**OFF_GRID, **MLP, "num_patches": 16}, text_config=TEXT, **LABELS
            )
        ),
    }  # fmt: skip


def answer_of(model, x):
    """What a model of Hugging Face's answers to images: logits, embeddings, or the features of the class token."""
    images = {"pixel_values": channels_first(x)}
    kind = type(model).__name__
    with torch.no_grad():
        if kind in ("CLIPModel", "SiglipModel"):
            return pooled(model.get_image_features(**images))
        if kind.startswith("Siglip2"):
            from make_fixtures import patches_of

            return model(**patches_of(images["pixel_values"], 4)).logits.numpy()
        if kind in ("ViTForMaskedImageModeling", "ViTMAEForPreTraining"):
            return model.vit(**images).last_hidden_state[:, 0].numpy()
        answer = model(**images)
        if kind in ("ViTModel", "ViTMAEModel"):
            return answer.last_hidden_state[:, 0].numpy()
        return next(answer[key] for key in ("logits", "image_embeds", "pooler_output") if key in answer).numpy()


def pooled(answer):
    return (answer if torch.is_tensor(answer) else answer.pooler_output).numpy()


def hugging_face_cases():
    for name, make in hugging_face().items():
        for original in (True, False):

            def saved(folder, make=make, original=original):
                model = noisy(make())
                model.save_pretrained(folder, save_original_format=original)
                return answer_of(model, images_of())

            CASES[f"{name}, names of transformers {4 if original else 5}"] = saved


@case("ViTForImageClassification, sharded")
def sharded(folder):
    model = noisy(hugging_face()["ViTForImageClassification"]())
    model.save_pretrained(folder, max_shard_size="10KB")
    assert len([*folder.glob("*.safetensors")]) > 2
    return answer_of(model, images_of())


@case("CLIPModel, vision_config_dict")
def of_config_dict(folder):
    """The fields of vision_config_dict win, as transformers reads them again."""
    import transformers as t

    model = noisy(hugging_face()["CLIPModel"]())
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config_dict"] = {**BASE, **MLP, "num_attention_heads": 2, "hidden_act": "gelu"}
    (folder / "config.json").write_text(json.dumps(config))
    return answer_of(t.CLIPModel.from_pretrained(folder).eval(), images_of())


def prefixed(name, prefix, more=()):
    @case(f"{name}, prefix {prefix}")
    def made(folder):
        model = noisy(hugging_face()[name]())
        model.save_pretrained(folder)
        from safetensors.torch import load_file

        tensors = load_file(folder / "model.safetensors")
        beside = {other: torch.ones(3) for other in more}
        save_file({prefix + n: v for n, v in tensors.items()} | beside, folder / "model.safetensors")
        return answer_of(model, images_of())


prefixed("ViTForImageClassification", "module.")
prefixed("Dinov2ForImageClassification", "module._orig_mod.")
prefixed("ViTForImageClassification", "model.", ["criterion.weight"])
prefixed("DINOv3ViTModel", "model.")
prefixed("SiglipModel", "net.")
prefixed("DeiTForImageClassificationWithTeacher", "student.module.")


# timm


TIMM_ARGS = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}


def timm_model(name="vit_tiny_patch16_224", **args):
    from timm_models import timm

    return noisy(timm.create_model(name, num_classes=5, **{**TIMM_ARGS, **args}))


def write_timm(folder, model, name="vit_tiny_patch16_224", prefix="", rename=lambda name: name, **args):
    config = {"architecture": name, "num_classes": 5, "model_args": {**TIMM_ARGS, **args}}
    (folder / "config.json").write_text(json.dumps(config))
    state = {prefix + rename(n): v.clone().contiguous() for n, v in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    with torch.no_grad():
        return model(channels_first(images_of())).numpy()


for wrapped in ("", "_orig_mod.", "backbone.", "net.model.", "teacher.backbone."):

    @case(f"timm's ViT, prefix {wrapped}")
    def timm_prefixed(folder, prefix=wrapped):
        return write_timm(folder, timm_model(), prefix=prefix)


@case("timm's ViT, LayerScale named weight")
def timm_layer_scale(folder):
    name = "vit_small_patch14_dinov2"
    model = timm_model(name, init_values=0.1, global_pool="token")

    def rename(n):
        return re.sub(r"(ls\d)\.gamma", r"\1.weight", n)

    return write_timm(folder, model, name, rename=rename, init_values=0.1, global_pool="token")


@case("timm's distilled DeiT")
def timm_distilled(folder):
    name = "deit_tiny_distilled_patch16_224"
    return write_timm(folder, timm_model(name), name)


@case("timm_wrapper of transformers")
def timm_wrapper(folder):
    from transformers import TimmWrapperConfig

    model = timm_model()
    answer = write_timm(folder, model, prefix="timm_model.")
    config = TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", model_args=TIMM_ARGS, num_labels=5,
        pretrained_cfg={"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9, "interpolation": "bicubic"},
    ).to_dict()  # fmt: skip
    config["architectures"] = ["TimmWrapperForImageClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    return answer


# Google's npz: timm's own reader of such files answers


def google(model, big_vision=True, scanned=False, attention_pool=False):
    """The arrays of a big_vision or vision_transformer file with random weights, for a model of timm's."""
    rng = np.random.default_rng(1)
    d, h, f, depth, p = 24, 3, 96, 2, 4
    tokens = 16 if attention_pool or big_vision == "gap" else 17

    def drawn(*shape):
        return (0.2 * rng.standard_normal(shape)).astype(np.float32)

    def dense(root, kernel, bias):
        return {f"{root}/kernel": drawn(*kernel), f"{root}/bias": drawn(*bias)}

    def norm(root):
        return {f"{root}/scale": 1 + drawn(d), f"{root}/bias": drawn(d)}

    def attention(root):
        made = dense(f"{root}/out", (h, d // h, d), (d,))
        for part in ("query", "key", "value"):
            made |= dense(f"{root}/{part}", (d, h, d // h), (h, d // h))
        return made

    def mlp(root):
        return dense(f"{root}/Dense_0", (d, f), (f,)) | dense(f"{root}/Dense_1", (f, d), (d,))

    out = dense("embedding", (p, p, 3, d), (d,)) | norm("Transformer/encoder_norm") | dense("head", (d, 5), (5,))
    out["pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding"] = drawn(1, tokens, d)
    if tokens == 17:
        out["cls"] = drawn(1, 1, d)
    mha, sub, second = (0, 0, 1) if big_vision else (1, 3, 2)
    blocks = []
    for _ in range(depth):
        block = norm("LayerNorm_0") | norm(f"LayerNorm_{second}") | mlp(f"MlpBlock_{sub}")
        blocks.append(block | attention(f"MultiHeadDotProductAttention_{mha}"))
    if scanned:
        out |= {f"Transformer/encoderblock/{n}": np.stack([block[n] for block in blocks]) for n in blocks[0]}
    else:
        out |= {f"Transformer/encoderblock_{i}/{n}": v for i, block in enumerate(blocks) for n, v in block.items()}
    if attention_pool:
        del out["head/kernel"], out["head/bias"]
        out |= norm("MAPHead_0/LayerNorm_0") | mlp("MAPHead_0/MlpBlock_0")
        out |= attention("MAPHead_0/MultiHeadDotProductAttention_0") | {"MAPHead_0/probe": drawn(1, 1, d)}
    return out


NPZ = {
    "opt/target/": {"big_vision": False},
    "params/": {},
    "params/img/": {},
    "params/img/, blocks in one": {"scanned": True},
    "params/, mean of normalised": {"big_vision": "gap"},
    "params/img/, SigLIP": {"attention_pool": True},
}


def npz_case(title, args, in_bfloat16):
    @case(f"npz, {title}{', bfloat16' if in_bfloat16 else ''}")
    def made(folder):
        from timm_models import timm

        prefix = title.split(",")[0]
        options = dict(TIMM_ARGS, act_layer="gelu_tanh", num_classes=5)
        if args.get("attention_pool"):
            options |= {"global_pool": "map", "class_token": False, "num_classes": 0}
        if args.get("big_vision") == "gap":
            options |= {"global_pool": "avg", "class_token": False, "fc_norm": False}
        model = timm.create_model("vit_tiny_patch16_224", **options)
        arrays = google(model, **args)
        if in_bfloat16:
            arrays = {n: v.astype(ml_dtypes.bfloat16) for n, v in arrays.items()}
        beside = {"opt/0/count": np.array(3), "step": np.array(7)}
        if "target" in prefix:
            beside = {"opt/state/step": np.array(7), "opt/state/param_states/cls/grad": np.ones(3)}
        if "img" in prefix:
            beside |= {"params/t": np.ones(1, np.float32), "params/txt/Embed_0/embedding": np.ones((3, 2), np.float32)}
        np.savez(folder / "m.npz", **{prefix + n: v for n, v in arrays.items()}, **beside)
        plain = {prefix + n: v.astype(np.float32) for n, v in arrays.items()}  # timm reads float32
        np.savez(folder / "plain.npz", **plain)
        model.load_pretrained(str(folder / "plain.npz"))
        with torch.no_grad():
            return model.eval()(channels_first(images_of())).numpy()


for npz_title, npz_args in NPZ.items():
    for bfloat16 in (False, True):
        npz_case(npz_title, npz_args, bfloat16)


# torchvision and open_clip: their names, by small modules


class Block(nn.Module):
    """A pre-norm block of nn.MultiheadAttention, as both have it."""

    def __init__(self, d, heads, hidden, names, act, eps):
        super().__init__()
        attention, mlp, (first, second) = names
        self.names = attention, mlp
        self.ln_1, self.ln_2 = nn.LayerNorm(d, eps), nn.LayerNorm(d, eps)
        self.add_module(attention, nn.MultiheadAttention(d, heads, batch_first=True))
        inner = nn.Module()
        inner.add_module(first, nn.Linear(d, hidden))
        inner.add_module(second, nn.Linear(hidden, d))
        self.add_module(mlp, inner)
        self.act, self.inner = act, (first, second)

    def forward(self, x):
        attention, mlp = (getattr(self, name) for name in self.names)
        z = self.ln_1(x)
        x = x + attention(z, z, z, need_weights=False)[0]
        first, second = (getattr(mlp, name) for name in self.inner)
        return x + second(self.act(first(self.ln_2(x))))


class TorchVision(nn.Module):
    """torchvision.models.VisionTransformer."""

    def __init__(self, d=768, depth=12, heads=12, hidden=3072, patch=32, side=64, mlp=("0", "3")):
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, d))
        self.conv_proj = nn.Conv2d(3, d, patch, patch)
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, d))
        self.encoder.layers = nn.Sequential()
        for i in range(depth):
            block = Block(d, heads, hidden, ("self_attention", "mlp", mlp), nn.GELU(), 1e-6)
            self.encoder.layers.add_module(f"encoder_layer_{i}", block)
        self.encoder.ln = nn.LayerNorm(d, 1e-6)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(d, 5))

    def forward(self, images):
        x = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.encoder.pos_embedding
        return self.heads(self.encoder.ln(self.encoder.layers(x))[:, 0])


class OpenClip(nn.Module):
    """open_clip's VisionTransformer."""

    def __init__(self, act, d=128, depth=2, heads=2, patch=4, side=16):
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(d))
        self.positional_embedding = nn.Parameter(torch.zeros((side // patch) ** 2 + 1, d))
        self.conv1 = nn.Conv2d(3, d, patch, patch, bias=False)
        self.ln_pre, self.ln_post = nn.LayerNorm(d), nn.LayerNorm(d)
        self.transformer = nn.Module()
        blocks = [Block(d, heads, 4 * d, ("attn", "mlp", ("c_fc", "c_proj")), act, 1e-5) for _ in range(depth)]
        self.transformer.resblocks = nn.ModuleList(blocks)
        self.proj = nn.Parameter(torch.zeros(d, 5))

    def forward(self, images):
        x = self.conv1(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], 1) + self.positional_embedding
        x = self.ln_pre(x)
        for block in self.transformer.resblocks:
            x = block(x)
        return self.ln_post(x[:, 0]) @ self.proj


def answers(model, side=16):
    with torch.no_grad():
        return model(channels_first(images_of(side))).numpy()


for mlp_names in (("0", "3"), ("linear_1", "linear_2")):

    @case(f"torchvision's vit_b_32, MLPs named {', '.join(mlp_names)}")
    def torchvision(folder, names=mlp_names):
        model = noisy(TorchVision(mlp=names))
        save_file(model.state_dict(), folder / "model.safetensors")
        return answers(model, 64)


def open_clip_config(**more):
    vision = {"image_size": 16, "layers": 2, "width": 128, "patch_size": 4}
    return {"model_cfg": {"embed_dim": 5, "vision_cfg": vision, "text_cfg": {"width": 8}, **more}}


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


for quick in (False, True):
    for whole in (False, True):

        @case(f"open_clip's {'whole model' if whole else 'visual tower'}{', quick_gelu' if quick else ''}")
        def open_clip(folder, quick=quick, whole=whole):
            model = noisy(OpenClip(QuickGELU() if quick else nn.GELU()))
            tensors = model.state_dict()
            if whole:
                text = ("positional_embedding", "text_projection", "token_embedding.weight", "ln_final.weight")
                text += ("transformer.resblocks.0.ln_1.weight", "logit_scale")
                tensors = {f"visual.{n}": v for n, v in tensors.items()} | {n: torch.ones(3) for n in text}
            save_file(tensors, folder / "model.safetensors")
            (folder / "open_clip_config.json").write_text(json.dumps(open_clip_config(quick_gelu=quick)))
            return answers(model)


@case("open_clip's SigLIP, whose tower timm builds")
def open_clip_of_timm(folder):
    name = "vit_base_patch16_siglip_224"
    from timm_models import timm

    model = noisy(timm.create_model(name, num_classes=0))
    tensors = {f"visual.trunk.{n}": v for n, v in model.state_dict().items()}
    tensors |= {"text.token_embedding.weight": torch.ones(3), "logit_scale": torch.ones(1), "logit_bias": torch.ones(1)}
    save_file(tensors, folder / "model.safetensors")
    config = {"model_cfg": {"embed_dim": 768, "vision_cfg": {"timm_model_name": name, "timm_pool": "map"}}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return answers(model, 224)


# All cases


def verdict(make):
    """("agrees" | "differs", largest difference relative to the largest output), or ("refused", why)."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        want = make(folder)
        path = folder / "m.npz" if (folder / "m.npz").exists() else folder
        try:
            found = tj.load(path)
        except InputError as error:
            return "refused", str(error)
        got = np.asarray(jax.jit(found.model.apply)(found.w, images_of(found.model.image_size)))
    error = np.abs(got - want).max() / np.abs(want).max() if got.shape == want.shape else np.inf
    return "agrees" if error <= 1e-4 else "differs", float(error)


def main(pattern=""):
    hugging_face_cases()
    cases = sorted(CASES, key=lambda title: "timm" in title or "npz" in title)  # timm last: its torchvision is none
    verdicts = {}
    lines = [*HEADER]
    for title in cases:
        if re.search(pattern, title):
            kind, what = verdicts[title] = verdict(CASES[title])
            said = what.replace(tempfile.gettempdir(), "TMP") if isinstance(what, str) else f"{what:.0e}"
            lines.append(f"| {title} | {said if kind != 'refused' else f'refused: {said}'} |")
            print(lines[-1], flush=True)
    if not pattern:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text("\n".join([f"{before}{BEGIN}", *lines, END]) + rest.split(END)[1])
    sys.exit(any(kind != "agrees" for kind, _ in verdicts.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
