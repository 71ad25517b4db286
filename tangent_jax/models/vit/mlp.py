"""The MLP of a block or a pool.

MLP z = W_out act(W_in z + b_in) + b_out
gated:  W_out (act(W_gate z + b_gate) * (W_in z + b_in)) + b_out        SwiGLU if act is silu (Shazeer 2020)
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core.notation import Tangent, Tree
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.rules import ACTIVATIONS, bilinear, dense

Pair = tuple[Array, Tangent]
IN, OUT = "...d,dhe->...he", "...he,hed->...d"
"""The products of attention's kernels."""


def mlp(config: ViTConfig, p: Tree, z: Float[Array, "*b d"], dz: Float[Array, "*b d"] | None) -> Pair:
    """The MLP of normalised tokens; gated if p has the leaves of a gate."""
    act = ACTIVATIONS[config.activation]
    y, dy = dense(z, dz, p["mlp_in"])
    y, dy = bilinear(jnp.multiply, *act(*dense(z, dz, p["mlp_gate"])), y, dy) if "mlp_gate" in p else act(y, dy)
    return dense(y, dy, p["mlp_out"])
