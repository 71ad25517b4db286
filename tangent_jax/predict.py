"""The tail of a ViT as a function of its trained step: tangent by either road, or non-linear.

taft: logits = f_w(x) + J_w f(x) . dw        nlft: logits = f_{w + dw}(x)
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax import trees
from tangent_jax.checks import require
from tangent_jax.config import ViTConfig
from tangent_jax.linearize import linearize
from tangent_jax.notation import Tree
from tangent_jax.subsets import IMAGES
from tangent_jax.tangent_vit import TangentViT
from tangent_jax.vit import ViT
from tangent_jax.weights import Preprocessing

METHODS = ("taft", "nlft")
OUTPUTS = ("total", "tangent")
DEFAULT = Preprocessing()
LINEARIZATIONS = ("closed_form", "autodiff")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["w"],
    meta_fields=["config", "split", "method", "linearization", "dtype", "preprocessing", "output"],
)
@dataclasses.dataclass(frozen=True)
class Predictor:
    """logits = predict(dw, x): the tail of a ViT as a function of its trained step.

    `method` taft: f_w(x) + J_w f(x) . dw, or J_w f(x) . dw alone where `output` is tangent; nlft: f_{w + dw}(x).
    `split` is the subset's: x is what `ViT.trunk(images, split)` returned, or uint8 images where split is IMAGES.
    `dtype` is the compute dtype. A pytree: w travels as data, so one compiled program serves every anchor of a shape.
    """

    w: Tree
    config: ViTConfig
    split: int
    method: str = "taft"
    linearization: str = "closed_form"
    dtype: Any = None
    preprocessing: Preprocessing = DEFAULT
    output: str = "total"

    def __post_init__(self) -> None:
        require(self.method in METHODS, "Predictor", f"method in {', '.join(METHODS)}", self.method)
        require(
            self.linearization in LINEARIZATIONS,
            "Predictor",
            f"linearization in {', '.join(LINEARIZATIONS)}",
            self.linearization,
        )

        require(
            self.output in OUTPUTS[: 1 + (self.method == "taft")],
            "Predictor",
            f"output in {', '.join(OUTPUTS)}, the last for taft only",
            f"{self.output} of {self.method}",
        )

    def __call__(self, dw: Tree, x: Array) -> Array:
        if self.split == IMAGES:
            x = self.preprocessing.normalize(x)
        if self.method == "nlft":
            logits = self.plain(trees.add(self.w, dw), x)
        else:
            if self.linearization == "autodiff":
                f = linearize(self.plain, self.w)(dw, x)
            else:
                f = self.apply(TangentViT(self.config, self.dtype), {"params": self.w, "tangent": dw}, x)
            logits: Any = f.total if self.output == "total" else f.tangent
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def plain(self, w: Tree, x: Array) -> Array:
        """f_w(x), the non-linear tail."""
        return self.apply(ViT(self.config, self.dtype), {"params": w}, x)

    def apply(self, model: Any, variables: Tree, x: Array) -> Any:
        """The whole model from images, or its tail from a block's input."""
        return (
            model.apply(variables, x) if self.split == IMAGES else model.apply(variables, x, self.split, method="tail")
        )
