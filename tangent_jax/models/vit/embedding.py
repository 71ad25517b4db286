"""The first stage of a Vision Transformer, and the positions of its tokens.

    x = [class token + position, registers, patches + positions]        without the parts that a model lacks

Source: Dosovitskiy et al. 2021; registers: Darcet et al. 2024. Rotary positions rotate queries and keys in every block.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core.notation import Dual, Tangent, Tree
from tangent_jax.core.preprocessing import sides
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.rules import dense, layer_norm, make_turns, probe, shift, total
from tangent_jax.rules.rotary import Turns

Pair = tuple[Array, Tangent]


def embed(config: ViTConfig, p: Tree, images: Float[Array, "b y x 3"]) -> Pair:
    """All tokens with their positions, "b n d"."""
    x, dx = dense(patches(config, images), None, p["patch_embedding"], "...yxc,yxcd->...d")
    if config.class_token:
        x, dx = insert(x, dx, p["class_token"], 0)
    if config.positions == "learned":
        position, dposition = p["position_embedding"]
        x, dx = x + position, total(dx, shift(dposition, x))
    if config.registers:
        x, dx = insert(x, dx, p["registers"], int(config.class_token))
    return layer_norm(x, dx, p["pre_norm"], config.eps) if config.pre_norm else (x, dx)


def insert(x: Float[Array, "b n d"], dx: Float[Array, "b n d"] | None, tokens: Dual, place: int) -> Pair:
    """The tokens with another one, "d", or several, "k d", inserted at a place."""
    new, dnew = tokens
    shape = (x.shape[0], new.size // x.shape[-1], x.shape[-1])

    def joined(x: Array, new: Array) -> Array:
        return jnp.concatenate([x[:, :place], new, x[:, place:]], 1)

    if dx is not None or dnew is not None:
        dx = jnp.zeros_like(x) if dx is None else dx
        dx = joined(dx, probe.broadcast(jnp.zeros_like(new) if dnew is None else dnew, shape, x.dtype))
    return joined(x, jnp.broadcast_to(new, shape)), dx


def patches(config: ViTConfig, images: Float[Array, "b y x 3"]) -> Float[Array, "b n p p 3"]:
    """Images as rows of whole patches, so that the embedding is one product."""
    (rows, columns), p = config.grid, config.patch_size
    if sides(config.image_size) != (rows * p, columns * p):
        images = images.reshape(-1, *sides(config.image_size), 3)[:, : rows * p, : columns * p]
    cut = images.reshape(-1, rows, p, columns, p, 3).swapaxes(2, 3)
    return cut.reshape(-1, rows * columns, p, p, 3)


def turns_of(config: ViTConfig) -> Turns | None:
    """The rotations of queries and keys, for rotary positions."""
    if config.positions != "rotary":
        return None
    return make_turns(config.prefix, *config.grid, config.head_width, config.rope_theta)
