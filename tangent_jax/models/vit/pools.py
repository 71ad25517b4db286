"""The pools of a Vision Transformer, from all tokens to one row.

The last block's stage computes the part that reads other tokens, the head's stage the part that has leaves.

    token       LN x_class                                         the input of the head's stage: x_class, "d"
    avg         LN mean x_patch                                                                   the mean, "d"
    norm_avg    mean LN x_patch                                                                mean x^_patch, "d"
    plain_avg   mean x_patch, without a last norm                                                 the mean, "d"
    token_avg   [LN x_class, mean LN x_patch]                                 [x^_class, mean x^_patch], "2 d"
    token_register   [LN x_class, LN x_register]                                      [x^_class, x^_register], "2 d"
    attention   y + MLP(LN' y),  y = attention of a learned query to LN x                  x^ of all tokens, "n d"

`token_avg` is DINOv2's linear classifier, `plain_avg` that of Hugging Face's CLIP, attention SigLIP's (Zhai et al.
2023). `token_register` reads the first register: DeiT's distillation token (Touvron et al. 2021). As mean LN x =
g mean x^ + beta, the patches' mean needs one row. Attention has one query, so keys and values are never formed
(rules/class_query.py).
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core.notation import Dual, Tree
from tangent_jax.models.vit.config import PAIRS, ViTConfig
from tangent_jax.models.vit.mlp import IN, OUT, Pair, mlp
from tangent_jax.rules import class_attention, dense, layer_norm, scale, shift, standardize, total


def pool(config: ViTConfig, x: Float[Array, "b n d"], dx: Float[Array, "b n d"] | None) -> Pair:
    """The input of the head's stage, from all tokens; for `token` the last block gives it directly."""
    if config.pool in ("avg", "plain_avg"):
        return over_patches(config, x), None if dx is None else over_patches(config, dx)
    x, dx = standardize(x, dx, config.eps)
    if config.pool == "attention":
        return x, dx
    if config.pool == "norm_avg":
        return over_patches(config, x), None if dx is None else over_patches(config, dx)

    def both(x: Array) -> Array:
        second = x[:, 1] if config.pool == "token_register" else over_patches(config, x)
        return jnp.concatenate([x[:, :1], second[:, None]], 1)  # jax2onnx has no stack

    return both(x), None if dx is None else both(dx)


def over_patches(config: ViTConfig, x: Float[Array, "b n d"]) -> Float[Array, "b d"]:
    """The mean of the patches, of all tokens."""
    return jnp.mean(x[:, config.prefix :], 1)


def head(config: ViTConfig, p: Tree, x: Float[Array, "b ..."], dx: Float[Array, "b ..."] | None) -> Pair:
    """The outputs "b c", or without a head the pooled features, from the input of the head's stage."""
    if config.pool == "attention":
        x, dx = attention_pool(config, p["pool"], p["norm"], x, dx)
    elif config.pool in ("norm_avg", *PAIRS):
        x, dx = scale(x, dx, p["norm"]["scale"])
        beta, dbeta = p["norm"]["bias"]
        x, dx = x + beta, total(dx, shift(dbeta, x))
        if config.pool in PAIRS:
            x, dx = x.reshape(x.shape[0], -1), None if dx is None else dx.reshape(x.shape[0], -1)
    elif config.pool != "plain_avg":
        x, dx = layer_norm(x, dx, p["norm"], config.eps)
    return dense(x, dx, p["head"]) if config.classes else (x, dx)


def attention_pool(
    config: ViTConfig, p: Tree, norm: Tree, x: Float[Array, "b n d"], dx: Float[Array, "b n d"] | None
) -> Pair:
    """The pooled row "b d" of standardised tokens; `norm` is the network's last."""
    token, dtoken = p["query_token"]
    row = jnp.broadcast_to(token, (x.shape[0], config.width))
    query = Dual(*dense(row, shift(dtoken, row), p["attention"]["query"], IN))
    o, do = class_attention(x, dx, query, norm, p["attention"]["key"], p["attention"]["value"])
    y, dy = dense(o, do, p["attention"]["out"], OUT)
    z, dz = mlp(config, p, *layer_norm(y, dy, p["norm"], config.eps))
    return y + z, total(dy, dz)
