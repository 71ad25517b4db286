"""Models trained apart on shards of a data set, kept in stores, so that no binary trains them twice."""

import contextlib
import dataclasses
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import setup
from tangent_jax.commands.shared.settings import Sharded, Single
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.data import Dataset, Examples
from tangent_jax.io import hosts
from tangent_jax.store.recipe import AnyRecipe


@dataclasses.dataclass(frozen=True)
class Division:
    """How training images are divided into shards: the flags --sharding, --seed, --concentration and --owners."""

    sharding: str = "uniform"
    seed: int = 0
    concentration: float = 0.5
    owners: str | None = None

    @property
    def is_by_owner(self) -> bool:
        """True if each shard holds one owner's images; no store then holds a component of all images."""
        return self.sharding == "owner"

    def divide(self, count: int, images: tj.Features) -> list[np.ndarray]:
        """The rows of each of `count` shards; `images`: without inputs, for another division than by owner."""
        if self.sharding == "hash":
            return tj.shards.by_identifier([identifier for identifier, _ in images.examples], count)
        if self.sharding == "class":
            return tj.shards.by_class(images.targets, count)
        if self.sharding == "dirichlet":
            return tj.shards.dirichlet(images.targets, count, self.concentration, self.seed)
        return tj.shards.uniform(len(images), count, self.seed)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """One way to train on a data set: its recipe, predictor and features, and where its stores are.

    A binary that makes no store has no flag --store, nor --at_once.

    Attributes:
        name: The name of its stores.
        listed: The training images without inputs, removed ones too, which decide the shards, so that a removal moves
            no other image.
        stores: The folder of --store.
        words: More words of the stores' names.
        at_once: The models that train as one program.
    """

    name: str
    recipe: tj.Recipe | Any  # or the recipe of statistics, and their feature map
    dataset: Dataset
    predict: tj.Predictor | Any
    train: tj.Features
    test: tj.Features
    listed: tj.Features
    division: Division
    stores: Path
    words: tuple[str, ...] = ()
    at_once: int = 1
    is_held_out: bool = False

    def held_out(self) -> Self:
        """The same method, trained on four fifths of the training images, and tested on the rest; groups stay whole."""
        held = self.listed.held_out()
        trained, tested = self.present(np.flatnonzero(~held), np.flatnonzero(held))
        train = self.train.take(trained)
        test = self.train.take(tested)
        if not len(test):
            need = "five training images" if self.listed.whole_groups is None else "two groups of training images"
            raise InputError(
                f"held-out images need {need} of a class; {self.dataset.name} has fewer. Pass no --held_out, and one"
                " value each of --lr, --merge_penalty and --settings"
            )
        return dataclasses.replace(self, train=train, test=test, listed=self.listed.take(~held), is_held_out=True)

    def present(self, *parts: np.ndarray) -> list[np.ndarray]:
        """The rows of the training features for the rows of `listed` in each part, without removed images."""
        row_of = {pair: row for row, pair in enumerate(self.train.examples)}
        at = np.array([row_of.get(pair, -1) for pair in self.listed.examples], int)
        return [at[rows][at[rows] >= 0] for rows in parts]

    def divide(self, count: int) -> dict[str, np.ndarray]:
        """The rows of each shard by its name; empty shards are left out, with a line on stderr."""
        owners = self.division.owners if self.division.is_by_owner else None
        if owners is not None:
            divided = tj.shards.by_owner([name for _, name in self.train.examples], owners)
        else:
            parts = self.present(*self.division.divide(count, self.listed))
            divided = {f"shard {s:0{len(str(count - 1))}}": rows for s, rows in enumerate(parts)}
        tj.shards.check_disjoint(list(divided.values()), len(self.train))
        nonempty = {name: rows for name, rows in divided.items() if len(rows)}
        if len(nonempty) < len(divided):
            print(f"{len(divided) - len(nonempty)} of {len(divided)} shards are empty and left out", file=sys.stderr)
        return nonempty

    def store(self, rows: dict[str, np.ndarray], title: str, factors: bool = False) -> tj.Store:
        """The store of one component per shard, taken over from parts or trained now; `factors`: with them."""
        path = self.path(title)
        found = hosts.from_writer(lambda: parts_of(path))
        store = self.fill(path, rows, factors, parts=found)
        for part in found if hosts.is_writer() else ():
            delete_part(part)
        return store

    def fill(self, path: Path, rows: dict[str, np.ndarray], factors: bool, **options: Any) -> tj.Store:
        """The store in a folder, filled with components of these shards; options of `tj.store.fill`."""
        store = tj.Store(path)
        held = f"for {len(rows)} components, one for each {'owner' if self.division.is_by_owner else 'shard'}"
        if rows.keys() == self.whole().keys():
            held = "for one component of all images"
        print(f"store: {store.root} ({held})", file=sys.stderr)
        owners = tj.shards.read_owners(self.division.owners) if self.division.owners else None
        tj.store.fill(store, self.shards(rows), factors, owners, **options)
        return store

    def components(self, store: tj.Store) -> Mapping[str, tj.Component]:
        """The components of a store, over the classes of the data set."""
        if not self.recipe.has_named_head:
            return store
        return tj.join(store, self.predict, self.dataset.classes).components

    def path(self, title: str) -> Path:
        """The folder of the store of this title."""
        held_out = "held_out" if self.is_held_out else ""
        seed = f"seed{self.division.seed}"
        words = (self.dataset.name, self.name, self.division.sharding, title, seed, held_out, *self.words)
        return self.stores / re.sub(r"[^\w.-]+", "_", "-".join(word for word in words if word))

    def shards(self, rows: dict[str, np.ndarray], features: tj.Features | None = None) -> tj.store.Shards:
        """The shards of these rows of the training images, or of other features."""
        data = features or self.train
        return tj.store.Shards(self.predict, data, self.recipe, rows, self.dataset.classes, self.at_once)

    def whole(self) -> dict[str, np.ndarray]:
        """All data as one shard, for `full`."""
        return {"all": np.arange(len(self.train))}

    def full(self) -> Tree:
        """The tangent weights of one model on all the data."""
        return self.store(self.whole(), "full")["all"].dw

    def fit(
        self, rows: dict[str, np.ndarray], title: str | None, features: tj.Features | None = None
    ) -> list[tj.Fitted]:
        """Trains one model for each entry of `rows`, without a store."""
        data = features or self.train
        classes = self.dataset.classes
        with tj.show_progress(title):
            fitted = self.shards(rows, data).fit()
        if not self.recipe.has_named_head:
            return [*fitted.values()]
        widened = []
        for name, fit in fitted.items():
            own_classes = data.take(rows[name]).classes_in(classes)
            widened.append(dataclasses.replace(fit, dw=tj.models.widen(self.predict, classes, fit.dw, own_classes)))
        return widened

    def accuracy(self, dw: Tree, on: tj.Features | None = None) -> float:
        """The accuracy on the test images, or on other features."""
        return tj.evaluate(self.predict, dw, on or self.test)


def make_method(
    config: Single, method: str, name: str | None = None, recipe: AnyRecipe | None = None, **changes: Any
) -> Method:
    """The method of the flags, held out with --held_out.

    Args:
        name: The name of its stores, None for the method's.
        recipe: To use instead of the flags'.
        changes: Fields of the recipe that differ from the flags.
    """
    recipe = recipe or setup.recipe(config, method=method, **changes)
    dataset = setup.open_tested(config.dataset)
    division = division_of_flags(config)
    if isinstance(config, Sharded) and division.is_by_owner:
        owners_of_train(config)  # refuses an image without an owner before any long work
    predict = setup.predictor(recipe, dataset.classes)
    images = setup.train_images(config, dataset)
    train = setup.features(config, predict, images, "train inputs")
    test = setup.features(config, predict, dataset.test, "test inputs")
    if isinstance(config, Sharded) and division.is_by_owner:
        tell_of_lost_owners(config, train)
    words = ["named"] if recipe.has_named_head else []
    if getattr(config, "leave_out_anchor_images", False):
        words.append("without_anchor_images")
    made = Method(
        name=name or method,
        recipe=recipe,
        dataset=dataset,
        predict=predict,
        train=in_groups(train, division),
        test=test,
        listed=in_groups(list_readable(config, images, train), division),
        division=division,
        stores=config.path("store") if hasattr(config, "store") else Path(),
        words=tuple(words),
        at_once=getattr(config, "at_once", 1),
    )
    return made.held_out() if config.held_out else made


def division_of_flags(config: Single) -> Division:
    """The division of the flags; uniform for a binary without shards."""
    if not isinstance(config, Sharded):
        return Division(seed=config.seed)
    return Division(config.sharding, config.seed, config.concentration, config.owners)


def list_readable(config: Single, images: Examples, train: tj.Features) -> tj.Features:
    """The training images without inputs: all but the unreadable; removed ones are among them."""
    pairs = [*zip(images.identifiers(), images.names, strict=True)]
    in_train = {*train.examples}
    not_removed = {*setup.without_removed(config, images).names}
    rows = [row for row, pair in enumerate(pairs) if pair in in_train or pair[1] not in not_removed]
    listed = tj.Features(np.zeros((len(images), 0)), images.labels, tuple(pairs), groups=images.groups)
    return listed.take(np.array(rows))


def in_groups(data: tj.Features, division: Division) -> tj.Features:
    """The same examples, held out by the owners of --sharding=owner unless they have other groups."""
    if division.owners is None or not division.is_by_owner or data.groups is not None:
        return data
    owners = tj.shards.owners_of([name for _, name in data.examples], tj.shards.read_owners(division.owners))
    return dataclasses.replace(data, groups=tuple(owners))


def parts_of(store: Path) -> list[Path]:
    """The folders of a store's parts, without those that a killed deletion left."""
    for left in store.parent.glob(f"part-*-of-*/.{store.name}"):
        delete(left)
    return sorted(store.parent.glob(f"part-*-of-*/{store.name}"))


def delete(folder: Path) -> None:
    """Deletes a folder, or that of a link, with the link."""
    shutil.rmtree(folder.resolve())
    if folder.is_symlink():
        folder.unlink()


def delete_part(part: Path) -> None:
    """Deletes the folder of a part that a store has taken over, so that no copy of its components stays."""
    delete(part.rename(part.with_name(f".{part.name}")))
    with contextlib.suppress(OSError):  # other stores have parts there
        part.parent.rmdir()


def shard_counts(config: Sharded) -> list[int]:
    """The numbers of shards to compose: of --shards, or the number of owners, readable images or not."""
    return [len(owners_of_train(config))] if division_of_flags(config).is_by_owner else config.numbers("shards", int)


def owners_of_train(config: Sharded) -> Counter[str]:
    """The number of --dataset's remaining training images of each owner in --owners.

    Raises:
        InputError: An image without an owner.
    """
    if not config.owners:
        raise InputError("--owners=CSV must be given with --sharding=owner; got none")
    images = setup.without_removed(config, setup.train_images(config, setup.open_dataset(config.dataset)))
    return Counter(tj.shards.every_owner(images.names, config.owners))


def tell_of_lost_owners(config: Sharded, train: tj.Features) -> None:
    """Prints a line for each owner without a training image that could be read: such an owner has no component."""
    assert config.owners is not None
    readable = {*tj.shards.every_owner([name for _, name in train.examples], config.owners)}
    for owner, count in sorted(owners_of_train(config).items()):
        if owner not in readable:
            images = "the only image" if count == 1 else f"all {count} images"
            print(
                f"train inputs: {images} of owner {owner} cannot be read: no component is of {owner}", file=sys.stderr
            )
