"""A component: what one contributor or shard has learnt, as a value that composes with others of its anchor.

dw          the tangent weights of one training, or the sufficient statistics of one data set
provenance  the anchor, configuration and data that it comes from; None: nothing is known, and nothing is checked
factors     its Kronecker factors (`tj.solver.make_curvature`), which merges by curvature need
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tangent_jax.composition.origin import Origin
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.solver.curvature import Curvature


@dataclasses.dataclass(frozen=True, eq=False)
class Component:
    """Tangent weights or statistics, with their provenance and their Kronecker factors.

    `provenance`: by `tj.store.make_provenance`; statistics (`Component(statistics.tree, provenance)`) must have it, as
    it names their features and classes. `tj.store.pack` gives the arrays and texts for files of another format.

    >>> component = tj.Component(demo.fitted.dw, demo.origin)
    >>> component.provenance.classes, component.factors is None
    (('a', 'b', 'c'), True)
    """

    dw: Tree
    provenance: Origin | None = None
    factors: Curvature | None = None


class Components(Mapping[str, Component]):
    """Named components. A store is one that reads them from disk."""

    @property
    def origins(self) -> Mapping[str, Origin]:
        """The provenance of each component that has one, by name."""
        origins = {name: component.provenance for name, component in self.items()}
        return {name: origin for name, origin in origins.items() if origin is not None}

    @property
    def trees(self) -> Mapping[str, Tree]:
        """The tangent weights or statistics of each component, by name, read on access."""
        return View(self, lambda name: self[name].dw)


class InMemory(Components):
    """Components of a mapping."""

    def __init__(self, components: Mapping[str, Component]) -> None:
        self.components = components

    def __getitem__(self, name: str) -> Component:
        component = self.components[name]
        if not isinstance(component, Component):
            raise InputError(f"{name} must be a tj.Component; got {type(component).__name__}. Pass tj.Component(dw)")
        return component

    def __iter__(self) -> Iterator[str]:
        return iter(self.components)

    def __len__(self) -> int:
        return len(self.components)


def as_components(components: Mapping[str, Component] | Sequence[Component]) -> Components:
    """The components by name; those of a list are named by their place, so that names keep its order."""
    if isinstance(components, Components):
        return components
    if isinstance(components, Mapping):
        return InMemory(components)
    listed = [*components]
    digits = len(str(len(listed)))
    return InMemory({f"{place:0{digits}}": component for place, component in enumerate(listed)})


class View(Mapping[str, Any]):
    """A mapping of these names to the values function(name), computed on access."""

    def __init__(self, names: Collection[str], function: Callable[[str], Any]) -> None:
        self.names = names
        self.function = function

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.function(name)

    def __contains__(self, name: object) -> bool:  # without a call of the function
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
