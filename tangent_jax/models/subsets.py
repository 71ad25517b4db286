"""Subsets: the leaves that carry a tangent.

A Subset is a named value: its leaves, its size, and the first stage that it trains. The stages below are the trunk, a
fixed function of the image; that stage and those above are the tail.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, one_of, whole_number
from tangent_jax.core.notation import Tree
from tangent_jax.models.protocol import Model

MATCHES: dict[str, Callable[[str], bool]] = {
    "bitfit": lambda path: f"/{path}".endswith("/bias"),  # Zaken et al. 2022
    "layernorm": lambda path: "norm" in path,
    "adapter": lambda path: "/adapter" in path,
    "lora": lambda path: "/lora_" in path,
    "lora_b": lambda path: "/lora_b" in path,  # only B: at B = 0 A has no tangent
}
"""The kinds that train some leaves of the last blocks, and the head unless it is frozen: True for the leaves' paths."""
KINDS = ("blocks", *MATCHES, "head", "everything")
"""The kinds of subsets that `make_subset` makes."""
MADE = {"adapter": "with_adapters", "lora": "with_lora", "lora_b": "with_lora"}
STATISTICS = ("mean", "var")
"""The leaves of a batch norm that no subset trains."""
FROZEN = ("head/embeddings", "projection/bias")
"""The leaves of a frozen head that no subset trains: CLIP's projection has no bias."""


@dataclasses.dataclass(frozen=True)
class Subset:
    """The trained leaves of one model.

    `paths` are sorted; `stage` is the first one with a trained leaf; `size` counts the trained numbers.

    >>> demo.predict.subset.stage, demo.predict.subset.size  # 6 x 6 + 6, and 6 x 3 + 3
    (1, 63)
    """

    name: str
    paths: tuple[str, ...]
    stage: int
    size: int

    def part(self, w: Tree) -> Tree:
        """The trained part of `w`."""
        return trees.select(w, set(self.paths).__contains__)

    def zeros(self, w: Tree) -> Tree:
        """The tangent weights dw = 0."""
        return jax.tree.map(jnp.zeros_like, self.part(w))

    def __str__(self) -> str:
        return f"{self.name} trains {parts_in_words(self.paths)}: {self.size:,} numbers"


def parts_in_words(paths: Iterable[str]) -> str:
    """The first names of paths, runs of numbered ones joined: "block_2 to block_4, head, norm".

    >>> parts_in_words(["block_3/norm1/bias", "block_2/norm1/bias", "head/bias"])
    'block_2 to block_3, head'
    """
    numbers: dict[str, set[int]] = {}
    for path in paths:
        first = path.partition("/")[0]
        name, _, number = first.rpartition("_")
        if name and number.isdecimal():
            numbers.setdefault(f"{name}_", set()).add(int(number))
        else:
            numbers[first] = set()
    words = []
    for name, numbered in sorted(numbers.items()):
        starts = sorted(number for number in numbered if number - 1 not in numbered)
        ends = sorted(number for number in numbered if number + 1 not in numbered)
        runs = zip(starts, ends, strict=True)
        words += [f"{name}{i}" if i == j else f"{name}{i} to {name}{j}" for i, j in runs] or [name]
    return ", ".join(words)


Kind = str | Callable[[str], bool]
"""The leaves of a subset: one of KINDS, or a function that is True for their paths."""


def make_subset(model: Model, kind: Kind = "blocks", blocks: int = 1) -> Subset:
    """The subset of a kind: the head, unless it is frozen, and these leaves.

        blocks       all leaves of the last `blocks` blocks, the final norm and the pool; blocks = 0: no others
        bitfit       biases of the last `blocks` blocks, the final norm and the pool
        layernorm    norms of the last `blocks` blocks, the final norm and the pool's norm
        adapter      adapters of the last `blocks` blocks
        lora         low-rank factors of the last `blocks` blocks
        lora_b       their B alone
        head         no others
        everything   all leaves of the model

    If `blocks` is the number of the model's blocks, "bitfit" and "layernorm" train such leaves of the embedding, too,
    but "blocks" does not. A new class token trains with every kind but "head". Statistics of batch norms never train.

    Args:
        kind: One of KINDS, or a function that is True for the paths of the leaves, the head's among them.
        blocks: "head", "everything" and a function do not read it.

    Raises:
        InputError: An unknown kind, more blocks than the model has, too few for a leaf of the kind below the head, a
            model without such a leaf, or an empty subset, such as a frozen head alone.

    >>> from tangent_jax.models.vit import config, model
    >>> make_subset(model.VisionTransformer(config.vit_config("L/16", classes=200)), blocks=1).size
    12803272
    """
    if callable(kind):
        return subset_of(model, "paths", kind)
    depth = model.stages - 2
    one_of("kind", kind, KINDS)
    if kind not in ("head", "everything"):
        whole_number("blocks", blocks, 0, depth)
    first = model.stages - 1 - blocks

    def trained(path: str) -> bool:
        if kind == "everything" or path.startswith("head/"):
            return True
        if kind == "head" or (kind == "blocks" and blocks == 0):
            return False
        reached = model.stage_of(path) >= first
        if kind == "blocks":
            return reached or path.startswith("new_")
        return (MATCHES[kind](path) and (reached or blocks == depth)) or path.startswith("new_")

    if kind in MATCHES:
        check_leaves(model, kind, blocks)
    return subset_of(model, kind if kind in ("head", "everything") else f"{kind}-{blocks}", trained)


def check_leaves(model: Model, kind: str, blocks: int) -> None:
    """Raises InputError if no leaf below the head is of this kind of MATCHES and in the last `blocks` blocks."""
    below = [path for path in model.shapes() if not path.startswith(("head/", "new_")) and not is_fixed(path)]
    stages = [model.stage_of(path) for path in below if MATCHES[kind](path)]
    if not stages:
        remedy = f"Make the model by {MADE[kind]}" if kind in MADE else "Choose blocks, head or everything"
        raise InputError(
            f"kind must be present below the model's head; got {kind} for leaves such as "
            f"{', '.join(below[-3:])}. {remedy}"
        )
    least = min(model.stages - 1 - max(stages), model.stages - 2)  # leaves of the embedding train with all blocks
    if blocks < least:
        raise InputError(f"blocks must be at least {least} to train leaves of the kind {kind}; got {blocks}")


def is_fixed(path: str) -> bool:
    """True for a leaf that no subset trains."""
    return path.rpartition("/")[2] in STATISTICS or path in FROZEN


def subset_of(model: Model, name: str, trained: Callable[[str], bool]) -> Subset:
    """The subset of leaves whose paths are `trained`, without fixed ones."""
    leaves = {path: shape for path, shape in model.shapes().items() if not is_fixed(path)}
    shapes = {path: shape for path, shape in leaves.items() if trained(path)}
    if not shapes:
        raise InputError(f"kind {name} must choose a leaf, such as {', '.join([*leaves][:3])}; got none")
    stage = min(model.stage_of(path) for path in shapes)
    return Subset(name, tuple(sorted(shapes)), stage, sum(math.prod(shape) for shape in shapes.values()))
