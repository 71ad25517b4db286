"""A component: what one contributor or shard has learnt, as a value that composes with others of its anchor.

dw          the tangent weights of one training, or the sufficient statistics of one data set
provenance  the anchor, configuration and data that it comes from; None: nothing is known, and nothing is checked
factors     its Kronecker factors (`tj.solver.make_curvature`), which merges by curvature need
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tangent_jax.composition.origin import Origin
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree

if TYPE_CHECKING:
    from tangent_jax.solver.curvature import Curvature


@dataclasses.dataclass(frozen=True, eq=False)
class Component:
    """Tangent weights or statistics, with their provenance and their Kronecker factors.

    `tj.store.pack` gives the arrays and texts for files of another format.

    Attributes:
        provenance: By `tj.store.make_provenance`; statistics (`Component(statistics.tree, provenance)`) must have it,
            as it names their features and classes.

    >>> component = tj.Component(demo.fitted.dw, demo.origin)
    >>> component.provenance.classes, component.factors is None
    (('a', 'b', 'c'), True)
    """

    dw: Tree
    provenance: Origin | None = None
    factors: "Curvature | None" = None


class Components(Mapping[str, Component]):
    """Named components that are read one at a time, such as a store: one part of a component is read alone."""

    @abstractmethod
    def provenance(self, name: str) -> Origin | None:
        """The provenance of a component."""

    @abstractmethod
    def read_tree(self, name: str) -> Tree:
        """The tangent weights or statistics of a component."""


Given = Mapping[str, Component] | Sequence[Component]
"""Components by name, such as a store, or in a list."""


def by_name(components: Given) -> Mapping[Any, Component]:
    """The components by name; those of a list by their place in it. InputError for none."""
    named: Mapping[Any, Component] = components if isinstance(components, Mapping) else dict(enumerate(components))
    if not len(named):
        raise InputError("components must be at least 1; got none")
    return named


def provenance_of(components: Mapping[Any, Component], name: Any) -> Origin | None:
    """The provenance of a named component; InputError for a value that is no component."""
    if isinstance(components, Components):
        return components.provenance(name)
    component = components[name]
    if not isinstance(component, Component):
        raise InputError(f"{name} must be a tj.Component; got {type(component).__name__}. Pass tj.Component(dw)")
    return component.provenance


def tree_of(components: Mapping[Any, Component], name: Any) -> Tree:
    """The tangent weights or statistics of a named component."""
    return components.read_tree(name) if isinstance(components, Components) else components[name].dw
