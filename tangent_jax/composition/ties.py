"""TIES-Merging: keeps each component's largest numbers, elects a sign for each entry, averages those that agree.

    top_s  = the SHARE of dw_s that is largest by magnitude, over all its leaves; 0 elsewhere
    sign   = sign(sum_s top_s)                          each entry by itself
    dw     = the mean of the top_s of that sign         0 where none has any, or where they cancel exactly

This is not a weighted sum. Entries equal to the smallest of the share are kept too, so that the order of leaves has no
effect. Source: Yadav et al. 2023 (TIES-Merging), with their lambda = 1. On the host, in f64.
"""

import math
from collections.abc import Iterable

import jax
import numpy as np
from jaxtyping import Float

from tangent_jax.composition.sums import Form, check_finite, form_of
from tangent_jax.core.checks import InputError, about
from tangent_jax.core.notation import Tree

SHARE = 0.2
"""The share of a component's numbers that are kept, as in the paper."""


def ties(components: Iterable[tuple[str, Tree]]) -> Tree:
    """The TIES merge of trees with their names, in the given order, read one at a time.

    Raises:
        InputError: No component, components of several subsets or dtypes, or one that is not finite.
    """
    form: Form | None = None
    sums = np.zeros((2, 0))  # of positive entries, and of negative ones
    counts = np.zeros((2, 0), np.int32)
    for name, component in components:
        with about(f"component {name}"):
            check_finite(component)
        v = trim(component)
        if form is None:
            form = form_of(component)
            sums = np.zeros((2, v.size))
            counts = np.zeros((2, v.size), np.int32)
        if form_of(component) != form:
            raise InputError(f"components must be of one subset; got {name} with other leaves, shapes or dtypes")
        for side, agrees in enumerate((v > 0, v < 0)):
            sums[side] += np.where(agrees, v, 0)
            counts[side] += agrees
    if form is None:
        raise InputError("components must be at least 1; got none")
    elected = np.sign(sums[0] + sums[1])
    merged = np.where(elected > 0, sums[0] / np.maximum(counts[0], 1), 0)
    merged = np.where(elected < 0, sums[1] / np.maximum(counts[1], 1), merged)
    ends = np.cumsum([math.prod(shape) for shape, _ in form.leaves])[:-1]
    parts = zip(np.split(merged, ends), form.leaves, strict=True)
    return jax.tree.unflatten(form.structure, [part.reshape(shape).astype(dtype) for part, (shape, dtype) in parts])


def trim(component: Tree) -> Float[np.ndarray, " n"]:
    """The numbers of a component in one row, 0 except the largest."""
    form_of(component)
    v = np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(component)])
    first = v.size - math.ceil(SHARE * v.size)
    return np.where(np.abs(v) >= np.partition(np.abs(v), first)[first], v, 0)
