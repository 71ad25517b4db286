"""Components trained again by their recipes, without the removed examples."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple

import jax
import numpy as np

from tangent_jax.composition.origin import check_same
from tangent_jax.core.checks import InputError, about
from tangent_jax.core.names import normal_name
from tangent_jax.core.notation import Tree
from tangent_jax.data.sources import Dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.io.progress import show_progress
from tangent_jax.models.heads import head_of
from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.curvature import Curvature
from tangent_jax.store import receipts
from tangent_jax.store.apart import of_own_classes, own_head
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.store import Store
from tangent_jax.train.bound import distance_bound
from tangent_jax.train.features import Features


def predictor_of(origin: Provenance, name: str, weights: str | None = None) -> Any:
    """The predictor of a component, made by its recipe; `weights`: the present path of the weights' file.

    Raises:
        InputError: It names a field in which the anchor differs from the component's.

    >>> origin = demo.bird_store().provenance("ann")
    >>> tj.store.predictor_of(origin, "ann").subset.paths
    ('head/bias', 'head/kernel')
    """
    recipe = origin.recipe
    if recipe is None:
        raise InputError(f"{name} must have a recipe; it has none. Make its predictor as it was made")
    predict = recipe.with_weights(weights).predictor(origin.classes or origin.config["classes"])
    with about(f"the anchor of {name}"):
        check_same(origin, make_provenance(predict))
    return predict


class Retrained(NamedTuple):
    """The component that replaces a removed one.

    Attributes:
        distance_bound: |grad L_retain| / lambda, None without a convex objective and a penalty.
        optimum: If it is one.
        factors: If the removed component had some.
    """

    dw: Tree
    provenance: Provenance
    distance_bound: float | None
    optimum: receipts.Optimum | None = None
    factors: Curvature | None = None


def retrain(
    store: Store, name: str, gone: set[str], data: Callable[[str], Dataset], warm: bool, cache: Cache | None,
    weights: str | None,
) -> Retrained:  # fmt: skip
    """Trains a component again by its recipe, without its rows of the content identifiers `gone`.

    A named head also loses the classes that have no image any more. The provenance still names the folders of the
    removed component, so that a later removal searches them, too.

    Args:
        data: Opens a data set.
        warm: Starts from the old optimum, which takes fewer passes than starting from zero.

    Raises:
        InputError: If a remaining image is no longer in the data set.
    """
    origin = store.provenance(name)
    predict, recipe = predictor_of(origin, name, weights), origin.recipe
    assert recipe is not None
    remaining = [pair for pair in origin.data.examples if pair[0] not in gone]
    dataset = data(recipe.dataset)
    removed = {*filter(store.has_forgotten, dataset.train.identifiers())}
    left = read_remaining(origin, predict, remaining, name, dataset, cache, removed)
    start = jax.tree.map(np.array, store.read_tree(name)) if warm else None
    if recipe.is_by_class:
        classes = left.classes_in(origin.classes)
        if start is not None and "head" in start:
            start = {**start, "head": head_of(start, origin.classes, classes)}
        predict, left = own_head(predict, left, recipe, origin.classes)
        origin = of_own_classes(origin, predict, classes)
    match recipe:
        case Recipe(is_optimum=True) if origin.training.total_penalty:
            new = solve_again(origin, recipe, predict, left, start, name)
        case _:
            with show_progress(f"{name}: training again"):
                fitted = recipe.fit(predict, left)
            bound = recipe.distance_bound(predict, fitted.dw, left)
            provenance = origin.trained_on(left, fitted.seconds, origin.training.folders, run=None)
            new = Retrained(fitted.dw, provenance, bound)
    return new._replace(factors=recipe.factors(predict, left, new.dw)) if store.has_factors(name) else new


def read_remaining(
    origin: Provenance, predict: ComponentPredictor, remaining: Sequence[tuple[str, str]], name: str, dataset: Dataset,
    cache: Cache | None, removed: Set[str],
) -> Features:  # fmt: skip
    """The features of the remaining examples, by (identifier, name), with the classes of their provenance.

    Args:
        removed: The identifiers of images that were removed before.

    Raises:
        InputError: If one of them, or a class of `name`, is no longer in the data set.
    """
    recipe, train = origin.recipe, dataset.train.without(removed)
    assert recipe is not None
    remaining = [(identifier, normal_name(name)) for identifier, name in remaining]
    pairs = zip(train.identifiers(), map(normal_name, train.names), strict=True)
    row_of = {pair: row for row, pair in enumerate(pairs)}
    present = sum(pair in row_of for pair in remaining)
    if present != len(remaining):
        raise InputError(
            f"{recipe.dataset} must hold the {len(remaining)} remaining examples of {name}; it holds {present} of them"
        )
    cache = dataclasses.replace(cache or Cache(), dtype=recipe.cache_dtype)
    rows = [row_of[pair] for pair in remaining]
    with show_progress(f"{name}: train inputs"):  # only these: features of removed images are not computed
        left = extract(predict, train.take(np.array(rows)), cache)
    if origin.classes:
        return left.relabel(dataset.classes, origin.classes)
    classes = origin.config.get("classes")
    if len(dataset.classes) != classes:
        raise InputError(f"{recipe.dataset} must have the {classes} classes of {name}; it has {len(dataset.classes)}")
    return left


def solve_again(
    origin: Provenance, recipe: Recipe, predict: Predictor, left: Features, start: Tree | None, name: str
) -> Retrained:
    """The optimum on a component's remaining examples, with the Lambda of all its examples.

    The certificate is at most a tenth of the bound at the start: so a start near the optimum moves too.
    """
    total = origin.training.total_penalty
    assert total is not None
    recipe = dataclasses.replace(recipe, penalty=total / len(left))
    if start is not None:
        near = distance_bound(predict, start, left, recipe.objective) / 10
        recipe = dataclasses.replace(recipe, certificate=min(recipe.certificate, near))
    with show_progress(f"{name}: solving on the remaining data"):
        solved = recipe.fit(predict, left, start=start)
    provenance = origin.trained_on(
        left,
        solved.seconds,
        origin.training.folders,
        run=None,
        total_penalty=total,
        certificate=solved.info.certificate,
    )
    before, after = solved.history[0]["certificate"], solved.history[-1]["certificate"]
    check_finite(name, before, after)
    moved = receipts.Optimum(total, before, after, solved.steps, solved.info.converged)
    return Retrained(solved.dw, provenance, solved.info.certificate, moved)


def check_finite(name: str, *certificates: float) -> None:
    """Raises InputError unless all certificates of a solve can be stated in a receipt, which is JSON."""
    stated = [*map(rounded_up, certificates)]
    if not all(map(math.isfinite, stated)):
        raise InputError(
            f"the certificates of {name} must be finite; got {stated[-1]}, {stated[0]} at the start. Remove the images "
            "without training it again"
        )


def receipt_fields(how: str, retrained: Mapping[str, Retrained]) -> dict[str, Any]:
    """The fields of a Receipt about the components that a removal puts back; a bound that is not finite bounds nothing.

    >>> receipt_fields("retrain", {"ann": Retrained(demo.fitted.dw, demo.origin, float("inf"))})["distance_bounds"]
    {}
    """
    bounds = {name: rounded_up(new.distance_bound) for name, new in retrained.items() if new.distance_bound is not None}
    bounds = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
    optima = {name: released(new.optimum) for name, new in retrained.items() if new.optimum is not None}
    guarantee = receipts.statement(how if retrained else "drop", bool(optima))
    return {"how": how, "distance_bounds": bounds, "optima": optima, "statement": guarantee}


def released(optimum: receipts.Optimum) -> receipts.Optimum:
    """A solve as a receipt states it: its bounds are rounded up, as the removed images decide their digits."""
    before, after = map(rounded_up, (optimum.certificate_before, optimum.certificate))
    return dataclasses.replace(optimum, certificate_before=before, certificate=after)


def rounded_up(bound: float) -> float:
    """The smallest number of one significant digit that is at least the bound; infinite beyond the largest float.

    >>> rounded_up(0.0231), rounded_up(0.5)
    (0.03, 0.5)
    """
    if not math.isfinite(bound):
        return bound
    nearest = Decimal(f"{bound:.0e}")
    return float(nearest if float(nearest) >= bound else nearest + Decimal(1).scaleb(nearest.adjusted()))
