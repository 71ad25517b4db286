"""The Vision Transformer that carries (x, dx) through the closed forms of `rules`.

    TangentViT.apply({"params": w, "tangent": dw}, images) -> Dual(f_w(x), J_w f(x) . dw)

over the same tree as `ViT`. A leaf absent from "tangent" is frozen: until the first trained leaf every
tangent is None, so those blocks run at plain cost. With class-token pooling the last block uses the
class query (rules/class_attention.py).
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import trees
from tangent_jax.core.notation import Dual, Tangent, Tree
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.plain import check_input, one_query_input, patches, reads_one_query, replace_class_token
from tangent_jax.rules import ACTIVATIONS, attention, class_attention, dense, layer_norm, probe, scale, shift, total

Pair = tuple[Array, Tangent]
IN, OUT = "...d,dhe->...he", "...he,hed->...d"


class TangentViT(nn.Module):
    """f_lin by closed forms, computed in the dtype of parameters and input."""

    config: ViTConfig

    def __call__(self, x: Array, start: int = 0) -> Dual:
        """Logits and their tangent, both "b c", from the input of stage `start` (0: normalised images).

        No leaf below `start` may be trained.
        """
        w, dw = self.variables["params"], self.variables.get("tangent", {})
        trees.check_part("TangentViT", w, dw)
        return dual(self.config, trees.pair(w, dw), x, start)


def dual(config: ViTConfig, p: Tree, x: Array, start: int = 0) -> Dual:
    """`TangentViT` over a tree of pairs, Dual(w, dw) in the place of every leaf."""
    check_input("TangentViT", config, start, config.depth + 2, x)
    dx: Tangent = None
    if start == 0:
        x, dx = embed(config, p, x)
    for i in range(max(start - 1, 0), config.depth):
        if i == config.class_token_at:
            x, dx = replace_class_token(config, i, x, dx, p["new_class_token"])
        x, dx = (class_row if reads_one_query(config, i) else block)(config, p[f"block_{i}"], x, dx)
        if reads_one_query(config, i + 1):
            x, dx = one_query_input(config, x, dx)
    if start <= config.depth and config.pool == "avg":
        x, dx = jnp.mean(x[:, 1:], 1), None if dx is None else jnp.mean(dx[:, 1:], 1)
    z, dz = layer_norm(x, dx, p["norm"], config.eps)
    return Dual(*(dense(z, dz, p["head"]) if config.classes else (z, dz)))


def embed(config: ViTConfig, p: Tree, images: Array) -> Pair:
    """Class token and patches plus positions: the input of stage 1."""
    x, dx = dense(patches(config, images), None, p["patch_embedding"], "...yxc,yxcd->...d")
    token, dtoken = p["class_token"]
    row = (len(x), 1, config.width)
    if dx is not None or dtoken is not None:
        dx = jnp.zeros_like(x) if dx is None else dx
        dtoken = jnp.zeros_like(token) if dtoken is None else dtoken
        dx = jnp.concatenate([probe.broadcast(dtoken, row), dx], 1)
    x = jnp.concatenate([jnp.broadcast_to(token, row), x], 1)
    position, dposition = p["position_embedding"]
    x, dx = x + position, total(dx, shift(dposition, x))
    if config.pre_norm:
        x, dx = layer_norm(x, dx, p["pre_norm"], config.eps)
    return one_query_input(config, x, dx) if reads_one_query(config, 0) else (x, dx)


def block(config: ViTConfig, p: Tree, x: Array, dx: Tangent) -> Pair:
    """One block on every token, "b n d"."""
    z, dz = layer_norm(x, dx, p["norm1"], config.eps)
    q, k, v = (dense(z, dz, p["attention"][name], IN) for name in ("query", "key", "value"))
    y, dy = dense(*attention(*q, *k, *v), p["attention"]["out"], OUT)
    return mlp(config, p, *residual(p, "layer_scale1", x, dx, y, dy))


def class_row(config: ViTConfig, p: Tree, x: Array, dx: Tangent) -> Pair:
    """The class token's row of one block's output, "b d", from what `one_query_input` made."""
    z, dz = x[:, 1:], None if dx is None else dx[:, 1:]
    x, dx = x[:, 0], None if dx is None else dx[:, 0]
    q, dq = dense(*layer_norm(x, dx, p["norm1"], config.eps), p["attention"]["query"], IN)
    o, do = class_attention(z, dz, q, dq, p["norm1"], p["attention"]["key"], p["attention"]["value"])
    y, dy = dense(o, do, p["attention"]["out"], OUT)
    return mlp(config, p, *residual(p, "layer_scale1", x, dx, y, dy))


def mlp(config: ViTConfig, p: Tree, x: Array, dx: Tangent) -> Pair:
    """x + g2 MLP(LN2 x), on "... d"."""
    y, dy = dense(*layer_norm(x, dx, p["norm2"], config.eps), p["mlp_in"])
    y, dy = dense(*ACTIVATIONS[config.activation](y, dy), p["mlp_out"])
    return residual(p, "layer_scale2", x, dx, y, dy)


def residual(p: Tree, name: str, x: Array, dx: Tangent, y: Array, dy: Tangent) -> Pair:
    """x + g y, g the LayerScale where the model has one."""
    if name in p:
        y, dy = scale(y, dy, p[name]["scale"])
    return x + y, total(dx, dy)
