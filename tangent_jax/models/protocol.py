"""What a model is to everything else: stages of a network, their leaves, and both roads through them.

    stage 0    reads images                      its leaves: the embedding
    stage 1..  each reads what the last gave     "blocks"
    stage S    gives logits                      the head, and what belongs to it

Subsets, predictors, features, per-example norms, provenance and exports know a model by this alone. A plain function
needs none of it: `linearize`, `fit`, `clipped_sum` and `compose` take any function of a pytree.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Dual, Tree, require, trees
from tangent_jax.data.preprocessing import Preprocessing


class Model(Protocol):
    """A network without its weights: a frozen dataclass, hashable, so that jit takes it as static.

        preprocessing           how its images are resized and normalised
        stages, image_size      S + 1; the side of its images in pixels
        classes                 how many logits; 0 for a model without a head, which gives features
        settings                all that makes it, as JSON has it: what differs in a field is never summed
        shapes()                the shape of every leaf, by path
        stage_of(path)          the stage that a leaf belongs to
        input_shape(stage)      of one example of what a stage reads; stage 0 reads images, "y x 3"
        initial(path, key)      a fresh leaf, f32
        apply(w, x, start, stop)   the plain network from the input of one stage to that of another (None: logits), in
                                the dtype of w and x
        dual(pairs, x, start)   logits and their tangent, by `tangent_jax.rules` over leaves Dual(w, dw)
        with_classes(classes)   the same model with another head
        to_world(flat)          leaves by path, all or some, under the names and in the layout that others know
        from_world(tensors)     `to_world` undone

    Names of leaves say what they are: `head/...` is the head, `.../bias` a bias, a module with `norm` in its name a
    norm; a leaf `new_...` is one that no pre-training knows, trained with every subset but the head alone;
    `.../mean` and `.../var` are the statistics of a batch norm, which no subset trains.
    """

    @property
    def preprocessing(self) -> Preprocessing: ...
    @property
    def stages(self) -> int: ...
    @property
    def image_size(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    def shapes(self) -> dict[str, tuple[int, ...]]: ...
    def stage_of(self, path: str) -> int: ...
    def input_shape(self, stage: int) -> tuple[int, ...]: ...
    def initial(self, path: str, key: Array) -> Array: ...
    def apply(self, w: Tree, x: Array, start: int = 0, stop: int | None = None) -> Array: ...
    def dual(self, pairs: Tree, x: Array, start: int = 0) -> Dual: ...
    def with_classes(self, classes: int) -> "Model": ...
    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]: ...
    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]: ...


def draw(model: Model, paths: list[str], key: Array) -> Tree:
    """Fresh leaves, each by its own key."""
    return trees.nest({path: model.initial(path, trees.leaf_key(key, path)) for path in paths})


def initial_weights(model: Model, key: Array) -> Tree:
    """Random weights, f32, leaf by leaf (one program for all would be slow and large at ViT-L)."""
    return draw(model, list(model.shapes()), key)


def stages_run(
    kind: str, last: int, input_shape: Callable[[int], tuple[int, ...]], x: Array, start: int, stop: int | None
) -> range:
    """The stages from `start` to before `stop` (None: all that are left) of a model whose last stage is `last`.

    Raises: InputError, at trace time, for stages that the model has not, or where x is no batch of what `start` reads.
    """
    stop = last + 1 if stop is None else stop
    require(0 <= start <= stop <= last + 1, kind, f"stages 0 <= start <= stop <= {last + 1}", (start, stop))
    shape, do = ("b", *input_shape(start)), "Resize images, or compute features of this stage"
    good = x.ndim == len(shape) and x.shape[1:] == shape[1:]
    require(good, kind, f"the input of stage {start}, of shape {shape}", x.shape, do)
    return range(start, stop)


def prepared(model: Model, w: Tree, x: Array, dtype: jax.typing.DTypeLike | None) -> tuple[Tree, Array]:
    """(w, x) in the compute dtype, or in the dtype that holds both (None); uint8 images are normalised."""
    if x.dtype == jnp.uint8:
        x = model.preprocessing.normalize(x)
    wide = jnp.result_type(*jax.tree.leaves(w), x) if dtype is None else dtype
    return trees.cast(w, dtype), x.astype(wide)
