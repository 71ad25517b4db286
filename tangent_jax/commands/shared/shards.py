"""Models trained apart on shards of a data set, kept in stores, so that no binary trains them twice."""

import re
import sys
from collections import Counter
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.flags import F, numbers
from tangent_jax.core.checks import require
from tangent_jax.core.notation import Tree
from tangent_jax.io.files import expand_path


class Method:
    """One method on the flags' data set: its recipe, predictor and features.

    `changes`: fields of its recipe that differ from the flags; `name`: of its stores, None for the method's; `recipe`:
    to use instead of the flags'.
    """

    def __init__(self, method: str, name: str | None = None, recipe: tj.Recipe | None = None, **changes: Any) -> None:
        rate = {"learning_rate": F.lr_nlft} if method == "nlft" else {}
        self.name, self.recipe = name or method, recipe or setup.recipe(method=method, **rate | changes)
        self.dataset = setup.open_tested(F.dataset)
        if is_by_owner():
            owners_of_train()  # refuses an image without an owner before any long work
        self.predict = setup.predictor(self.recipe, self.dataset.classes)
        self.every = setup.train_images(self.dataset)
        self.train = setup.features(self.predict, self.every, "train inputs")
        self.test = setup.features(self.predict, self.dataset.test, "test inputs")
        if is_by_owner():
            tell_of_lost_owners(self.train)
        self.listed = self.list_all()
        self.is_held_out = False
        if F.held_out:
            self.hold_out()

    def list_all(self) -> tj.Features:
        """The training images without inputs, removed ones too: they decide shards, so that no other image moves."""
        every, known = self.every, {*self.train.examples}
        pairs, left = [*zip(every.identifiers(), every.names, strict=True)], {*setup.left(every).names}
        rows = [i for i, pair in enumerate(pairs) if pair in known or pair[1] not in left]  # not the unreadable
        listed = tj.Features(np.zeros((len(every), 0)), every.labels, tuple(pairs))
        return listed.take(np.array(rows))

    def left(self, *parts: np.ndarray) -> list[np.ndarray]:
        """The rows of the training features for the rows of `listed` in each part, without removed images."""
        known = {pair: row for row, pair in enumerate(self.train.examples)}
        at = np.array([known.get(pair, -1) for pair in self.listed.examples], int)
        return [at[rows][at[rows] >= 0] for rows in parts]

    def hold_out(self) -> Self:
        """Trains on four fifths of the training images from now on, and tests on the rest."""
        held = self.listed.held_out()
        self.train, self.test = map(self.train.take, self.left(np.flatnonzero(~held), np.flatnonzero(held)))
        require(len(self.test), "sharded", "five images of a class, to hold one out", "fewer")
        self.listed = self.listed.take(~held)
        self.is_held_out = True
        return self

    def divide(self, count: int) -> dict[str, np.ndarray]:
        """The rows of each shard by its name; empty shards are left out, with a line on stderr."""
        if is_by_owner():
            divided = tj.shards.by_owner([name for _, name in self.train.examples], F.owners)
        else:
            targets, identifiers = self.listed.targets, [identifier for identifier, _ in self.listed.examples]
            divide = {
                "uniform": lambda: tj.shards.uniform(len(targets), count, F.seed),
                "hash": lambda: tj.shards.by_identifier(identifiers, count),
                "class": lambda: tj.shards.by_class(targets, count),
                "dirichlet": lambda: tj.shards.dirichlet(targets, count, F.concentration, F.seed),
            }[F.sharding]
            parts = self.left(*divide())
            divided = {f"shard {s:0{len(str(count - 1))}}": rows for s, rows in enumerate(parts)}
        tj.shards.check_disjoint(list(divided.values()), len(self.train))
        nonempty = {name: rows for name, rows in divided.items() if len(rows)}
        if len(nonempty) < len(divided):
            print(f"{len(divided) - len(nonempty)} of {len(divided)} shards are empty and left out", file=sys.stderr)
        return nonempty

    def counts(self) -> list[int]:
        """The numbers of shards to compose: of --shards, or the number of owners with an image that can be read."""
        return [len(self.divide(0))] if is_by_owner() else shard_counts()

    def store(
        self, rows: dict[str, np.ndarray], title: str, factors: bool = False, only: Container[int] | None = None
    ) -> tj.Store:
        """The store of one component per shard, read or trained now; with factors if `factors`.

        `only`: the groups to train, None for all.
        """
        store = tj.Store(self.path(title))
        held = f"{len(rows)} components, one for each {'owner' if is_by_owner() else 'shard'}"
        if rows.keys() == self.whole().keys():
            held = "one component of all images"
        print(f"store: {store.root} ({held})", file=sys.stderr)
        owners = tj.shards.read_owners(F.owners) if F.owners else None
        tj.store.fill(store, self.shards(rows), factors, owners, only)
        return store

    def components(self, store: tj.Store) -> tuple[Mapping[str, Tree], Mapping[str, tj.solver.Curvature]]:
        """(components, factors) of a store, over the classes of the data set."""
        if self.recipe.head != "named":
            return store, tj.store.Factors(store)
        joined = tj.join(store, self.predict, self.dataset.classes)
        return joined.components, joined.factors

    def path(self, title: str) -> Path:
        """The folder of the store of this title."""
        words = [self.dataset.name, self.name, F.sharding, *[title] * bool(title), f"seed{F.seed}"]
        words += ["held_out"] * self.is_held_out + ["named"] * (self.recipe.head == "named")
        words += ["without_anchor_images"] * ("leave_out_anchor_images" in F and F.leave_out_anchor_images)
        return expand_path(F.store) / re.sub(r"[^\w.-]+", "_", "-".join(words))

    def groups(self, rows: dict[str, np.ndarray]) -> list[list[str]]:
        """The shards that train together, by name."""
        return self.shards(rows).groups()

    def shards(self, rows: dict[str, np.ndarray], features: tj.Features | None = None) -> tj.store.Shards:
        """The shards of these rows of the training images, or of other features."""
        data = features or self.train
        return tj.store.Shards(self.predict, data, self.recipe, rows, self.dataset.classes, F.at_once)

    def whole(self) -> dict[str, np.ndarray]:
        """All data as one shard, for `full`."""
        return {"all": np.arange(len(self.train))}

    def full(self) -> Tree:
        """The tangent weights of one model on all the data."""
        return self.store(self.whole(), "full")["all"]

    def fit(
        self, rows: dict[str, np.ndarray], title: str | None, features: tj.Features | None = None
    ) -> list[tj.Fitted]:
        """Trains one model for each entry of `rows`, without a store."""
        data, classes = features or self.train, self.dataset.classes
        with tj.show_progress(title):
            fitted = self.shards(rows, data).fit()
        own = {name: data.take(rows[name]).classes_in(classes) for name in rows if self.recipe.head == "named"}
        wide = {name: tj.models.widen(self.predict, classes, fitted[name].dw, own[name]) for name in own}
        return [fit._replace(dw=wide.get(name, fit.dw)) for name, fit in fitted.items()]

    def accuracy(self, dw: Tree, on: tj.Features | None = None) -> float:
        """The accuracy on the test images, or on other features."""
        on = on or self.test
        return tj.evaluate(self.predict, dw, on)

    def attack(self, models: dict[str, Tree], gone: np.ndarray) -> tj.audit.Membership:
        """Membership attacks on models, for the training images at rows `gone` against as many test images."""

        def train(data: tj.Features, halves: list[np.ndarray]) -> list[Tree]:
            rows = {f"shadow {i}": half for i, half in enumerate(halves)}
            return [fitted.dw for fitted in self.fit(rows, "shadows", data)]

        members, settings = self.train.take(np.sort(gone)), {"shadows": F.shadows, "seed": [F.seed, 3]}
        return tj.audit.membership_attack(self.predict, models, members, self.test, train, **settings)

    def outputs(self, store: tj.Store) -> np.ndarray:
        """The outputs of every component on the test images, "s n c"."""
        return np.stack([tj.outputs(self.predict, store[name], self.test.inputs) for name in store])


def is_by_owner() -> bool:
    """True with --sharding=owner: each component sees one owner's images, and no store holds one of all images."""
    return "sharding" in F and F.sharding == "owner"


def shard_counts() -> list[int]:
    """The numbers of shards to compose: of --shards, or the number of owners, readable images or not."""
    return [len(owners_of_train())] if is_by_owner() else numbers("shards", int)


def owners_of_train() -> Counter[str]:
    """The number of --dataset's remaining training images of each owner in --owners.

    Raises: InputError for an image without an owner.
    """
    require(F.owners, "flags", "--owners=CSV with --sharding=owner", "none")
    images = setup.left(setup.train_images(setup.open_dataset(F.dataset)))
    return Counter(tj.shards.every_owner(images.names, F.owners))


def tell_of_lost_owners(train: tj.Features) -> None:
    """Prints a line for each owner without a training image that could be read: such an owner has no component."""
    readable = {*tj.shards.every_owner([name for _, name in train.examples], F.owners)}
    for owner, count in sorted(owners_of_train().items()):
        if owner not in readable:
            images = "the only image" if count == 1 else f"all {count} images"
            print(
                f"train inputs: {images} of owner {owner} cannot be read: no component is of {owner}", file=sys.stderr
            )


def steady(fitted: tj.Fitted) -> float:
    """The training time with the median epoch's time for all epochs, as the first one also compiles."""
    return float(np.median([row["seconds"] for row in fitted.history])) * len(fitted.history)
