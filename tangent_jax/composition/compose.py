"""Composes components without a disk: their mean, another merge, or the sum of their statistics."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tangent_jax.composition.component import Component, Components, as_components
from tangent_jax.composition.kinds import check_summable, composition, kind_of, statistics_of
from tangent_jax.composition.origin import Origin
from tangent_jax.composition.sums import sum_trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.solver.statistics import Statistics

Given = Mapping[str, Component] | Sequence[Component]
"""Components by name, such as a store, or in a list."""


@promotes
def compose(components: Given, coefficients: Mapping[str, float] | Sequence[float] | None = None) -> Tree:
    """The weighted sum of components; by default their mean, as in the paper, or the sum of statistics.

    If heads differ, the bodies are composed, without heads (`join` composes those).
    Args:       components: in the order of their names, or of the list; a mapping is read a few at a time.
                coefficients: by name, or one for each of a list; a name left out has coefficient 0, and is not read.
    Guarantees: bitwise the same in any order of insertion. So removing a component and composing the others is bitwise
                the composition without that component.
    Raises:     InputError naming the first field in which two components differ, so that they cannot be summed.

    >>> together = tj.compose([tj.Component({"w": jnp.array([1.0, 2.0])}), tj.Component({"w": jnp.array([3.0, 6.0])})])
    >>> together["w"].tolist()
    [2.0, 4.0]
    """
    named = as_components(components)
    if not len(named):
        raise InputError("components must be at least 1; got none")
    origins = checked_origins(named)
    if coefficients is None:
        return composition(named.trees, origins)
    if not isinstance(coefficients, Mapping):
        if isinstance(coefficients, str) or not isinstance(coefficients, Iterable):
            raise InputError(f"coefficients must be numbers in a list, or by name; got {coefficients!r}")
        coefficients = [*coefficients]
        if len(coefficients) != len(named):
            raise InputError(f"coefficients must be as many as components ({len(named)}); got {len(coefficients)}")
        coefficients = dict(zip(named, coefficients, strict=True))
    return sum_trees(kind_of(origins.values()).summands(named.trees, origins), coefficients)


def statistics(components: Given) -> Statistics:
    """The sum of components of statistics over all their classes, from which heads are solved.

    Raises: InputError for tangent weights, no component, and a component that no images give, by name.

    >>> recipe = tj.store.StatisticsRecipe(features=tj.models.FeatureSettings(("h",)))
    >>> origin = tj.store.make_provenance(demo.map, recipe, ["a", "b", "c"])
    >>> total = tj.statistics([tj.Component(demo.statistics.tree, origin)] * 2)
    >>> int(total.counts.sum()) == 2 * len(demo.train)
    True
    """
    named = as_components(components)
    return statistics_of(named.trees, checked_origins(named))


def checked_origins(components: Components) -> Mapping[str, Origin]:
    """The provenance of each component, if all have one, else none; InputError if two cannot be summed."""
    origins = dict(components.origins)
    if len(origins) not in (0, len(components)):
        without = sorted({*components} - {*origins})
        raise InputError(f"components must have their provenance, or none of them; got {without[0]} without")
    checked: dict[str, Origin] = {}
    for name, origin in origins.items():
        check_summable(checked, origin)
        checked[name] = origin
    return checked


def greedy_soup(components: Mapping[str, Component], score: Callable[[Tree], float]) -> list[str]:
    """The names of the greedy soup: best component first, each next one kept if the mean's score does not fall.

    Source: Wortsman et al. 2022, recipe 1. `score` is of held-out data, higher is better; ties go by name.

    >>> parts = {"ann": tj.Component({"w": np.ones(2)}), "bob": tj.Component({"w": np.zeros(2)})}
    >>> tj.store.greedy_soup(parts, score=lambda dw: dw["w"].sum())
    ['ann']
    """
    if not components:
        raise InputError("components must be at least 1; got none")
    trees = as_components(components).trees
    alone = {name: score(tree) for name, tree in trees.items()}
    ranked = sorted(components, key=lambda name: (-alone[name], name))
    chosen = [ranked[0]]
    best = alone[ranked[0]]
    for name in ranked[1:]:
        together = score(sum_trees(trees, dict.fromkeys([*chosen, name], 1 / (len(chosen) + 1))))
        if together >= best:
            chosen.append(name)
            best = together
    return chosen
