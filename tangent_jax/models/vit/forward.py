"""One pass through the Vision Transformer, stage by stage, over pairs (x, dx) and leaves Dual(w, dw).

    stage 0          x = [class token, patches] + positions        (pre-norm for CLIP towers)
    stages 1..depth  x = x + g1 MHSA(LN1 x);  x = x + g2 MLP(LN2 x)            (g1, g2: LayerScale)
    stage depth+1    outputs = W LN(pool x) + b,   pool = class token, or mean of the patch tokens

Source: Dosovitskiy et al. 2021, options as timm names them, adapters of Houlsby et al. 2019; the tangents are closed
forms of `rules`. Where every tangent is None this is the plain network, at plain cost. No dropout, no training mode.
With class-token pooling the last block reads one query row only, and so computes only that row
(rules/class_query.py); of the other tokens it needs the standardised x^, which are the input of that stage.
"""

from functools import partial

import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Dual, Tangent, Tree
from tangent_jax.models.protocol import stages_run
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.rules import (
    ACTIVATIONS,
    attention,
    class_attention,
    dense,
    layer_norm,
    probe,
    scale,
    shift,
    standardize,
    total,
)

Pair = tuple[Array, Tangent]
IN, OUT = "...d,dhe->...he", "...he,hed->...d"


def forward(config: ViTConfig, p: Tree, x: Array, start: int = 0, stop: int | None = None) -> Dual:
    """From the input of stage `start` (0: normalised images, "b y x 3") to that of `stop` (None: outputs, "b c").

    A model without a head gives normalised features, "b d".
    """
    dx: Tangent = None
    for stage in stages_run("ViT", config.depth + 1, partial(input_shape, config), x, start, stop):
        if stage == 0:
            x, dx = embed(config, p, x)
        elif stage <= config.depth:
            x, dx = run_block(config, p, stage - 1, x, dx)
        else:
            x, dx = layer_norm(x, dx, p["norm"], config.eps)
            x, dx = dense(x, dx, p["head"]) if config.classes else (x, dx)
    return Dual(x, dx)


def embed(config: ViTConfig, p: Tree, images: Array) -> Pair:
    """Class token and patches plus positions: the input of stage 1, "b n d", from images "b y x 3"."""
    x, dx = dense(patches(config, images), None, p["patch_embedding"], "...yxc,yxcd->...d")
    token, dtoken = p["class_token"]
    row = (x.shape[0], 1, config.width)
    if dx is not None or dtoken is not None:
        dx = jnp.zeros_like(x) if dx is None else dx
        dtoken = jnp.zeros_like(token) if dtoken is None else dtoken
        dx = jnp.concatenate([probe.broadcast(dtoken, row, x.dtype), dx], 1)
    x = jnp.concatenate([jnp.broadcast_to(token, row), x], 1)
    position, dposition = p["position_embedding"]
    x, dx = x + position, total(dx, shift(dposition, x))
    if config.pre_norm:
        x, dx = layer_norm(x, dx, p["pre_norm"], config.eps)
    return one_query_input(config, x, dx) if reads_one_query(config, 0) else (x, dx)


def run_block(config: ViTConfig, p: Tree, i: int, x: Array, dx: Tangent) -> Pair:
    """From the input of block i's stage, "b ...", to that of the next."""
    if i == config.class_token_at:
        x, dx = replace_class_token(config, i, x, dx, p["new_class_token"])
    if reads_one_query(config, i):
        return class_row(config, p[f"block_{i}"], x, dx)
    x, dx = block(config, p[f"block_{i}"], x, dx)
    if reads_one_query(config, i + 1):
        return one_query_input(config, x, dx)
    if i == config.depth - 1:  # average pooling
        return jnp.mean(x[:, 1:], 1), None if dx is None else jnp.mean(dx[:, 1:], 1)
    return x, dx


def block(config: ViTConfig, p: Tree, x: Array, dx: Tangent) -> Pair:
    """One block on every token, "b n d"."""
    z, dz = layer_norm(x, dx, p["norm1"], config.eps)
    q, k, v = (dense(z, dz, p["attention"][name], IN) for name in ("query", "key", "value"))
    y, dy = dense(*attention(*q, *k, *v), p["attention"]["out"], OUT)
    return mlp(config, p, *residual(config, p, 1, x, dx, y, dy))


def class_row(config: ViTConfig, p: Tree, x: Array, dx: Tangent) -> Pair:
    """The class token's row of one block's output, "b d", from the value of `one_query_input`."""
    z, dz = x[:, 1:], None if dx is None else dx[:, 1:]
    x, dx = x[:, 0], None if dx is None else dx[:, 0]
    q, dq = dense(*layer_norm(x, dx, p["norm1"], config.eps), p["attention"]["query"], IN)
    o, do = class_attention(z, dz, q, dq, p["norm1"], p["attention"]["key"], p["attention"]["value"])
    y, dy = dense(o, do, p["attention"]["out"], OUT)
    return mlp(config, p, *residual(config, p, 1, x, dx, y, dy))


def mlp(config: ViTConfig, p: Tree, x: Array, dx: Tangent) -> Pair:
    """x + g2 MLP(LN2 x), on "... d"."""
    y, dy = dense(*layer_norm(x, dx, p["norm2"], config.eps), p["mlp_in"])
    y, dy = dense(*ACTIVATIONS[config.activation](y, dy), p["mlp_out"])
    return residual(config, p, 2, x, dx, y, dy)


def residual(config: ViTConfig, p: Tree, j: int, x: Array, dx: Tangent, y: Array, dy: Tangent) -> Pair:
    """x + g a(y), "... d": of the j-th part of a block the adapter a, y + up(act(down y)), and LayerScale g, if any."""
    if f"adapter{j}" in p:
        adapter = p[f"adapter{j}"]
        inner = ACTIVATIONS[config.activation](*dense(y, dy, adapter["down"]))
        z, dz = dense(*inner, adapter["up"])
        y, dy = y + z, total(dy, dz)
    if f"layer_scale{j}" in p:
        y, dy = scale(y, dy, p[f"layer_scale{j}"]["scale"])
    return x + y, total(dx, dy)


# Geometry


def patches(config: ViTConfig, images: Array) -> Array:
    """Images as rows of patches, "b n p p 3", so that the embedding is one product."""
    g, p = config.grid, config.patch_size
    rows = images.reshape(-1, g, p, g, p, 3).swapaxes(2, 3)
    return rows.reshape(-1, g * g, p, p, 3)


def reads_one_query(config: ViTConfig, block: int) -> bool:
    """True where only the class token's row of a block's output is ever read: in the last, under token pooling."""
    return config.pool == "token" and block == config.depth - 1


def input_shape(config: ViTConfig, stage: int) -> tuple[int, ...]:
    """The shape of one example of the input of `stage`.

    Images; tokens, "n d"; where the block reads one query, the class token and the standardised tokens, "1+n d";
    for the head the pooled token, "d".
    """
    if stage == 0:
        return (config.image_size, config.image_size, 3)
    if stage == config.depth + 1:
        return (config.width,)
    return (config.tokens + reads_one_query(config, stage - 1), config.width)


def one_query_input(config: ViTConfig, x: Array, dx: Tangent = None) -> Pair:
    """The input of a block of one query, "b 1+n d", and its tangent, from tokens "b n d".

    Row 0 is the class token as it is, for the residual and the query; then all tokens, standardised.
    """
    x_hat, dx_hat = standardize(x, dx, config.eps)
    joined = None if dx is None or dx_hat is None else jnp.concatenate([dx[:, :1], dx_hat], 1)
    return jnp.concatenate([x[:, :1], x_hat], 1), joined


def replace_class_token(config: ViTConfig, block: int, x: Array, dx: Tangent, token: Dual) -> Pair:
    """CLS=T: the class token in the input of `block`, "b n d", becomes the new one, which has its own tangent."""
    row, width = token.primal[None, None], x.shape[-1]
    drow = None if token.tangent is None else probe.broadcast(token.tangent, (x.shape[0], 1, width), x.dtype)
    if reads_one_query(config, block):
        row, drow = one_query_input(config, row, drow)
    new = (slice(None), slice(0, row.shape[1]))
    if dx is not None or drow is not None:
        dx = jnp.zeros_like(x) if dx is None else dx
        dx = dx.at[new].set(0 if drow is None else drow)
    return x.at[new].set(row), dx
