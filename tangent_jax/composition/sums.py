"""Composition and removal as sums of trees, and model soups as their baseline.

    dw = sum_s lambda_s dw_s,   so that   f_lin(dw, x) = f_w(x) + sum_s lambda_s J_w f(x) . dw_s

Source: Liu et al. 2024: the composed tangent model gives the ensemble of the components' tangent outputs. A removal
re-sums the survivors, because a subtraction would round. The mean of non-linear components is a model soup (Wortsman et
al. 2022), whose output is not an ensemble.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, finite_number
from tangent_jax.core.notation import Tree
from tangent_jax.models.protocol import is_floating

LARGEST = 1e30
"""The largest coefficient: f32 holds its products with weights."""


def weighted_sum(terms: Iterable[tuple[float, Tree]]) -> Tree:
    """sum_s lambda_s dw_s, added in the given order; lambda 1 adds a component, -1 subtracts it.

    Args:
        terms: (lambda_s, dw_s), trees on the device or the host; an iterator may read them one by one: memory holds the
            running sum and one component.

    Returns:
        A tree on the device if the components are, else on the host.

    Guarantees:
        The same bits for the same terms in the same order, on device and host; half precision is summed in f32 and
        rounded once.

    Raises:
        InputError: No component, a coefficient that is no number, or trees without leaves or of unequal structure,
            shapes or dtypes.
    """
    total: Any = None
    form: Form | None = None
    for count, (coefficient, component) in enumerate(terms):
        finite_number("coefficients", coefficient, -LARGEST, LARGEST)
        here = form_of(component)
        if form is not None and here != form:
            raise InputError(
                "components must be of one subset, architecture and dtype; got "
                f"component {count} with other leaves, shapes or dtypes"
            )
        form = here
        if total is None:
            total = jax.tree.map(partial(scale, coefficient), component)
        else:
            total = jax.tree.map(partial(accumulate, coefficient), total, component)
        del component  # frees it before the next read
    if form is None:
        raise InputError("components must be at least 1; got none")
    dtypes = jax.tree.unflatten(form.structure, [dtype for _, dtype in form.leaves])
    return jax.tree.map(lambda leaf, dtype: leaf.astype(dtype) if leaf.dtype != dtype else leaf, total, dtypes)


def check_finite(dw: Tree) -> None:
    """Raises InputError for a leaf of another dtype than floats, or with numbers that are not finite."""
    for path, leaf in trees.leaves(dw).items():
        values = np.asarray(leaf)
        if not is_floating(values.dtype):
            raise InputError(
                f"{path} must be of floats; got {values.dtype}. Cast it; view it as bfloat16 if an .npz lost that name"
            )
        if not np.isfinite(values).all():
            raise InputError(f"{path} must be finite; got NaN or infinity")


class Form(NamedTuple):
    """The structure of a tree, and shape and dtype of each leaf: equal for trees that can be summed."""

    structure: Any
    leaves: list[tuple[tuple[int, ...], Any]]


def form_of(tree: Tree) -> Form:
    """The form of a tree; InputError for one without leaves, or with leaves other than arrays of floats."""
    leaves = jax.tree.leaves(tree)
    if not leaves:
        raise InputError("components must have leaves; got an empty one. Add their bodies, or join them")
    if not all(hasattr(leaf, "dtype") for leaf in leaves):
        raise InputError("components must be of arrays; got other leaves")
    others = sorted({str(leaf.dtype) for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)})
    if others:
        raise InputError(f"components must be of floats; got {', '.join(others)}")
    return Form(jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in leaves])


def scale(coefficient: float, leaf: Any) -> Any:
    """coefficient leaf, in f32 or wider."""
    wide = jnp.promote_types(leaf.dtype, jnp.float32)
    return (leaf if leaf.dtype == wide else leaf.astype(wide)) * np.asarray(coefficient, wide)


BLOCK = 1 << 15  # numbers: a scaled block of them fits into the processor's caches


def accumulate(coefficient: float, total: Any, leaf: Any) -> Any:
    """total + coefficient leaf; in place on the host, block by block."""
    if not (isinstance(total, np.ndarray) and total.flags.c_contiguous):
        return total + scale(coefficient, leaf)
    flat, terms = total.reshape(-1), np.asarray(leaf).reshape(-1)
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        np.add(block, scale(coefficient, terms[start : start + BLOCK]), out=block)
    return total


def is_finite(tree: Tree) -> bool:
    """False for a tree with NaN or infinity; traced leaves count as finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if not isinstance(leaf, Tracer)]
    return all((np if isinstance(leaf, np.ndarray) else jnp).isfinite(leaf).all() for leaf in leaves)
