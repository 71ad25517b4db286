"""Every Vision Transformer and ResNet of timm, and Hugging Face's families, against `tj.load` (`make parity`).

Each model of timm is made with random weights at depth 1 (ResNets with one block a layer), saved as timm's hub code
saves it, and loaded: it must agree within 1e-4 of the largest output, or be refused. Small ones are made at full depth
and loaded without config.json, too. Prints the table of docs/benchmarks.md; the exit code is 1 where one differs.

    python tests/models/parity.py [PATTERN]
"""

import json
import re
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import jax
import numpy as np
import torch
from safetensors.torch import save_file
from timm_models import NAMES, timm

import tangent_jax as tj
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import sides
from tangent_jax.pretrained.architectures import architectures

torch.manual_seed(0)
WIDEST = 400  # features of models that are made at full depth too, as a bare file of them is


def noisy(model):
    """The model with weights that are not near their initial values."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point() and value.ndim and "num_batches" not in name:
                drawn = 0.05 * torch.randn_like(value)
                value.add_(drawn.abs() if "running_var" in name else drawn)
    return model.eval()


def images_of(size):
    return np.random.default_rng(0).standard_normal((2, *size, 3)).astype(np.float32)


def compare(model, folder, architecture=None, size=None):
    """("agrees", error), ("refused", why) or ("differs", error); size: of the images, None for the model's own."""
    try:
        found = tj.load(folder, architecture)
    except InputError as error:
        return "refused", str(error)
    if size is not None:
        found = found.with_image_size(size)
    x = images_of(sides(found.model.image_size))
    with torch.no_grad():
        want = model(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).numpy()
    got = np.asarray(jax.jit(found.model.apply)(found.w, x))
    error = np.abs(got - want).max() / np.abs(want).max() if got.shape == want.shape else np.inf
    return "agrees" if error <= 1e-4 else "differs", float(error)


def of_timm(name, family):
    """The verdicts of one architecture: with config.json, and bare."""
    args = {"depth": 1} if family == "vit" else {"layers": (1, 1, 1, 1)}
    try:
        model = noisy(timm.create_model(name, num_classes=7, **args))
    except Exception:  # no depth of its own: one that is refused by its name is not made whole
        why = architectures()[name].refused
        return (("differs", np.inf) if why is None else ("refused", why),)
    with tempfile.TemporaryDirectory() as folder:
        timm.models.save_for_hf(model, folder, model_args=args, safe_serialization=True)
        for pickled in Path(folder).glob("*.bin"):
            pickled.unlink()
        whole = compare(model, folder)
    if family == "vit" and getattr(model, "embed_dim", WIDEST + 1) > WIDEST:
        return (whole,)
    model = noisy(timm.create_model(name, num_classes=7))
    with tempfile.TemporaryDirectory() as folder:
        save_file(model.state_dict(), Path(folder) / "model.safetensors")
        return whole, compare(model, folder)


def of_hugging_face():
    """(family, the verdict) of small random models of Hugging Face's."""
    import transformers as t

    base = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 16, "patch_size": 4}
    mlp, labels = {"intermediate_size": 20}, {"num_labels": 5}
    small = {name: value for name, value in base.items() if name != "image_size"}
    resnet = {"embedding_size": 4, "hidden_sizes": [16, 32], "depths": [2, 1]}
    made = {
        "ViT": t.ViTForImageClassification(t.ViTConfig(**base, **mlp, **labels)),
        "DeiT": t.DeiTForImageClassification(t.DeiTConfig(**base, **mlp, **labels)),
        "I-JEPA": t.IJepaForImageClassification(t.IJepaConfig(**base, **mlp, **labels)),
        "DINOv2": t.Dinov2ForImageClassification(t.Dinov2Config(**base, mlp_ratio=1, **labels)),
        "DINOv3": t.DINOv3ViTModel(t.DINOv3ViTConfig(**base, **mlp, num_register_tokens=2)),
        "DINOv3, no registers": t.DINOv3ViTModel(t.DINOv3ViTConfig(**base, **mlp, num_register_tokens=0)),
        "SigLIP": t.SiglipVisionModel(t.SiglipVisionConfig(**base, **mlp)),
        "CLIP": t.CLIPVisionModelWithProjection(t.CLIPVisionConfig(**base, **mlp, projection_dim=5)),
        "BEiT": t.BeitForImageClassification(t.BeitConfig(**base, **mlp, use_relative_position_bias=True, **labels)),
        "ResNet": t.ResNetForImageClassification(t.ResNetConfig(**resnet, **labels)),
        "ResNet, a stem of its own": t.ResNetForImageClassification(
            t.ResNetConfig(**{**resnet, "embedding_size": 6}, **labels)
        ),
        "SigLIP 2, off its grid": t.Siglip2VisionModel(t.Siglip2VisionConfig(**small, **mlp, num_patches=16)),
    }
    for registers in (0, 2):
        config = t.Dinov2WithRegistersConfig(**base, mlp_ratio=1, num_register_tokens=registers, **labels)
        made[f"DINOv2, {registers} registers"] = t.Dinov2WithRegistersForImageClassification(config)
    for name, model in made.items():
        with tempfile.TemporaryDirectory() as folder:
            noisy(model).save_pretrained(folder)
            yield name, compare(Answers(model), folder, size=(24, 12) if "off its grid" in name else None)


class Answers:
    """A model of Hugging Face's as a function to outputs."""

    def __init__(self, model):
        self.model = model

    def __call__(self, images):
        from make_fixtures import patches_of

        of_any_shape = "Siglip2" in type(self.model).__name__
        answer = self.model(**patches_of(images, 4) if of_any_shape else {"pixel_values": images})
        return next(answer[key] for key in ("logits", "image_embeds", "pooler_output") if key in answer)


def main(pattern=""):
    counts, worst, differing = defaultdict(Counter), defaultdict(float), []
    for name, (verdict, what) in of_hugging_face() if pattern in ("", "hugging_face") else ():
        counts[f"Hugging Face, {name}"][verdict] += 1
        print(f"{name}: {verdict} {what}", file=sys.stderr)
        worst[f"Hugging Face, {name}"] = what if verdict != "refused" else 0.0
        differing += [name] if verdict == "differs" else []
    for name, family in NAMES.items():
        if not re.search(pattern, name):
            continue
        for kind, (verdict, what) in zip(("config.json", "bare"), of_timm(name, family), strict=False):
            counts[f"timm, {family}, {kind}"][verdict] += 1
            print(f"{name} ({kind}): {verdict} {what if isinstance(what, str) else f'{what:.1e}'}", file=sys.stderr)
            if verdict != "refused":
                worst[f"timm, {family}, {kind}"] = max(worst[f"timm, {family}, {kind}"], what)
            differing += [name] if verdict == "differs" else []
    print("| files of | load and agree | largest error | refused | differ |\n|---|---|---|---|---|")
    for row, own in counts.items():
        error = f"{worst[row]:.1e}" if own["agrees"] else "-"
        print(f"| {row} | {own['agrees']} | {error} | {own['refused']} | {own['differs']} |")
    print(json.dumps({"differ": differing}))
    sys.exit(bool(differing))


if __name__ == "__main__":
    main(*sys.argv[1:])
