"""Reads LoRA in Hugging Face PEFT's format: adapter_config.json and adapter_model.safetensors.

    ours   W + A B          A "inputs r", B "r outputs"
    PEFT   W + s B A        lora_A "r inputs", lora_B "outputs r", s = lora_alpha / r; / sqrt(r) by use_rslora

for the modules of a Vision Transformer. PEFT computes the non-linear network f at w + dw, with W + A dB instead of W.
Tangent LoRA, whose dw holds dB, is its first-order expansion in dB: the two differ by O(|dB|^2).
"""

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, finite_number, whole_number
from tangent_jax.core.notation import Tree
from tangent_jax.io.files import expand_path
from tangent_jax.io.records import parse_json, short
from tangent_jax.io.tensors import read_tensors
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.subsets import make_subset

PREFIX, CONFIG, TENSORS = "base_model.model.", "adapter_config.json", "adapter_model.safetensors"
MODULES = {  # ours: as transformers 5 names it, as transformers 4 did, as timm does
    "attention/query": ("attention.q_proj", "attention.attention.query", "attn.qkv"),
    "attention/key": ("attention.k_proj", "attention.attention.key", "attn.qkv"),
    "attention/value": ("attention.v_proj", "attention.attention.value", "attn.qkv"),
    "attention/out": ("attention.o_proj", "attention.output.dense", "attn.proj"),
    "mlp_in": ("mlp.fc1", "intermediate.dense"),
    "mlp_out": ("mlp.fc2", "output.dense"),
}
BOTH = ("kernel", "bias")
HEAD = {"weight": "kernel", "bias": "bias", "lora_A.weight": "lora_a", "lora_B.weight": "lora_b"}
NEEDED = {"peft_type": "LORA", "bias": "none"}
STARTS = (None, True, False, "gaussian")
"""Values of `init_lora_weights` that do not change the base weights; others, such as pissa, do."""
REFUSED = (
    "alora_invocation_tokens", "alpha_pattern", "arrow_config", "fan_in_fan_out", "layer_replication", "lora_bias",
    "rank_pattern", "use_dora", "use_qalora",
)  # fmt: skip
"""Fields that change the computation."""
MERGE = "Load the whole model that PEFT's merge_and_unload gives"


def read_peft(folder: str | os.PathLike, pretrained: Pretrained) -> tuple[Pretrained, Tree]:
    """(the model with LoRA, dw) of a PEFT adapter and its pre-trained model.

    Returns:
        The anchor has the adapter's A and B = 0; dw holds s B, and zeros for the other leaves of `make_subset(...,
        "lora_b", ...)`. So `tangent` of it is the adapter's first-order expansion, `nonlinear` the adapter itself, and
        `trees.add(w, dw)` an anchor at the adapter. The anchor takes the adapter's head, if there is one, or adds s B A
        to the head of `pretrained`.

    Raises:
        InputError: It names a part that is not plain LoRA, or a module that the model lacks.

    >>> from safetensors.numpy import save_file
    >>> folder, width = demo.folder(), demo.vit_config.width
    >>> name = "base_model.model.vit.layers.0.attention.q_proj.lora_{}.weight"
    >>> factors = {name.format("A"): np.ones((2, width), "f"), name.format("B"): np.ones((width, 2), "f")}
    >>> save_file(factors, folder / "adapter_model.safetensors")
    >>> config = '{"peft_type": "LORA", "bias": "none", "r": 2, "lora_alpha": 4}'
    >>> _ = (folder / "adapter_config.json").write_text(config)
    >>> model = tj.models.VisionTransformer(demo.vit_config)
    >>> vit = tj.Pretrained(model, tj.models.initial_weights(model, jax.random.key(0)), "example")
    >>> adapted, dw = tj.exports.read_peft(folder, vit)
    >>> adapted.model.rank
    2
    """
    folder = expand_path(folder)
    rank, scale = read_scale(folder / CONFIG)
    leaves, base = read_leaves(folder), pretrained.model
    stages = [base.stage_of(path) for path in leaves if "/lora_" in path and not path.startswith("head/")]
    if not stages:
        raise InputError(f"{folder} must hold LoRA factors of a block; it holds none.")
    head = {name: jnp.asarray(leaves.pop(f"head/{name}"), jnp.float32) for name in BOTH if f"head/{name}" in leaves}
    if len(head) == 1:
        raise InputError(f"{folder} must hold weight and bias of the classifier; it holds one of them.")
    if head:
        model = base.with_classes(head["kernel"].shape[-1])
        pretrained = dataclasses.replace(pretrained, model=model, w={**pretrained.w, "head": head})
    adapted = pretrained.with_lora(rank, base.stages - 1 - min(stages), jax.random.key(0))
    model: Any = adapted.model
    w, dw = trees.leaves(adapted.w), trees.leaves(make_subset(model, "lora_b", model.blocks).zeros(adapted.w))
    of_modules = model.factor_shapes()
    if "head/kernel" in w:
        inputs, classes = w["head/kernel"].shape
        of_modules["head"] = (inputs, rank), (rank, classes)
    for module, (of_a, of_b) in of_modules.items():
        shapes = (math.prod(of_a[:-1]), rank), (rank, math.prod(of_b[1:]))
        paths = f"{module}/lora_a", f"{module}/lora_b"
        absent = not {*paths} & leaves.keys()
        a, b = map(np.zeros, shapes) if absent else (leaves.pop(path, None) for path in paths)
        got = np.shape(a), np.shape(b)
        if got != shapes:
            raise InputError(
                f"factors of {module} in {folder} must have shapes {shapes}, by r in {CONFIG} and the model; got {got}."
            )
        if module == "head":
            w["head/kernel"] = w["head/kernel"] + scale * np.asarray(a, np.float32) @ np.asarray(b, np.float32)
        else:
            w[paths[0]] = jnp.asarray(a, jnp.float32).reshape(of_a)
            dw[paths[1]] = scale * jnp.asarray(b, jnp.float32).reshape(of_b)
    if leaves:
        raise InputError(f"{folder} must adapt modules of this model; it also adapts {', '.join([*leaves][:3])}.")
    return dataclasses.replace(adapted, w=trees.nest(w)), trees.nest(dw)


def read_leaves(folder: Path) -> dict[str, Any]:
    """The factors and the head of an adapter by our paths, with two axes each, inputs first."""
    leaves: dict[str, Any] = {}
    for name, value in read_tensors(folder / TENSORS)[0].items():
        paths = ours(name, folder)
        axes = 1 if paths == ["head/bias"] else 2
        fused = len(paths) if name.endswith("lora_B.weight") else 1
        is_valid = value.ndim == axes and len(value) % fused == 0
        if not is_valid:
            raise InputError(
                f"{name} in {folder} must have {axes} axes, the first a multiple of {fused}; got shape {value.shape}."
            )
        parts = np.split(value, fused) * (len(paths) // fused)
        leaves |= {path: part.T for path, part in zip(paths, parts, strict=True)}
    return leaves


def read_scale(path: Path) -> tuple[int, float]:
    """(r, s) of a PEFT configuration; InputError naming a field that is not plain LoRA's."""
    if not path.exists():
        raise InputError(f"{path.parent} must hold {CONFIG}; it does not. Pass the folder of a PEFT adapter.")
    config = parse_json(path.read_bytes(), path)
    for name, value in NEEDED.items():
        if config.get(name) != value:
            raise InputError(f"{name} in {path} must be {value}; got {config.get(name)}. {MERGE}")
    start = config.get("init_lora_weights")
    if not (isinstance(start, (bool, str, type(None))) and start in STARTS):
        raise InputError(f"init_lora_weights in {path} must be {', '.join(map(str, STARTS))}; got {start}. {MERGE}")
    for name in REFUSED:
        if config.get(name):
            raise InputError(f"{path} must not set {name}, which is not read here; got {short(config[name])}. {MERGE}")
    finite_number(f"lora_alpha of {path}", config.get("lora_alpha"), 0)
    rank = whole_number(f"r of {path}", config.get("r"), 1)
    return rank, config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)


def ours(name: str, where: Path) -> list[str]:
    """Our paths of an adapter's tensor, three for timm's fused qkv; InputError for one that no ViT has.

    Names may be those of transformers 5 or 4, or of timm.
    """
    block = r"(?:vit\.)?(?:encoder\.layer|layers|blocks)\.(\d+)"
    match = re.fullmatch(rf"{re.escape(PREFIX)}{block}\.(.+)\.lora_([AB])\.weight", name)
    i, inner, factor = match.groups() if match else ("", "", "")
    modules = [module for module, names in MODULES.items() if inner in names]
    head = re.fullmatch(rf"{re.escape(PREFIX)}(?:classifier|head)\.(weight|bias|lora_[AB]\.weight)", name)
    if not (modules or head):
        raise InputError(
            f"{where} must hold LoRA factors of a Vision Transformer and its classifier alone; got {name}. {MERGE}"
        )
    if head:
        return [f"head/{HEAD[head[1]]}"]
    return [f"block_{i}/{module}/lora_{factor.lower()}" for module in modules]
