"""A component's Kronecker factors as a tree that a store keeps: leaves by path, all else as metadata.

input/PATH, signal/PATH   A and G of a kernel        block/PATH   of a gain or bias        weight   N
sum/PATH                  the last row of A', of a kernel with a bias
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import refusal, require
from tangent_jax.core.notation import Tree
from tangent_jax.io.records import convert
from tangent_jax.linear.signals import Layout
from tangent_jax.solver.curvature import Curvature
from tangent_jax.store.files import read_component, write_component


def as_tree(factors: Curvature) -> tuple[Tree, dict[str, str]]:
    """(the numbers, the metadata)."""
    flat = {"weight": np.asarray(factors.count).reshape(1)}
    flat |= {f"input/{path}": np.asarray(a) for path, (a, _) in factors.kernels.items()}
    flat |= {f"signal/{path}": np.asarray(g) for path, (_, g) in factors.kernels.items()}
    flat |= {f"block/{path}": np.asarray(block) for path, block in factors.blocks.items()}
    flat |= {f"sum/{path}": np.asarray(last) for path, last in factors.sums.items()}
    layouts = {path: list(layout) for path, layout in factors.layouts}
    said = {"layouts": json.dumps(layouts), "anchor": factors.anchor, "biases": json.dumps(dict(factors.biases))}
    return trees.nest(flat), said


def from_tree(tree: Tree, metadata: Mapping[str, str], where: object) -> Curvature:
    """The factors of a tree: inverts `as_tree`.

    Raises: InputError if the file holds no factors, or those of version 0.3, which had no `sums`.
    """
    flat, do = trees.leaves(tree), "Make them again by tj.solver.make_curvature, or compose by mean"
    is_old = "layouts" in metadata and "biases" not in metadata
    require(not is_old, "Store.factors", "factors with the sums of inputs, of version 0.4", f"of 0.3 in {where}", do)
    try:
        said = json.loads(metadata["layouts"])
        layouts = {path: Layout._make([*fields[:5], tuple(fields[5])]) for path, fields in said.items()}
        kernels = {path: (flat[f"input/{path}"], flat[f"signal/{path}"]) for path in layouts}
        blocks = {path.removeprefix("block/"): leaf for path, leaf in flat.items() if path.startswith("block/")}
        count, anchor = flat["weight"].reshape(()), metadata["anchor"]
        biases = tuple(sorted(convert(dict[str, str], json.loads(metadata["biases"]), where).items()))
        sums = {path: flat[f"sum/{path}"] for path, _ in biases}
    except (KeyError, ValueError, TypeError) as error:
        raise refusal("Store.factors", "factors of a component", f"another file in {where}") from error
    return Curvature(kernels, blocks, count, tuple(sorted(layouts.items())), anchor, sums, biases)


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


def of_subset(factors: Curvature, paths: tuple[str, ...]) -> bool:
    """True where the factors are of these leaves."""
    return {*factors.kernels, *factors.blocks} <= {*paths}


def widen_factors(factors: Curvature, classes: Sequence[str], own: Sequence[str]) -> Curvature:
    """The factors of a component of `own` classes under a square loss, as for a component of all `classes`.

    The Hessian is 2 / C for each class. So signals of the body shrink by own / all, and those of the head are equal for
    all classes: their mean, as alpha weighs only the true class.

    >>> wide = tj.store.widen_factors(demo.curvature, ["a", "b", "c", "d"], ["a", "b", "c"])
    >>> [np.shape(tensor) for tensor in wide.kernels["head/kernel"]]
    [(1, 6, 6), (1, 4, 4)]
    """
    if tuple(classes) == tuple(own):
        return dataclasses.replace(factors, anchor="")
    less, count = len(own) / len(classes), len(classes)

    def signals(path: str, g: Any) -> np.ndarray:
        g = np.asarray(g, np.float64) * less
        return isotropic(g, count) if path.startswith("head/") else g

    kernels = {path: (a, signals(path, g)) for path, (a, g) in factors.kernels.items()}
    blocks = {path: signals(path, block) for path, block in factors.blocks.items()}
    return dataclasses.replace(factors, kernels=kernels, blocks=blocks, anchor="")


def isotropic(g: np.ndarray, count: int) -> np.ndarray:
    """The mean of the diagonal of "1 c c" times the unit matrix of `count` classes, "1 count count"."""
    return np.mean(np.diagonal(g, axis1=1, axis2=2), -1)[:, None, None] * np.eye(count)


def body_factors(factors: Curvature) -> Curvature:
    """The factors of the leaves below the head, for the anchor without its head.

    >>> [*tj.store.body_factors(demo.curvature).kernels]
    ['second/kernel']
    """
    kernels = {path: pair for path, pair in factors.kernels.items() if not path.startswith("head/")}
    blocks = {path: block for path, block in factors.blocks.items() if not path.startswith("head/")}
    layouts = tuple((path, own) for path, own in factors.layouts if path in kernels)
    biases = tuple((path, bias) for path, bias in factors.biases if path in kernels)
    sums = {path: factors.sums[path] for path, _ in biases}
    anchor = factors.anchor[: len(factors.anchor) // 2]  # two fingerprints of one length: the anchor's, the head's
    return Curvature(kernels, blocks, factors.count, layouts, anchor, sums, biases)
