"""Composition and removal as sums of trees, and model soups as their baseline.

    dw = sum_s lambda_s dw_s,   so that   f_lin(dw, x) = f_w(x) + sum_s lambda_s J_w f(x) . dw_s

Source: Liu et al. 2024: the composed tangent model gives the ensemble of the components' tangent outputs. A removal
re-sums the survivors, because a subtraction would round. The mean of non-linear components is a model soup (Wortsman et
al. 2022), whose output is not an ensemble.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tangent_jax.core.checks import expect, instance, require
from tangent_jax.core.notation import Tree


def weighted_sum(components: Iterable[Tree], coefficients: Iterable[float]) -> Tree:
    """sum_s lambda_s dw_s, added in the given order; lambda 1 adds a component, -1 subtracts it.

    Args:       components: trees on the device or the host, or an iterator that reads them one by one: memory holds the
                running sum and one component.
    Returns:    a tree on the device if the components are, else on the host.
    Guarantees: the same bits for the same components, coefficients and order, on device and host; half precision is
                summed in f32 and rounded once.
    Raises:     InputError for no component, unequal counts, or trees without leaves or of unequal structure, shapes or
                dtypes.
    """
    total, first, count, coefficients = None, None, 0, list(coefficients)
    require(np.isfinite(coefficients).all(), "weighted_sum", "finite coefficients", coefficients)
    expected = f"as many components as coefficients ({len(coefficients)}), at least 1"
    for component in components:
        require(count < len(coefficients), "weighted_sum", expected, "more")
        is_array = all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(component))
        require(is_array, "weighted_sum", "components of arrays", "other leaves")
        shapes = shapes_of(component)
        alike, other = first is None or shapes == first, f"component {count} with other leaves, shapes or dtypes"
        require(alike, "weighted_sum", "components of one subset, architecture and dtype", other)
        require(shapes[1], "weighted_sum", "components with leaves", "an empty one", "Add their bodies, or join them")
        kinds = {str(leaf.dtype) for leaf in jax.tree.leaves(component) if not jnp.issubdtype(leaf.dtype, jnp.floating)}
        require(not kinds, "weighted_sum", "components of floats", ", ".join(kinds))
        first, add = shapes, partial(accumulate, coefficients[count])
        alone = partial(scale, coefficients[count])
        total = jax.tree.map(alone, component) if total is None else jax.tree.map(add, total, component)
        count += 1
        del component  # frees it before the next read
    require(first is not None and count == len(coefficients), "weighted_sum", expected, count)
    assert first is not None
    dtypes = jax.tree.unflatten(first[0], [dtype for _, dtype in first[1]])
    return jax.tree.map(lambda leaf, dtype: leaf.astype(dtype) if leaf.dtype != dtype else leaf, total, dtypes)


def scale(coefficient: float, leaf: Any) -> Any:
    """coefficient leaf, in f32 or wider."""
    wide = jnp.promote_types(leaf.dtype, jnp.float32)
    return (leaf if leaf.dtype == wide else leaf.astype(wide)) * np.asarray(coefficient, wide)


BLOCK = 1 << 15  # numbers: a scaled block of them fits into the processor's caches


def accumulate(coefficient: float, total: Any, leaf: Any) -> Any:
    """total + coefficient leaf; in place on the host, block by block."""
    if not isinstance(total, np.ndarray):
        return total + scale(coefficient, leaf)
    flat, terms = total.reshape(-1), np.asarray(leaf).reshape(-1)
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        np.add(block, scale(coefficient, terms[start : start + BLOCK]), out=block)
    return total


def compose(components: Mapping[str, Tree], coefficients: Mapping[str, float] | None = None) -> Tree:
    """The weighted sum of named components, in the order of their names; by default their mean, as in the paper.

    Args:       components: read one ahead, in a thread, so a mapping may read them from disk; coefficients: by name,
                None for the mean, 1.0 each for the sum; a name left out has coefficient 0, and is not read.
    Guarantees: bitwise the same in any order of insertion. So removing a component and composing the survivors is
                bitwise the composition without that component.

    >>> together = tj.compose({"ann": {"w": jnp.array([1.0, 2.0])}, "bob": {"w": jnp.array([3.0, 6.0])}})
    >>> together["w"].tolist()
    [2.0, 4.0]
    """
    if coefficients is not None:
        instance("coefficients", coefficients, Mapping)
    names = sorted(components if coefficients is None else coefficients)
    expect(names, "a component", "none")
    missing = [name for name in names if name not in components]
    expect(not missing, f"names among the {len(components)} components", missing[:1])
    terms = read_ahead(components, names)
    shares = dict.fromkeys(names, 1 / len(names)) if coefficients is None else coefficients
    return weighted_sum(terms, [shares[name] for name in names])


def read_ahead(components: Mapping[str, Tree], names: Sequence[str]) -> Iterator[Tree]:
    """Yields the components of these names; reads and checks the next one while the caller sums the last."""
    with ThreadPoolExecutor(1) as reader:
        coming: deque = deque()
        for name in names:
            coming.append(reader.submit(components.__getitem__, name))
            if len(coming) > 1:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def greedy_soup(components: Mapping[str, Tree], score: Callable[[Tree], float]) -> list[str]:
    """The names of the greedy soup: best component first, each next one kept if the mean's score does not fall.

    Source: Wortsman et al. 2022, recipe 1. `score` is of held-out data, higher is better; ties go by name.

    >>> tj.store.greedy_soup({"ann": {"w": np.ones(2)}, "bob": {"w": np.zeros(2)}}, score=lambda dw: dw["w"].sum())
    ['ann']
    """
    expect(components, "at least one component", "none")
    alone = {name: score(component) for name, component in components.items()}
    ranked: Sequence[str] = sorted(components, key=lambda name: (-alone[name], name))
    chosen, best = [ranked[0]], alone[ranked[0]]
    for name in ranked[1:]:
        together = score(compose(components, dict.fromkeys([*chosen, name], 1 / (len(chosen) + 1))))
        if together >= best:
            chosen, best = [*chosen, name], together
    return chosen


def shapes_of(tree: Tree) -> tuple:
    """(the structure of a tree, shapes and dtypes of its leaves): equal for components that can be summed."""
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


class Mapped(Mapping[str, Any]):
    """A mapping with the values function(name, value) of another mapping, computed on access."""

    def __init__(self, source: Mapping[str, Any], function: Callable[[str, Any], Any]) -> None:
        self.source, self.function = source, function

    def __getitem__(self, name: str) -> Any:
        return self.function(name, self.source[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)
