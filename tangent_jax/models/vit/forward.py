"""One pass through the Vision Transformer, stage by stage, over pairs (x, dx) and leaves Dual(w, dw).

    stage 0          x = class token, registers, patches, and positions        (embedding.py; pre-norm for CLIP towers)
    stages 1..depth  x = x + g1 MHSA(LN1 x);  x = x + g2 MLP(LN2 x)            (g1, g2: LayerScale; mlp.py)
    stage depth+1    outputs = W pool(LN x) + b                                (pools.py)

Source: Dosovitskiy et al. 2021, with options named as in timm and Hugging Face, and adapters of Houlsby et al. 2019.
The tangents are closed forms of `rules`. If every tangent is None, this is the plain network at plain cost. There is no
dropout and no training mode. With class-token pooling only one query row of the last block is used, so only that row is
computed (rules/class_query.py); the stage's input holds the standardised x^ of the other tokens.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core import trees
from tangent_jax.core.notation import ArrayTangent, Dual, Tree
from tangent_jax.core.preprocessing import sides
from tangent_jax.core.promotion import promotes
from tangent_jax.models.protocol import stages_run
from tangent_jax.models.vit.config import PAIRS, ViTConfig
from tangent_jax.models.vit.embedding import embed, turns_of
from tangent_jax.models.vit.mlp import IN, OUT, Pair, mlp
from tangent_jax.models.vit.pools import head, pool
from tangent_jax.rules import (
    ACTIVATIONS,
    attention,
    class_attention,
    dense,
    layer_norm,
    probe,
    rotate,
    scale,
    standardize,
    total,
)


@promotes
def forward(config: ViTConfig, p: Tree, x: Float[Array, "b ..."], start: int = 0, stop: int | None = None) -> Dual:
    """From the input of stage `start` (0: normalised images, "b y x 3") to that of `stop` (None: outputs, "b c").

    A model without a head gives normalised features, "b d".
    """
    dx: ArrayTangent = None
    for stage in stages_run(config.depth + 1, partial(input_shape, config), x, start, stop):
        if stage == 0:
            x, dx = embed(config, p, x)
            x, dx = one_query_input(config, x, dx) if reads_one_query(config, 0) else (x, dx)
        elif stage <= config.depth:
            x, dx = run_block(config, p, stage - 1, x, dx)
        else:
            x, dx = head(config, p, x, dx)
    return Dual(x, dx)


def run_block(config: ViTConfig, p: Tree, i: int, x: Float[Array, "b n d"], dx: Float[Array, "b n d"] | None) -> Pair:
    """From the input of block i's stage to that of the next."""
    if i == config.class_token_at:
        x, dx = replace_class_token(config, i, x, dx, p["new_class_token"])
    if reads_one_query(config, i):
        return class_row(config, p[f"block_{i}"], x, dx)
    pairs = p[f"block_{i}"]
    duals = jax.tree.leaves(pairs, is_leaf=lambda node: isinstance(node, Dual))
    is_plain = dx is None and all(dual.tangent is None for dual in duals)
    x, dx = (plain_block if is_plain else block)(config, pairs, x, dx)
    if reads_one_query(config, i + 1):
        return one_query_input(config, x, dx)
    return pool(config, x, dx) if i == config.depth - 1 else (x, dx)


def block(config: ViTConfig, p: Tree, x: Float[Array, "b n d"], dx: Float[Array, "b n d"] | None) -> Pair:
    """One block on every token."""
    z, dz = layer_norm(x, dx, p["norm1"], config.eps)
    q, k, v = (dense(z, dz, p["attention"][name], IN) for name in ("query", "key", "value"))
    turns = turns_of(config)
    if turns is not None:
        q, k = rotate(*q, turns), rotate(*k, turns)
    y, dy = dense(*attention(*q, *k, *v), p["attention"]["out"], OUT)
    return second_part(config, p, *residual(config, p, 1, x, dx, y, dy))


plain_block = jax.jit(block, static_argnums=0)  # so that the equal blocks of a trunk are traced once


def class_row(config: ViTConfig, p: Tree, x: Float[Array, "b n d"], dx: Float[Array, "b n d"] | None) -> Pair:
    """The class token's row of one block's output, "b d", from the value of `one_query_input`."""
    tokens = x, dx
    x, dx = x[:, 0], None if dx is None else dx[:, 0]
    query = Dual(*dense(*layer_norm(x, dx, p["norm1"], config.eps), p["attention"]["query"], IN))
    key, value = p["attention"]["key"], p["attention"]["value"]
    o, do = class_attention(*tokens, query, p["norm1"], key, value, turns_of(config), first=1)
    y, dy = dense(o, do, p["attention"]["out"], OUT)
    return second_part(config, p, *residual(config, p, 1, x, dx, y, dy))


def second_part(config: ViTConfig, p: Tree, x: Float[Array, "*b d"], dx: Float[Array, "*b d"] | None) -> Pair:
    """x + g2 MLP(LN2 x)."""
    y, dy = mlp(config, p, *layer_norm(x, dx, p["norm2"], config.eps))
    return residual(config, p, 2, x, dx, y, dy)


def residual(
    config: ViTConfig,
    p: Tree,
    j: int,
    x: Float[Array, "*b d"],
    dx: Float[Array, "*b d"] | None,
    y: Float[Array, "*b d"],
    dy: Float[Array, "*b d"] | None,
) -> Pair:
    """x + g a(y), for the j-th part of a block: adapter a, y + up(act(down y)), and LayerScale g, if any."""
    if f"adapter{j}" in p:
        adapter = p[f"adapter{j}"]
        inner = ACTIVATIONS[config.activation](*dense(y, dy, adapter["down"]))
        z, dz = dense(*inner, adapter["up"])
        y, dy = y + z, total(dy, dz)
    if f"layer_scale{j}" in p:
        y, dy = scale(y, dy, p[f"layer_scale{j}"]["scale"])
    return x + y, total(dx, dy)


# Geometry


def reads_one_query(config: ViTConfig, block: int) -> bool:
    """True if only the class token's row of a block's output is used: the last block, under token pooling."""
    return config.pool == "token" and block == config.depth - 1


def input_shape(config: ViTConfig, stage: int) -> tuple[int, ...]:
    """The shape of one example of the input of `stage`.

    Images; tokens, "n d"; for a block of one query, the class token and the standardised tokens, "1+n d"; for the
    head the input of its pool (pools.py).
    """
    if stage == 0:
        return (*sides(config.image_size), 3)
    if stage == config.depth + 1:
        rows = {**dict.fromkeys(PAIRS, (2,)), "attention": (config.tokens,)}.get(config.pool, ())
        return (*rows, config.width)
    return (config.tokens + reads_one_query(config, stage - 1), config.width)


def one_query_input(config: ViTConfig, x: Float[Array, "b n d"], dx: Float[Array, "b n d"] | None = None) -> Pair:
    """The input of a block of one query, "b 1+n d", and its tangent, from tokens.

    Row 0 is the class token as it is, for the residual and the query; then all tokens, standardised.
    """
    x_hat, dx_hat = standardize(x, dx, config.eps)
    joined = None if dx is None or dx_hat is None else jnp.concatenate([dx[:, :1], dx_hat], 1)
    return jnp.concatenate([x[:, :1], x_hat], 1), joined


def patch_grid(config: ViTConfig, w: Tree, x: Float[Array, "b n d"], stage: int) -> Float[Array, "b y x d"]:
    """The patch tokens that block `stage - 1` reads, after its first norm, on their grid; x: the input of the stage."""
    norm = w[f"block_{stage - 1}"]["norm1"]
    if reads_one_query(config, stage - 1):  # the input holds the class token, then all tokens standardised
        t = x[:, 1:] * norm["scale"] + norm["bias"]
    else:
        t, _ = layer_norm(x, None, trees.pair(norm, {}), config.eps)
    return t[:, config.prefix :].reshape(-1, *config.grid, config.width)


def replace_class_token(
    config: ViTConfig, block: int, x: Float[Array, "b n d"], dx: Float[Array, "b n d"] | None, token: Dual
) -> Pair:
    """CLS=T: replaces the class token in the input of `block` by the new one with its own tangent."""
    shape = (x.shape[0], 1, x.shape[-1])
    row = jnp.broadcast_to(token.primal, shape)
    drow = None if token.tangent is None else probe.broadcast(token.tangent, shape, x.dtype)
    if reads_one_query(config, block):
        row, drow = one_query_input(config, row, drow)
    count = row.shape[1]
    if dx is not None or drow is not None:
        dx = jnp.zeros_like(x) if dx is None else dx
        drow = jnp.zeros_like(dx[:, :count]) if drow is None else drow
        dx = jnp.concatenate([drow, dx[:, count:]], 1)
    # not x.at[].set: ONNX has no scatter over any number of rows
    return jnp.concatenate([row, x[:, count:]], 1), dx
