"""The two kinds of components, and what is checked of each.

    tangent weights   dw = sum_s dw_s / S                  the mean; of the bodies alone where heads differ
    statistics        G, B, n = sum_s (G_s, B_s, n_s)      the sum, over all classes; a class that a component lacks
                                                           counts 0; G_s = R_s^T R_s where R_s is kept

Both are trees of leaves. A component is of statistics if its provenance has the settings of features.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tangent_jax.composition.origin import Origin
from tangent_jax.composition.sums import check_finite
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, about, of_shape
from tangent_jax.core.names import check_classes, columns
from tangent_jax.core.notation import Tree
from tangent_jax.core.trees import body
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.solver.leaves import check_leaves, check_lengths, with_gram
from tangent_jax.solver.statistics import check_spread


def check_component(dw: Tree, origin: Origin, is_new: bool = True) -> None:
    """Raises InputError for other leaves than the provenance names, or numbers that no training or images give.

    Args:
        is_new: False leaves out what takes too long for every read of statistics.
    """
    if origin.features is None:
        check_weights(dw, origin)
        return
    k = check_leaves(dw, len(check_classes(origin.classes)))
    sizes = origin.features.sizes(k)
    check_lengths(dw, sizes)
    if is_new:
        check_spread(dw, sizes)


def check_weights(dw: Tree, origin: Origin) -> None:
    """Raises InputError for other leaves than the provenance names, none, or numbers that are not finite."""
    leaves = trees.leaves(dw)
    differing = sorted({*leaves} ^ {*origin.subset})
    if not leaves or differing:
        got = f"a difference in {differing[0]}" if leaves else "none"
        raise InputError(f"a component must have the leaves that its provenance names; got {got}")
    check_finite(dw)


def check_beside(dw: Tree, origin: Origin, other: Tree, first: Origin) -> None:
    """Raises InputError for leaves, shapes or dtypes that differ from those of another component.

    If heads differ, the bodies are compared; of statistics, the number of features.
    """
    if origin.features is not None:
        of_shape("sums", dw["sums"], (len(dw["sums"]), np.shape(other["sums"])[-1]))
        return
    if origin.head != first.head:
        dw = body(dw)
        other = body(other)
    leaves = trees.leaves(dw)
    others = trees.leaves(other)
    differing = sorted({*leaves} ^ {*others})
    if differing:
        raise InputError(f"a component must have the leaves of the others; got a difference in {differing[0]}")
    for path, leaf in leaves.items():
        of_shape(path, leaf, others[path].shape)
        if leaf.dtype != others[path].dtype:
            raise InputError(f"{path} must be in {others[path].dtype}, as the others; got {leaf.dtype}. Cast it first")


def are_statistics(origins: Iterable[Origin]) -> bool:
    """True for components of statistics, False for tangent weights and without any provenance."""
    return any(origin.features is not None for origin in origins)


def have_own_heads(origins: Iterable[Origin]) -> bool:
    """True for tangent weights with different heads: then only their bodies are summed.

    Raises:
        InputError: Tangent weights of the same classes in another order: their heads have other columns.
    """
    origins = [*origins]
    if are_statistics(origins):
        return False
    heads = {origin.head for origin in origins}
    orders = {origin.classes for origin in origins if origin.classes}
    first_of: dict[frozenset[str], tuple[str, ...]] = {}
    for order in sorted(orders):
        first = first_of.setdefault(frozenset(order), order)
        if first != order:
            raise InputError(
                f"components of the same classes must have them in one order; got {', '.join(first[:3])}, ... and "
                f"{', '.join(order[:3])}, ... Open the data of all with one list of classes, and train them again"
            )
    return len(heads) > 1 or len(orders) > 1


def summands(read: Callable[[Any], Tree], origins: Mapping[Any, Origin]) -> Callable[[Any], Tree]:
    """Reads a component by its name as it is summed: a body where heads differ, statistics over all classes.

    Args:
        origins: The origins of all components, or none.
    """
    if are_statistics(origins.values()):
        classes = classes_of(origins)
        return lambda name: wide_statistics(name, read(name), origins[name], classes)
    return (lambda name: body(read(name))) if have_own_heads(origins.values()) else read


def wide_statistics(name: Any, statistics: Tree, origin: Origin, classes: tuple[str, ...]) -> Tree:
    """A component of statistics with G, over these classes; checked, as another machine may have written it."""
    with about(f"component {name}"):
        check_component(statistics, origin, is_new=False)
    return widen(with_gram(statistics), origin.classes, classes)


def settings_of(origin: Origin) -> FeatureSettings:
    """The feature settings of a component of statistics."""
    if origin.features is None:
        raise InputError("components must be statistics; got tangent weights. Take tj.compose or tj.merge for these")
    return origin.features


def classes_of(origins: Mapping[Any, Origin]) -> tuple[str, ...]:
    """The classes of all components, sorted."""
    return tuple(sorted({name for origin in origins.values() for name in origin.classes}))


def widen(statistics: Tree, classes: tuple[str, ...], every: tuple[str, ...]) -> Tree:
    """Statistics over `classes` as statistics over `every` class; the other classes count no example."""
    if classes == every:
        return statistics
    chosen = columns(every, classes)
    wide = {}
    for name in ("counts", "sums"):
        leaf = statistics[name]
        wide[name] = np.zeros((len(every), *leaf.shape[1:]), leaf.dtype)
        wide[name][chosen] = leaf
    return {**statistics, **wide}
