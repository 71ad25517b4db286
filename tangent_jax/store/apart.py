"""Components trained apart on shards of one data set, and the steps by which processes fill a store with them."""

import dataclasses
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np

from tangent_jax.core import Tree, expect, placement, show_progress, trees
from tangent_jax.core.boundary import public
from tangent_jax.data.shards import owners_of
from tangent_jax.models.features import Features
from tangent_jax.models.heads import classes_in, relabel, restrict
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.problem import make_curvature
from tangent_jax.store.claims import Claims
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.store import Store
from tangent_jax.train.batches import Batches
from tangent_jax.train.fit_many import fit_many, groups
from tangent_jax.train.run import Fitted

AT_ONCE = 10  # models trained as one program
Rows = Mapping[str, np.ndarray]
"""The rows of the features that each named shard holds."""


@dataclasses.dataclass(frozen=True)
class Shards:
    """Components to train apart: of one predictor, by one recipe, on the rows of the features that each shard names.

    `classes`: the names of the predictor's outputs. A component of a named head has those that it has images of.
    `at_once`: the most models that train as one program.
    """

    predict: Predictor
    features: Features
    recipe: Recipe
    rows: Rows
    classes: Sequence[str] = ()
    at_once: int = AT_ONCE

    def own(self, name: str) -> tuple[Predictor, Features]:
        """The predictor and the features of a shard: with a named head of the classes that it has images of."""
        return own_head(self.predict, self.features.take(self.rows[name]), self.recipe, self.classes)

    def batches(self, names: Iterable[str]) -> list[Batches]:
        """The batches of these shards, each in its own order of examples."""
        named = [(self.recipe.for_shard(name).key, self.rows[name]) for name in names]
        return [self.features.batches(key, rows=rows, batch_size=self.recipe.batch_size) for key, rows in named]

    def groups(self) -> list[list[str]]:
        """The names of the shards of each group that trains as one program.

        Optima, and heads of their own classes, are trained one by one.
        Guarantees: decided by all shards and `at_once`, not by which of them are trained already nor by whom: a
                    component has the same bits whichever process trains its group, on one kind of device.
        """
        names = [*self.rows]
        if self.recipe.solver == "optimum" or self.recipe.is_by_class:
            return [[name] for name in names]
        return [[names[s] for s in members] for members in groups(self.batches(names), self.at_once)]

    def fit(self, names: Iterable[str] | None = None) -> dict[str, Fitted]:
        """One result for each of these shards, or for all: trained as one program, or one by one, as `groups` says."""
        recipe, names = self.recipe, [*(self.rows if names is None else names)]
        if recipe.is_by_class:
            return {name: recipe.for_shard(name).fit(*self.own(name)) for name in names}
        if recipe.solver == "optimum":
            return {name: recipe.fit(self.predict, self.features, self.rows[name]) for name in names}
        settings = {"optimizer": recipe.optimizer(), "epochs": recipe.epochs, "at_once": self.at_once}
        fitted = fit_many(self.predict, self.batches(names), recipe.objective(), **settings)
        return dict(zip(names, fitted, strict=True))

    def provenance(self, owners: Mapping[str, str]) -> Provenance:
        """The provenance that all their components share."""
        names = [name for _, name in self.features.examples]
        said = zip(names, owners_of(names, owners), strict=True)
        shared = make_provenance(self.predict, classes=self.classes)
        return dataclasses.replace(shared, owners={name: owner for name, owner in said if owner})

    def rows_left(self, store: Store) -> dict[str, np.ndarray]:
        """The rows without the examples that were removed from the store; a shard of nothing is left out."""
        gone = np.array([store.state.has_forgotten(identifier) for identifier, _ in self.features.examples], bool)
        left = {name: rows[~gone[rows]] for name, rows in self.rows.items()}
        count = sum(map(len, self.rows.values())) - sum(map(len, left.values()))
        if count:
            print(f"{count} images were removed from {store.root} and are left out", file=sys.stderr)
        return {name: rows for name, rows in left.items() if len(rows)}


@public
def fill(
    store: Store,
    shards: Shards,
    factors: bool = False,
    owners: Mapping[str, str] | None = None,
    only: Container[int] | None = None,
) -> None:
    """Makes the store hold one component for each shard, and no other; with its Kronecker factors, if asked for.

    `owners`, image name -> owner as `shards.read_owners` reads it, is kept with each component: so all that is an
    owner's can be removed. `only`: the numbers of the groups (`Shards.groups`) that this process trains, None for all.

    A component of this function's that came of other settings, data or weights is taken out and trained anew. Examples
    that were removed from the store are left out of their shards, and said. Other processes may fill the same store:
    who finds a group claimed waits, and takes what the other one added.
    Raises: InputError where the store holds a component that this function did not make.
    """
    recipe = shards.recipe
    by_name = recipe.head != "drawn" or recipe.features is not None
    expect(shards.classes or not by_name, f"classes by name for the head {recipe.head}, or statistics", "none")
    check_own(store)
    groups = shards.groups()
    left = dataclasses.replace(shards, rows=placement.from_writer(lambda: shards.rows_left(store)))
    filling = Filling(store, Claims(store), left, shards.provenance(owners or {}), factors)
    placement.in_writer(filling.discard_stale)
    for number, group in enumerate(groups):
        if (only is None or number in only) and filling.missing(group):
            with filling.hold(groups, number):
                filling.train(group)
    filling.mirror()


@dataclasses.dataclass(frozen=True)
class Filling:
    """The steps that fill a store; `shared`: the provenance that all its components share."""

    store: Store
    claims: Claims
    shards: Shards
    shared: Provenance
    factors: bool

    def discard_stale(self) -> None:
        """Takes stale components out, one process after the other: what another has just added is not stale."""
        if self.stale():
            with self.claims.hold("stale"):
                old = self.stale()
                if old:
                    of = f"of other shards or settings, {', '.join(old[:3])}"
                    print(f"{len(old)} components {of}, are taken out of {self.store.root}", file=sys.stderr)
                    self.store.discard(old)

    def missing(self, group: Sequence[str]) -> list[str]:
        """The shards of a group that the store of process 0 has no component of."""
        return placement.from_writer(lambda: [n for n in group if n in self.shards.rows and n not in self.store])

    @contextmanager
    def hold(self, groups: Sequence[Sequence[str]], number: int) -> Iterator[None]:
        """Holds a group, after whoever holds it now; the store's state is then what that one left."""

        def claim() -> None:
            self.claims.write_groups(groups)
            held.enter_context(self.claims.hold(number))

        with ExitStack() as held, show_progress(f"{self.store.root.name} group {number + 1} of {len(groups)}"):
            placement.in_writer(claim)
            yield

    def train(self, group: Sequence[str]) -> None:
        """Trains a group whole, and adds the components that are missing: each has the bits of its group."""
        missing = self.missing(group)  # less than before it was claimed, where another process had it
        if missing:
            fits = self.shards.fit([name for name in group if name in self.shards.rows])
            for name in missing:
                self.add(name, fits[name])

    def mirror(self) -> None:
        """Makes the stores of a job's other processes hold what process 0's does: only that one is kept."""
        if jax.process_count() == 1:
            return
        for name in placement.from_writer(lambda: [*self.store]):
            held = placement.from_writer(partial(self.component, name))
            if name not in self.store:
                self.store.add(name, *held)

    def stale(self) -> list[str]:
        """The components in the store that came of other settings, data or weights, or lack their factors."""
        return [name for name in self.store if not self.is_current(name)]

    def is_current(self, name: str) -> bool:
        """True for a component that training would make again."""
        if name not in self.shards.rows or (self.factors and not self.store.has_factors(name)):
            return False
        return self.store.provenance(name).same_training(self.origin(name))

    def add(self, name: str, fitted: Fitted) -> None:
        """Adds a shard's component."""
        origin = dataclasses.replace(self.origin(name, fitted.seconds), certificate=fitted.certificate)
        own = factors_of(*self.shards.own(name), self.shards.recipe, fitted.dw) if self.factors else None
        placement.in_writer(partial(self.store.add, name, jax.tree.map(np.asarray, fitted.dw), origin, own))

    def origin(self, name: str, seconds: float = 0.0) -> Provenance:
        """The provenance of a shard's component."""
        predict, features = self.shards.own(name)
        here = dataclasses.replace(self.shared, recipe=self.shards.recipe.for_shard(name))
        if self.shards.recipe.is_by_class:
            classes = classes_in(self.shards.features.take(self.shards.rows[name]), self.shards.classes)
            here = of_own_classes(here, predict, classes)
        return here.trained_on(features, seconds)

    def component(self, name: str) -> tuple[Tree, Provenance, Curvature | None]:
        """A component with its provenance and factors."""
        own = self.store.factors(name) if self.factors else None
        return jax.tree.map(np.asarray, self.store[name]), self.store.provenance(name), own


def check_own(store: Store) -> None:
    """Raises InputError where the store holds a component that `fill` did not make: its recipe is not of its name."""
    recipes = {name: store.provenance(name).recipe for name in store}
    foreign = [name for name, recipe in recipes.items() if recipe is None or recipe != recipe.for_shard(name)]
    do = "Choose another folder for the stores"
    expect(not foreign, f"a store of shards in {store.root}", f"the component {foreign[:1]} of others", do)


def own_head(
    predict: Predictor, features: Features, recipe: Recipe, classes: Sequence[str]
) -> tuple[Predictor, Features]:
    """(predictor, features) of a component: where its head is named, of the classes that it has images of."""
    if not recipe.is_by_class:
        return predict, features
    own = classes_in(features, classes)
    narrow: Any = dataclasses.replace(predict, outputs=len(own)) if recipe.features else None
    return narrow or restrict(predict, classes, own), relabel(features, classes, own)


def of_own_classes(origin: Provenance, predict: Predictor, classes: Sequence[str]) -> Provenance:
    """The provenance of a component of these classes, whose predictor this is."""
    head, config = trees.fingerprint(predict.w["head"]), {**origin.config, "classes": len(classes)}
    return dataclasses.replace(origin, classes=tuple(classes), head=head, config=config)


def factors_of(predict: Predictor, features: Features, recipe: Recipe, dw: Tree) -> Curvature:
    """A component's factors, of the signals of all classes."""
    return make_curvature(predict, features, recipe.objective(), dw)
