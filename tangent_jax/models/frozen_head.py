"""A frozen head: text embeddings of the class names, as in CLIP's zero-shot classifier.

    z^      = z / |z|           z: the embedding of an image, "b d", which the model below gives
    outputs = s z^ E            E: one column of length 1 for each class, "d c"; s: the logit scale

No subset trains the head; the tangent of the embedding passes through the normalisation. Source: Radford et al. 2021.
The image encoder trains, with its last projection, as in Ilharco et al. 2023. Models with the heads of several tasks
share one anchor, because they train the same leaves.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, finite_number
from tangent_jax.core.names import composed_name
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.models.protocol import Model
from tangent_jax.models.wrapper import Wrapper
from tangent_jax.rules import contract, unit_length

EMBEDDINGS, HEAD, PROJECTION = "head/embeddings", "head/", "projection/"
SCALE = 100.0  # the limit in CLIP's own training
BEFORE = "Begin with the model as it was before"


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenHead:
    """Embeddings of named classes, "c d", of any length, and the logit scale, exp(logit_scale) in CLIP.

    Raises:
        InputError: Repeated names, and embeddings that are not finite rows other than 0.

    >>> head = tj.models.FrozenHead(("owl", "gull"), np.eye(2, 3))
    >>> demo.model.with_frozen_head(head).model.classes
    2
    """

    classes: tuple[str, ...]
    embeddings: Shaped[np.ndarray, "..."]
    logit_scale: float = SCALE
    source: str = "the head"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(map(composed_name, self.classes)))
        shape, names = np.shape(self.embeddings), len(self.classes)
        if not (len(shape) == 2 and shape[0] == names > 0):
            raise InputError(
                f"embeddings must be (classes, width), of the {names} named classes; got {self._got(shape)}"
            )
        twice = [name for name, count in Counter(self.classes).items() if count > 1]
        if twice:
            raise InputError(f"names of classes must differ; got {self._got(f'{twice[:1]} twice')}")
        lengths = np.linalg.norm(np.asarray(self.embeddings, np.float64), axis=1)
        bad = [name for name, length in zip(self.classes, lengths, strict=True) if not 0 < length < np.inf]
        if bad:
            raise InputError(f"embeddings must be finite, and not 0; got {self._got(f'another of {bad[:1]}')}")
        finite_number("logit_scale", self.logit_scale, 0)

    def _got(self, value: object) -> str:
        return f"{value} in {self.source}"

    def of_classes(self, classes: Sequence[str]) -> "FrozenHead":
        """The head of a data set's classes, in its order, by their names.

        Raises:
            InputError: It names the classes that only the head or only the data set has.
        """
        do = "Make the head of the data set's own class names"
        classes = tuple(map(composed_name, classes))
        missing, others = first_and_more(classes, self.classes), first_and_more(self.classes, classes)
        wanted = f"embeddings must be of the data set's {len(classes)} classes"
        if missing:
            raise InputError(f"{wanted}; got {self._got(f'none of {missing}')}. {do}")
        if others:
            raise InputError(f"{wanted} alone; got {self._got(f'those of {others} too')}. {do}")
        rows = [self.classes.index(name) for name in classes]
        return dataclasses.replace(self, classes=tuple(classes), embeddings=np.asarray(self.embeddings)[rows])

    def leaf(self) -> Float[Array, "d c"]:
        """s E, in f32."""
        wide = np.asarray(self.embeddings, np.float64)
        return jnp.asarray(self.logit_scale * wide / np.linalg.norm(wide, axis=1, keepdims=True), jnp.float32).T


def first_and_more(names: Sequence[str], others: Sequence[str]) -> str:
    """The first name that is not among the others, and the number of further ones; empty if there is none."""
    there = {*others}
    lone = [name for name in names if name not in there]
    return ", ".join(map(repr, lone[:5])) + (f" and {len(lone) - 5} more" if len(lone) > 5 else "")


@dataclasses.dataclass(frozen=True)
class WithFrozenHead(Wrapper):
    """The model `base`, whose outputs are image embeddings, below a frozen head of `shape`, "d c".

    A head of the base is CLIP's projection: its leaves become `projection/...`, and train with the last block like the
    final norm.
    """

    shape: tuple[int, int]

    def __post_init__(self) -> None:
        if isinstance(self.base, Wrapper):
            raise InputError(f"the model must be as it was loaded; got {type(self.base).__name__}. {BEFORE}")
        width = embedding_width(self.base)
        if width != self.shape[0]:
            raise InputError(
                f"embeddings must have width {width}, as the model's outputs; got width {self.shape[0]}. Take "
                "those of its own CLIP"
            )

    @property
    def classes(self) -> int:
        return self.shape[1]

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.base.settings, "classes": self.classes, "projection": self.base.classes}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.of_base(self.base.shapes()) | {EMBEDDINGS: self.shape}

    @property
    def input_norms(self) -> dict[str, str]:
        return self.of_base(super().input_norms)

    def stage_of(self, path: str) -> int:
        return self.stages - 1 if path.startswith((HEAD, PROJECTION)) else self.base.stage_of(path)

    def initial(self, path: str, key: PRNGKeyArray) -> Float[Array, "..."]:
        if path == EMBEDDINGS:
            raise InputError(f"the model must have no frozen head; got one that has it. {BEFORE}")
        return self.base.initial(*self.for_base({path: None}), key)

    @promotes
    def apply(
        self, w: Tree, x: Shaped[Array, "b ..."], start: int = 0, stop: int | None = None
    ) -> Float[Array, "b ..."]:
        z = self.base.apply(self.below(w), x, start, stop)
        is_below = stop is not None and stop < self.stages
        return z if is_below else jnp.einsum("bd,dc->bc", unit_length(z, None)[0], w["head"]["embeddings"])

    @property
    def dual(self) -> Callable[..., Dual] | None:
        return self.base.dual and self.closed_form

    def closed_form(self, pairs: Tree, x: Float[Array, "b ..."], start: int = 0) -> Dual:
        """The outputs and their tangent, "b c", from the base's."""
        z, dz = unit_length(*self.base.dual(self.below(pairs), x, start))
        return Dual(*contract("bd,dc->bc", z, dz, *pairs["head"]["embeddings"]))

    def with_classes(self, classes: int) -> "WithFrozenHead":
        return dataclasses.replace(self, shape=(self.shape[0], classes))

    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]:
        """The base's names; the embeddings keep our path."""
        own = {path: leaf for path, leaf in flat.items() if path == EMBEDDINGS}
        return self.base.to_world(self.for_base(flat)) | own

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        own = {path: leaf for path, leaf in tensors.items() if path == EMBEDDINGS}
        return self.of_base(self.base.from_world({n: leaf for n, leaf in tensors.items() if n not in own})) | own

    # Names: the base's head is our projection

    def below(self, w: Tree) -> Tree:
        """The leaves of the base in a tree of ours."""
        inner = {name: child for name, child in w.items() if name != "head"}
        return inner | {"head": inner.pop("projection")} if self.base.classes else inner

    def of_base(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """The base's leaves under our paths."""
        return {move_path(path, HEAD, PROJECTION): leaf for path, leaf in flat.items()}

    def for_base(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Our leaves, without the embeddings, under the base's paths."""
        ours, theirs = (PROJECTION, HEAD) if self.base.classes else ("", "")
        return {move_path(path, ours, theirs): leaf for path, leaf in flat.items() if path != EMBEDDINGS}


def move_path(path: str, old: str, new: str) -> str:
    """The path with its beginning replaced, if it has the old one."""
    return new + path.removeprefix(old) if path.startswith(old) else path


def embedding_width(model: Model) -> int:
    """The width of a model's outputs, traced at its last stage."""
    last = model.stages - 1
    w = trees.nest({path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in model.shapes().items()})
    x = jax.ShapeDtypeStruct((1, *model.input_shape(last)), jnp.float32)
    return jax.eval_shape(partial(model.apply, start=last), w, x).shape[-1]
