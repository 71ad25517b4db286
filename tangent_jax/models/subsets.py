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
    for name, own in sorted(numbers.items()):
        starts = sorted(number for number in own if number - 1 not in own)
        ends = sorted(number for number in own if number + 1 not in own)
        runs = zip(starts, ends, strict=True)
        words += [f"{name}{i}" if i == j else f"{name}{i} to {name}{j}" for i, j in runs] or [name]
    return ", ".join(words)


Kind = str | Callable[[str], bool]
"""The leaves of a subset: one of KINDS, or a function that is True for their paths."""


def make_subset(model: Model, kind: Kind = "blocks", blocks: int = 1) -> Subset:
    """The subset of a kind of leaves.

    Args:       kind: "blocks": the last `blocks` stages before the head, and the head's stage (blocks = 0: the head
                alone); of the same stages: "bitfit": all biases, "layernorm": all norms, "adapter": adapters, "lora":
                low-rank factors, "lora_b": only their B, each with the head unless it is frozen (MATCHES); "head";
                "everything", with the embedding. With blocks = all, the kinds of MATCHES include the embedding. Or a
                function of a path: the leaves for which it is True.
    Raises:     InputError for an unknown kind, too many blocks, a model without leaves of the kind below its head, or
                an empty subset, such as a frozen head alone.

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

    own = [path for path in model.shapes() if not path.startswith(("head/", "new_")) and not is_fixed(path)]
    if not (kind in ("blocks", "head", "everything") or any(map(trained, own))):
        do = f"Make it by {MADE[kind]}" if kind in MADE else "Pass a function of paths as kind"
        raise InputError(
            f"expected a model with leaves for {kind}; got none in the last {blocks} blocks, below the head, among "
            f"{', '.join([*own[-3:], '...'])}. {do}"
        )
    return subset_of(model, kind if kind in ("head", "everything") else f"{kind}-{blocks}", trained)


def is_fixed(path: str) -> bool:
    """True for a leaf that no subset trains."""
    return path.rpartition("/")[2] in STATISTICS or path in FROZEN


def subset_of(model: Model, name: str, trained: Callable[[str], bool]) -> Subset:
    """The subset of leaves whose paths are `trained`, without fixed ones."""
    leaves = {path: shape for path, shape in model.shapes().items() if not is_fixed(path)}
    shapes = {path: shape for path, shape in leaves.items() if trained(path)}
    if not shapes:
        raise InputError(f"expected a leaf to train, one of {', '.join([*leaves][:3])}, ...; got none of {name}")
    stage = min(model.stage_of(path) for path in shapes)
    return Subset(name, tuple(sorted(shapes)), stage, sum(math.prod(shape) for shape in shapes.values()))
