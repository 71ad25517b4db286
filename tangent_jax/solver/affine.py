"""Checks that the problem is convex as claimed: f is affine in dw, and a square loss equals its own quadratic.

f is affine if J v = d/dt f(dw + t v) does not depend on dw. This is read from the program of J v: after dead code is
removed, it must not read dw. So the check holds for every dw and every input. Operations with derivative zero, such as
rounding, depend on dw without J; therefore f(dw) = f(0) + J dw is also evaluated on a few rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.train.losses import Loss
from tangent_jax.train.targets import Predict

ROWS, SCALES = 4, (0.1, 10.0)  # rows, and factors of a step, of the numerical comparisons


def check_affine(predict: Predict, like: Tree, x: Any) -> None:
    """Raises InputError unless predict(dw, x) is affine in dw; otherwise the objective would not be convex."""

    def pushed(dw: Tree, v: Tree) -> Array:
        return jax.jvp(lambda dw: predict(dw, x), (dw,), (v,))[1]

    program = jax.make_jaxpr(pushed)(like, like).jaxpr
    _, read = dce_jaxpr(program, [True] * len(program.outvars))
    reads_dw = any(read[: len(jax.tree.leaves(like))])
    if reads_dw:
        raise not_linear("one whose derivative depends on dw")
    tolerance = 3 * max(float(jnp.finfo(dtype).eps) for dtype in float_dtypes(program)) ** 0.5
    rng, leaves = np.random.default_rng(0), jax.tree.leaves(like)
    for scale in SCALES:
        random = [scale * rng.standard_normal(leaf.shape).astype(leaf.dtype) for leaf in leaves]
        dw = jax.tree.unflatten(jax.tree.structure(like), random)
        bend, size = map(float, _bend(predict, jax.tree.map(jnp.zeros_like, like), dw, x))
        if not np.isfinite(bend):
            raise InputError("outputs must be finite; got NaN or infinity. Look for inputs that are not finite.")
        if bend > tolerance * size:
            raise not_linear(f"one that bends by {bend / max(size, 1e-30):.2g}")


def not_linear(given: str) -> InputError:
    """The error for a predictor that is not linear in dw; given: what it is."""
    return InputError(f"predict must be linear in dw; got {given}. Use tj.tangent or tj.linearize.")


def float_dtypes(jaxpr: Any) -> set[Any]:
    """The dtypes of all floats that a program computes."""
    outputs = {v.aval.dtype for equation in jaxpr.eqns for v in equation.outvars if hasattr(v.aval, "dtype")}
    inner = [float_dtypes(part) for equation in jaxpr.eqns for part in jaxprs_in_params(equation.params)]
    return {dtype for dtype in outputs if jnp.issubdtype(dtype, jnp.floating)}.union(*inner)


@jax.jit
def _bend(predict: Predict, zero: Tree, dw: Tree, x: Any) -> tuple[Array, Array]:
    """(|f(dw) - f(0) - J dw|, |f(0)| + |J dw|)."""
    start, change = jax.jvp(lambda dw: predict(dw, x), (zero,), (dw,))
    return jnp.linalg.norm(predict(dw, x) - start - change), jnp.linalg.norm(start) + jnp.linalg.norm(change)


def check_square(loss: Loss, targets: Any, classes: int) -> bool:
    """True if the loss declares itself a square; its gradient at random outputs is then checked.

    Args:
        targets: Some of the data's, "n ...".

    Raises:
        InputError: If the gradient is not that of the declared square: one linear system would not give the optimum.
    """
    if jax.eval_shape(lambda y: loss.quadratic(y, classes), targets) is None:
        return False
    z = np.random.default_rng(0).standard_normal((len(targets[:ROWS]), classes))
    off, size, smallest = map(float, _square_gap(loss, z, targets[:ROWS]))
    if off > 1e-3 * size or smallest < 0:
        raise InputError(
            f"the gradient of {type(loss).__name__} must be p (f - t), p >= 0, of its `quadratic`;"
            f" got one {off:.2g} off, p from {smallest:.2g}"
        )
    return True


@jax.jit
def _square_gap(loss: Loss, z: Any, y: Any) -> tuple[Array, Array, Array]:
    """(|grad loss(z) - p (z - t)|, |grad loss(z)| + |p t|, the smallest p)."""
    stated = loss.quadratic(y, z.shape[1])
    assert stated is not None
    t, p = stated
    slope = jax.vmap(jax.grad(lambda z, y: loss(z[None], y[None])[0]))(z, y)
    norm = jnp.linalg.norm
    return norm(slope - p * (z - t)), norm(slope) + norm(p * t), jnp.min(p)
