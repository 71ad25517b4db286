"""A component's Kronecker factors as a tree that a store keeps: leaves by path, all else as metadata.

input/PATH, signal/PATH   A and G of a kernel        block/PATH   of a gain or bias        weight   N
sum/PATH                  the last row of A', of a kernel with a bias
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.io.records import convert
from tangent_jax.linear.signals import Layout
from tangent_jax.solver import curvature
from tangent_jax.solver.curvature import Curvature
from tangent_jax.store.files import read_component, write_component
from tangent_jax.store.provenance import Provenance


def as_tree(factors: Curvature) -> tuple[Tree, dict[str, str]]:
    """(the numbers, the metadata)."""
    flat = {"weight": np.asarray(factors.count).reshape(1)}
    flat |= {f"input/{path}": np.asarray(a) for path, (a, _) in factors.kernels.items()}
    flat |= {f"signal/{path}": np.asarray(g) for path, (_, g) in factors.kernels.items()}
    flat |= {f"block/{path}": np.asarray(block) for path, block in factors.blocks.items()}
    flat |= {f"sum/{path}": np.asarray(last) for path, last in factors.sums.items()}
    layouts = {path: list(layout) for path, layout in factors.layouts}
    others = {"layouts": json.dumps(layouts), "anchor": factors.anchor, "biases": json.dumps(dict(factors.biases))}
    return trees.nest(flat), others


def from_tree(tree: Tree, metadata: Mapping[str, str], where: object) -> Curvature:
    """The factors of a tree: inverts `as_tree`. InputError if the file holds no factors."""
    flat = trees.leaves(tree)
    try:
        fields = json.loads(metadata["layouts"])
        layouts = {path: Layout._make([*values[:5], tuple(values[5])]) for path, values in fields.items()}
        kernels = {path: (flat[f"input/{path}"], flat[f"signal/{path}"]) for path in layouts}
        blocks = {path.removeprefix("block/"): leaf for path, leaf in flat.items() if path.startswith("block/")}
        count = flat["weight"].reshape(())
        biases = convert(dict[str, str], json.loads(metadata["biases"]), where)
        sums = {path: flat[f"sum/{path}"] for path in sorted(biases)}
        anchor = metadata["anchor"]
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{where} must hold the factors of a component; got another file") from error
    return Curvature(
        kernels, blocks, count, tuple(sorted(layouts.items())), anchor, sums, tuple(sorted(biases.items()))
    )


def check_factors(dw: Tree, factors: Curvature | None, provenance: Provenance | None) -> None:
    """Raises InputError for factors of another anchor or component, or a private one, or that no examples sum to.

    Edge cases:
        None passes; without a provenance, anchor and privacy are unknown and not checked.
    """
    if factors is None:
        return
    if provenance is not None:
        check_origin(factors, provenance)
    curvature.check_factors(dw, factors)
    curvature.check_sums(factors)


def check_origin(factors: Curvature, provenance: Provenance) -> None:
    """Raises InputError for factors of another anchor or subset, or of a private component."""
    remedy = f"{curvature.MADE} of the same predictor"
    if factors.anchor != provenance.anchor + provenance.head:
        raise InputError(f"factors must be at the component's anchor; got those of another. {remedy}")
    if not {*factors.kernels, *factors.blocks} <= {*provenance.subset}:
        raise InputError(f"factors must be of the component's leaves; got others. {remedy}")
    if provenance.training.privacy is not None:
        raise InputError("factors must be None for a private component, as they are not private")


def write_factors(path: str | os.PathLike, factors: Curvature) -> None:
    """Writes Kronecker factors to a file.

    >>> path = demo.folder() / "factors.safetensors"
    >>> tj.store.write_factors(path, demo.curvature)
    >>> sorted(tj.store.read_factors(path).kernels)
    ['head/kernel', 'second/kernel']
    """
    write_component(path, *as_tree(factors))


def read_factors(path: str | os.PathLike) -> Curvature:
    """Reads the factors of `write_factors`; InputError for altered ones, or another kind of file.

    >>> path = demo.folder() / "factors.safetensors"
    >>> tj.store.write_factors(path, demo.curvature)
    >>> float(tj.store.read_factors(path).count)
    24.0
    """
    return from_tree(*read_component(path), Path(path))
