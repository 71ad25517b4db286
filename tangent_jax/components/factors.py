"""A component's Kronecker factors as a tree that a store keeps: leaves by path, the rest as metadata.

input/PATH, signal/PATH   A and G of a kernel        block/PATH   of a gain or bias        weight   N
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tangent_jax.components.files import read_component, write_component
from tangent_jax.core import Tree, refusal, trees
from tangent_jax.models.signals import Layout
from tangent_jax.solver.curvature import Curvature


def as_tree(factors: Curvature) -> tuple[Tree, dict[str, str]]:
    """(the numbers, the metadata)."""
    flat = {"weight": np.asarray(factors.count).reshape(1)}
    flat |= {f"input/{path}": np.asarray(a) for path, (a, _) in factors.kernels.items()}
    flat |= {f"signal/{path}": np.asarray(g) for path, (_, g) in factors.kernels.items()}
    flat |= {f"block/{path}": np.asarray(block) for path, block in factors.blocks.items()}
    layouts = {path: list(layout) for path, layout in factors.layouts}
    return trees.nest(flat), {"layouts": json.dumps(layouts), "anchor": factors.anchor}


def from_tree(tree: Tree, metadata: Mapping[str, str], where: object) -> Curvature:
    """`as_tree` undone.

    Raises: InputError where the file is none of factors.
    """
    flat = trees.leaves(tree)
    try:
        said = json.loads(metadata["layouts"])
        layouts = {path: Layout._make([*fields[:5], tuple(fields[5])]) for path, fields in said.items()}
        kernels = {path: (flat[f"input/{path}"], flat[f"signal/{path}"]) for path in layouts}
        blocks = {path.removeprefix("block/"): leaf for path, leaf in flat.items() if path.startswith("block/")}
        count, anchor = flat["weight"].reshape(()), metadata["anchor"]
    except (KeyError, ValueError, TypeError) as error:
        raise refusal("Store.factors", "factors of a component", f"another file in {where}") from error
    return Curvature(kernels, blocks, count, tuple(sorted(layouts.items())), anchor)


def write_factors(path: Path, factors: Curvature) -> None:
    """The factors of a step in a file beside it."""
    write_component(path, *as_tree(factors))


def read_factors(path: Path) -> Curvature:
    """The factors that `write_factors` wrote; InputError where they were altered, or the file is another."""
    return from_tree(*read_component(path), path)


def of_subset(factors: Curvature, paths: tuple[str, ...]) -> bool:
    """True where the factors are of these leaves."""
    return {*factors.kernels, *factors.blocks} <= {*paths}
