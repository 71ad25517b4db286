"""Model merging: the mean, a mean weighted by each component's curvature, or another function of components.

    dw = (sum_s H_s)^-1 sum_s H_s dw_s

    curvature   H_s = A_s (x) G / N + n_s penalty I     kernels; A_s of each component, G and N of all
                H_s = B_s + n_s penalty I               gains, and biases without a kernel
    inputs      the same with G = its mean eigenvalue times I, and n_s instead of B_s: only inputs are needed
    fisher      the diagonal of H_s, with each component's own G_s
    mean        H_s = I: the paper's

`curvature` and `inputs` treat a kernel and its bias as one kernel of the inputs (x, 1). The merge equals joint training
if the objectives are quadratic with these H_s. The other MERGES are no such sums, with a file each, as store/ties.py.
All take components in the order of their names, so a removal merges the others as if alone. Sources: Jin et al. 2023
(RegMean) for `inputs`, Matena and Raffel 2022 for `fisher`; the average of G was measured here. On the host, in f64.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import finite_number, one_of, require
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import progress_bar
from tangent_jax.solver.curvature import Curvature, check_factors
from tangent_jax.store import sums
from tangent_jax.store.ties import ties


def merge(components: Mapping[str, Tree], factors: Mapping[str, Curvature], how: str, penalty: float = 1e-3) -> Tree:
    """Merges components into one: by their mean, weighted by their Kronecker factors, or by another of MERGES.

    Args:       factors: of every component, by name (`tj.solver.make_curvature`); how: one of MERGES; penalty: the
                ridge of H_s for one example, above 0. All but WEIGHTED ignore factors and penalty. Both mappings are
                read a few entries at a time, factors twice.
    Returns:    a tree on the host, in the dtype of the components.
    Guarantees: bitwise the same in any order of insertion; by a mean, weighted or not, a single component gives itself,
                up to rounding.
    Raises:     InputError for a component without factors, or factors of other leaves or of another anchor.

    >>> merged = tj.merge(demo.components, demo.factors, "curvature", penalty=0.1)
    >>> mean = tj.compose(demo.components)
    >>> [round(tj.evaluate(demo.predict, dw, demo.test), 2) for dw in (mean, merged)]
    [0.83, 0.92]
    """
    return MERGES[one_of("how", how, MERGES)].function(components, factors, penalty)


class Merger:
    """The merge of components at any penalty: sums and decompositions are computed once.

    The arguments are those of `merge`; `how` is one of WEIGHTED.

    >>> merger = tj.store.Merger(demo.components, demo.factors, "inputs")
    >>> [float(jnp.linalg.norm(merger.at(penalty)["head"]["kernel"])) for penalty in (1e-3, 1.0)]
    [13.0, 12.3]
    """

    def __init__(self, components: Mapping[str, Tree], factors: Mapping[str, Curvature], how: str) -> None:
        one_of("how", how, WEIGHTED, by="merge")
        names = sorted(components)
        missing = [name for name in names if name not in factors]
        do = "Keep them when components are made, or merge by mean"
        require(names and not missing, "merge", "factors of every component", f"none of {missing[:1]}", do)
        self.like = components[names[0]]
        paths, total = [*trees.leaves(self.like)], None
        self.data, self.ridge, diagonals = {}, {}, {}
        with progress_bar(2 * len(names) + len(paths), "step") as bar:
            for name in names:
                own = host(factors[name])
                check_factors("merge", components[name], own)
                total = own if total is None else total + own
                bar.update()
            assert total is not None
            self.biases = {} if how == "fisher" else dict(total.biases)
            self.total = total = total.layers() if self.biases else total
            for name in names:
                own, leaves = host(factors[name]), trees.leaves(components[name])
                own = own.layers() if self.biases else own
                require([*leaves] == paths, "merge", "components of one subset", f"{name} with other leaves")
                for path in self.solved_leaves(paths):
                    v = self.as_blocks(path, leaves)
                    diagonal = diagonal_of(path, own, v.shape) if how == "fisher" else None
                    term = TERMS[how](path, v, own, total) if diagonal is None else diagonal * v
                    add(self.data, path, term)
                    add(self.ridge, path, own.count * v)
                    add(diagonals, path, diagonal)
                bar.update()
            self.solvers = {}
            for path in self.solved_leaves(paths):
                self.solvers[path] = solver_of(how, path, total, diagonals[path])
                bar.update(1 + (path in self.biases))

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
        finite_number("penalty", penalty, 0.0, by="merge")
        like = trees.leaves(self.like)
        merged = {}
        for path in self.solved_leaves(like):
            right, ridge = self.data[path] + penalty * self.ridge[path], penalty * self.total.count
            blocks = self.solvers[path](right, ridge)
            if path in self.biases:
                bias = self.biases[path]
                merged[bias], blocks = blocks[:, -1].reshape(like[bias].shape), blocks[:, :-1]
            merged[path] = self.total.from_blocks(path, blocks, like[path].shape)
        leaves = [np.asarray(merged[path]).astype(leaf.dtype) for path, leaf in like.items()]
        return jax.tree.unflatten(jax.tree.structure(self.like), leaves)


def add(sums_by_path: dict[str, Any], path: str, term: Any) -> None:
    """Adds a term to the sum of a leaf; the first term is stored as it is."""
    sums_by_path[path] = sums_by_path[path] + term if sums_by_path.get(path) is not None else term


def host(factors: Curvature) -> Curvature:
    """The factors on the host, in f64, exactly symmetric."""
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), factors)
    return jax.tree.map(lambda leaf: (leaf + leaf.swapaxes(-1, -2)) / 2 if leaf.ndim == 3 else leaf, wide)


def signal_mean(g: np.ndarray) -> np.ndarray:
    """The mean eigenvalue of each head's G, "h 1 1"."""
    return np.trace(g, axis1=1, axis2=2)[:, None, None] / g.shape[-1]


Term = Any  # NumPy arrays, f64


def curvature_term(path: str, v: Term, own: Curvature, total: Curvature) -> Term:
    """H_s dw_s without its ridge, of one leaf as blocks."""
    if path in own.kernels:
        return own.kernels[path][0] @ v @ (total.kernels[path][1] / total.count)
    return np.einsum("hpq,hq->hp", own.blocks[path], v) if path in own.blocks else 0 * v


def inputs_term(path: str, v: Term, own: Curvature, total: Curvature) -> Term:
    """H_s dw_s without its ridge, of one leaf as blocks, from the inputs' moments alone."""
    if path not in own.kernels:
        return 0 * v
    return own.kernels[path][0] @ v * signal_mean(total.kernels[path][1] / total.count)


TERMS = {"curvature": curvature_term, "inputs": inputs_term}


def diagonal_of(path: str, own: Curvature, shape: tuple[int, ...]) -> Term:
    """diag(H_s) without its ridge, of one leaf as blocks."""
    if path in own.kernels:
        a, g = (np.diagonal(factor, axis1=1, axis2=2) for factor in own.kernels[path])
        return a[:, :, None] * g[:, None, :] / own.count
    return np.diagonal(own.blocks[path], axis1=1, axis2=2) if path in own.blocks else np.zeros(shape)


def solver_of(how: str, path: str, total: Curvature, diagonal: Term) -> Callable[[Term, float], Term]:
    """(right, ridge) -> (sum_s H_s)^-1 right, of one leaf as blocks; the decomposition serves every ridge."""
    if how == "fisher":
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
    """A way of merging: (components, factors, penalty) -> one tree; whether it needs the last two; its help text.

    The function takes components in the order of their names (`sums.read_ahead` reads them), and gives a tree on the
    host in their dtype. It refuses none, and those that differ by `sums.shapes_of`, by `require(..., "merge", ...)`.
    """

    function: Callable[[Mapping[str, Tree], Mapping[str, Curvature], float], Tree]
    needs_factors: bool
    help: str


def weigh(how: str, help: str) -> Merge:
    """Returns the merge that weighs each component by its factors."""
    return Merge(lambda components, factors, penalty: Merger(components, factors, how).at(penalty), True, help)


MERGES = {
    "mean": Merge(lambda components, *_: sums.compose(components), False, "mean"),
    "ties": Merge(lambda components, *_: ties(components), False, "ties (TIES-Merging)"),
    "inputs": weigh("inputs", "inputs (RegMean)"),
    "fisher": weigh("fisher", "fisher (diagonal)"),
    "curvature": weigh("curvature", "curvature"),
}
"""Every merge by its name; commands, stores and their help read this table."""
WEIGHTED = tuple(name for name, own in MERGES.items() if own.needs_factors)
"""The merges that need factors of every component, and a penalty."""
