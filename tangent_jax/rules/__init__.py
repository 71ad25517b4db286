"""The closed forms: each takes values with their tangents and returns a value with its tangent.

`None` as a tangent is a structural zero. Parameters are Dual leaves, data are `(x, dx)`; the result is `(y, dy)`.
"""

from tangent_jax.rules.activations import ACTIVATIONS, relu, softmax
from tangent_jax.rules.class_query import class_attention
from tangent_jax.rules.convolution import batch_norm, conv, max_pool, mean_pool
from tangent_jax.rules.multi_head import attention
from tangent_jax.rules.norms import layer_norm, standardize, unit_length
from tangent_jax.rules.products import bilinear, contract, dense, scale, shift, total
from tangent_jax.rules.rotary import make_turns, rotate

__all__ = [
    "ACTIVATIONS", "attention", "batch_norm", "bilinear", "class_attention", "contract", "conv", "dense", "layer_norm",
    "make_turns", "max_pool", "mean_pool", "relu", "rotate", "scale", "shift", "softmax", "standardize", "total",
    "unit_length",
]  # fmt: skip
