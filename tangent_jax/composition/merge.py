"""Model merging: the mean, a mean weighted by each component's curvature, or another function of components.

    dw = (sum_s H_s)^-1 sum_s H_s dw_s

    curvature   H_s = A_s (x) G / N + n_s penalty I     kernels; A_s of each component, G and N of all
                H_s = B_s + n_s penalty I               gains, and biases without a kernel
    inputs      the same with G = its mean eigenvalue times I, and n_s instead of B_s: only inputs are needed
    fisher      the diagonal of H_s, with each component's own G_s
    mean        H_s = I: the paper's

`curvature` and `inputs` treat a kernel and its bias as one kernel of the inputs (x, 1). The merge equals joint training
if the objectives are quadratic with these H_s. Other MERGES live in their own files, such as ties.py.
All take components in the order of their names, so a removal merges the others as if alone. Sources: Jin et al. 2023
(RegMean) for `inputs`, Matena and Raffel 2022 for `fisher`; the average of G was measured here. On the host, in f64.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from tangent_jax.composition.component import Component, Given, by_name, tree_of
from tangent_jax.composition.compose import checked_origins, sum_components
from tangent_jax.composition.factors import body_factors
from tangent_jax.composition.kinds import are_statistics, have_own_heads
from tangent_jax.composition.origin import Origin
from tangent_jax.composition.sums import check_finite
from tangent_jax.composition.ties import ties
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, about, finite_number, one_of
from tangent_jax.core.notation import Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.core.trees import body
from tangent_jax.solver.curvature import Curvature, check_factors, check_sums


@promotes
def merge(components: Given, how: str, penalty: float = 1e-3) -> Tree:
    """Merges components into one: by their mean, weighted by their Kronecker factors, or by another of MERGES.

    If heads differ, the bodies are merged, without heads.

    Args:
        components: By name or in a list, read one at a time, those with factors twice.
        how: One of MERGES.
        penalty: The ridge of H_s for one example, above 0. All but WEIGHTED ignore factors and penalty.

    Returns:
        A tree on the host, in the dtype of the components.

    Guarantees:
        Bitwise the same in any order of insertion; by a mean, weighted or not, a single component gives itself, up to
        rounding.

    Raises:
        InputError: Statistics, a component without factors, factors of other leaves or another anchor; and by name for
            a component that is not finite, or factors that no images give (`check_sums`).

    >>> parts = {name: tj.Component(dw, None, demo.factors[name]) for name, dw in demo.components.items()}
    >>> merged = tj.merge(parts, "curvature", penalty=0.1)
    >>> [round(tj.evaluate(demo.predict, dw, demo.test), 2) for dw in (tj.compose(parts), merged)]
    [0.83, 0.92]
    """
    one_of("how", how, MERGES)
    return MERGES[how].function(by_name(components), penalty)


def tangent_origins(named: Mapping[Any, Component]) -> dict[Any, Origin]:
    """The provenance of each component that is merged, or none (`checked_origins`).

    Raises:
        InputError: Statistics, which are summed.
    """
    origins = checked_origins(named)
    if are_statistics(origins.values()):
        raise InputError("components must be tangent weights; got statistics, whose sum is exact: take tj.statistics")
    return origins


def only_bodies(named: Mapping[Any, Component]) -> bool:
    """True if heads differ, so that bodies alone are merged. Reads no numbers."""
    return have_own_heads(tangent_origins(named).values())


def tangent_weights(named: Mapping[Any, Component]) -> Iterator[tuple[Any, Tree]]:
    """The name and the merged weights of each component, in the order of names."""
    are_bodies = only_bodies(named)
    for name in sorted(named):
        dw = tree_of(named, name)
        yield name, body(dw) if are_bodies else dw


def body_of(component: Component) -> Component:
    """The body of a component, and its factors."""
    factors = component.factors
    return Component(body(component.dw), component.provenance, None if factors is None else body_factors(factors))


class Merger:
    """The merge of components at any penalty: sums and decompositions are computed once.

    The arguments are those of `merge`; `how` is one of WEIGHTED.

    >>> parts = {name: tj.Component(dw, None, demo.factors[name]) for name, dw in demo.components.items()}
    >>> merger = tj.store.Merger(parts, "inputs")
    >>> [float(jnp.linalg.norm(merger.at(penalty)["head"]["kernel"])) for penalty in (1e-3, 1.0)]
    [13.0, 12.3]
    """

    def __init__(self, components: Given, how: str) -> None:
        one_of("how", how, WEIGHTED)
        named = by_name(components)
        are_bodies = only_bodies(named)
        names = sorted(named)

        def read(name: Any) -> Component:
            return body_of(named[name]) if are_bodies else named[name]

        self.like = read(names[0]).dw
        paths = [*trees.leaves(self.like)]
        total = sum_factors((name, read(name)) for name in names)
        self.biases = {} if how == "fisher" else dict(total.biases)
        self.total = total.layers() if self.biases else total
        self.data: dict[str, Any] = {}
        self.ridge: dict[str, Any] = {}
        diagonals: dict[str, Any] = {}
        for name in names:
            component = read(name)
            factors = factors_of(name, component)
            factors = factors.layers() if self.biases else factors
            leaves = trees.leaves(component.dw)
            if [*leaves] != paths:
                raise InputError(f"components must be of one subset; got {name} with other leaves")
            for path in self.solved_leaves(paths):
                v = self.as_blocks(path, leaves)
                if how == "fisher":
                    diagonal = diagonal_of(path, factors, v.shape)
                    add(diagonals, path, diagonal)
                    add(self.data, path, diagonal * v)
                else:
                    add(self.data, path, TERMS[how](path, v, factors, self.total))
                add(self.ridge, path, factors.count * v)
        solved = self.solved_leaves(paths)
        self.solvers = {path: solver_of(how, path, self.total, diagonals.get(path)) for path in solved}

    def solved_leaves(self, paths: Iterable[str]) -> list[str]:
        """The leaves that are solved for: all but biases, which are solved with their kernels."""
        return [path for path in paths if path not in {*self.biases.values()}]

    def as_blocks(self, path: str, leaves: Mapping[str, Any]) -> np.ndarray:
        """A leaf as blocks, a kernel with its bias as "h i+1 o"."""
        v = self.total.as_blocks(path, np.asarray(leaves[path], np.float64))
        if path not in self.biases:
            return v
        return np.concatenate([v, np.asarray(leaves[self.biases[path]], np.float64).reshape(len(v), 1, -1)], 1)

    def at(self, penalty: float) -> Tree:
        """The merge with this penalty (above 0), the ridge of H_s for one example."""
        finite_number("penalty", penalty, 0.0)
        like = trees.leaves(self.like)
        merged = {}
        for path in self.solved_leaves(like):
            right = self.data[path] + penalty * self.ridge[path]
            blocks = self.solvers[path](right, penalty * self.total.count)
            if path in self.biases:
                bias = self.biases[path]
                merged[bias] = blocks[:, -1].reshape(like[bias].shape)
                blocks = blocks[:, :-1]
            merged[path] = self.total.from_blocks(path, blocks, like[path].shape)
        leaves = [np.asarray(merged[path]).astype(leaf.dtype) for path, leaf in like.items()]
        return jax.tree.unflatten(jax.tree.structure(self.like), leaves)


def add(sums_by_path: dict[str, Any], path: str, term: Any) -> None:
    """Adds a term to the sum of a leaf; the first term is stored as it is."""
    sums_by_path[path] = sums_by_path[path] + term if sums_by_path.get(path) is not None else term


def sum_factors(components: Iterable[tuple[Any, Component]]) -> Curvature:
    """The sum of the factors of all components, each checked against its leaves."""
    total: Any = None
    for name, component in components:
        with about(f"component {name}"):
            check_finite(component.dw)
            if component.factors is not None:
                check_factors(component.dw, component.factors)
                check_sums(component.factors)
        factors = factors_of(name, component)
        total = factors if total is None else total + factors
    return total


def factors_of(name: str, component: Component) -> Curvature:
    """The factors of a component on the host, in f64; InputError for a component without factors."""
    if component.factors is None:
        raise InputError(
            f"components must have factors; got {name} without. Keep them when components are made, or merge by mean"
        )
    return host(component.factors)


def host(factors: Curvature) -> Curvature:
    """The factors on the host, in f64, exactly symmetric."""
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), factors)
    return jax.tree.map(lambda leaf: (leaf + leaf.swapaxes(-1, -2)) / 2 if leaf.ndim == 3 else leaf, wide)


def signal_mean(g: Float[np.ndarray, "h c c"]) -> Float[np.ndarray, "h 1 1"]:
    """The mean eigenvalue of each head's G."""
    return np.trace(g, axis1=1, axis2=2)[:, None, None] / g.shape[-1]


Term = Float[np.ndarray, "..."]
"""One leaf as blocks, in f64."""


def curvature_term(path: str, v: Term, factors: Curvature, total: Curvature) -> Term:
    """H_s dw_s without its ridge, of one leaf as blocks."""
    if path in factors.kernels:
        return factors.kernels[path][0] @ v @ (total.kernels[path][1] / total.count)
    return np.einsum("hpq,hq->hp", factors.blocks[path], v) if path in factors.blocks else 0 * v


def inputs_term(path: str, v: Term, factors: Curvature, total: Curvature) -> Term:
    """H_s dw_s without its ridge, of one leaf as blocks, from the inputs' moments alone."""
    if path not in factors.kernels:
        return 0 * v
    return factors.kernels[path][0] @ v * signal_mean(total.kernels[path][1] / total.count)


TERMS = {"curvature": curvature_term, "inputs": inputs_term}


def diagonal_of(path: str, factors: Curvature, shape: tuple[int, ...]) -> Term:
    """diag(H_s) without its ridge, of one leaf as blocks."""
    if path in factors.kernels:
        a, g = (np.diagonal(factor, axis1=1, axis2=2) for factor in factors.kernels[path])
        return a[:, :, None] * g[:, None, :] / factors.count
    return np.diagonal(factors.blocks[path], axis1=1, axis2=2) if path in factors.blocks else np.zeros(shape)


def solver_of(how: str, path: str, total: Curvature, diagonal: Term | None) -> Callable[[Term, float], Term]:
    """(right, ridge) -> (sum_s H_s)^-1 right, of one leaf as blocks; the decomposition serves every ridge."""
    if diagonal is not None:
        return lambda right, ridge: right / (diagonal + ridge)
    if path in total.kernels:
        a, g = total.kernels[path]
        la, qa = np.linalg.eigh(a)
        if how == "inputs":
            values = np.maximum(la, 0)[:, :, None] * signal_mean(g / total.count)
            return lambda right, ridge: qa @ (qa.swapaxes(1, 2) @ right / (values + ridge))
        lg, qg = np.linalg.eigh(g / total.count)
        values = np.maximum(la, 0)[:, :, None] * np.maximum(lg, 0)[:, None, :]
        return lambda right, ridge: qa @ (qa.swapaxes(1, 2) @ right @ qg / (values + ridge)) @ qg.swapaxes(1, 2)
    if path in total.blocks and how == "curvature":
        block, unit = total.blocks[path], np.eye(total.blocks[path].shape[-1])
        return lambda right, ridge: np.linalg.solve(block + ridge * unit, right[:, :, None])[:, :, 0]
    return lambda right, ridge: right / ridge


class Merge(NamedTuple):
    """A way of merging: (components by name, penalty) -> one tree; whether it needs factors and penalty; its help text.

    The function reads components in the order of their names (`tangent_weights`), and gives a tree on the host in their
    dtype. It refuses those that differ in form (`sums.form_of`).
    """

    function: Callable[[Mapping[Any, Component], float], Tree]
    needs_factors: bool
    help: str


def mean(named: Mapping[Any, Component], penalty: float) -> Tree:
    """The mean of tangent weights."""
    return sum_components(named, partial(tree_of, named), tangent_origins(named))


def weigh(how: str, help: str) -> Merge:
    """Returns the merge that weighs each component by its factors."""
    return Merge(lambda named, penalty: Merger(named, how).at(penalty), True, help)


MERGES = {
    "mean": Merge(mean, False, "mean"),
    "ties": Merge(lambda named, penalty: ties(tangent_weights(named)), False, "ties (TIES-Merging)"),
    "inputs": weigh("inputs", "inputs (RegMean)"),
    "fisher": weigh("fisher", "fisher (diagonal)"),
    "curvature": weigh("curvature", "curvature"),
}
"""Every merge by its name; commands, stores and their help read this table."""
WEIGHTED = tuple(name for name, merge_of in MERGES.items() if merge_of.needs_factors)
"""The merges that need factors of every component, and a penalty."""
