"""Kronecker factors of a component of fewer classes, or of its body alone."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float

from tangent_jax.solver.curvature import Curvature


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
    share = len(own) / len(classes)

    def signals(path: str, g: Float[Array | np.ndarray, "h c c"]) -> Float[np.ndarray, "h k k"]:
        scaled = np.asarray(g, np.float64) * share
        return isotropic(scaled, len(classes)) if path.startswith("head/") else scaled

    kernels = {path: (a, signals(path, g)) for path, (a, g) in factors.kernels.items()}
    blocks = {path: signals(path, block) for path, block in factors.blocks.items()}
    return dataclasses.replace(factors, kernels=kernels, blocks=blocks, anchor="")


def isotropic(g: Float[np.ndarray, "1 c c"], count: int) -> Float[np.ndarray, "1 k k"]:
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
