"""Predictors: a model's outputs as a function of its tangent weights, linear in them or not.

taft: outputs = f_w(x) + J_w f(x) . dw        nlft: outputs = f_{w + dw}(x)
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Dual, Tree, require, trees
from tangent_jax.data.sources import Examples
from tangent_jax.linearization import linearize
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.features import Cache, Features, features
from tangent_jax.models.protocol import Model, prepared
from tangent_jax.models.subsets import Subset, make_subset

METHODS = ("taft", "nlft")
OUTPUTS = ("total", "tangent")
LINEARIZATIONS = ("closed_form", "autodiff")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["w"],
    meta_fields=["model", "subset", "method", "linearization", "dtype", "output"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """outputs = predict(dw, x): a model above its trunk, as a function of its tangent weights.

    `method` taft: f_w(x) + J_w f(x) . dw, or J_w f(x) . dw alone where `output` is tangent; nlft: f_{w + dw}(x).
    x, "b ...", is the input of the subset's stage, as `features` gives it: uint8 or normalised images for stage 0.
    Outputs are "b c", in f32 or wider; `dtype` is the compute dtype. A pytree: w travels as data, so one compiled
    program serves every anchor of a shape; under `jax.jit(predict)` w is a constant of the program.
    """

    w: Tree
    model: Model
    subset: Subset
    method: str = "taft"
    linearization: str = "closed_form"
    dtype: Any = None
    output: str = "total"

    def __post_init__(self) -> None:
        choices = {"method": METHODS, "linearization": LINEARIZATIONS}
        for field, known in choices.items():
            value = getattr(self, field)
            require(value in known, "Predictor", f"{field} in {', '.join(known)}", value)
        known = OUTPUTS[: 1 + (self.method == "taft")]
        expected = f"output in {', '.join(OUTPUTS)}, the last for taft only"
        require(self.output in known, "Predictor", expected, f"{self.output} of {self.method}")

    def __call__(self, dw: Tree, x: Array) -> Array:
        trees.check_part("Predictor", self.w, dw)
        start = self.subset.stage
        if self.method == "nlft":
            moved, x = prepared(self.model, trees.add(self.w, dw), x, self.dtype)
            return self.answer(Dual(self.model.apply(moved, x, start), None))
        w, x = prepared(self.model, self.w, x, self.dtype)
        if self.linearization == "closed_form":  # dw stays in f32, in which its gradient is summed
            return self.answer(self.model.dual(trees.pair(w, dw), x, start))
        return self.answer(linearize(lambda w, x: self.model.apply(w, x, start), w)(trees.cast(dw, self.dtype), x))

    def answer(self, f: Dual) -> Array:
        """The outputs "b c", in f32 or wider, of the model's value and tangent."""
        outputs: Any = f.total if self.output == "total" else f.tangent
        return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))

    def zeros(self) -> Tree:
        """dw = 0, where training starts."""
        return self.subset.zeros(self.w)

    def features(self, examples: Examples, cache: Cache | None = None) -> Features:
        """The inputs of this predictor for every example, computed once and then read from the cache."""
        return features(self.model, self.w, examples, self.subset.stage, cache, self.dtype)


def tangent(pretrained: Pretrained, blocks: int = 1, kind: str = "blocks", **options: Any) -> Predictor:
    """The tangent of a pre-trained model in its last `blocks` blocks, final norm and head: f_w(x) + J_w f(x) . dw.

    Args:       kind: the leaves of those blocks that are trained, as in `make_subset`; options: `linearization`,
                `dtype`, `output`, as in Predictor.
    """
    return Predictor(pretrained.w, pretrained.model, make_subset(pretrained.model, kind, blocks), "taft", **options)


def nonlinear(pretrained: Pretrained, blocks: int = 1, kind: str = "blocks", **options: Any) -> Predictor:
    """The non-linear fine-tuning of the same leaves, f_{w + dw}(x): the baseline of `tangent`.

    Args:       as in `tangent`; options: `dtype`.
    """
    return Predictor(pretrained.w, pretrained.model, make_subset(pretrained.model, kind, blocks), "nlft", **options)
