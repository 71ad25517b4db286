"""Files of weights as programs write them, each with the program's own answers: names, prefixes, shards, formats.

    PYTHONPATH=. python tests/models/naming_cases.py [PATTERN]          (part of `make parity`; 1 minute)

Without a pattern it writes its table to docs/reference/compatibility.md.

Every case makes a small random model, writes its file to a folder, and returns what torch answers. `tj.load` of the
folder must agree within 1e-4 of the largest output.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import torch
from compatibility import BASE, HUGGING_FACE, MLP, PAGE, answer_of, channels_first, noisy, of_hugging_face
from layouts import PAGE as MODELS
from layouts import conversion
from safetensors.torch import save_file

import tangent_jax as tj
from tangent_jax.core.checks import InputError

CASES = {}
BEGIN, END = "<!-- names -->", "<!-- /names -->"
HEADER = (
    "### Names, prefixes and forms of files",
    "",
    "As above, at the file's own image size. `save_pretrained(save_original_format=False)` writes the names of",
    "transformers 5.",
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


UNNAMED = ("positions for", "patches of", "Siglip2VisionModel", "ResNet", "Beit")
"""What the titles of models contain that compatibility.py tries alone."""


def hugging_face_cases():
    for name in HUGGING_FACE:
        for original in (True, False) if not any(part in name for part in UNNAMED) else ():

            def saved(folder, name=name, original=original):
                model = of_hugging_face(name)
                model.save_pretrained(folder, save_original_format=original)
                return answer_of(model, images_of())

            CASES[f"{name}, names of transformers {4 if original else 5}"] = saved


@case("ViTForImageClassification, sharded")
def sharded(folder):
    model = of_hugging_face("ViTForImageClassification")
    model.save_pretrained(folder, max_shard_size="10KB")
    assert len([*folder.glob("*.safetensors")]) > 2
    return answer_of(model, images_of())


@case("CLIPModel, vision_config_dict")
def of_config_dict(folder):
    """The fields of vision_config_dict win, as transformers reads them again."""
    import transformers as t

    model = of_hugging_face("CLIPModel")
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config_dict"] = {**BASE, **MLP, "num_attention_heads": 2, "hidden_act": "gelu"}
    (folder / "config.json").write_text(json.dumps(config))
    return answer_of(t.CLIPModel.from_pretrained(folder).eval(), images_of())


def prefixed(name, prefix, more=()):
    @case(f"{name}, prefix {prefix}")
    def made(folder):
        model = of_hugging_face(name)
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

    return noisy(timm.create_model(name, **{**TIMM_ARGS, "num_classes": 5, **args}))


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


OF_DINOV3 = (
    (r"reg_token", "storage_tokens"),
    (r"(.*)gamma_([12])", r"\1ls\2.gamma"),
    (r"(.*mlp\.)fc1_g(.*)", r"\1w1\2"),
    (r"(.*mlp\.)fc1_x(.*)", r"\1w2\2"),
)
"""(timm's name, DINOv3's own)."""


def own_dinov3(title, name):
    @case(f"DINOv3's own names{title}")
    def made(folder):
        model = timm_model(name, num_classes=0, global_pool="token")
        state = {n: v for n, v in model.state_dict().items() if "rope" not in n}
        q, v = ({n: state.pop(n) for n in [*state] if n.endswith(f".{part}_bias")} for part in "qv")
        tensors = {"mask_token": torch.ones(1, 24), "rope_embed.periods": 100 ** (torch.arange(2) / 2)}
        is_gated = any("fc1_g" in n for n in state)
        for n, value in state.items():
            for theirs, own in OF_DINOV3:
                n = re.sub(f"^{theirs}$", own, n)
            tensors[n.replace("mlp.fc2", "mlp.w3") if is_gated else n] = value
        for n, bias in q.items():
            own = n.replace("q_bias", "qkv.bias")
            tensors[own] = torch.cat([bias, torch.full((24,), 9.0), v[n.replace("q_bias", "v_bias")]])
            tensors[f"{own}_mask"] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(24)
        save_file({n: v.clone().contiguous() for n, v in tensors.items()}, folder / "model.safetensors")
        return answers(model, 224)


own_dinov3("", "vit_small_patch16_dinov3_qkvb")
own_dinov3(", gated", "vit_small_plus_patch16_dinov3_qkvb")


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


# torchvision and open_clip


def answers(model, side=16):
    with torch.no_grad():
        return model(channels_first(images_of(side))).numpy()


for mlp_names in ({"0": "0", "3": "3"}, {"0": "linear_1", "3": "linear_2"}):  # since 0.14, and before

    @case(f"torchvision's vit_b_32, MLPs named {', '.join(mlp_names.values())}")
    def torchvision(folder, names=mlp_names):
        import timm_models  # noqa: F401  (it finds torchvision)
        from torchvision.models import vit_b_32

        model = noisy(vit_b_32(image_size=64, num_classes=5))
        state = {re.sub(r"(mlp\.)(\d)", lambda m: m[1] + names[m[2]], n): v for n, v in model.state_dict().items()}
        save_file(state, folder / "model.safetensors")
        return answers(model, 64)


for quick in (False, True):
    for whole in (False, True):

        @case(f"open_clip's {'whole model' if whole else 'visual tower'}{', quick_gelu' if quick else ''}")
        def open_clip(folder, quick=quick, whole=whole):
            import timm_models  # noqa: F401  (it finds open_clip)
            from open_clip import CLIP

            vision = {"image_size": 16, "layers": 2, "width": 128, "patch_size": 4}
            text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
            model = noisy(CLIP(5, dict(vision), dict(text), quick_gelu=quick))
            state = (model if whole else model.visual).state_dict()
            save_file({n: v.clone().contiguous() for n, v in state.items()}, folder / "model.safetensors")
            config = {"model_cfg": {"embed_dim": 5, "vision_cfg": vision, "text_cfg": text, "quick_gelu": quick}}
            (folder / "open_clip_config.json").write_text(json.dumps(config))
            return answers(model.visual)


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


# Other formats: the programs of docs/reference/models.md, each on a checkpoint as its own program writes it


PICKLES = {
    "timm's train.py": lambda state: {"epoch": 1, "state_dict": state, "args": argparse.Namespace(lr=0.1)},
    "MAE, DeiT": lambda state: {"model": state, "optimizer": {"state": {}}, "args": argparse.Namespace(lr=0.1)},
    "DINO": lambda state: {"student": {"a": torch.ones(3)}, "teacher": state, "args": argparse.Namespace(lr=0.1)},
    "transformers": lambda state: state,
}


def pickle_case(title, wrap):
    @case(f"a pickle of {title}, converted")
    def made(folder):
        model = timm_model()
        answer = write_timm(folder, model)
        (folder / "model.safetensors").unlink()
        torch.save(wrap(model.state_dict()), folder / "FILE.pth")
        of_teacher = {'["state_dict", "model", "module"]': '["teacher"]'} if title == "DINO" else {}
        only = {'sorted(folder.glob("pytorch_model*.bin"))': f'[pathlib.Path("{folder}/FILE.pth")]'}
        conversion("Pickles of PyTorch", folder, **only, **of_teacher)
        return answer


for pickle_title, wrapped_by in PICKLES.items():
    pickle_case(pickle_title, wrapped_by)


@case("FSDP's parts, merged by accelerate")
def of_fsdp(folder):
    import torch.distributed.checkpoint as dcp
    from accelerate.utils import merge_fsdp_weights

    model = timm_model()
    answer = write_timm(folder, model)
    (folder / "model.safetensors").unlink()
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    assert "`accelerate merge-weights FOLDER/pytorch_model_fsdp_0 FOLDER`" in MODELS.read_text()
    merge_fsdp_weights(str(folder / "pytorch_model_fsdp_0"), str(folder))  # the command, which also imports timm
    return answer


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
