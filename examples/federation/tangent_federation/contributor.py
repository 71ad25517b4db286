"""A contributor: its images stay here, and one file of its component goes out. Nothing here knows Flower.

home/store      a store of its own: the component as it was trained, with names and folders
what is sent    the same numbers, with content identifiers as names, and no folder or recipe
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import tangent_jax as tj
from tangent_federation.settings import Request, check
from tangent_jax.core.notation import Tree
from tangent_jax.store import (
    Shards,
    fill,
    is_store,
    plan_removal,
    read_component,
    remove,
    write_component,
    write_factors,
)
from tangent_jax.store.recipe import AnyRecipe


class Contribution(NamedTuple):
    """The bytes of a component's file, and of its Kronecker factors' (b"" where the merge needs none)."""

    component: bytes
    factors: bytes = b""


@dataclasses.dataclass(frozen=True)
class Contributor:
    """One contributor.

    Other weights are another anchor.

    Attributes:
        name: In the server's store.
        home: The folder of its own store.
        dataset: As `tj.open_dataset`.
        part: (its number, how many share the data set) in a simulation, else (0, 1).
        cache: The folder of features.
        weights: Where the network's weights lie here, "" where the request names them rightly.
    """

    name: str
    home: Path
    dataset: str
    part: tuple[int, int] = (0, 1)
    cache: str = "~/.cache/tangent_jax"
    weights: str = ""

    def recipe(self, request: Request) -> AnyRecipe:
        """The recipe of a request, with the data set and the weights that are here."""
        return dataclasses.replace(request.recipe.with_weights(self.weights or None), dataset=self.dataset)

    def classes(self, listed: str = "") -> tuple[str, ...]:
        """The names of its classes, which the server joins with others'; none where the settings list all classes."""
        return () if listed else tj.open_dataset(self.dataset).classes

    def features(self, predict: tj.Predictor, classes: tuple[str, ...], only: bool = False) -> tj.Features:
        """The features of its images that were not removed, whose targets index `classes`, of all contributors.

        Args:
            only: Leaves out images of other classes, which are refused without it.
        """
        dataset, (number, count) = tj.open_dataset(self.dataset), self.part
        images = dataset.train.take(tj.shards.uniform(len(dataset.train), count, seed=0)[number])
        if is_store(self.home / "store"):
            images = images.without({*filter(tj.Store(self.home / "store").has_forgotten, images.identifiers())})
        if only:
            kept = np.flatnonzero([dataset.classes[label] in classes for label in images.labels])
            if len(kept) < len(images):
                print(f"{len(images) - len(kept)} of {len(images)} images are of classes that were not asked for")
            images = images.take(kept)
            check(len(images), "an image of the classes asked for", "none")
        return in_classes(tj.extract(predict, images, tj.Cache(self.cache)), dataset.classes, classes)

    def at_anchor(self, request: Request) -> tj.Predictor:
        """The predictor, or feature map, at the anchor of a request."""
        return self.recipe(request).predictor(request.classes)

    def contribute(self, request: Request) -> Contribution:
        """The files that answer a request; trained now, or read where they were trained already.

        Raises:
            InputError: Where no image is left, or a file would be larger than the server takes.
        """
        self.forget(request.forget)
        predict = self.at_anchor(request)
        features = self.features(predict, request.classes)
        shards = Shards(predict, features, self.recipe(request), {self.name: np.arange(len(features))}, request.classes)
        store = tj.Store(self.home / "store")
        fill(store, shards, request.factors)
        check(self.name in store, "an image that was not removed", f"none left of {self.name}")
        factors = store.factors(self.name) if request.factors else None
        sent = Contribution(
            file_bytes(store[self.name].dw, {"provenance": without_names(store, self.name)}),
            factors_bytes(factors) if factors is not None else b"",
        )
        size = max(map(len, sent))
        check(size <= request.most_bytes, f"a file of at most {request.most_bytes} bytes", f"{size}, and sends none")
        return sent

    def forget(self, identifiers: tuple[str, ...]) -> None:
        """Removes images from its own store and caches, for good."""
        if identifiers:
            store = tj.Store(self.home / "store")
            plan = plan_removal(store, examples=identifiers)
            if plan.components or plan.unseen:
                remove(store, plan, cache=tj.Cache(self.cache))


def in_classes(features: tj.Features, own: tuple[str, ...], every: tuple[str, ...]) -> tj.Features:
    """The features with class indices among all contributors' classes instead of its own."""
    lacking = {own[label] for label in features.targets} - {*every}
    check(not lacking, "a request for all classes here", f"none for {sorted(lacking)[:1]}")
    index = np.array([every.index(name) if name in every else -1 for name in own], features.targets.dtype)
    return dataclasses.replace(features, targets=index[features.targets])


def without_names(store: tj.Store, name: str) -> str:
    """The provenance that is sent, as JSON: identifiers as names, no folder, recipe or owner."""
    origin = store.provenance(name)
    hidden = tuple((identifier, identifier) for identifier, _ in origin.data.examples)
    sent = origin.with_data(examples=hidden, owners={}).with_training(recipe=None, folders=(), run=None)
    return sent.to_json()


def file_bytes(dw: Tree, metadata: dict[str, str]) -> bytes:
    """The bytes of a component's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "component.safetensors"
        write_component(path, dw, metadata)
        return path.read_bytes()


def factors_bytes(factors: tj.solver.Curvature) -> bytes:
    """The bytes of a file of Kronecker factors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "factors.safetensors"
        write_factors(path, factors)
        return path.read_bytes()


def read_bytes(content: bytes) -> tuple[Tree, dict[str, str]]:
    """(dw, metadata) of the bytes of a component's file; dw lies in memory. InputError where they are none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "component.safetensors"
        path.write_bytes(content)
        dw, metadata = read_component(path)
        return jax.tree.map(np.array, dw), metadata
