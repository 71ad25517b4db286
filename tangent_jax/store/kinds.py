"""The two kinds of components, and how each composes: the one place that tells them apart.

    tangent weights   dw = sum_s dw_s / S           where their heads are their own: the bodies alone
    statistics        G, B, n = sum_s G_s, B_s, n_s over all classes: a class that a component has not counts 0

Both are trees of leaves that a store keeps, adds in the order of their names, removes and exports in the same way. A
component is of statistics where its provenance says the settings of its features (solver/statistics.py).
"""

from collections.abc import Iterable, Mapping

import numpy as np

from tangent_jax.core import Tree, expect, instance
from tangent_jax.core.boundary import public
from tangent_jax.models.anchor import check_classes
from tangent_jax.models.heads import body, columns
from tangent_jax.models.ntk import FeatureSettings
from tangent_jax.solver.statistics import Statistics, check_leaves, from_tree
from tangent_jax.store.provenance import Provenance, check_component, check_one_body, check_same, check_shapes
from tangent_jax.store.sums import Mapped, compose

Origins = Mapping[str, Provenance]


class TangentWeights:
    """Components of which the mean composes."""

    def check(self, dw: Tree, origin: Provenance) -> None:
        """Raises InputError for numbers that are not what the provenance says, or not finite."""
        check_component(dw, origin)

    def check_beside(self, dw: Tree, origin: Provenance, other: Tree, first: Provenance) -> None:
        """Raises InputError for shapes or dtypes with which a component cannot be added to another."""
        check_shapes(dw, origin, other, first)

    def have_own_heads(self, origins: Iterable[Provenance]) -> bool:
        """True where not all of the components have one head: then their bodies alone are summed."""
        origins = [*origins]
        return len({origin.head for origin in origins}) > 1 or len({o.classes for o in origins if o.classes}) > 1

    def summands(self, components: Mapping[str, Tree], origins: Origins) -> Mapping[str, Tree]:
        """The components as they are added."""
        return Mapped(components, lambda _, dw: body(dw)) if self.have_own_heads(origins.values()) else components

    def sum(self, summands: Mapping[str, Tree]) -> Tree:
        """Their composition."""
        return compose(summands)


class SumsOfFeatures(TangentWeights):
    """Statistics, of which the sum composes."""

    def check(self, dw: Tree, origin: Provenance) -> None:
        k = check_leaves(dw, len(check_classes("statistics", origin.classes)))
        settings_of(origin).sizes(k)

    def check_beside(self, dw: Tree, origin: Provenance, other: Tree, first: Provenance) -> None:
        gram, shape = np.shape(other["gram"]), np.shape(dw["gram"])
        expect(gram == shape, f"gram of shape {gram}", shape)

    def have_own_heads(self, origins: Iterable[Provenance]) -> bool:
        return False

    def summands(self, components: Mapping[str, Tree], origins: Origins) -> Mapping[str, Tree]:
        classes = classes_of(origins)

        def wide(name: str, own: Tree) -> Tree:
            origin = origins[name]
            self.check(own, origin)  # a file that another machine wrote need not be one that `add` takes
            return widen(own, origin.classes, classes)

        return Mapped(components, wide)

    def sum(self, summands: Mapping[str, Tree]) -> Tree:
        return compose(summands, dict.fromkeys(summands, 1.0))


@public
def kind_of(origins: Iterable[Provenance]) -> TangentWeights:
    """The kind of components of these provenances, all alike: what makes them fit, and how they are added."""
    first = next(iter(origins), None)
    first = None if first is None else instance("the Provenance of each component", first, Provenance)
    return TangentWeights() if first is None or first.features is None else SumsOfFeatures()


def check_summable(origins: Origins, new: Provenance) -> None:
    """Raises InputError for a component of another body, or of another head for classes that are here already."""
    first = next(iter(origins.values()), new)
    check_one_body("Store.add", first, new)
    if new.classes and first.head != new.head:
        for other in origins.values():
            if other.classes == new.classes:
                check_same("Store.add", other, new)


def composition(components: Mapping[str, Tree], origins: Origins) -> Tree:
    """What all components together are: the mean of tangent weights, the sum of statistics, in the order of names."""
    kind = kind_of(origins.values())
    return kind.sum(kind.summands(components, origins))


def statistics_of(total: Tree, origins: Origins) -> Statistics:
    """The sum of components that are statistics; InputError for tangent weights."""
    do = "Compose them"
    expect(all(origin.features for origin in origins.values()), "statistics", "tangent weights", do)
    first = next(iter(origins.values()))
    settings = settings_of(first)
    sizes, source = settings.sizes(total["sums"].shape[1]), settings.identity(first.anchor)
    return from_tree(total, classes_of(origins), sizes, source)


def settings_of(origin: Provenance) -> FeatureSettings:
    """The settings of the features of a component of statistics."""
    expect(origin.features is not None, "a component of statistics", "tangent weights")
    assert origin.features is not None
    return origin.features


def classes_of(origins: Origins) -> tuple[str, ...]:
    """The classes of all components, sorted."""
    return tuple(sorted({name for origin in origins.values() for name in origin.classes}))


def widen(own: Tree, classes: tuple[str, ...], every: tuple[str, ...]) -> Tree:
    """The leaves of statistics of these classes as of `every`: others count no example."""
    if classes == every:
        return own
    at = columns(every, classes)
    wide = {name: np.zeros((len(every), *own[name].shape[1:]), own[name].dtype) for name in ("counts", "sums")}
    for name, leaf in wide.items():
        leaf[at] = own[name]
    return {**own, **wide}
