"""The closed forms: each takes values with their tangents and returns a value with its tangent.

`None` in the place of a tangent is a structural zero. Parameters come as Dual leaves, data as
`(x, dx)`; the result is always `(y, dy)`.
"""

from tangent_jax.rules.activations import ACTIVATIONS
from tangent_jax.rules.attention import attention
from tangent_jax.rules.class_attention import class_attention
from tangent_jax.rules.dense import contract, dense, scale, shift, total
from tangent_jax.rules.norms import layer_norm, standardize
from tangent_jax.rules.softmax import softmax

__all__ = [
    "ACTIVATIONS", "attention", "class_attention", "contract", "dense", "layer_norm", "scale", "shift", "softmax",
    "standardize", "total",
]  # fmt: skip
