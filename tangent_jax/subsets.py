"""Which leaves carry a tangent, and what is reset in the anchor before it is linearised.

A Subset is a named value: its leaves, its size, and the block at which the tail begins. Everything
below that block is the trunk, a fixed function of the image.
"""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax import trees, vit
from tangent_jax.checks import require
from tangent_jax.config import ViTConfig
from tangent_jax.notation import Tree

IMAGES = -1
"""The split of a subset that trains the embedding: its tail begins at the images."""

KINDS = ("blocks", "bitfit", "layernorm", "head", "everything")


@dataclasses.dataclass(frozen=True)
class Subset:
    """The trained leaves of one architecture.

    `paths` are sorted; `split` is the first block with a trained leaf (depth: none; IMAGES: the
    embedding itself is trained); `size` counts the trained numbers.
    """

    name: str
    paths: tuple[str, ...]
    split: int
    size: int

    def part(self, w: Tree) -> Tree:
        """The trained part of `w`."""
        return trees.select(w, set(self.paths).__contains__)

    def zeros(self, w: Tree) -> Tree:
        """dw = 0."""
        return jax.tree.map(jnp.zeros_like, self.part(w))

    def __str__(self) -> str:
        shared = re.compile(r"block_\d+")
        groups: dict[str, list[str]] = {}
        for path in self.paths:
            groups.setdefault(shared.sub("block_*", path), []).append(path)
        lines = [
            f"  {group}" + (f"  ({len(paths)} blocks)" if "block_*" in group else "") for group, paths in groups.items()
        ]
        return "\n".join([f"{self.name}: {self.size:,} trained numbers in {len(self.paths)} leaves", *lines])


def make_subset(config: ViTConfig, kind: str = "blocks", blocks: int = 1) -> Subset:
    """The trained leaves by kind.

    Args:       kind: "blocks", the last `blocks` blocks, the final norm and the head (blocks = 0: the
                head alone); "bitfit", all biases (Zaken et al. 2022), and "layernorm", all layer
                norms, of the last `blocks` blocks and the final norm, both with the head, which is
                new; "head"; "everything", the embedding included. With blocks = depth, bitfit and
                layernorm cover the embedding's bias and the CLIP pre-norm too.
    Raises:     InputError for another kind, or blocks outside 0..depth.

    >>> from tangent_jax.config import vit_config
    >>> make_subset(vit_config("L/16", classes=200), blocks=1).size
    12803272
    """
    require(kind in KINDS, "make_subset", f"kind in {', '.join(KINDS)}", kind)
    require(0 <= blocks <= config.depth, "make_subset", f"blocks in 0..{config.depth}", blocks)
    first = config.depth - blocks
    whole = blocks == config.depth

    def block_of(path: str) -> int:
        return int(path.split("/")[0][6:]) if path.startswith("block_") else -1

    def trained(path: str) -> bool:
        if kind == "everything" or path.startswith("head/"):
            return True
        if kind == "head" or (kind == "blocks" and blocks == 0):
            return False
        reached = block_of(path) >= first or path.startswith("norm/")
        if kind == "blocks":
            return reached or path == "new_class_token"
        matches = path.endswith("/bias") if kind == "bitfit" else "norm" in path
        return (matches and (reached or whole)) or path == "new_class_token"

    shapes = {path: shape for path, shape in vit.shapes(config).items() if trained(path)}
    inside = [block_of(path) for path in shapes if path.startswith("block_")]
    embedding = [p for p in shapes if not p.startswith(("block_", "norm/", "head/", "new_class_token"))]
    split = IMAGES if embedding else min(inside, default=config.depth)
    if config.class_token_at is not None and "new_class_token" in shapes:
        split = min(split, config.class_token_at)
    name = kind if kind in ("head", "everything") else f"{kind}-{blocks}"
    size = sum(math.prod(shape) for shape in shapes.values())
    return Subset(name, tuple(sorted(shapes)), split, size)


def new_head(config: ViTConfig, w: Tree, classes: int, key: Array) -> tuple[ViTConfig, Tree]:
    """The model with a freshly drawn head for `classes` classes, and the rest as it was."""
    require(classes >= 2, "new_head", "at least two classes", classes)
    config = config.replace(classes=classes)
    return config, {**w, "head": redraw(config, ["head/kernel", "head/bias"], key)["head"]}


def new_class_token(config: ViTConfig, w: Tree, block: int, key: Array) -> tuple[ViTConfig, Tree]:
    """CLS=T: a new class token, N(0, (1e-6)^2), takes the place of the old at the input of `block`."""
    config = config.replace(class_token_at=block)
    return config, {**w, **redraw(config, ["new_class_token"], key)}


def reset(config: ViTConfig, w: Tree, subset: Subset, key: Array) -> Tree:
    """PT=F: the trained leaves' modules are re-initialised, before linearising.

    The trained blocks, final norm and head are drawn afresh; a leaf's draw depends on `key` and its path.
    """
    return trees.replace(w, redraw(config, list(subset.paths), key))


def redraw(config: ViTConfig, paths: list[str], key: Array) -> Tree:
    shapes = vit.shapes(config)
    return trees.nest({path: vit.initial(path, vit.leaf_key(key, path), shapes[path]) for path in paths})
