"""What a model is to everything else: stages of a network, their leaves, and both roads through them.

    stage 0    reads images                      its leaves: the embedding
    stage 1..  each reads what the last gave     "blocks"
    stage S    gives logits                      the head, and what belongs to it

Subsets, predictors, features, per-example norms, provenance and exports know a model by this alone. A plain function
needs none of it: `linearize`, `fit`, `clipped_sum` and `compose` take any function of a pytree.
"""

import zlib
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import trees
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.data.preprocessing import Preprocessing


class Model(Protocol):
    """A network without its weights: a frozen dataclass, hashable, so that jit takes it as static.

    Names of leaves say what they are: `head/...` is the head, `.../bias` a bias, a module with `norm` in its name a
    norm; a leaf `new_...` is one that no pre-training knows, trained with every subset but the head alone.
    """

    @property
    def preprocessing(self) -> Preprocessing:
        """How its images are resized and normalised."""
        ...

    @property
    def stages(self) -> int:
        """S + 1: the embedding, the blocks, the head."""
        ...

    @property
    def image_size(self) -> int:
        """The side of its images in pixels."""
        ...

    @property
    def classes(self) -> int:
        """How many logits; 0 for a model without a head, which gives features."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """All that makes it, as JSON has it: components of models that differ in a field are never summed."""
        ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every leaf, by path."""
        ...

    def stage_of(self, path: str) -> int:
        """The stage that a leaf belongs to."""
        ...

    def input_shape(self, stage: int) -> tuple[int, ...]:
        """The shape of one example of what `stage` reads; stage 0 reads images, "y x 3"."""
        ...

    def trunk_settings(self, stage: int) -> Any:
        """What decides the input of `stage` besides the leaves below it and the preprocessing; its repr is hashed."""
        ...

    def initial(self, path: str, key: Array) -> Array:
        """A fresh leaf, f32."""
        ...

    def apply(self, w: Tree, x: Array, start: int = 0, stop: int | None = None) -> Array:
        """The plain network from the input of stage `start` to that of stage `stop` (None: to the logits).

        Computes in the dtype of w and x.
        """
        ...

    def dual(self, pairs: Tree, x: Array, start: int = 0) -> Dual:
        """Logits and their tangent from the input of `start`, by `tangent_jax.rules` over leaves Dual(w, dw)."""
        ...

    def with_classes(self, classes: int) -> "Model":
        """The same model with a head of so many classes."""
        ...

    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Leaves by path, all or some, under the names and in the layout that others know."""
        ...

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """`to_world` undone."""
        ...


def draw(model: Model, paths: list[str], key: Array) -> Tree:
    """Fresh leaves: a leaf's draw depends on `key` and its path, never on which others are drawn."""
    fresh = {path: model.initial(path, jax.random.fold_in(key, zlib.crc32(path.encode()))) for path in paths}
    return trees.nest(fresh)


def initial_weights(model: Model, key: Array) -> Tree:
    """Random weights, f32, leaf by leaf (one program for all would be slow and large at ViT-L)."""
    return draw(model, list(model.shapes()), key)


def prepared(model: Model, w: Tree, x: Array, dtype: jax.typing.DTypeLike | None) -> tuple[Tree, Array]:
    """(w, x) in the compute dtype, or in the dtype that holds both (None); uint8 images are normalised."""
    if x.dtype == jnp.uint8:
        x = model.preprocessing.normalize(x)
    wide = jnp.result_type(*jax.tree.leaves(w), x) if dtype is None else dtype
    return trees.cast(w, dtype), x.astype(wide)
