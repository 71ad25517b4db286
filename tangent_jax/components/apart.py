"""Components trained apart on shards of one data set, kept in a store; and trained again without what must go."""

import dataclasses
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from tangent_jax.components.claims import Claims
from tangent_jax.components.provenance import Provenance, anchor_of, check_same, make_provenance, same_training
from tangent_jax.components.receipts import Optimum
from tangent_jax.components.recipe import Recipe
from tangent_jax.components.store import Store
from tangent_jax.core import Tree, placement, require, show_progress, trees
from tangent_jax.core.boundary import public
from tangent_jax.core.checks import visible
from tangent_jax.data.shards import owners_of
from tangent_jax.data.sources import Dataset
from tangent_jax.models.features import Cache, Features
from tangent_jax.models.heads import classes_in, head_of, relabelled, restricted
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.problem import curvature
from tangent_jax.train.batches import Batches
from tangent_jax.train.fit_many import fit_many, groups
from tangent_jax.train.objective import distance_bound
from tangent_jax.train.run import Fitted

AT_ONCE = 10  # models trained as one program
Rows = Mapping[str, np.ndarray]
"""The rows of the features that each named shard holds."""


def fit_apart(
    predict: Predictor, features: Features, recipe: Recipe, shards: Rows, at_once: int = AT_ONCE,
    classes: Sequence[str] = (),
) -> dict[str, Fitted]:  # fmt: skip
    """One fitted component for each shard, trained as one program, each in its order of examples; optima in turn.

    So are those of a named head, each of the `classes` that it has images of.
    """
    if recipe.head == "named":
        parts = {name: own_head(predict, features.take(rows), recipe, classes) for name, rows in shards.items()}
        return {name: recipe.named(name).fit(*own) for name, own in parts.items()}
    if recipe.solver == "optimum":
        return {name: recipe.fit(predict, features, rows) for name, rows in shards.items()}
    runs = runs_of(features, recipe, shards)
    settings = {"optimizer": recipe.optimizer(), "epochs": recipe.epochs, "at_once": at_once}
    return dict(zip(shards, fit_many(predict, runs, recipe.objective(), **settings), strict=True))


def runs_of(features: Features, recipe: Recipe, shards: Rows) -> list[Batches]:
    """The batches of each shard, in its own order of examples."""
    named = [(recipe.named(name).key, rows) for name, rows in shards.items()]
    return [features.batches(key, rows=rows, batch_size=recipe.batch_size) for key, rows in named]


def group_shards(features: Features, recipe: Recipe, shards: Rows, at_once: int = AT_ONCE) -> list[list[str]]:
    """The names of the shards of each group that trains as one program.

    Optima, and heads of their own classes, are trained one by one.
    Guarantees: decided by all shards and `at_once`, not by which of them are trained already nor by whom: a component
                has the same bits whichever process trains its group, on one kind of device.
    """
    if recipe.solver == "optimum" or recipe.head == "named":
        return [[name] for name in shards]
    names = [*shards]
    return [[names[s] for s in members] for members in groups(runs_of(features, recipe, shards), at_once)]


@dataclasses.dataclass(frozen=True)
class Filling:
    """The training of a store's components, one for each shard; `anchor`: the provenance that they share."""

    store: Store
    predict: Predictor
    features: Features
    recipe: Recipe
    shards: Rows
    factors: bool
    anchor: Provenance

    def own(self, name: str) -> tuple[Predictor, Features]:
        """The predictor and the features of a shard: with a named head of the classes that it has images of."""
        return own_head(self.predict, self.features.take(self.shards[name]), self.recipe, self.anchor.classes)

    def origin(self, name: str, seconds: float = 0.0) -> Provenance:
        """The provenance of a shard's component."""
        here, (predict, features) = dataclasses.replace(self.anchor, recipe=self.recipe.named(name)), self.own(name)
        if self.recipe.head == "named":
            classes = classes_in(self.features.take(self.shards[name]), self.anchor.classes)
            here = of_own_classes(here, predict, classes)
        return here.trained(features, seconds)

    def stale(self) -> list[str]:
        """The components in the store that came of other settings, data or weights, or lack their factors."""
        return [name for name in self.store if not self.is_current(name)]

    def is_current(self, name: str) -> bool:
        """True for a component that training would make again."""
        if name not in self.shards or (self.factors and not self.store.has_factors(name)):
            return False
        return same_training(self.store.provenance(name), self.origin(name))

    def missing(self, group: Sequence[str]) -> list[str]:
        """The shards of a group that the store of process 0 has no component of."""
        return placement.from_writer(lambda: [n for n in group if n in self.shards and n not in self.store])

    def train(self, group: Sequence[str], at_once: int) -> None:
        """Trains a group whole, and adds the components that are missing: each has the bits of its group."""
        missing = self.missing(group)
        if not missing:
            return
        together = {name: self.shards[name] for name in group if name in self.shards}
        fits = fit_apart(self.predict, self.features, self.recipe, together, at_once, self.anchor.classes)
        for name in missing:
            dw, (predict, features) = fits[name].dw, self.own(name)
            origin = dataclasses.replace(self.origin(name, fits[name].seconds), certificate=fits[name].certificate)
            own = factors_of(predict, features, self.recipe, dw) if self.factors else None
            placement.in_writer(partial(self.store.add, name, jax.tree.map(np.asarray, dw), origin, own))

    def mirror(self) -> None:
        """Makes the stores of a job's other processes hold what process 0's does: only that one is kept."""
        if jax.process_count() == 1:
            return
        for name in placement.from_writer(lambda: [*self.store]):
            held = placement.from_writer(partial(self.component, name))
            if name not in self.store:
                self.store.add(name, *held)

    def component(self, name: str) -> tuple[Tree, Provenance, Curvature | None]:
        """A component with its provenance and factors."""
        own = self.store.factors(name) if self.factors else None
        return jax.tree.map(np.asarray, self.store[name]), self.store.provenance(name), own


@public
def fill(
    store: Store,
    predict: Predictor,
    features: Features,
    recipe: Recipe,
    shards: Rows,
    factors: bool = False,
    owners: Mapping[str, str] | None = None,
    at_once: int = AT_ONCE,
    only: Container[int] | None = None,
    classes: Sequence[str] = (),
) -> None:
    """Makes the store hold one component for each shard, and no other; with its Kronecker factors, if asked for.

    `classes`: the names of the predictor's outputs. A component of a named head has those that it has images of.

    `owners`, image name -> owner as `shards.read_owners` reads it, is kept with each component: so all that is an
    owner's can be removed. `only`: the numbers of the groups (`group_shards`) that this process trains, None for all.

    A component of this function's that came of other settings, data or weights is taken out and trained anew. Examples
    that were removed from the store are left out of their shards, and said. Other processes may fill the same store:
    who finds a group claimed waits, and takes what the other one added.
    Raises: InputError where the store holds a component that this function did not make.
    """
    names = [name for _, name in features.examples]
    said = zip(names, owners_of(names, owners or {}), strict=True)
    require(classes or recipe.head == "drawn", "fill", f"classes by name for the head {recipe.head}", "none")
    anchor = make_provenance(predict, classes=classes)
    anchor = dataclasses.replace(anchor, owners={name: owner for name, owner in said if owner})
    foreign = [name for name in store if not is_made_here(store.provenance(name), name)]
    do = "Choose another folder for the stores"
    require(not foreign, "fill", f"a store of shards in {store.root}", f"the component {foreign[:1]} of others", do)
    grouped, claims = group_shards(features, recipe, shards, at_once), Claims(store)
    shards = placement.from_writer(lambda: without_forgotten(store, features, shards))
    filling = Filling(store, predict, features, recipe, shards, factors, anchor)
    placement.in_writer(partial(discard_stale, filling, claims))
    for number, group in enumerate(grouped):
        if (only is None or number in only) and filling.missing(group):
            with ExitStack() as held, show_progress(f"{store.root.name} group {number + 1} of {len(grouped)}"):
                placement.in_writer(partial(claim, claims, grouped, number, held))
                filling.train(group, at_once)
    filling.mirror()


def discard_stale(filling: Filling, claims: Claims) -> None:
    """Takes stale components out, one process after the other: what another has just added is not stale."""
    if filling.stale():
        with claims.claimed("stale"):
            old = filling.stale()
            if old:
                of = f"of other shards or settings, {', '.join(old[:3])}"
                print(f"{len(old)} components {of}, are taken out of {filling.store.root}", file=sys.stderr)
                filling.store.discard(old)


def claim(claims: Claims, grouped: Sequence[Sequence[str]], number: int, held: ExitStack) -> None:
    """Claims a group until `held` is closed."""
    claims.write_groups(grouped)
    held.enter_context(claims.claimed(number))


def own_head(
    predict: Predictor, features: Features, recipe: Recipe, classes: Sequence[str]
) -> tuple[Predictor, Features]:
    """(predictor, features) of a component: where its head is named, of the classes that it has images of."""
    if recipe.head != "named":
        return predict, features
    own = classes_in(features, classes)
    return restricted(predict, classes, own), relabelled(features, classes, own)


def of_own_classes(origin: Provenance, predict: Predictor, classes: Sequence[str]) -> Provenance:
    """The provenance of a component of these classes, whose predictor this is."""
    head, config = trees.fingerprint(predict.w["head"]), {**origin.config, "classes": len(classes)}
    return dataclasses.replace(origin, classes=tuple(classes), head=head, config=config)


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


@public
def predictor_of(origin: Provenance, name: str, weights: str | None = None) -> Predictor:
    """The predictor of a component, from its recipe; `weights` says where their file is now.

    Raises: InputError naming the field in which the anchor made now differs from the component's.
    """
    recipe = origin.recipe
    require(recipe is not None, "predictor_of", f"a recipe of {name}", "none", "Make its predictor as it was made")
    assert recipe is not None
    predict = recipe.predictor(origin.classes or origin.config["classes"], anchor_of("predictor_of", origin, weights))
    check_same(f"predictor_of, {name}", origin, make_provenance(predict))
    return predict


class Retrained(NamedTuple):
    """The component that takes a removed one's place.

    `distance_bound`: |grad L_retain| / lambda, None without a convex objective and a penalty; `optimum`: where it is
    one; `factors`: where the removed one had some.
    """

    dw: Tree
    provenance: Provenance
    distance_bound: float | None
    optimum: Optimum | None = None
    factors: Curvature | None = None


def retrain(
    store: Store, name: str, gone: set[str], data: Callable[[str], Dataset], warm: bool, cache: Cache | None,
    weights: str | None,
) -> Retrained:  # fmt: skip
    """A component trained again from its recipe, without its rows of the content identifiers `gone`.

    A class of a named head of which no image is left goes too.
    Args:   data: opens a data set; warm: begins the search for a new optimum at the old one, which
            takes fewer passes than from zero.
    Raises: InputError where the images that are left are no longer in the data set.
    """
    origin = store.provenance(name)
    predict, recipe = predictor_of(origin, name, weights), origin.recipe
    assert recipe is not None
    remaining = [pair for pair in origin.examples if pair[0] not in gone]
    dataset = data(origin.dataset("remove"))
    train = dataset.train
    row_of = {pair: row for row, pair in enumerate(zip(train.identifiers(), map(visible, train.names), strict=True))}
    there = sum(pair in row_of for pair in remaining)
    expected = f"the {len(remaining)} examples left of {name} in {recipe.dataset}"
    require(there == len(remaining), "remove", expected, f"{there} of them")
    cache, rows = dataclasses.replace(cache or Cache(), dtype=recipe.cache_dtype), [row_of[pair] for pair in remaining]
    with show_progress(f"{name}: train inputs"):  # of these alone: what is removed is not computed again
        left = predict.features(train.take(np.array(rows)), cache)
    classes, got = origin.config.get("classes"), f"{len(dataset.classes)} in {recipe.dataset}"
    require(origin.classes or len(dataset.classes) == classes, "remove", f"the {classes} classes of {name}", got)
    left = relabelled(left, dataset.classes, origin.classes) if origin.classes else left
    start = jax.tree.map(np.array, store[name]) if warm else None
    if recipe.head == "named":
        classes = classes_in(left, origin.classes)
        if start is not None and "head" in start:
            start = {**start, "head": head_of(start, origin.classes, classes)}
        predict, left = own_head(predict, left, recipe, origin.classes)
        origin = of_own_classes(origin, predict, classes)
    if recipe.solver == "optimum" and origin.total_penalty:
        new = solved_again(origin, predict, left, start, name)
    else:
        with show_progress(f"{name}: training again"):
            fitted = recipe.fit(predict, left)
        bounded = recipe.method != "nlft" and recipe.penalty > 0
        bound = distance_bound(predict, fitted.dw, left, recipe.objective()) if bounded else None
        new = Retrained(fitted.dw, origin.trained(left, fitted.seconds, run=None), bound)
    return new._replace(factors=factors_of(predict, left, recipe, new.dw)) if store.has_factors(name) else new


def solved_again(origin: Provenance, predict: Predictor, left: Features, start: Tree | None, name: str) -> Retrained:
    """The optimum of what is left of a component's examples, Lambda as it was when all of them were there.

    From a start, the certificate is a tenth of the start's or finer: else a start that is near would stay as it is.
    """
    recipe, total = origin.recipe, origin.total_penalty
    assert recipe is not None
    assert total is not None
    same_total = dataclasses.replace(recipe, penalty=total / len(left))
    if start is not None:
        near = distance_bound(predict, start, left, same_total.objective()) / 10
        same_total = dataclasses.replace(same_total, certificate=min(recipe.certificate, near))
    with show_progress(f"{name}: to the optimum of what is left"):
        solved = same_total.solve(predict, left, start)
    assert solved.certificate is not None
    assert solved.optimum is not None
    provenance = origin.trained(left, solved.seconds, run=None, total_penalty=total, certificate=solved.certificate)
    before = solved.history[0]["certificate"]
    optimum = Optimum(total, before, solved.certificate, solved.steps, solved.optimum.converged)
    return Retrained(solved.dw, provenance, solved.certificate, optimum)
