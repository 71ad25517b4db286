"""The protocol of a model: the stages of a network, their leaves, and its plain and tangent pass.

    stage 0    reads images, or arrays such as token ids    its leaves: the embedding
    stage 1..  each reads the output of the previous one    "blocks"
    stage S    gives the outputs                            the head, with its norm

Subsets, predictors, features, per-example norms, provenance and exports use only this protocol. Plain functions do not
need it: `linearize`, `fit`, `clipped_sum` and `compose` take any function of a pytree.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.core.preprocessing import ImageSize, Preprocessing


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Inputs that are arrays of a dtype; whole numbers, such as token ids in "int32", stay whole numbers.

    >>> tj.models.Arrays("int32").check(jnp.array([[1, 2]], jnp.int8)).dtype
    dtype('int32')
    """

    dtype: str

    def check(self, x: Shaped[Array | np.ndarray, "*b"]) -> Shaped[Array | np.ndarray, "*b"]:
        """The inputs "b ...", whole numbers in this dtype, floats in their own; InputError for another kind."""
        kinds = [next(k for k in ("bool", "integer", "inexact") if is_a(d, k)) for d in (x.dtype, self.dtype)]
        if kinds[0] != kinds[1]:
            raise InputError(f"inputs must be {self.dtype}; got {x.dtype}. Cast them, or make another model")
        return x if kinds[0] == "inexact" else x.astype(self.dtype)


def is_floating(dtype: Any) -> bool:
    """True for a dtype of floats of 16 bits or more, or its name."""
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating) and jnp.dtype(dtype).itemsize >= 2
    except TypeError:
        return False


def is_a(dtype: Any, kind: str) -> bool:
    """True if a dtype is of a kind of numbers: bool, integer or inexact."""
    return jnp.issubdtype(dtype, getattr(jnp, f"{kind}_" if kind == "bool" else kind))


@runtime_checkable
class Model(Protocol):
    """A network without its weights: a frozen dataclass, hashable, so that jit treats it as static.

    Leaf names have a meaning: `head/...` is the head, `.../bias` a bias, a module with `norm` in its name a norm. A
    leaf `new_...` is not pre-trained; every subset but the head alone trains it. `.../mean` and `.../var` are the
    statistics of a batch norm, which no subset trains.

    A model may have more methods, which `Pretrained` has of the same names: `with_image_size(w, image_size)` gives (the
    model, its weights); `with_class_token(blocks)` and `with_adapters(width, blocks)` give the model. It may have a
    property `input_norms`: {path of a kernel: module of the layer norm whose output the kernel multiplies in `dual`},
    for kernels that have one. Private training whitens them by the norm's gain and bias (privacy/public.py). And a
    method `patch_grid(w, x, stage)`: what a stage reads at each place of the image, "b y x d", from its input x; the
    part `place` of features needs it (models/ntk.py).

    >>> isinstance(demo.model.model, tj.Model), demo.model.model.stages, demo.model.model.stage_of("head/kernel")
    (True, 3, 2)
    """

    @property
    def preprocessing(self) -> Preprocessing | Arrays:
        """Resizing and normalisation of its images; for a model without images, the dtype of its arrays."""
        ...

    @property
    def stages(self) -> int:
        """The number of stages; stage 0 reads the inputs, such as images "b y x 3", the last one gives the outputs."""
        ...

    @property
    def image_size(self) -> ImageSize:
        """The side of its images in pixels, or (height, width); unused for a model without images."""
        ...

    @property
    def classes(self) -> int:
        """The number c of its outputs; 0 for a model without a head, which gives features."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the model, as JSON has them; components of models with other settings are never summed."""
        ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every leaf, by path."""
        ...

    def stage_of(self, path: str) -> int:
        """The stage of a leaf."""
        ...

    def input_shape(self, stage: int) -> tuple[int, ...]:
        """The shape of one example of the input of a stage."""
        ...

    def initial(self, path: str, key: PRNGKeyArray) -> Float[Array, "..."]:
        """A freshly drawn leaf, f32."""
        ...

    def apply(
        self, w: Tree, x: Shaped[Array, "b ..."], start: int = 0, stop: int | None = None
    ) -> Shaped[Array, "b ..."]:
        """The plain network, in the dtype of w and x.

        Args:
            x: The input of stage `start`, "b ...".

        Returns:
            The input of stage `stop`, "b ..."; the outputs, "b c", for None.
        """
        ...

    @property
    def dual(self) -> Callable[..., Dual] | None:
        """The closed form (pairs, x, start) -> outputs and their tangent, "b c", by `tangent_jax.rules`.

        A method; or None for a model whose tangent is computed by `jax.jvp`.

        Args:
            pairs: Leaves Dual(w, dw).
            x: The input of stage `start`, "b ...".
        """
        ...

    def with_classes(self, classes: int) -> "Model":
        """The same model with a head of `classes` outputs."""
        ...

    def to_world(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Leaves by path, all or some, with the names and layout of other libraries."""
        ...

    def from_world(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Leaves by path, from tensors of `to_world`."""
        ...


def draw(model: Model, paths: list[str], key: PRNGKeyArray) -> Tree:
    """Draws fresh leaves, each by its own key; InputError for anything but a key."""
    trees.check_key(key)
    return trees.nest({path: model.initial(path, trees.leaf_key(key, path)) for path in paths})


@partial(jax.jit, static_argnames=("shape", "deviation"))
def normal(key: PRNGKeyArray, shape: tuple[int, ...], deviation: float) -> Float[Array, "..."]:
    """Draws N(0, deviation^2), f32, by one program."""
    # without the barrier XLA folds two factors into one, which gives other bits
    return deviation * jax.lax.optimization_barrier(jax.random.normal(key, shape, jnp.float32))


def initial_weights(model: Model, key: PRNGKeyArray) -> Tree:
    """Draws random weights, f32, leaf by leaf (one program for all would be slow and large at ViT-L).

    >>> model = tj.models.VisionTransformer(demo.vit_config)
    >>> tj.models.initial_weights(model, jax.random.key(0))["head"]["kernel"].shape
    (8, 3)
    """
    return draw(model, list(model.shapes()), key)


def stages_run(
    last: int,
    input_shape: Callable[[int], tuple[int, ...]],
    x: Shaped[Array, "..."],
    start: int,
    stop: int | None,
) -> range:
    """The stages from `start` to before `stop` (None: all further ones) of a model whose last stage is `last`.

    Raises:
        InputError: At trace time, for stages that do not exist, or if x is not a batch of inputs of `start`.
    """
    stop = last + 1 if stop is None else stop
    if not (0 <= start <= stop <= last + 1):
        raise InputError(f"stages must satisfy 0 <= start <= stop <= {last + 1}; got {(start, stop)}")
    shape = ("b", *input_shape(start))
    if not (x.ndim == len(shape) and x.shape[1:] == shape[1:]):
        raise InputError(
            f"inputs of stage {start} must have shape {shape}; got {x.shape}. Resize images, or compute "
            "features of this stage"
        )
    return range(start, stop)


def input_dtype(model: Model) -> np.dtype:
    """The dtype of the inputs of stage 0; uint8 for images."""
    inputs = model.preprocessing
    return np.dtype(inputs.dtype if isinstance(inputs, Arrays) else np.uint8)


def prepare(
    model: Model, w: Tree, x: Shaped[Array | np.ndarray, "b ..."], dtype: jax.typing.DTypeLike | None, stage: int
) -> tuple[Tree, Shaped[Array, "b ..."]]:
    """(w, x) in the compute dtype, or, for None, in one that holds both; x as by `as_numbers`.

    Whole numbers stay whole numbers if the model reads them.
    """
    x = as_numbers(model, x, stage)
    if stage == 0 and isinstance(model.preprocessing, Arrays) and not is_a(x.dtype, "inexact"):
        return trees.cast(w, dtype), jnp.asarray(x)
    wide = jnp.result_type(*jax.tree.leaves(w), x) if dtype is None else dtype
    return trees.cast(w, dtype), jnp.asarray(x, wide)


def as_numbers(model: Model, x: Shaped[Array | np.ndarray, "b ..."], stage: int) -> Shaped[Array | np.ndarray, "b ..."]:
    """The inputs of a stage, ready to compute: uint8 images normalised, arrays checked, others unchanged."""
    inputs = model.preprocessing
    if isinstance(inputs, Arrays):
        if stage == 0:
            return inputs.check(x)
    elif x.dtype == jnp.uint8:
        return inputs.normalize(x)
    return x
