"""Components that share a body and differ in their classes: bodies are summed, heads are joined over all classes.

`widen` sets the outputs of a class that a component has not seen to 0: the target of a square loss for images of other
classes. So in  dw = (sum_s H_s)^-1 sum_s H_s dw_s  the images of each component count as negatives for the classes of
all others, through their second moments A_s alone; no image is needed again. This is exact for a head without penalty.
The body's contribution to the outputs of unseen classes is neglected (docs/benchmarks.md measures the gap). Source:
Zhuang et al. 2022 (analytic class-incremental learning): A_s is all that a linear head needs.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tangent_jax.composition.component import Component, Components
from tangent_jax.composition.factors import widen_factors
from tangent_jax.composition.origin import check_equal, check_one_body
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.names import composed_name
from tangent_jax.core.notation import Tree
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.heads import head_of, widen
from tangent_jax.models.predict import Predictor
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.store import Store
from tangent_jax.train.losses import LOSSES, SquareLoss, spell_loss


@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """Components of several class sets, as components of one model with the outputs `classes`.

    Attributes:
        predict: That model at its anchor.
        components: By name, read and widened on access.

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

    Args:
        predict, classes: A predictor and the names of its outputs, which include those of the components; None: the
            recipe's predictor over the sorted union.
        same_classes: Names that mean the same class in all data sets; any other name that two data sets share is
            refused.
        weights: The present path of the weights' file.

    Guarantees:
        The same bits in any order of insertion, and, after a removal, as if the store had never held the removed
        component; a single component gives the outputs of its own classes.

    Raises:
        InputError: Components without class names, of several bodies or losses, or with heads that were not drawn by
            name; a loss that is not square, which says nothing of unseen classes.

    >>> joined = tj.join(demo.bird_store())
    >>> joined.classes
    ('gull', 'owl', 'wren')
    >>> tj.compose(joined.components)["head"]["bias"].shape
    (3,)
    """
    origins = {name: store.provenance(name) for name in store}
    if not origins:
        raise InputError(f"{store.root} must hold at least one component; got none")
    first_name, first = next(iter(origins.items()))
    recipe = joinable_recipe(first_name, first)
    first_loss = recipe.objective.loss
    for name, origin in origins.items():
        loss = joinable_recipe(name, origin).objective.loss
        if loss != first_loss:
            raise InputError(
                f"the loss of {name} must be {spell_loss(first_loss)}, as of the first; got {spell_loss(loss)}. Train "
                "all alike"
            )
        check_one_body(first, origin)
    check_meanings(origins, same_classes)
    same_classes = {composed_name(name) for name in same_classes}
    unknown = sorted({*same_classes} - {*union(origin.classes for origin in origins.values())})
    if unknown:
        raise InputError(f"same_classes must be classes of the components; got {', '.join(unknown[:3])}")
    if predict is None:
        classes = union(origin.classes for origin in origins.values())
        predict = recipe.with_weights(weights).predictor(classes)
    if classes is None:
        raise InputError("classes must be the names of the outputs of predict; got none")
    check_equal("anchor", first.anchor, fingerprints(predict.w)[0])
    check_equal("output", recipe.output, predict.output)
    for name, origin in origins.items():
        check_head(predict, classes, name, origin)
    return Joined(predict, tuple(classes), Widened(store, predict, tuple(classes), tuple(store)))


@dataclasses.dataclass(frozen=True, eq=False)
class Widened(Components):
    """The components of a store, each with the outputs `classes`."""

    store: Store
    predict: Predictor
    classes: tuple[str, ...]
    names: tuple[str, ...]

    def provenance(self, name: str) -> None:
        return None

    def read_tree(self, name: str) -> Tree:
        return widen(self.predict, self.classes, self.store.read_tree(name), self.store.provenance(name).classes)

    def __getitem__(self, name: str) -> Component:
        own = self.store.provenance(name).classes
        factors = widen_factors(self.store.factors(name), self.classes, own) if self.store.has_factors(name) else None
        return Component(self.read_tree(name), None, factors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def joinable_recipe(name: str, origin: Provenance) -> Recipe:
    """The recipe of a component that can be joined.

    Raises:
        InputError: A component without class names, or whose loss says nothing of unseen classes.
    """
    if origin.features is not None:
        raise InputError(f"components must be tangent weights; got statistics in {name}. Sum them: store.statistics()")
    if not origin.classes:
        raise InputError(f"{name} must have the names of its classes; it has none. Train it again with them")
    recipe = origin.recipe
    loss = recipe.objective.loss if isinstance(recipe, Recipe) else None
    if not (isinstance(recipe, Recipe) and isinstance(loss, SquareLoss)):
        square = " or ".join(name for name, kind in LOSSES.items() if issubclass(kind, SquareLoss))
        got = "no recipe" if loss is None else spell_loss(loss)
        remedy = "Widen its head (tj.models.widen)" if loss is None else f"Train it with the loss {square}"
        raise InputError(f"the loss of {name} must be a square loss; got {got}. {remedy}")
    return recipe


def union(heads: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The classes of all heads, sorted.

    >>> tj.store.union([["owl", "gull"], ["wren", "owl"]])
    ('gull', 'owl', 'wren')
    """
    return tuple(sorted({name for classes in heads for name in classes}))


def check_meanings(origins: Mapping[str, Provenance], same_classes: Collection[str]) -> None:
    """Raises InputError if two data sets share a class name that `same_classes` does not list."""
    meaning: dict[str, tuple[str, str]] = {}
    for component, origin in origins.items():
        assert origin.recipe is not None
        for name in origin.classes:
            dataset, before = meaning.setdefault(name, (origin.recipe.dataset, component))
            if dataset != origin.recipe.dataset and name not in same_classes:
                raise InputError(
                    f"each class must have a name of its own; got {name} in {before} of {dataset} and in {component} "
                    f"of {origin.recipe.dataset}. Rename one, or say that they mean the same: same_classes"
                )


def check_head(predict: Predictor, classes: Sequence[str], name: str, origin: Provenance) -> None:
    """Raises InputError if a component's head is not the joined head restricted to its classes."""
    if trees.fingerprint(head_of(predict.w, classes, origin.classes)) != origin.head:
        raise InputError(
            f"the head of {name} must be drawn by the names of its classes; got another head. "
            "Draw all heads by name, with one seed"
        )
