"""Translates tensors between the names of other libraries and our paths."""

import re
from collections.abc import Callable, Mapping

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.models.vit.tables import SCANNED, TIMM, UNDONE, Rule, T, conv

Flat = dict[str, np.ndarray]
MOST_BLOCKS = 1024
FUSED = {"qkv": ("query", "key", "value"), "kv": ("key", "value")}
"""Layers of attention that files fuse."""
OURS = re.compile(r"block_\d+/adapter[12]/")
"""Leaves that no other library has: they keep our path."""


def covers(*tables: list[Rule]) -> Callable[[str], bool]:
    """Returns a predicate of names: a rule of the tables covers it, or it is a leaf that keeps our path."""
    patterns = [pattern for rules in tables for pattern, _, _ in rules]
    known = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    return lambda name: bool(known.fullmatch(name) or OURS.match(name))


def translate(tensors: Mapping[str, np.ndarray], rules: list[Rule], path: str, title: str = "") -> Flat:
    """The tensors under our paths; `title`: of the naming whose rules they are.

    Raises:
        InputError: A name that no rule covers, and two names of one leaf.
    """
    flat: Flat = {}
    names: dict[str, str] = {}
    for name, value in tensors.items():
        if OURS.match(name):
            flat[name] = np.asarray(value)
            continue
        for pattern, template, transform in rules:
            match = re.fullmatch(pattern, name)
            if match and template == "registers" and not np.size(value):
                break  # none
            if match:
                value, axes = np.asarray(value), 4 if transform is conv else int(transform is T)
                got = f"shape {value.shape} in {path}"
                if not (value.ndim >= axes and value.size):
                    raise InputError(f"{name} must have at least {axes} axes, and not be empty; got {got}")
                if not (axes < 4 or value.ndim == 4):
                    raise InputError(f"{name} must have 4 axes; got {got}")
                ours = match.expand(template)
                if ours in flat:
                    raise InputError(
                        f"a tensor must be once in {path}; {names[ours]} and {name} are one under two names"
                    )
                flat[ours] = transform(value)
                names[ours] = name
                break
        else:
            extra = [other for other in tensors if other not in names.values() and not covers(rules)(other)]
            rest = f", and {len(extra) - 1} more" if len(extra) > 1 else ""
            layer, head = name.rpartition(".")[0], [pattern for pattern, leaf, _ in rules if leaf == "head/kernel"]
            is_layer = {*extra} == {f"{layer}.weight", f"{layer}.bias"} and bool(head)
            spelled = re.sub(r"\(\?:.*?\)\??|\\", "", head[0]).removesuffix(".weight") if is_layer else ""
            rename = f"if {layer} is its linear head, call it {spelled}; else " if is_layer else ""
            raise InputError(
                f"tensors must have names of {title or 'a Vision Transformer'}; got the extra tensor {name} "
                f"{np.shape(value)}{rest} in {path}. Without it the network's outputs may be others: {rename}"
                "pass a file of one of the programs that docs/reference/models.md names, or a model of your own"
            )
    for fused, parts in FUSED.items():
        for ours in [ours for ours in flat if f"/{fused}/" in ours]:
            values = equal_parts(flat.pop(ours), len(parts), f"a fused {fused}", f"{ours} in {path}")
            flat |= {ours.replace(fused, part): value for part, value in zip(parts, values, strict=True)}
    return flat


def unstacked(tensors: Mapping[str, np.ndarray], path: str) -> Flat:
    """The tensors with big_vision's scanned blocks one by one: each has a first axis of the depth."""
    flat: Flat = {}
    depths: dict[int, str] = {}
    for name, value in tensors.items():
        match = SCANNED.fullmatch(name)
        if match is None:
            flat[name] = value
            continue
        depth = value.shape[0] if value.ndim else 0
        depths[depth] = name
        if len(depths) > 1 or not 1 <= depth <= MOST_BLOCKS:
            raise InputError(
                f"blocks in one must have a first axis of one depth, 1 to {MOST_BLOCKS}; got shape {value.shape} of "
                f"{name} in {path}"
            )
        for block in range(depth):
            flat[f"Transformer/encoderblock_{block}/{match[1]}"] = value[block]
    return flat


def equal_parts(value: np.ndarray, count: int, kind: str, where: str) -> list[np.ndarray]:
    """The last axis of a tensor in equal parts; InputError if it does not divide."""
    words = {2: "two", 3: "three"}
    if not (value.ndim and value.shape[-1] % count == 0):
        raise InputError(f"{kind} must have {words[count]} equal parts; got shape {value.shape} of {where}")
    return np.split(value, count, -1)


def with_gates(flat: Flat, path: str) -> Flat:
    """The leaves, with each fused layer of a gated MLP split into the gate and the other factor."""
    cut: Flat = {}
    for ours, value in flat.items():
        if re.match(r"block_\d+/mlp_in/", ours) and ours.replace("mlp_in", "mlp_gate") not in flat:
            gate, value = equal_parts(value, 2, "a gate and a layer", f"{ours} in {path}")
            cut[ours.replace("mlp_in", "mlp_gate")] = gate
        cut[ours] = value
    return cut


def place_of(ours: str, gated: bool) -> tuple[str, tuple[str, ...]]:
    """timm's path of a leaf, and the leaves that it fuses there, in order."""
    *_, parent, name, _ = ["", "", *ours.split("/")]
    fused = "kv" if ours.startswith("pool/") else "qkv"
    if parent == "attention" and name in FUSED[fused]:
        return ours.replace(name, fused), FUSED[fused]
    if gated and parent.startswith("block_") and name in ("mlp_gate", "mlp_in"):
        return ours.replace(name, "mlp_in"), ("mlp_gate", "mlp_in")
    return ours, (name,)


def to_timm(flat: Mapping[str, np.ndarray], pool: str = "token", gated: bool = False) -> Flat:
    """Our leaves under timm's names, in torch's layout: the inverse of `translate(..., TIMM)` and `with_gates`.

    timm fuses q, k and v; if a tree has only some of them, the others are zero. That is right for a tangent, where
    absent means frozen. Leaves that timm lacks keep our path.
    """
    joined: dict[str, dict[str, np.ndarray]] = {}
    for ours, value in flat.items():
        value, (*_, parent, name, kind) = np.asarray(value), ["", "", *ours.split("/")]
        if parent == "attention" and (name, kind) != ("out", "bias"):
            value = value.reshape((-1, value.shape[-1]) if name == "out" else (*value.shape[:-2], -1))
        place, parts = place_of(ours, gated)
        joined.setdefault(place, {part: np.zeros_like(value) for part in parts})[name] = value
    theirs: Flat = {}
    for ours, values in joined.items():
        value = np.concatenate([*values.values()], -1) if len(values) > 1 else next(iter(values.values()))
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
    axes = {"cls_token": (0, 1), "pos_embed": (0,), "reg_token": (0,), "attn_pool.latent": (0, 1)}
    return {name: np.expand_dims(value, axes.get(name, ())) for name, value in theirs.items()}
