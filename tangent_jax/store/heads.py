"""Components that share a body and differ in their classes: bodies are summed, heads are joined over all classes.

`widen` sets the outputs of a class that a component has not seen to 0: the target of a square loss for images of other
classes. So in  dw = (sum_s H_s)^-1 sum_s H_s dw_s  the images of each component count as negatives for the classes of
all others, through their second moments A_s alone; no image is needed again. This is exact for a head without penalty.
The body's contribution to the outputs of unseen classes is neglected (docs/benchmarks.md measures the gap). Source:
Zhuang et al. 2022 (analytic class-incremental learning): A_s is all that a linear head needs.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from tangent_jax.composition.component import Component, View
from tangent_jax.composition.factors import widen_factors
from tangent_jax.composition.origin import check_equal, check_one_body
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import composed_name
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.heads import head_of, widen
from tangent_jax.models.predict import Predictor
from tangent_jax.store.provenance import Provenance, anchor_of
from tangent_jax.store.store import Store
from tangent_jax.train.losses import LOSSES, SquareLoss


@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """Components of several class sets, as components of one model with the outputs `classes`.

    `predict`: that model at its anchor; `components`: by name, read and widened on access.

    >>> joined = tj.join(demo.bird_store())
    >>> [*joined.components], joined.components["ann"].dw["head"]["kernel"].shape
    (['ann', 'bob'], (96, 3))
    """

    predict: Predictor
    classes: tuple[str, ...]
    components: Mapping[str, Component]


def join(
    store: Store,
    predict: Predictor | None = None,
    classes: Sequence[str] | None = None,
    same_classes: Collection[str] = (),
    weights: str | None = None,
) -> Joined:
    """The components of a store as components of one classifier over the union of their classes.

    Args:       predict, classes: a predictor and the names of its outputs, which include those of the components; None:
                the recipe's predictor over the sorted union. same_classes: names that mean the same class in all data
                sets; any other name that two data sets share is refused. weights: the present path of the weights'
                file.
    Guarantees: the same bits in any order of insertion, and, after a removal, as if the store had never held the
                removed component; a single component gives the outputs of its own classes.
    Raises:     InputError for components without class names, of several bodies or losses, or with heads that were not
                drawn by name; for a loss that is not square, which says nothing of unseen classes.

    >>> joined = tj.join(demo.bird_store())
    >>> joined.classes
    ('gull', 'owl', 'wren')
    >>> tj.compose(joined.components)["head"]["bias"].shape
    (3,)
    """
    origins = {name: store.provenance(name) for name in store}
    if not origins:
        raise InputError(f"expected a store with components; got none in {store.root}.")
    first, *others = origins.values()
    for name, origin in origins.items():
        check_joinable(name, origin, first)
    for origin in others:
        check_one_body(first, origin)
    check_meanings(origins, same_classes)
    same_classes = {composed_name(name) for name in same_classes}
    unknown = sorted({*same_classes} - {*union(origin.classes for origin in origins.values())})
    if unknown:
        raise InputError(f"expected same_classes that are classes of the components; got {unknown[:3]}.")
    if predict is None:
        classes = union(origin.classes for origin in origins.values())
        recipe = first.recipe
        assert recipe is not None
        predict = recipe.predictor(classes, anchor_of(first, weights))
    if classes is None:
        raise InputError("expected classes, the names of the outputs of predict; got none.")
    check_equal("anchor", first.anchor, fingerprints(predict.w)[0])
    assert first.recipe is not None
    check_equal("output", first.recipe.output, predict.output)
    for name, origin in origins.items():
        check_head(predict, classes, name, origin)
    outputs = tuple(classes)

    def wide(name: str) -> Component:
        component = store[name]
        names = origins[name].classes
        factors = None if component.factors is None else widen_factors(component.factors, outputs, names)
        return Component(widen(predict, outputs, component.dw, names), None, factors)

    return Joined(predict, outputs, View([*store], wide))


def check_joinable(name: str, origin: Provenance, first: Provenance) -> None:
    """Raises InputError for a component without class names, or whose loss says nothing of unseen classes."""
    got, do = f"statistics in {name}", "Sum them: store.statistics()"
    if origin.features is not None:
        raise InputError(f"expected components of tangent weights; got {got}. {do}.")
    do = "Train it again with the names of its classes"
    if not origin.classes:
        raise InputError(f"expected the classes of {name}; got none. {do}.")
    loss = None if origin.recipe is None else origin.recipe.objective().loss
    square = " or ".join(kind for kind, own in LOSSES.items() if issubclass(own, SquareLoss))
    got, do = "another" if origin.recipe is None else origin.recipe.loss, f"Train it with the loss {square}"
    if not isinstance(loss, SquareLoss):
        raise InputError(f"expected a square loss of {name}; got {got}. {do}.")
    assert origin.recipe is not None
    assert first.recipe is not None  # it is checked first
    alike = loss == first.recipe.objective().loss
    if not alike:
        raise InputError(
            f"expected the loss {first.recipe.loss} of {name}, as of the first; got {origin.recipe.loss}. Train "
            "all alike."
        )


def union(heads: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The classes of all heads, sorted.

    >>> tj.store.union([["owl", "gull"], ["wren", "owl"]])
    ('gull', 'owl', 'wren')
    """
    heads = [*heads]
    good = all(isinstance(classes, (tuple, list)) for classes in heads)
    if not good:
        raise InputError("expected the classes of each head, as a list; got others.")
    return tuple(sorted({name for classes in heads for name in classes}))


def check_meanings(origins: Mapping[str, Provenance], same_classes: Collection[str]) -> None:
    """Raises InputError if two data sets share a class name that `same_classes` does not list."""
    meaning: dict[str, tuple[str, str]] = {}
    for component, origin in origins.items():
        assert origin.recipe is not None
        for name in origin.classes:
            dataset, before = meaning.setdefault(name, (origin.recipe.dataset, component))
            alike = dataset == origin.recipe.dataset or name in same_classes
            if not alike:
                raise InputError(
                    f"expected a name for each class; got {name} in {before} of {dataset} and in {component} of "
                    f"{origin.recipe.dataset}. Rename one, or say that they mean the same: same_classes."
                )


def check_head(predict: Predictor, classes: Sequence[str], name: str, origin: Provenance) -> None:
    """Raises InputError if a component's head is not the joined head restricted to its classes."""
    same = trees.fingerprint(head_of(predict.w, classes, origin.classes)) == origin.head
    if not same:
        raise InputError(
            f"expected the head of {name} drawn by the names of its classes; got another head. Draw all heads by "
            "name, with one seed."
        )
