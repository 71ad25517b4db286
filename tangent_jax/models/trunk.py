"""The trunk: the stages of a model below the first trained one, a fixed function of the image.

x -> the input of stage s        computed once for each image, and kept (tangent_jax/features)
"""

import dataclasses
import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity, program_reading
from tangent_jax.core.notation import Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.models.protocol import Model, input_dtype, prepare

FORMAT = 4  # version of the rows: raised when the same trunk would give others, as when decoding changes


@partial(jax.jit, static_argnames=("model", "start", "stop", "dtype", "traced"))
def run_trunk(
    w: Tree, x: Shaped[Array, "b ..."], *, model: Model, start: int = 0, stop: int, dtype: Any, traced: str = ""
) -> Shaped[Array, "b ..."]:
    """The input of stage `stop` from that of `start`. `traced`: the key of its program; another key compiles again."""
    return model.apply(*prepare(model, w, x, dtype, start), start, stop)


def in_dtype(w: Tree, dtype: Any) -> Tree:
    """The weights in the compute dtype, by one program: `run_trunk` would cast them again for every batch."""
    if dtype is None or all(leaf.dtype == dtype for leaf in jax.tree.leaves(w)):
        return w
    return jax.jit(trees.cast, static_argnames="dtype")(w, dtype=dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Trunk:
    """The stages of a model below `stage`. `dtype`: the compute dtype, None for that of the weights.

    >>> trunk = tj.models.Trunk(demo.model.model, demo.model.w, stage=1)
    >>> trunk(np.ones((2, 4), np.float32)).shape
    (2, 6)
    """

    model: Model
    w: Tree
    stage: int
    dtype: Any = None

    @promotes
    def __call__(self, x: Shaped[Array | np.ndarray, "b ..."]) -> Shaped[Array, "b ..."]:
        """The input of `stage` from that of stage 0, such as images "b y x 3"."""
        return run_trunk(self.w, jnp.asarray(x), model=self.model, stop=self.stage, dtype=self.dtype)

    def row_dtype(self, kept: Any = None) -> np.dtype:
        """The dtype of rows on disk: `kept`, or the compute dtype; decoded images and arrays keep their own."""
        if self.stage == 0:
            return input_dtype(self.model)
        return np.dtype(jnp.dtype(kept or self.dtype or jnp.float32))

    def key(self, kept: Any = None) -> str:
        """The identity of all that decides a row besides image and device: decoding, program, leaves, dtypes.

        Raises:
            InputError: If the trunk's output has another shape than the model's `input_shape`.
        """
        decoded = FORMAT, self.model.image_size, self.model.preprocessing
        if self.stage == 0:
            return identity(decoded)[:24]
        x = jax.ShapeDtypeStruct((1, *self.model.input_shape(0)), input_dtype(self.model))
        # traced again, as code may change; not the plain blocks of a ViT, which are traced once
        program = partial(inspect.unwrap(run_trunk), model=self.model, stop=self.stage, dtype=self.dtype)
        traced, read, (out,) = program_reading(program, self.w, x)
        shape, said = out.shape[1:], tuple(self.model.input_shape(self.stage))
        if shape != said:
            raise InputError(
                f"apply must give the input of stage {self.stage} in the model's shape {said}; got {shape}"
            )
        return identity(decoded, self.stage, str(self.row_dtype(kept)), traced, read)[:24]
