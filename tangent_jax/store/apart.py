"""Components trained apart on shards of one data set; a store is filled with them by one process, or in parts."""

import dataclasses
import json
import os
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, visible
from tangent_jax.core.notation import Tree
from tangent_jax.data.shards import owners_of
from tangent_jax.io import hosts
from tangent_jax.io.progress import progress_bar, show_progress, shown
from tangent_jax.io.records import first_names
from tangent_jax.models.ntk import ComponentPredictor, FeatureMap
from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.mapped import MappedOnce, rows_of
from tangent_jax.solver.optimum import certificate_of
from tangent_jax.store.merging import add_all
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.recipe import AnyRecipe, Recipe, StatisticsRecipe
from tangent_jax.store.store import Store
from tangent_jax.train.batches import Batches
from tangent_jax.train.features import Features
from tangent_jax.train.fit_many import fit_many, groups
from tangent_jax.train.run import Fitted

AT_ONCE = 10  # models trained as one program
Rows = Mapping[str, np.ndarray]
"""The rows of the features that each named shard holds."""


@dataclasses.dataclass(frozen=True)
class Shards:
    """Components to train apart: one for each shard, all of one predictor and one recipe.

    Attributes:
        rows: The rows of the features in each shard, by the shard's name.
        classes: The names of the predictor's outputs; with a named head, a component has only the classes of its own
            images.
        at_once: The most models that train as one program.

    >>> recipe = tj.Recipe(learning_rate=0.3, epochs=5)
    >>> shards = tj.store.Shards(demo.predict, demo.train, recipe, demo.halves)
    >>> sorted(shards.fit())
    ['ann', 'bob']
    """

    predict: ComponentPredictor
    features: Features
    recipe: AnyRecipe
    rows: Rows
    classes: Sequence[str] = ()
    at_once: int = AT_ONCE

    def task(self, name: str) -> tuple[Any, Features]:
        """The predictor and the features of a shard; with a named head, restricted to the shard's own classes."""
        return own_head(self.predict, self.features.take(self.rows[name]), self.recipe, self.classes)

    @property
    def joint_recipe(self) -> Recipe | None:
        """The recipe, if several shards train as one program; None for optima, and components of their own classes."""
        match self.recipe:
            case Recipe(is_optimum=False, is_by_class=False):
                return self.recipe
            case _:
                return None

    def batches(self, recipe: Recipe, names: Iterable[str]) -> list[Batches]:
        """The batches of these shards, each in its own order of examples."""
        return [recipe.for_shard(name).batches(self.features, self.rows[name]) for name in names]

    def groups(self) -> list[list[str]]:
        """The shards of each group that trains as one program, by name.

        Guarantees:
            All shards and `at_once` decide the groups; it does not matter which shards are trained already, or by which
            process. So a component has the same bits whichever process trains it, on one kind of device.
        """
        names = [*self.rows]
        if self.joint_recipe is None:
            return [[name] for name in names]
        return [[names[s] for s in members] for members in groups(self.batches(self.joint_recipe, names), self.at_once)]

    def fit(self, names: Iterable[str] | None = None) -> dict[str, Fitted]:
        """Trains these shards, or all: as one program or one by one, as `groups` says. Returns a result for each."""
        names = [*(self.rows if names is None else names)]
        if self.joint_recipe is None:
            return {name: self.recipe.for_shard(name).fit(*self.task(name)) for name in names}
        recipe = self.joint_recipe
        settings = {"optimizer": recipe.optimizer(), "epochs": recipe.epochs, "at_once": self.at_once}
        fitted = fit_many(self.predict, self.batches(recipe, names), recipe.objective, **settings, progress=shown)
        return dict(zip(names, fitted, strict=True))

    def provenance(self, owners: Mapping[str, str]) -> Provenance:
        """The provenance that all components share."""
        names = [name for _, name in self.features.examples]
        whose = owners_of(names, owners)
        ownerless = [name for name, owner in zip(names, whose, strict=True) if owner is None]
        if owners and ownerless:
            count = f"{len(ownerless)} of {len(names)} images"
            print(f"the owners name no owner of {count}, such as {visible(ownerless[0])}", file=sys.stderr)
        shared = make_provenance(self.predict, self.recipe, self.classes)
        owner_of = {name: owner for name, owner in zip(names, whose, strict=True) if owner}
        return shared.with_data(owners=owner_of)

    def rows_left(self, store: Store) -> dict[str, np.ndarray]:
        """The rows of each shard without examples that were removed from the store; empty shards are left out."""
        gone = np.array([store.has_forgotten(identifier) for identifier, _ in self.features.examples], bool)
        left = {name: rows[~gone[rows]] for name, rows in self.rows.items()}
        count = sum(map(len, self.rows.values())) - sum(map(len, left.values()))
        if count:
            print(f"{count} images were removed from {store.root} and are left out", file=sys.stderr)
        return {name: rows for name, rows in left.items() if len(rows)}


def fill(
    store: Store,
    shards: Shards,
    factors: bool = False,
    owners: Mapping[str, str] | None = None,
    only: Container[int] | None = None,
    parts: Iterable[str | os.PathLike] = (),
) -> None:
    """Trains one component for each shard into a store, and removes all other components from it.

    A component that `fill` made with other settings, data or weights is discarded and trained again. Examples that were
    removed from the store are left out of their shards, with a message.

    Args:
        factors: Keep the Kronecker factors of each component too, which merges by curvature need.
        owners: Image name -> owner (`shards.read_owners`), kept with each component, so that a removal finds all images
            of an owner.
        only: The numbers of the groups (`Shards.groups`) to train, None for all.
        parts: The folders of stores that `fill` filled with groups of the same shards (`only`), whose components are
            taken over.

    Raises:
        InputError: If the store holds a component that `fill` did not make; if a part holds one of other settings or
            data.

    >>> store, recipe = tj.Store(demo.folder() / "store"), tj.Recipe(epochs=5)
    >>> tj.store.fill(store, tj.store.Shards(demo.predict, demo.train, recipe, demo.halves))
    >>> [*store]
    ['ann', 'bob']
    """
    if shards.recipe.needs_names and not shards.classes:
        raise InputError("classes must be names for a head that is named or in a file, and for statistics; got none")
    check_own(store)
    left = dataclasses.replace(shards, rows=hosts.from_writer(lambda: shards.rows_left(store)))
    Filling(store, left, shards.provenance(owners or {}), factors).fill(shards.groups(), only, parts)


@dataclasses.dataclass(frozen=True)
class Filling:
    """The steps that fill a store.

    Attributes:
        shared: The provenance of all its components.
        folders: The folders of components that were discarded, which may hold rows of the same images, so that the new
            ones name them too.
    """

    store: Store
    shards: Shards
    shared: Provenance
    factors: bool
    folders: list[str] = dataclasses.field(default_factory=list)

    def fill(
        self, groups: Sequence[Sequence[str]], only: Container[int] | None, parts: Iterable[str | os.PathLike]
    ) -> None:
        """Takes over the components of parts, trains the missing ones of these groups, and discards stale ones."""
        hosts.in_writer(self.store.reload)
        hosts.in_writer(self.discard_stale)
        hosts.in_writer(partial(self.take_over, parts))
        numbers = [number for number in range(len(groups)) if only is None or number in only]
        numbers = [number for number in numbers if self.missing(groups[number])]
        self.compute_rows([name for number in numbers for name in self.missing(groups[number])])
        is_summed = isinstance(self.shards.recipe, StatisticsRecipe)  # in a moment; a group that trains has its own bar
        with (
            show_progress(f"{self.store.root.name}: sums" if is_summed and numbers else None),
            progress_bar(len(numbers), "component") as bar,
        ):
            for number in numbers:
                with show_progress(f"{self.store.root.name} group {number + 1} of {len(groups)}"):
                    self.train(groups[number])
                bar.update()
        hosts.in_writer(self.check_whole)
        self.mirror()

    def take_over(self, parts: Iterable[str | os.PathLike]) -> None:
        """Adds the components of other stores, each of which must be of this run."""
        for folder in parts:
            part = Store(folder)
            stale = [name for name in part if not self.is_current(part, name)]
            if stale:
                has = f"{stale[0]} has {self.difference(part, stale[0])}"
                raise InputError(
                    f"{part.root} must be a part of this run; {has}. Give all parts the same flags, or delete this one"
                )
            add_all(self.store, part)

    def check_whole(self) -> None:
        """Raises InputError if another run, of other settings or data, has added components meanwhile."""
        self.store.reload()
        others = [name for name in self.store if not self.is_current(self.store, name)]
        if others:
            raise InputError(
                f"{self.store.root} must be filled by one run at a time; another one added {first_names(others)}, with "
                f"{self.difference(self.store, others[0])}. Choose another folder for the stores, or run it again"
            )

    def difference(self, part: Store, name: str) -> str:
        """The first setting in which a component of a part differs from what training now would give."""
        if name not in self.shards.rows:
            return "other images or shards"
        theirs, ours = part.provenance(name), self.origin(name)
        of_theirs, of_ours = (
            {**(origin.recipe.settings if origin.recipe else {}), "anchor": origin.anchor, "head": origin.head}
            for origin in (theirs, ours)
        )
        has_factors = self.factors and part.has_factors(name)
        return first_difference({**of_theirs, "factors": has_factors}, {**of_ours, "factors": self.factors})

    def discard_stale(self) -> None:
        """Discards the components of other settings, data or weights, or without the factors that are asked for."""
        old = [name for name in self.store if not self.is_current(self.store, name)]
        if old:
            of = f"of other shards or settings ({first_names(old)})"
            print(f"{len(old)} components {of} are taken out of {self.store.root}", file=sys.stderr)
            for origin in map(self.store.provenance, old):
                self.folders.extend(origin.training.folders)
            self.store.discard(old)

    def missing(self, group: Sequence[str]) -> list[str]:
        """The shards of a group that have no component in the store of process 0."""
        return hosts.from_writer(lambda: [n for n in group if n in self.shards.rows and n not in self.store])

    def compute_rows(self, names: Sequence[str]) -> None:
        """Computes the rows of these shards in one pass, under one bar, if the features keep rows (`map_once`)."""
        map_ = self.shards.predict
        features = self.shards.features
        if not (names and isinstance(map_, FeatureMap) and isinstance(features, MappedOnce)):
            return
        rows = np.concatenate([self.shards.rows[name] for name in names])
        with show_progress(f"{self.store.root.name}: features"):
            rows_of(map_, features.take(rows), progress=shown)

    def train(self, group: Sequence[str]) -> None:
        """Trains a whole group, so that bits agree, and adds the components that are missing."""
        missing = self.missing(group)
        fits = self.shards.fit([name for name in group if name in self.shards.rows])
        for name in missing:
            self.add(name, fits[name])

    def mirror(self) -> None:
        """Copies process 0's components to the stores of a job's other processes; only process 0's store is kept."""
        if jax.process_count() == 1:
            return
        for name in hosts.from_writer(lambda: [*self.store]):
            held = hosts.from_writer(partial(self.component, name))
            if name not in self.store:
                self.store.put(name, *held)

    def is_current(self, store: Store, name: str) -> bool:
        """True if training now would give this component of a store."""
        if name not in self.shards.rows or (self.factors and not store.has_factors(name)):
            return False
        return store.provenance(name).same_training(self.origin(name))

    def add(self, name: str, fitted: Fitted) -> None:
        """Adds a shard's component."""
        origin = self.origin(name, fitted.seconds).with_training(certificate=certificate_of(fitted))
        factors = self.shards.recipe.factors(*self.shards.task(name), fitted.dw) if self.factors else None
        hosts.in_writer(partial(self.put, name, jax.tree.map(np.asarray, fitted.dw), origin, factors))

    def put(self, name: str, dw: Tree, origin: Provenance, factors: Curvature | None) -> None:
        """Adds a component, unless another run of the same settings has done so meanwhile."""
        try:
            self.store.put(name, dw, origin, factors)
        except InputError:
            if name not in self.store or not self.is_current(self.store, name):
                raise

    def origin(self, name: str, seconds: float = 0.0) -> Provenance:
        """The provenance of a shard's component."""
        predict, features = self.shards.task(name)
        here = self.shared.with_training(recipe=self.shards.recipe.for_shard(name))
        if self.shards.recipe.is_by_class:
            classes = self.shards.features.take(self.shards.rows[name]).classes_in(self.shards.classes)
            here = of_own_classes(here, predict, classes)
        return here.trained_on(features, seconds, tuple(self.folders))

    def component(self, name: str) -> tuple[Tree, Provenance, Curvature | None]:
        """A component with its provenance and factors."""
        factors = self.store.factors(name) if self.factors else None
        return jax.tree.map(np.asarray, self.store.read_tree(name)), self.store.provenance(name), factors


def first_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The first setting in which another run differs, as JSON has both; "other images or shards" if none does."""
    for name in dict.fromkeys([*ours, *theirs]):
        other, own = (json.dumps(settings.get(name)) for settings in (theirs, ours))
        if other != own:
            return f"{name} {other}, here {own}"
    return "other images or shards"


def check_own(store: Store) -> None:
    """Raises InputError if the store holds a component that `fill` did not make, by its recipe."""
    recipes = {name: store.provenance(name).recipe for name in store}
    foreign = [name for name, recipe in recipes.items() if recipe is None or recipe != recipe.for_shard(name)]
    if foreign:
        raise InputError(
            f"{store.root} must be a store of shards; it holds {foreign[0]}, a component of others. "
            "Choose another folder for the stores"
        )


def own_head(predict: Any, features: Features, recipe: AnyRecipe, classes: Sequence[str]) -> tuple[Any, Features]:
    """(predictor, features) of a component, restricted to the classes of its images if the recipe says so."""
    if not recipe.is_by_class:
        return predict, features
    present = features.classes_in(classes)
    return recipe.of_classes(predict, classes, present), features.relabel(classes, present)


def of_own_classes(origin: Provenance, predict: ComponentPredictor, classes: Sequence[str]) -> Provenance:
    """The provenance of a component of these classes, trained by this predictor."""
    head, config = trees.fingerprint(predict.w["head"]), {**origin.config, "classes": len(classes)}
    return dataclasses.replace(origin, classes=tuple(classes), head=head, config=config)
