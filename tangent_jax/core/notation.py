"""The letters of axes, and the pair of a value and its tangent, for all packages.

One letter names one axis, in annotations and in einsum strings alike:

    b example     n query token   m key token    h head       e width per head
    d model width f MLP width     c class        s component model

The tangent of `x` is `dx`; `w` is the anchor, the pre-trained weights, and `dw` the tangent weights that training
changes. `None` as a tangent is a structural zero: it is never stored, multiplied or added.
"""

from typing import Annotated, Any, NamedTuple

from jax import Array

Tree = Annotated[Any, "a pytree of arrays"]
"""A pytree of arrays; parameter trees are nested dicts of strings."""

ArrayTangent = Array | None
"""The tangent of an array: of its shape and dtype, or None for a structural zero."""


class Dual(NamedTuple):
    """A value with its tangent: f_w(x) and J_w f(x) . dw for a network's output."""

    primal: Array
    tangent: ArrayTangent

    @property
    def total(self) -> Array:
        """f_lin(x) = f_w(x) + J_w f(x) . dw."""
        return self.primal if self.tangent is None else self.primal + self.tangent
