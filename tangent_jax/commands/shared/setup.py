"""The recipe, model, data and features of a binary's flags."""

import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared.phases import phase
from tangent_jax.commands.shared.settings import FIELD_OF, Cached, Model, Reading, Settings
from tangent_jax.core import placement
from tangent_jax.core.checks import InputError, about
from tangent_jax.core.identities import identity
from tangent_jax.data import Dataset, Examples
from tangent_jax.data.registry import without_groups
from tangent_jax.features.extract import expected_features
from tangent_jax.io import hosts
from tangent_jax.io.files import expand_path
from tangent_jax.io.paths import is_url, passing_copy
from tangent_jax.io.records import first_names, read_lines
from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.store.recipe import AnyRecipe, BaseRecipe, Recipe
from tangent_jax.train.evaluate import compile_outputs

CHOICES = ("held_out", "leave_one_out")
"""The ways to choose the settings of statistics, if --settings does not give them."""


def recipe(config: Settings, **changes: Any) -> tj.Recipe:
    """The recipe of the binary's flags, with changes of its fields; lists, which are searched, have the default.

    The method "fc" is the linearized model of the head alone.
    """
    given: dict[str, Any] = {field: getattr(config, flag) for flag, field in FIELD_OF.items() if hasattr(config, flag)}
    for field, value in [*given.items()]:
        if isinstance(value, tuple) and field != "image_size":
            del given[field]
    rate = getattr(config, "lr_nlft", None)
    if changes.get("method") == "nlft" and rate is not None:
        given["learning_rate"] = rate
    given |= changes
    if given.get("method") == "fc":
        given |= {"method": Recipe.method, "kind": "head", "reset": False, "new_class_token": False}
    given["dataset"] = without_groups(given.get("dataset", Recipe.dataset))
    return tj.Recipe(**given)


def recipe_of(config: Settings, features: tj.models.FeatureSettings) -> tj.store.StatisticsRecipe:
    """The recipe of statistics of these features, on the flags' model and data."""
    flags = recipe(config)
    features = dataclasses.replace(features, dtype=flags.dtype)
    shared = {field.name: getattr(flags, field.name) for field in dataclasses.fields(BaseRecipe)}
    return tj.store.StatisticsRecipe(**shared, features=features)


def settings_of(text: str) -> tj.solver.Settings:
    """The settings in --settings: the way to solve, the shrinkage, a weight of each part."""
    how, *numbers = text.split(",")
    try:
        shrinkage, *weights = map(float, numbers)
    except ValueError as error:
        raise InputError(f"--settings must be HOW,SHRINKAGE or HOW,SHRINKAGE,WEIGHT,WEIGHT; got {text}") from error
    settings = tj.solver.Settings(how, shrinkage, tuple(weights))
    with about("--settings"):
        return settings.check()


@functools.cache
@phase("data")
def open_dataset(spec: str, classes: tuple[str, ...] | None = None) -> Dataset:
    """Opens the data set; prints files left out and duplicate images on stderr, once."""
    with tj.show_progress(f"reading {spec}"):
        dataset = tj.open_dataset(spec, classes)
        lines = (*dataset.remarks, *dataset.copies())
    for line in lines:
        print(f"{dataset.name}: {line}", file=sys.stderr)
    return dataset


def open_tested(spec: str, classes: tuple[str, ...] | None = None) -> Dataset:
    """Opens a data set; raises InputError if it has no test images, before any long work."""
    dataset = open_dataset(spec) if classes is None else open_dataset(spec, classes)
    if not len(dataset.test):
        raise InputError(f"--dataset must have test images; {dataset.name} has none")
    return dataset


def open_datasets(config: Settings) -> dict[str, Dataset]:
    """The data sets of --dataset by specification: with different names, each with test images."""
    specs = config.listed("dataset")
    sets = {spec: open_tested(spec) for spec in specs}
    names = [dataset.name for dataset in sets.values()]
    if len({*names}) < len(specs):
        raise InputError(f"--dataset must name data sets of different names; got {', '.join(names)}. Rename one")
    return sets


def predictor(recipe: AnyRecipe, classes: int | Sequence[str]) -> Any:
    """The recipe's predictor, of weights that are loaded once."""
    return recipe.predictor(classes, pretrained(recipe))


def pretrained(anchor: Model | BaseRecipe) -> tj.Pretrained:
    """The weights of the flags or of a recipe, at their own image size; loaded once."""
    return load(anchor.weights, anchor.architecture)


@functools.cache
@phase("weights")
def load(weights: str, architecture: str | None) -> tj.Pretrained:
    """As tj.load, once."""
    return tj.load(weights, architecture)


def train_images(config: Settings, dataset: Dataset) -> Examples:
    """The training images; with --leave_out_anchor_images without those on which the anchor was fine-tuned."""
    if not getattr(config, "leave_out_anchor_images", False):
        return dataset.train
    assert isinstance(config, Model)
    session = pretrained(config).session
    if session is None:
        raise InputError(
            f"--leave_out_anchor_images needs --weights of a first session (finetune --save_anchor); {config.weights} "
            "names no images"
        )
    identifiers = dataset.train.identifiers()
    rows = [row for row, identifier in enumerate(identifiers) if identifier not in session.identifiers]
    if not rows:
        raise InputError(f"--leave_out_anchor_images must leave images of {dataset.name}; all are in {config.weights}")
    return dataset.train.take(np.array(rows))


def without_removed(config: Settings, examples: Examples, title: str = "") -> Examples:
    """The examples without those that were removed from a store in --store; `title`: printed with their number."""
    store = getattr(config, "store", None)
    rest = examples.without(hosts.from_writer(functools.partial(removed_images, store, examples)))
    if title and len(rest) < len(examples):
        count = len(examples) - len(rest)
        print(f"{title}: {count} images were removed from a store in {store} and are left out", file=sys.stderr)
        if not len(rest):
            raise InputError(f"no image of {title} is left to read. Choose another --store, or other images")
        lost_classes = {*examples.labels.tolist()} - {*rest.labels.tolist()} if examples.every_class else set()
        if lost_classes:
            names = first_names([examples.class_name(label) for label in sorted(lost_classes)])
            print(f"{title}: no image of {names} is left to train on", file=sys.stderr)
    return rest


def removed_images(store: str | None, examples: Examples) -> set[str]:
    """The identifiers of examples that were removed from a store in this folder; none without one."""
    if not store or is_url(store):
        return set()
    with about("--store"):
        root = expand_path(store)
    removed = set[str]()
    for marker in sorted(path for depth in ("", "*/") for path in root.glob(f"{depth}store.json")):
        try:
            read = tj.Store(marker.parent)
            removed |= {*filter(read.has_forgotten, examples.identifiers())} if read.state.forgotten else set()
        except (InputError, OSError) as error:
            print(f"{marker.parent}: images removed from it are not left out: {error}", file=sys.stderr)
    return removed


def check_store(path: Path, advice: str) -> None:
    """Raises InputError, with advice, if a folder is not a store; for a folder of stores it names them."""
    if tj.store.is_store(path):
        return
    inside = [marker.parent.name for marker in sorted(path.glob("*/store.json"))]
    if inside:
        raise InputError(
            f"--store must be one store; {path} is a folder of stores. Name one in it: {first_names(inside)}"
        )
    if (path / "journal.jsonl").exists():  # of a store whose marker was lost
        advice = "It lacks store.json: restore that file from a backup"
    raise InputError(f"--store must be a store; {path} is not. {advice}")


def read_words(flag: str, file: str) -> list[str]:
    """The identifiers or names in the file of a flag."""
    with passing_copy(file) as path:
        if not path.exists():
            raise InputError(f"--{flag} must be a file of identifiers or names, one a line; {path} does not exist")
        words = read_lines(path)
    if not words:
        raise InputError(f"--{flag} must be a file of identifiers or names, one a line; {path} has none")
    return words


def cache(config: Cached) -> tj.Cache:
    """The cache of the flags, with how it reads images where the flags say it."""
    if not isinstance(config, Reading):
        return tj.Cache(config.cache_dir)
    how = config.skip_unreadable, config.decode_processes, config.most_pixels
    return tj.Cache(config.cache_dir, config.cache_dtype, *how)


@phase("features")
def features(config: Cached, predict: ComponentPredictor, examples: Examples, title: str) -> tj.Features:
    """The features of the examples, from the flags' cache or computed now; removed images are left out."""
    examples = without_removed(config, examples, title)
    with tj.show_progress(title):
        data = tj.extract(predict, examples, cache(config))
    if data.skipped:
        unread = sorted({*examples.names} - {name for _, name in data.examples})
        skipped = f"skipped {data.skipped} unreadable of {len(examples)} images"
        print(f"{title}: {skipped}: {first_names(unread)}", file=sys.stderr)
    return data


def test_features(
    config: Cached, spec: str, predict: ComponentPredictor, classes: Sequence[str]
) -> tuple[str, tj.Features]:
    """(name of the data set, features of its test images of a composed model's classes).

    Raises:
        InputError: A data set that lacks one of the classes, and fewer than two classes.
    """
    dataset = open_tested(spec)
    missing = sorted({*classes} - {*dataset.classes})
    if missing or len(classes) < 2:
        own = first_names(classes) or "no names of classes"
        raise InputError(
            f"--dataset must have the classes of the composed model, two or more; the model has {own}, and "
            f"{dataset.name} has {first_names(dataset.classes)}. Leave it out, or choose another"
        )
    name = dataset.name
    has_class = np.isin([dataset.classes[label] for label in dataset.test.labels], classes)
    if len(classes) < len(dataset.classes):  # a removal may have taken the only images of a class out of the store
        others = first_names(sorted({*dataset.classes} - {*classes}))
        print(f"{(~has_class).sum()} test images are left out: no component has the class {others}", file=sys.stderr)
        name = f"{name}, {len(classes)} of {len(dataset.classes)} classes"
    images = dataset.test.take(np.flatnonzero(has_class))
    test = features(config, predict, images, f"{dataset.name}: test images")
    return name, test.of_classes(dataset.classes, classes)


@contextmanager
def compiling(
    config: Reading, recipe: tj.Recipe, predict: tj.Predictor, train: Examples, test: Examples
) -> Iterator[None]:
    """Compiles training on `train` and outputs for `test` in a thread, while the block computes their features.

    On one device: with more, the order of what processes do together must stay. The block's end, also by an exception,
    waits for the compiler.
    """
    if placement.mesh().size > 1:
        yield
        return
    train, test = without_removed(config, train), without_removed(config, test)

    def run() -> None:
        recipe.compile(predict, expected_features(predict, train, cache(config)))
        if len(test):
            compile_outputs(predict, predict.zeros(), expected_features(predict, test, cache(config)).inputs)
        import orbax.checkpoint  # noqa: F401  (a second or two, which the first checkpoint would wait for)

    with ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(run)
        yield
        with phase("training"):
            error = compiled.exception()
        if error is not None and not isinstance(error, (InputError, jax.errors.JaxRuntimeError)):
            raise error  # what is wrong with data, settings or memory, training says


def train_and_measured(
    config: Reading, predict: ComponentPredictor, dataset: Dataset, on_test: bool
) -> tuple[tj.Features, tj.Features]:
    """Returns (train, test); to choose settings, the validation split or a fifth of train instead of test."""
    train = features(config, predict, dataset.train, "train inputs")
    if on_test:
        return train, features(config, predict, dataset.test, "test inputs")
    return hold_out(config, predict, dataset, train)


def validation_images(dataset: Dataset) -> Examples | None:
    """The validation split, if there is one beside test; a data set without test is tested on it."""
    return dataset.splits["validation"] if {"validation", "test"} <= {*dataset.splits} else None


def hold_out(
    config: Reading, predict: ComponentPredictor, dataset: Dataset, train: tj.Features
) -> tuple[tj.Features, tj.Features]:
    """(features to train on, features that choose settings): the validation split, or a fifth of train."""
    if (validation := validation_images(dataset)) is not None:
        return train, features(config, predict, validation, "validation inputs")
    train, measured = train.hold_out()
    if not len(measured):
        need = "five images" if train.whole_groups is None else "two groups of images"
        raise InputError(
            f"a fifth of each class of {dataset.name} is held out of train, and none has {need}. Add images, or a "
            "validation split beside test"
        )
    return train, measured


def public_images(spec: str, private: Examples) -> Examples:
    """The images of --public; none may be private."""
    public = open_dataset(spec).train
    tj.privacy.check_public(public.identifiers(), private.identifiers())
    return public


def whitened(config: Reading, public: str | None, predict: tj.Predictor, train: tj.Features) -> tj.Predictor:
    """The predictor whitened by the images of --public, or without that flag by its layer norms."""
    if public is None:
        return tj.privacy.whiten(predict)
    return tj.privacy.whiten(predict, features(config, predict, open_dataset(public).train, "public inputs"), train)


def run_key(config: Reading, spec: str, anchor: Model | BaseRecipe) -> str:
    """The identity that all runs on a data set share: every image and label of every split, and the weights."""
    return identity_of(spec, anchor.weights, anchor.architecture, config.skip_unreadable, config.most_pixels)


@functools.cache
def identity_of(spec: str, weights: str, architecture: str | None, *read: Any) -> str:
    """`run_key`, once for all recipes of these weights."""
    return identity(open_dataset(spec).identity(), load(weights, architecture), read, tj.__version__)
