"""The Vision Transformer as Flax linen modules: plain, and with its tangent.

    ViT(config).apply({"params": w}, images) -> f_w(x)
    TangentViT(config).apply({"params": w, "tangent": dw}, images) -> Dual(f_w(x), J_w f(x) . dw)

Both use one tree of weights. A leaf absent from "tangent" is frozen: below the first trained leaf every tangent is
None, so those blocks run at plain cost. Both compute in the dtype of parameters and input.
"""

import flax.linen as nn
from jax import Array
from jaxtyping import Float

from tangent_jax.core import trees
from tangent_jax.core.notation import Dual
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.forward import forward
from tangent_jax.models.vit.leaves import initial, shapes


class ViT(nn.Module):
    """The plain network; `init` draws its parameters.

    >>> weights = tj.models.initial_weights(tj.models.VisionTransformer(demo.vit_config), jax.random.key(0))
    >>> module, images = tj.models.ViT(demo.vit_config), jnp.zeros((2, 8, 8, 3))
    >>> jax.eval_shape(module.apply, {"params": weights}, images).shape
    (2, 3)
    """

    config: ViTConfig

    @nn.compact
    def __call__(self, images: Float[Array, "b y x 3"]) -> Float[Array, "b c"]:
        """The outputs of normalised images."""
        if self.is_initializing():
            key, all_shapes = self.make_rng("params"), shapes(self.config).items()
            w = trees.nest({path: initial(path, trees.leaf_key(key, path), shape) for path, shape in all_shapes})
            for name, part in w.items():
                self.param(name, lambda _, part=part: part)
        return forward(self.config, trees.pair(self.variables["params"], {}), images).primal


class TangentViT(nn.Module):
    """f_lin by closed forms, as a module.

    >>> weights = tj.models.initial_weights(tj.models.VisionTransformer(demo.vit_config), jax.random.key(0))
    >>> variables = {"params": weights, "tangent": {"head": weights["head"]}}
    >>> module, images = tj.models.TangentViT(demo.vit_config), jnp.zeros((2, 8, 8, 3))
    >>> jax.eval_shape(module.apply, variables, images).tangent.shape
    (2, 3)
    """

    config: ViTConfig

    @nn.compact
    def __call__(self, images: Float[Array, "b y x 3"]) -> Dual:
        """Outputs of normalised images and their tangent, both "b c"."""
        w, dw = self.variables["params"], self.variables.get("tangent", {})
        trees.check_part(w, dw)
        return forward(self.config, trees.pair(w, dw), images)
