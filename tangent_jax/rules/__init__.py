"""The closed forms: each takes values with their tangents and returns a value with its tangent.

`None` as a tangent is a structural zero. Parameters are Dual leaves, data are `(x, dx)`; the result is `(y, dy)`.
"""

from tangent_jax._lazy import public

__getattr__, __dir__, __all__ = public(__name__, __file__)
