"""The two kinds of components, and how each composes. Only this file distinguishes them.

    tangent weights   dw = sum_s dw_s / S                  the mean; of the bodies alone where heads differ
    statistics        G, B, n = sum_s (G_s, B_s, n_s)      the sum, over all classes; a class that a component lacks
                                                           counts 0

Both are trees of leaves. A store keeps, adds, removes and exports them in the same way, in the order of their names. A
component is of statistics if its provenance has the settings of features (solver/statistics.py).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, about, expect, instance, of_shape
from tangent_jax.core.names import columns
from tangent_jax.core.notation import Tree
from tangent_jax.models.anchor import check_classes
from tangent_jax.models.heads import body
from tangent_jax.models.ntk import FeatureSettings
from tangent_jax.solver.statistics import (
    Settings,
    Statistics,
    System,
    check_leaves,
    check_lengths,
    check_spread,
    from_tree,
)
from tangent_jax.store.files import read_component
from tangent_jax.store.provenance import Provenance, check_one_body, check_same
from tangent_jax.store.sums import Mapped, compose

Origins = Mapping[str, Provenance]


class TangentWeights:
    """Components of tangent weights: their composition is the mean."""

    def check(self, dw: Tree, origin: Provenance) -> None:
        """Raises InputError for numbers that differ from the provenance, or are not finite."""
        check_component(dw, origin)

    def check_new(self, dw: Tree, origin: Provenance) -> None:
        """`check`, and what takes too long for every read: once, where a component comes in."""
        self.check(dw, origin)

    def check_beside(self, dw: Tree, origin: Provenance, other: Tree, first: Provenance) -> None:
        """Raises InputError for shapes or dtypes that differ from those of another component."""
        check_shapes(dw, origin, other, first)

    def have_own_heads(self, origins: Iterable[Provenance]) -> bool:
        """True if the components have different heads: then only their bodies are summed."""
        origins = [*origins]
        return len({origin.head for origin in origins}) > 1 or len({o.classes for o in origins if o.classes}) > 1

    def summands(self, components: Mapping[str, Tree], origins: Origins) -> Mapping[str, Tree]:
        """The trees that are summed, by name."""
        return Mapped(components, lambda _, dw: body(dw)) if self.have_own_heads(origins.values()) else components

    def sum(self, summands: Mapping[str, Tree]) -> Tree:
        """The composition of the summands."""
        return compose(summands)


class SumsOfFeatures(TangentWeights):
    """Components of statistics: their composition is the sum."""

    def check(self, dw: Tree, origin: Provenance) -> None:
        k = check_leaves(dw, len(check_classes("statistics", origin.classes)))
        check_lengths(dw, settings_of(origin).sizes(k))

    def check_new(self, dw: Tree, origin: Provenance) -> None:
        self.check(dw, origin)
        check_spread(dw, settings_of(origin).sizes(dw["sums"].shape[1]))

    def check_beside(self, dw: Tree, origin: Provenance, other: Tree, first: Provenance) -> None:
        gram, shape = np.shape(other["gram"]), np.shape(dw["gram"])
        expect(gram == shape, f"gram of shape {gram}", shape)

    def have_own_heads(self, origins: Iterable[Provenance]) -> bool:
        return False

    def summands(self, components: Mapping[str, Tree], origins: Origins) -> Mapping[str, Tree]:
        classes = classes_of(origins)

        def wide(name: str, own: Tree) -> Tree:
            origin = origins[name]
            with about(f"component {name}"):  # runs in the thread that reads ahead
                self.check(own, origin)  # another machine may have written the file, past the checks of `add`
            return widen(own, origin.classes, classes)

        return Mapped(components, wide)

    def sum(self, summands: Mapping[str, Tree]) -> Tree:
        return compose(summands, dict.fromkeys(summands, 1.0))


def kind_of(origins: Iterable[Provenance]) -> TangentWeights:
    """The kind of these components: its methods check that they fit, and sum them.

    >>> type(tj.store.kind_of(demo.store().origins.values())).__name__
    'TangentWeights'
    """
    first = next(iter(origins), None)
    first = None if first is None else instance("the provenance of a component", first, Provenance)
    return TangentWeights() if first is None or first.features is None else SumsOfFeatures()


def check_component(dw: Tree, provenance: Provenance) -> None:
    """Raises InputError for a component that is empty, not finite, or with other leaves than its provenance names."""
    leaves = trees.leaves(dw)
    do = "Add what finetune or private wrote"
    expect(leaves, "a component with leaves", "none", do)
    differing = sorted({*leaves} ^ {*provenance.subset})
    expect(not differing, "the leaves that the provenance names", f"a difference in {differing[:1]}", do)
    for path, leaf in leaves.items():
        expect(np.isfinite(np.asarray(leaf, np.float32)).all(), f"{path} finite", "NaN or infinity", do)


def check_shapes(dw: Tree, provenance: Provenance, other: Tree, first: Provenance) -> None:
    """Raises InputError naming a leaf that another component lacks, or has in another shape or dtype.

    If heads differ, the bodies are compared.
    """
    if provenance.head != first.head:
        dw, other = body(dw), body(other)
    shapes = {path: (leaf.shape, leaf.dtype) for path, leaf in trees.leaves(other).items()}
    differing = sorted({*trees.leaves(dw)} ^ {*shapes})
    expect(not differing, "the leaves of the others", f"a difference in {differing[:1]}")
    for path, leaf in trees.leaves(dw).items():
        shape, dtype = shapes[path]
        of_shape(path, leaf, shape)
        expect(leaf.dtype == dtype, f"{path} in {dtype}, as the others", leaf.dtype, "Cast it first")


def check_summable(origins: Origins, new: Provenance) -> None:
    """Raises InputError for a component of another body, or with another head for the same classes."""
    first = next(iter(origins.values()), new)
    check_one_body("Store.add", first, new)
    if new.classes and first.head != new.head:
        for other in origins.values():
            if other.classes == new.classes:
                check_same("Store.add", other, new)


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
            for name, own in self.components.items():
                with about(f"component {name}"):
                    kind_of([self.origins[name]]).check_new(own, self.origins[name])
            raise


def statistics_of(components: Mapping[str, Tree], origins: Origins) -> Statistics:
    """The sum of components of statistics; InputError for tangent weights."""
    do = "Compose them"
    expect(all(origin.features for origin in origins.values()), "statistics", "tangent weights", do)
    total, first = composition(components, origins), next(iter(origins.values()))
    settings = settings_of(first)
    sizes, source = settings.sizes(total["sums"].shape[1]), settings.identity(first.anchor)
    own = from_tree(total, classes_of(origins), sizes, source)
    return SumOfComponents(**vars(own), components=components, origins=origins)


def check_file(path: Path, name: str) -> None:
    """Raises InputError naming a component's file, of another machine, that `Store.add` would not take."""
    dw, metadata = read_component(path, check=False)
    origin = Provenance.from_json(metadata.get("provenance", ""), name)
    with about(f"component {name}"):
        kind_of([origin]).check_new(dw, origin)


def settings_of(origin: Provenance) -> FeatureSettings:
    """The feature settings of a component of statistics."""
    expect(origin.features is not None, "a component of statistics", "tangent weights")
    assert origin.features is not None
    return origin.features


def classes_of(origins: Origins) -> tuple[str, ...]:
    """The classes of all components, sorted."""
    return tuple(sorted({name for origin in origins.values() for name in origin.classes}))


def widen(own: Tree, classes: tuple[str, ...], every: tuple[str, ...]) -> Tree:
    """Statistics over `classes` as statistics over `every` class; the other classes count no example."""
    if classes == every:
        return own
    at = columns(every, classes)
    wide = {name: np.zeros((len(every), *own[name].shape[1:]), own[name].dtype) for name in ("counts", "sums")}
    for name, leaf in wide.items():
        leaf[at] = own[name]
    return {**own, **wide}
