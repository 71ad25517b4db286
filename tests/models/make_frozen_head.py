"""Writes frozen_head.npz: the image-text logits of a small random CLIPModel of Hugging Face's (`make parity`)."""

from pathlib import Path

import numpy as np
import torch
import transformers
from make_fixtures import CLIP_ALONE, CLIP_INSIDE, CLIP_OUTSIDE, clip_names

PATH = Path(__file__).with_name("frozen_head.npz")
D, DEPTH, HEADS, WIDTH, CLASSES = 24, 2, 3, 8, 5


def shaped(path, value):
    """A leaf of ours from a tensor of torch's layout."""
    *_, module, kind = ["", *path.split("/")]
    if path == "patch_embedding/kernel":
        return value.transpose(2, 3, 1, 0)
    if kind == "kernel":
        value = value.T
    if module in ("query", "key", "value"):
        return value.reshape(*value.shape[:-1], HEADS, D // HEADS)
    return value.reshape(HEADS, D // HEADS, D) if (module, kind) == ("out", "kernel") else value


def main():
    torch.manual_seed(0)
    vision = {"hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "intermediate_size": 20}
    text = {**vision, "vocab_size": 30, "max_position_embeddings": 7, "eos_token_id": 29}
    vision |= {"image_size": 12, "patch_size": 4}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
    ).eval()
    for value in model.parameters():
        value.data += 0.3 * torch.randn_like(value)
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    norms = [f"block_{i}/norm{j}" for i in range(DEPTH) for j in (1, 2)]
    modules = [f"block_{i}/{name}" for i in range(DEPTH) for name in CLIP_INSIDE if not name.startswith("norm")]
    paths = [*CLIP_ALONE, "patch_embedding/kernel", *(f"{m}/{kind}" for m in modules for kind in ("kernel", "bias"))]
    paths += [f"{name}/{kind}" for name in (*norms, "norm", "pre_norm") for kind in ("scale", "bias")]
    assert {*CLIP_OUTSIDE} <= {path.split("/")[0] for path in paths}
    out = {}
    for path in paths:
        i = path.split("/")[0].removeprefix("block_") if path.startswith("block_") else ""
        theirs = clip_names(path.removeprefix(f"block_{i}/") if i else path, i)
        out[path] = shaped(path, state[f"vision_model.{theirs}"])
    out |= {"patch_embedding/bias": np.zeros(D, "f"), "head/bias": np.zeros(WIDTH, "f")}
    out |= {"head/kernel": state["visual_projection.weight"].T}
    x = np.random.default_rng(0).standard_normal((3, 12, 12, 3)).astype(np.float32)
    tokens = torch.randint(0, 29, (CLASSES, 7))
    tokens[:, -1] = 29
    with torch.no_grad():
        answer = model(input_ids=tokens, pixel_values=torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
    own = {"images": x, "text embeddings": answer.text_embeds.numpy(), "logits": answer.logits_per_image.numpy()}
    own["scale"] = model.logit_scale.exp().item()
    np.savez_compressed(PATH, **{f"clip/{path}": value for path, value in out.items()}, **own)
    print(PATH, PATH.stat().st_size, own["scale"], own["logits"])


if __name__ == "__main__":
    main()
