"""TIES-Merging: keeps each component's largest numbers, elects a sign for each entry, averages those that agree.

    top_s  = the SHARE of dw_s that is largest by magnitude, over all its leaves; 0 elsewhere
    sign   = sign(sum_s top_s)                          each entry by itself
    dw     = the mean of the top_s of that sign         0 where none has any, or where they cancel exactly

This is not a weighted sum. Entries equal to the smallest of the share are kept too, so that the order of leaves has no
effect. Source: Yadav et al. 2023 (TIES-Merging), with their lambda = 1. On the host, in f64.
"""

import math
from collections.abc import Mapping

import jax
import numpy as np

from tangent_jax.core.checks import require
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import progress_bar
from tangent_jax.store.sums import read_ahead, shapes_of

SHARE = 0.2
"""The share of a component's numbers that are kept, as in the paper."""


def ties(components: Mapping[str, Tree]) -> Tree:
    """The TIES merge of named components, in the order of their names; reads a few at a time.

    Guarantees: bitwise the same in any order of insertion, and so after a removal.
    Raises:     InputError for no component, or components of several subsets or dtypes.
    """
    names, like = sorted(components), None
    require(names, "merge", "at least one component", "none")
    sums, counts = np.zeros((2, 0)), np.zeros((2, 0), np.int32)  # of positive entries, and of negative ones
    with progress_bar(len(names), "step") as bar:
        for name, component in zip(names, read_ahead(components, names), strict=True):
            v = trim(component)
            if like is None:
                like, sums, counts = component, np.zeros((2, v.size)), np.zeros((2, v.size), np.int32)
            alike = shapes_of(component) == shapes_of(like)
            require(alike, "merge", "components of one subset", f"{name} with other leaves, shapes or dtypes")
            for side, agrees in enumerate((v > 0, v < 0)):
                sums[side] += np.where(agrees, v, 0)
                counts[side] += agrees
            bar.update()
    elected = np.sign(sums[0] + sums[1])
    merged = np.where(elected > 0, sums[0] / np.maximum(counts[0], 1), 0)
    merged = np.where(elected < 0, sums[1] / np.maximum(counts[1], 1), merged)
    leaves, tree = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = zip(np.split(merged, ends), leaves, strict=True)
    return jax.tree.unflatten(tree, [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in parts])


def trim(component: Tree) -> np.ndarray:
    """The numbers of a component in one row, 0 except the largest."""
    leaves = [np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(component)]
    require(leaves, "merge", "components with leaves", "an empty one", "Add their bodies, or join them")
    v = np.concatenate(leaves)
    first = v.size - math.ceil(SHARE * v.size)
    return np.where(np.abs(v) >= np.partition(np.abs(v), first)[first], v, 0)
