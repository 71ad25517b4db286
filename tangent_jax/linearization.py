"""The tangent of any function of a pytree, by automatic differentiation: the reference for the closed forms.

    f_lin(dw, x) = ( f(w, x),  J_w f(w, x) . dw )

Source: Liu et al. 2024: the first-order Taylor expansion of f around w. Only the leaves in `dw` are differentiated; the
others are closed over, as a zero tangent would cost the full product.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.core.promotion import promotes


def linearize(f: Callable[..., Array], w: Tree) -> Callable[..., Dual]:
    """Returns f_lin(dw, *x) -> Dual(f(w, *x), J_w f(w, *x) . dw), by `jax.jvp`.

    Args:
        f: Any function (w, *x) -> array: `model.apply`, a merged NNX module, a plain function.
        w: The anchor, a pytree.

    Returns:
        f_lin; its dw is a part of w (missing leaves are frozen and cost nothing).

    Guarantees:
        The tangent is linear in dw; `jax.grad`, `vmap`, `jit` and `linear_transpose` apply.

    Raises:
        InputError: If dw has no leaf, a leaf that w lacks, one of another shape or one of whole numbers; for an NNX
            module that changes its state, such as a dropout in training, or with shared weights.

    >>> f_lin = linearize(lambda w, x: w["a"] * x + w["b"], {"a": 2.0, "b": 1.0})
    >>> [float(part) for part in f_lin({"a": 10.0}, 3.0)]
    [7.0, 30.0]
    """

    check_shared(w)

    @promotes
    def f_lin(dw: Tree, *x: Any) -> Dual:
        trees.check_part(w, dw)
        if not trees.leaves(dw):
            raise InputError(
                "dw must have a leaf; got none. It trains nothing: look at the paths by which you filter w"
            )
        return Dual(*jax.jvp(partial(of_part, f, w, x), (trees.restrict(w, dw),), (dw,)))

    return f_lin


def check_shared(w: Tree) -> None:
    """Raises InputError for an NNX module with a shared weight, which as a pytree has it twice."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(w, nnx.Module):
        return
    floats = [id(leaf) for leaf in jax.tree.leaves(w) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    if len({*floats}) < len(floats):
        raise InputError(
            "w must have each weight once; got an NNX module with shared weights. Pass its state: graph, w = "
            "nnx.split(module), and f = lambda w, x: nnx.merge(graph, w)(x)"
        )


def changes_state(error: Exception) -> bool:
    """True for Flax's error of a module that changes its state; Flax is loaded only where a caller uses it."""
    errors = sys.modules.get("flax.errors")
    return errors is not None and isinstance(error, errors.TraceContextError)


def of_part(f: Callable[..., Array], w: Tree, x: tuple[Any, ...], part: Tree) -> Shaped[Array, "..."]:
    """f(w, *x) with the leaves of `part`; InputError for a module that changes its state."""
    try:
        return f(trees.replace(w, part), *x)
    except Exception as error:
        if not changes_state(error):
            raise
        raise InputError(
            f"f must change no state; got {str(error).partition(' (http')[0]}. Before "
            "nnx.split put the module into evaluation: module.eval()"
        ) from error
