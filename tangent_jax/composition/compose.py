"""Composes components without a disk: their mean or weighted sum, or the sum of their statistics.

One component is in memory at a time, besides the sum.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tangent_jax.composition.component import Component, Given, by_name, provenance_of, tree_of
from tangent_jax.composition.kinds import are_statistics, check_component, classes_of, settings_of, summands
from tangent_jax.composition.origin import Origin, check_summable
from tangent_jax.composition.sums import check_finite, is_finite, weighted_sum
from tangent_jax.core.checks import InputError, about
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.solver.statistics import Settings, Statistics, System, from_tree

Read = Callable[[Any], Tree]
"""Reads the tangent weights or statistics of a component by its name."""


@promotes
def compose(components: Given, coefficients: Mapping[str, float] | Sequence[float] | None = None) -> Tree:
    """The weighted sum of components; by default their mean, as in the paper, or the sum of statistics.

    If heads differ, the bodies are composed, without heads (`join` composes those).

    Args:
        components: In the order of their names, or of the list; a mapping is read one at a time.
        coefficients: By name, or one for each of a list; a name left out has coefficient 0, and is not read.

    Guarantees:
        Bitwise the same in any order of insertion. So removing a component and composing the others is bitwise the
        composition without that component.

    Raises:
        InputError: It names the first field in which two components differ, so that they cannot be summed, or a
            component that is not finite; and for a sum that overflows. Traced numbers pass.

    >>> together = tj.compose([tj.Component({"w": jnp.array([1.0, 2.0])}), tj.Component({"w": jnp.array([3.0, 6.0])})])
    >>> together["w"].tolist()
    [2.0, 4.0]
    """
    named = by_name(components)
    origins = checked_origins(named)
    if coefficients is not None and not isinstance(coefficients, Mapping):
        if isinstance(coefficients, str) or not isinstance(coefficients, Iterable):
            raise InputError(f"coefficients must be numbers in a list, or by name; got {coefficients!r}")
        coefficients = [*coefficients]
        if len(coefficients) != len(named):
            raise InputError(f"coefficients must be as many as components ({len(named)}); got {len(coefficients)}")
        coefficients = dict(zip(named, coefficients, strict=True))
    unknown = [name for name in coefficients or () if name not in named]
    if unknown:
        raise InputError(f"coefficients must name some of the {len(named)} components; got {unknown[0]}")
    return sum_components(named, partial(tree_of, named), origins, coefficients)


def sum_components(
    names: Iterable[Any], read: Read, origins: Mapping[Any, Origin], coefficients: Mapping[Any, float] | None = None
) -> Tree:
    """The weighted sum of named components in the order of their names: `compose`.

    Args:
        origins: The provenance of each, checked, or none.
        coefficients: None for the mean, or the sum of statistics.
    """
    names = sorted(names if coefficients is None else coefficients)
    if coefficients is None:
        coefficients = dict.fromkeys(names, 1.0 if are_statistics(origins.values()) else 1 / max(1, len(names)))
    read = summands(read, origins)
    with np.errstate(over="ignore", invalid="ignore"):
        total = weighted_sum((coefficients[name], read(name)) for name in names)
    if not is_finite(total):
        for name in names:
            with about(f"component {name}"):
                check_finite(read(name))
        raise InputError(
            "the sum of components must be finite in their dtype; got infinity. Take smaller coefficients, or cast "
            "components to a wider dtype"
        )
    return total


def checked_origins(named: Mapping[Any, Component]) -> dict[Any, Origin]:
    """The provenance of each component, if all have one, else none; InputError if two cannot be summed."""
    found = {name: provenance_of(named, name) for name in named}
    origins = {name: origin for name, origin in found.items() if origin is not None}
    if len(origins) not in (0, len(found)):
        without = sorted({*found} - {*origins})
        raise InputError(f"components must have their provenance, or none of them; got {without[0]} without")
    checked = []
    for origin in origins.values():
        check_summable(checked, origin)
        checked.append(origin)
    return origins


@dataclasses.dataclass(frozen=True, eq=False)
class SumOfComponents(Statistics):
    """The sum of components; where no head can be solved from it, the error names a component that no images give."""

    read: Read
    origins: Mapping[Any, Origin]

    def system(self, settings: Settings) -> System:
        settings.check()
        try:
            return super().system(settings)
        except InputError:
            for name, origin in self.origins.items():
                with about(f"component {name}"):
                    check_component(self.read(name), origin)
            raise


def statistics(components: Given, progress: Progress = silent) -> SumOfComponents:
    """The sum of components of statistics over all their classes, from which heads are solved.

    Raises:
        InputError: Tangent weights, no component, and a component that no images give, by name.

    >>> recipe = tj.store.StatisticsRecipe(features=tj.models.FeatureSettings(("h",)))
    >>> origin = tj.store.make_provenance(demo.map, recipe, ["a", "b", "c"])
    >>> total = tj.statistics([tj.Component(demo.statistics.tree, origin)] * 2)
    >>> int(total.counts.sum()) == 2 * len(demo.train)
    True
    """
    named = by_name(components)
    origins = checked_origins(named)
    first = min(named)
    if first not in origins:
        raise InputError(
            f"components of statistics must have their provenance, which names features and classes; got {first} "
            "without. Pass tj.Component(statistics.tree, tj.store.make_provenance(map, classes=...))"
        )
    settings = settings_of(origins[first])
    read = partial(tree_of, named)
    with progress(total=len(named), unit="component") as bar:

        def counted(name: Any) -> Tree:
            tree = read(name)
            bar.update()
            return tree

        total = sum_components(named, counted, origins)
    sizes = settings.sizes(total["sums"].shape[1])
    summed = from_tree(total, classes_of(origins), sizes, settings.identity(origins[first].anchor))
    return SumOfComponents(**vars(summed), read=read, origins=origins)


def greedy_soup(components: Mapping[str, Component], score: Callable[[Tree], float]) -> list[str]:
    """The names of the greedy soup: best component first, each next one kept if the mean's score does not fall.

    Source: Wortsman et al. 2022, recipe 1. `score` is of held-out data, higher is better; ties go by name.

    >>> parts = {"ann": tj.Component({"w": np.ones(2)}), "bob": tj.Component({"w": np.zeros(2)})}
    >>> tj.store.greedy_soup(parts, score=lambda dw: dw["w"].sum())
    ['ann']
    """
    named = by_name(components)
    alone = {name: score(tree_of(named, name)) for name in named}
    ranked = sorted(named, key=lambda name: (-alone[name], name))
    chosen = ranked[:1]
    best = alone[ranked[0]]
    for name in ranked[1:]:
        together = score(compose(named, dict.fromkeys([*chosen, name], 1 / (len(chosen) + 1))))
        if together >= best:
            chosen.append(name)
            best = together
    return chosen
