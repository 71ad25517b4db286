"""Components trained apart on shards of one data set, kept in a store; and trained again without what must go."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from tangent_jax.components.provenance import Provenance, check_same, make_provenance
from tangent_jax.components.receipts import Optimum
from tangent_jax.components.recipe import Recipe
from tangent_jax.components.store import Store
from tangent_jax.core import Tree, require, show_progress
from tangent_jax.data.shards import owners_of
from tangent_jax.data.sources import Examples
from tangent_jax.models.features import Cache, Features
from tangent_jax.models.load import load
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.problem import curvature
from tangent_jax.train.fit import Fitted
from tangent_jax.train.fit_many import fit_many
from tangent_jax.train.objective import distance_bound

AT_ONCE = 10  # models trained as one program, and added to the store together


Rows = Mapping[str, np.ndarray]
"""The rows of the features that each named shard holds."""


def fit_apart(predict: Predictor, features: Features, recipe: Recipe, shards: Rows) -> dict[str, Fitted]:
    """One fitted component for each shard, trained as one program, each in its order of examples; optima in turn."""
    if recipe.solver == "optimum":
        return {name: recipe.fit(predict, features, rows) for name, rows in shards.items()}
    runs = [
        features.batches(recipe.named(name).key, rows=rows, batch_size=recipe.batch_size)
        for name, rows in shards.items()
    ]
    settings = {"optimizer": recipe.optimizer(), "epochs": recipe.epochs, "at_once": AT_ONCE}
    return dict(zip(shards, fit_many(predict, runs, recipe.objective(), **settings), strict=True))


def fill(
    store: Store,
    predict: Predictor,
    features: Features,
    recipe: Recipe,
    shards: Rows,
    title: str,
    factors: bool = False,
    owners: Mapping[str, str] | None = None,
) -> None:
    """Makes the store hold one component for each shard, and no other; with its Kronecker factors, if asked for.

    `owners`, image name -> owner as `shards.read_owners` reads it, is kept with each component: so all that is an
    owner's can be removed.

    A component of this function's that came of other settings, data or weights is taken out and trained anew. Examples
    that were removed from the store are left out of their shards, and said.
    Raises: InputError where the store holds a component that this function did not make.
    """
    names = [name for _, name in features.examples]
    said = zip(names, owners_of(names, owners or {}), strict=True)
    anchor = dataclasses.replace(make_provenance(predict), owners={name: owner for name, owner in said if owner})
    foreign = [name for name in store if not is_made_here(store.provenance(name), name)]
    do = "Choose another folder for the stores"
    require(not foreign, "fill", f"a store of shards in {store.root}", f"the component {foreign[:1]} of others", do)
    shards = without_forgotten(store, features, shards)

    def origin(name: str, seconds: float) -> Provenance:
        here = dataclasses.replace(anchor, recipe=recipe.named(name))
        return here.trained(features.take(shards[name]), seconds)

    def stale(name: str) -> bool:
        if name not in shards:
            return True
        if factors and not store.has_factors(name):
            return True
        was, now = store.provenance(name), origin(name, 0.0)
        return any(getattr(was, f) != getattr(now, f) for f in ("recipe", "anchor", "head", "examples"))

    old = [name for name in store if stale(name)]
    if old:
        store.discard(old)
    missing = [name for name in shards if name not in store]
    for start in range(0, len(missing), AT_ONCE):
        names = missing[start : start + AT_ONCE]
        with show_progress(f"{title} shards {start + 1}-{start + len(names)} of {len(missing)}"):
            fits = fit_apart(predict, features, recipe, {name: shards[name] for name in names})
        for name, fitted in fits.items():
            provenance = dataclasses.replace(origin(name, fitted.seconds), certificate=fitted.certificate)
            own = factors_of(predict, features.take(shards[name]), recipe, fitted.dw) if factors else None
            store.add(name, jax.tree.map(np.asarray, fitted.dw), provenance, own)


def factors_of(predict: Predictor, features: Features, recipe: Recipe, dw: Tree) -> Curvature:
    """A component's factors, of the signals of all classes."""
    return curvature(predict, features, recipe.objective(), dw)


def is_made_here(origin: Provenance, name: str) -> bool:
    """True for a component that `fill` trained: its recipe is that of its name."""
    return origin.recipe is not None and origin.recipe == origin.recipe.named(name)


def without_forgotten(store: Store, features: Features, shards: Rows) -> dict[str, np.ndarray]:
    """The shards without the examples that were removed from the store; a shard of nothing is left out."""
    gone = np.array([store.state.has_forgotten(identifier) for identifier, _ in features.examples], bool)
    left = {name: rows[~gone[rows]] for name, rows in shards.items()}
    count = sum(map(len, shards.values())) - sum(map(len, left.values()))
    if count:
        print(f"{count} images were removed from {store.root} and are left out", file=sys.stderr)
    return {name: rows for name, rows in left.items() if len(rows)}


def predictor_of(origin: Provenance, name: str, weights: str | None = None) -> Predictor:
    """The predictor of a component, from its recipe; `weights` says where their file is now.

    Raises: InputError naming the field in which the anchor made now differs from the component's.
    """
    recipe = origin.recipe
    require(recipe is not None, "predictor_of", f"a recipe of {name}", "none", "Make its predictor as it was made")
    assert recipe is not None
    predict = recipe.predictor(origin.config["classes"], load(weights or recipe.weights))
    check_same(f"predictor_of, {name}", origin, make_provenance(predict))
    return predict


class Retrained(NamedTuple):
    """The component that takes a removed one's place.

    `distance_bound`: |grad L_retain| / lambda; `optimum`: where it is one; `factors`: where the removed one had some.
    """

    dw: Tree
    provenance: Provenance
    distance_bound: float
    optimum: Optimum | None = None
    factors: Curvature | None = None


def retrain(
    store: Store, name: str, gone: set[str], images: Callable[[str], Examples], warm: bool, cache: Cache | None,
    weights: str | None,
) -> Retrained:  # fmt: skip
    """A component trained again from its recipe, without its rows of the content identifiers `gone`.

    Args:   images: opens the images of a data set; warm: begins the search for a new optimum at the old one, which
            takes fewer passes than from zero.
    Raises: InputError where the images that are left are no longer in the data set.
    """
    origin = store.provenance(name)
    predict, recipe = predictor_of(origin, name, weights), origin.recipe
    assert recipe is not None
    remaining = [pair for pair in origin.examples if pair[0] not in gone]
    train = images(recipe.dataset)
    row_of = {pair: row for row, pair in enumerate(zip(train.identifiers(), train.names, strict=True))}
    there = sum(pair in row_of for pair in remaining)
    expected = f"the {len(remaining)} examples left of {name} in {recipe.dataset}"
    require(there == len(remaining), "remove", expected, f"{there} of them")
    cache, rows = dataclasses.replace(cache or Cache(), dtype=recipe.cache_dtype), [row_of[pair] for pair in remaining]
    with show_progress(f"{name}: train inputs"):  # of these alone: what is removed is not computed again
        left = predict.features(train.take(np.array(rows)), cache)
    if recipe.solver == "optimum" and origin.total_penalty:
        start = jax.tree.map(np.array, store[name]) if warm else None
        new = solved_again(origin, predict, left, start, name)
    else:
        with show_progress(f"{name}: training again"):
            fitted = recipe.fit(predict, left)
        bound = distance_bound(predict, fitted.dw, left, recipe.objective())
        new = Retrained(fitted.dw, origin.trained(left, fitted.seconds, run=None), bound)
    return new._replace(factors=factors_of(predict, left, recipe, new.dw)) if store.has_factors(name) else new


def solved_again(origin: Provenance, predict: Predictor, left: Features, start: Tree | None, name: str) -> Retrained:
    """The optimum of what is left of a component's examples, Lambda as it was when all of them were there."""
    recipe, total = origin.recipe, origin.total_penalty
    assert recipe is not None
    assert total is not None
    same_total = dataclasses.replace(recipe, penalty=total / len(left))
    with show_progress(f"{name}: to the optimum of what is left"):
        solved = same_total.solve(predict, left, start)
    assert solved.certificate is not None
    provenance = origin.trained(left, solved.seconds, run=None, total_penalty=total, certificate=solved.certificate)
    before = solved.history[0]["certificate"]
    optimum = Optimum(total, before, solved.certificate, solved.passes, solved.converged)
    return Retrained(solved.dw, provenance, solved.certificate, optimum)
