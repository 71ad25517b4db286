"""The two kinds of components, and how each composes.

    tangent weights   dw = sum_s dw_s / S                  the mean; of the bodies alone where heads differ
    statistics        G, B, n = sum_s (G_s, B_s, n_s)      the sum, over all classes; a class that a component lacks
                                                           counts 0; G_s = R_s^T R_s where R_s is kept

Both are trees of leaves. A component is of statistics if its provenance has the settings of features.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from tangent_jax.composition.component import View
from tangent_jax.composition.origin import Origin, check_one_body, check_same
from tangent_jax.composition.sums import check_finite, sum_trees
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, about, of_shape
from tangent_jax.core.names import check_classes, columns
from tangent_jax.core.notation import Tree
from tangent_jax.core.trees import body
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.solver.statistics import (
    Settings,
    Statistics,
    System,
    check_leaves,
    check_lengths,
    check_spread,
    from_tree,
    with_gram,
)

Origins = Mapping[str, Origin]


class TangentWeights:
    """Components of tangent weights: their composition is the mean."""

    takes_merges: ClassVar[bool] = True
    """True if other merges than the mean apply."""

    def check(self, dw: Tree, origin: Origin) -> None:
        """Raises InputError for other leaves than the provenance names, none, or numbers that are not finite."""
        leaves = trees.leaves(dw)
        differing = sorted({*leaves} ^ {*origin.subset})
        if not leaves or differing:
            got = f"a difference in {differing[0]}" if leaves else "none"
            raise InputError(f"a component must have the leaves that its provenance names; got {got}")
        check_finite(dw)

    def check_new(self, dw: Tree, origin: Origin) -> None:
        """`check`, and what takes too long for every read: once, where a component comes in."""
        self.check(dw, origin)

    def check_beside(self, dw: Tree, origin: Origin, other: Tree, first: Origin) -> None:
        """Raises InputError for leaves, shapes or dtypes that differ from those of another component.

        If heads differ, the bodies are compared.
        """
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
                raise InputError(
                    f"{path} must be in {others[path].dtype}, as the others; got {leaf.dtype}. Cast it first"
                )

    def have_own_heads(self, origins: Iterable[Origin]) -> bool:
        """True if the components have different heads: then only their bodies are summed."""
        origins = [*origins]
        heads = {origin.head for origin in origins}
        class_sets = {origin.classes for origin in origins if origin.classes}
        return len(heads) > 1 or len(class_sets) > 1

    def summands(self, components: Mapping[str, Tree], origins: Origins) -> Mapping[str, Tree]:
        """The trees that are summed, by name."""
        if not self.have_own_heads(origins.values()):
            return components
        return View(components, lambda name: body(components[name]))

    def sum(self, summands: Mapping[str, Tree]) -> Tree:
        """The composition of the summands."""
        return sum_trees(summands)


class SumsOfFeatures(TangentWeights):
    """Components of statistics: their composition is the sum."""

    takes_merges = False

    def check(self, dw: Tree, origin: Origin) -> None:
        k = check_leaves(dw, len(check_classes(origin.classes)))
        check_lengths(dw, settings_of(origin).sizes(k))

    def check_new(self, dw: Tree, origin: Origin) -> None:
        self.check(dw, origin)
        check_spread(dw, settings_of(origin).sizes(dw["sums"].shape[1]))

    def check_beside(self, dw: Tree, origin: Origin, other: Tree, first: Origin) -> None:
        of_shape("sums", dw["sums"], (len(dw["sums"]), np.shape(other["sums"])[-1]))

    def have_own_heads(self, origins: Iterable[Origin]) -> bool:
        return False

    def summands(self, components: Mapping[str, Tree], origins: Origins) -> Mapping[str, Tree]:
        classes = classes_of(origins)

        def wide(name: str) -> Tree:
            statistics = components[name]
            with about(f"component {name}"):  # runs in the thread that reads ahead
                self.check(statistics, origins[name])  # another machine may have written it
            return widen(with_gram(statistics), origins[name].classes, classes)

        return View(components, wide)

    def sum(self, summands: Mapping[str, Tree]) -> Tree:
        return sum_trees(summands, dict.fromkeys(summands, 1.0))


def kind_of(origins: Iterable[Origin]) -> TangentWeights:
    """The kind of these components: its methods check that they fit, and sum them.

    >>> type(tj.store.kind_of(demo.store().origins.values())).__name__
    'TangentWeights'
    """
    first = next(iter(origins), None)
    return TangentWeights() if first is None or first.features is None else SumsOfFeatures()


def check_summable(origins: Origins, new: Origin) -> None:
    """Raises InputError for a component of another body, or with another head for the same classes."""
    first = next(iter(origins.values()), new)
    check_one_body(first, new)
    if new.classes and first.head != new.head:
        for other in origins.values():
            if other.classes == new.classes:
                check_same(other, new)


def composition(components: Mapping[str, Tree], origins: Origins) -> Tree:
    """The composition of all components in the order of their names: a mean of tangent weights, a sum of statistics."""
    kind = kind_of(origins.values())
    return kind.sum(kind.summands(components, origins))


@dataclasses.dataclass(frozen=True, eq=False)
class SumOfComponents(Statistics):
    """The sum of components; where no head can be solved from it, the error names a component that no images give."""

    components: Mapping[str, Tree]
    origins: Origins

    def system(self, settings: Settings) -> System:
        settings.check()
        try:
            return super().system(settings)
        except InputError:
            for name, statistics in self.components.items():
                with about(f"component {name}"):
                    SumsOfFeatures().check_new(statistics, self.origins[name])
            raise


def statistics_of(components: Mapping[str, Tree], origins: Origins) -> SumOfComponents:
    """The sum of components of statistics; InputError for tangent weights."""
    if not len(components):
        raise InputError("components must be at least 1; got none")
    without = [name for name in components if name not in origins]
    if without:
        raise InputError(
            f"components of statistics must have their provenance, which names features and classes; got {without[0]} "
            "without. Pass tj.Component(statistics.tree, tj.store.make_provenance(map, classes=...))"
        )
    settings = [settings_of(origins[name]) for name in components]
    first = origins[min(components)]
    total = composition(components, origins)
    sizes = settings[0].sizes(total["sums"].shape[1])
    source = settings[0].identity(first.anchor)
    summed = from_tree(total, classes_of(origins), sizes, source)
    return SumOfComponents(**vars(summed), components=components, origins=origins)


def settings_of(origin: Origin) -> FeatureSettings:
    """The feature settings of a component of statistics."""
    if origin.features is None:
        raise InputError("components must be statistics; got tangent weights. Take tj.compose or tj.merge for these")
    return origin.features


def classes_of(origins: Origins) -> tuple[str, ...]:
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
