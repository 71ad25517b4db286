"""Curvature-weighted composition: each component weighs where its data had something to say.

    dw = (sum_s H_s)^-1 sum_s H_s dw_s

    curvature   H_s = A_s (x) G / N + n_s penalty I     kernels; A_s of each component, G and N of all
                H_s = B_s + n_s penalty I               gains and biases
    inputs      the same with G = its mean eigenvalue times I, and n_s in the place of B_s: only inputs are needed
    fisher      the diagonal of H_s, with each component's own G_s
    mean        H_s = I: the paper's

Exact joint training where the objectives are quadratic with these H_s. Every term is a sum over components, taken in
the order of their names: so removal re-sums what is left. Source of `inputs`: Jin et al. 2023 (RegMean); of `fisher`:
Matena and Raffel 2022; that G may be averaged is measured here (docs/results.md). On the host, in f64.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tangent_jax.components import sums
from tangent_jax.core import Tree, finite_number, require, trees
from tangent_jax.solver.curvature import Curvature

MERGES = ("mean", "inputs", "fisher", "curvature")


def merge(components: Mapping[str, Tree], factors: Mapping[str, Curvature], how: str, penalty: float = 1e-3) -> Tree:
    """The components as one, each weighted by its factors.

    Args:       factors: of every component, by name (`tj.curvature`); how: one of MERGES; penalty: above 0, the ridge
                of H_s for one example; not used by the mean. Both mappings are read one at a time, and twice.
    Returns:    a tree on the host, in the dtype of the components.
    Guarantees: bitwise the same whatever the order of insertion; one component gives itself, up to rounding.
    Raises:     InputError for a component without factors, or factors of other leaves or of another anchor.
    """
    require(how in MERGES, "merge", f"how in {', '.join(MERGES)}", how)
    if how == "mean":
        return sums.compose(components)
    finite_number("merge", "penalty", penalty, 0.0)
    names = sorted(components)
    missing = [name for name in names if name not in factors]
    do = "Keep them when components are made, or merge by mean"
    require(names and not missing, "merge", "factors of every component", f"none of {missing[:1]}", do)
    total = host(factors[names[0]])
    check_factors("merge", components[names[0]], total)
    for name in names[1:]:
        total = total + host(factors[name])
    like, right, result = components[names[0]], {}, {}
    for name in names:
        dw, own = components[name], host(factors[name])
        check_factors("merge", dw, own)
        for path, leaf in trees.leaves(dw).items():
            term = TERMS[how](path, total.split(path, np.asarray(leaf, np.float64)), own, total, penalty)
            right[path] = right[path] + term if path in right else term
    for path, leaf in trees.leaves(like).items():
        solved = solve_leaf(how, path, right[path], total, penalty)
        result[path] = np.asarray(total.join(path, solved, leaf.shape)).astype(leaf.dtype)
    return jax.tree.unflatten(jax.tree.structure(like), list(result.values()))


def host(factors: Curvature) -> Curvature:
    """On the host, in f64, and symmetric to the last bit."""
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), factors)
    return jax.tree.map(lambda leaf: (leaf + leaf.swapaxes(-1, -2)) / 2 if leaf.ndim else leaf, wide)


def check_factors(function: str, dw: Tree, factors: Curvature) -> None:
    """Raises InputError for factors that are not of these leaves and shapes."""
    for path, leaf in trees.leaves(dw).items():
        size = leaf.size
        if path in factors.kernels:
            a, g = factors.kernels[path]
            size = a.shape[0] * a.shape[-1] * g.shape[-1]
        elif path in factors.blocks:
            size = int(np.prod(factors.blocks[path].shape[:2]))
        require(size == leaf.size, function, f"factors of {path}, {leaf.size} numbers", size)
    extra = ({*factors.kernels} | {*factors.blocks}) - {*trees.leaves(dw)}
    require(not extra, function, "factors of the component's leaves", f"one of {sorted(extra)[:1]}")


def signal_mean(g: np.ndarray) -> np.ndarray:
    """The mean eigenvalue of each head's G, "h 1 1"."""
    return np.trace(g, axis1=1, axis2=2)[:, None, None] / g.shape[-1]


Term = Any  # NumPy arrays, f64


def curvature_term(path: str, v: Term, own: Curvature, total: Curvature, penalty: float) -> Term:
    """H_s dw_s, of one leaf as blocks."""
    ridge = own.weight * penalty * v
    if path in own.kernels:
        return own.kernels[path][0] @ v @ (total.kernels[path][1] / total.weight) + ridge
    if path in own.blocks:
        return np.einsum("hpq,hq->hp", own.blocks[path], v) + ridge
    return own.weight * v


def inputs_term(path: str, v: Term, own: Curvature, total: Curvature, penalty: float) -> Term:
    """The same, of inputs alone."""
    if path not in own.kernels:
        return own.weight * v
    scale = signal_mean(total.kernels[path][1] / total.weight)
    return own.kernels[path][0] @ v * scale + own.weight * penalty * v


def fisher_term(path: str, v: Term, own: Curvature, total: Curvature, penalty: float) -> Term:
    """diag(H_s) dw_s and diag(H_s), stacked along a new first axis."""
    weight = np.full(v.shape, own.weight * penalty)
    if path in own.kernels:
        a, g = (np.diagonal(factor, axis1=1, axis2=2) for factor in own.kernels[path])
        weight += a[:, :, None] * g[:, None, :] / own.weight
    elif path in own.blocks:
        weight += np.diagonal(own.blocks[path], axis1=1, axis2=2)
    return np.stack([weight * v, weight])


TERMS = {"curvature": curvature_term, "inputs": inputs_term, "fisher": fisher_term}


def solve_leaf(how: str, path: str, right: np.ndarray, total: Curvature, penalty: float) -> np.ndarray:
    """(sum_s H_s)^-1 of the summed right-hand side."""
    if how == "fisher":
        return right[0] / right[1]
    ridge = total.weight * penalty
    if path in total.kernels:
        a, g = total.kernels[path]
        la, qa = np.linalg.eigh(a)
        if how == "inputs":
            turned = qa.swapaxes(1, 2) @ right
            return qa @ (turned / (np.maximum(la, 0)[:, :, None] * signal_mean(g / total.weight) + ridge))
        lg, qg = np.linalg.eigh(g / total.weight)
        turned = qa.swapaxes(1, 2) @ right @ qg
        turned /= np.maximum(la, 0)[:, :, None] * np.maximum(lg, 0)[:, None, :] + ridge
        return qa @ turned @ qg.swapaxes(1, 2)
    if path in total.blocks and how == "curvature":
        damped = total.blocks[path] + ridge * np.eye(total.blocks[path].shape[-1])
        return np.linalg.solve(damped, right[:, :, None])[:, :, 0]
    return right / total.weight
