"""Composition and removal as sums of trees.

    dw = sum_s lambda_s dw_s,   so that   f_lin(dw, x) = f_w(x) + sum_s lambda_s J_w f(x) . dw_s

Source: Liu et al. 2024: for a tangent model the composed output is the ensemble of the
components' tangent outputs. Removal re-sums the survivors, as subtraction rounds.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from tangent_jax.checks import require
from tangent_jax.notation import Tree


def weighted_sum(components: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """sum_s lambda_s dw_s, added in the order given.

    Raises: InputError for no component, unequal lengths, or trees of unequal structure or shapes.
    """
    require(
        len(components) == len(weights) and components, "weighted_sum", f"{len(components)} >= 1 weights", len(weights)
    )
    first = shapes_of(components[0])
    for i, component in enumerate(components):
        require(
            shapes_of(component) == first,
            "weighted_sum",
            "components of one subset and architecture",
            f"component {i} with other leaves or shapes",
        )

    def add(*leaves: jax.Array) -> jax.Array:
        scaled = [leaf * np.asarray(weight, leaf.dtype) for weight, leaf in zip(weights, leaves, strict=True)]
        return sum(scaled[1:], start=scaled[0])

    return jax.tree.map(add, *components)


def mean(components: Mapping[str, Tree]) -> Tree:
    """The paper's composition: the average of named components, summed in the order of their names.

    Guarantees: bitwise the same whatever the order of insertion; so removing a component and taking the
    mean of the survivors is bitwise what it would have been had the component never existed.
    """
    names = sorted(components)
    return weighted_sum([components[name] for name in names], [1 / max(len(names), 1)] * len(names))


def shapes_of(tree: Tree) -> tuple:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]
