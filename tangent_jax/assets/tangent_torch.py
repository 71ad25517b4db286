"""A tangent Vision Transformer in PyTorch, read from a folder that tangent_jax exported.

    f_lin(x) = f_w(x) + J_w f(x) . dw           by torch.func.jvp, in one pass

The folder holds this file, w in model.safetensors and dw in tangent.safetensors, both under timm's names, and needs
torch and safetensors alone:

    from tangent_torch import TangentViT
    model = TangentViT("the folder")            # model.preprocessing says how images are resized and normalised
    outputs = model(images)                     # "b c", of normalised images "b 3 y x"
    value, tangent = model.pair(images)         # f_w(x) and J_w f(x) . dw; if provenance.json states tangent outputs,
                                                # as for private models, model(images) is the tangent alone

The parameters of the module are dw, so an optimiser can train it; w is fixed. LoRA factors, adapters, a new class token
and a frozen head are supported.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}
SETTINGS = {
    "width": None, "depth": None, "heads": None, "mlp_width": None, "patch_size": None, "image_size": None,
    "classes": None, "pre_norm": None, "layer_scale": None, "eps": None, "class_token_at": None,
    "adapter_width": None, "adapter_from": None, "registers": None, "gated": None, "position_filter": None,
    "pool": ("token", "avg", "norm_avg", "token_avg"), "activation": ("gelu", "gelu_tanh", "quick_gelu", "silu"),
}  # fmt: skip
"""The supported settings, with their values if they are few; models with others are refused."""


class TangentViT(nn.Module):
    """f_lin of the exported model; its parameters are dw."""

    def __init__(self, folder="."):
        super().__init__()
        w, description = read(Path(folder) / "model.safetensors")
        dw, _ = read(Path(folder) / "tangent.safetensors")
        self.config, self.wrappers = check(description)
        self.preprocessing = description["preprocessing"]
        said = Path(folder) / "provenance.json"
        self.output = json.loads(said.read_text()).get("output", "total") if said.exists() else "total"
        self.w = nn.ParameterDict({spelled(name): nn.Parameter(leaf, False) for name, leaf in w.items()})
        self.dw = nn.ParameterDict({spelled(name): nn.Parameter(leaf) for name, leaf in dw.items()})

    def forward(self, images):
        """f_lin, or for tangent outputs the tangent alone, "b c", from normalised images "b 3 y x"."""
        value, tangent = self.pair(images)
        return tangent if self.output == "tangent" else value + tangent

    def pair(self, images):
        """(f_w(x), J_w f(x) . dw), "b c" each."""
        w, dw = dict(self.w.items()), dict(self.dw.items())
        trained = {name: w[name] for name in dw}
        return torch.func.jvp(lambda part: self.network({**w, **part}, images), (trained,), (dw,))

    def network(self, w, images):
        """The plain network, "b c", with weights `w`."""
        c, p = self.config, {name.replace("/", "."): leaf for name, leaf in w.items()}
        p = merged(p)
        x = F.conv2d(images, p["patch_embed.proj.weight"], p["patch_embed.proj.bias"], stride=c["patch_size"])
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([p["cls_token"].expand(len(x), -1, -1), x], 1) + p["pos_embed"]
        if c["registers"]:
            x = torch.cat([x[:, :1], p["reg_token"].expand(len(x), -1, -1), x[:, 1:]], 1)
        x = norm(p, "norm_pre", x, c) if c["pre_norm"] else x
        for i in range(c["depth"]):
            if i == c["class_token_at"]:
                x = torch.cat([p["new_class_token"].expand(len(x), 1, -1), x[:, 1:]], 1)
            x = block(p, i, x, c)
        x = pooled(p, x, c)
        x = dense(p, "head", x) if c["classes"] else x
        return F.normalize(x, dim=-1) @ p["head.embeddings"] if "frozen_head" in self.wrappers else x


def pooled(p, x, c):
    """The input of the head, "b d" or, for DINOv2's classifier, "b 2d", from all tokens "b n d"."""
    first = 1 + c["registers"]
    if c["pool"] == "avg":
        return norm(p, "fc_norm", x[:, first:].mean(1), c)
    x = norm(p, "norm", x, c)
    if c["pool"] == "token":
        return x[:, 0]
    mean = x[:, first:].mean(1)
    return mean if c["pool"] == "norm_avg" else torch.cat([x[:, 0], mean], -1)


def block(p, i, x, c):
    """One block on every token, "b n d"."""
    z = dense(p, f"blocks.{i}.attn.qkv", norm(p, f"blocks.{i}.norm1", x, c))
    q, k, v = z.unflatten(-1, (3, c["heads"], -1)).permute(2, 0, 3, 1, 4)
    a = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
    y = dense(p, f"blocks.{i}.attn.proj", (a @ v).transpose(1, 2).flatten(2))
    x = x + part(p, i, 1, y, c)
    y = dense(p, f"blocks.{i}.mlp.fc1", norm(p, f"blocks.{i}.norm2", x, c))
    if c["gated"]:
        gate, y = y.chunk(2, -1)
        y = ACTIVATIONS[c["activation"]](gate) * y
    else:
        y = ACTIVATIONS[c["activation"]](y)
    return x + part(p, i, 2, dense(p, f"blocks.{i}.mlp.fc2", y), c)


def part(p, i, j, y, c):
    """The j-th part of block i, with its adapter and LayerScale, if it has them."""
    adapter = f"block_{i}.adapter{j}"
    if f"{adapter}.down.kernel" in p:
        inner = ACTIVATIONS[c["activation"]](y @ p[f"{adapter}.down.kernel"] + p[f"{adapter}.down.bias"])
        y = y + inner @ p[f"{adapter}.up.kernel"] + p[f"{adapter}.up.bias"]
    return y * p[f"blocks.{i}.ls{j}.gamma"] if c["layer_scale"] else y


def dense(p, name, x):
    """A dense layer."""
    return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def norm(p, name, x, c):
    """A layer norm over the last axis."""
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], c["eps"])


def merged(p):
    """The weights with W + (A B)^T for every W with LoRA factors; a fused qkv combines those of its three parts."""
    names = {"out": "attn.proj", "mlp_in": "mlp.fc1", "mlp_out": "mlp.fc2"}
    deltas = {}
    for path in [path for path in p if path.endswith(".lora_a")]:
        module = path.removesuffix(".lora_a")
        a, b = p[path], p[f"{module}.lora_b"]
        delta = (a.reshape(-1, a.shape[-1]) @ b.reshape(b.shape[0], -1)).T
        i, name = module.split(".")[0].removeprefix("block_"), module.rpartition(".")[2]
        fused = f"blocks.{i}.{names.get(name, 'attn.qkv')}.weight"
        deltas.setdefault(fused, {})[name] = delta
    for fused, parts in deltas.items():
        p[fused] = p[fused] + torch.cat([parts[name] for name in ("query", "key", "value", *names) if name in parts])
    return p


def read(path):
    """(tensors by name, the description of the model) in a file of an export."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads((file.metadata() or {}).get("tangent_jax", "{}"))


def check(description):
    """(settings, names of wrappers) of a model; ValueError for an unsupported one."""
    c = description.get("config", {})
    wrappers = [name for wrapper in description.get("wrappers", ()) for name in wrapper]
    others = [f"{n} {value}" for n, value in c.items() if n not in SETTINGS or value not in (SETTINGS[n] or (value,))]
    others += [name for name in wrappers if name not in ("lora", "frozen_head")]
    if "patch_size" not in c or others:
        got = f"one with {', '.join(others)}" if "patch_size" in c else f"the family {description.get('family')}"
        raise ValueError(f"TangentViT reads Vision Transformers of the settings that it knows; got {got}.")
    return {"class_token_at": None, "registers": 0, "gated": False, **c}, wrappers


def spelled(name):
    """The name without dots, for a ParameterDict."""
    return name.replace(".", "/")
