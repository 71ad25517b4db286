"""The rows of a data set as a reader finds them, and the one place that makes a `Dataset` of them.

A reader (`READERS` of registry.py) gives `Rows`: of each image its name, the name of its split, its label as it is
written, and how its bytes are read. No image is read before `read(i)`, in any order. `dataset_of` gives the rows their
meaning, the same for every format:

    splits      by their names (splits.py); rows of a split of another name are left out
                one split, of training images or without a name: every fifth image by content is test
    labels      class indices or names (labels.py); rows without a label are left out
    classes     those that the reader lists, in their order; else names sorted, or indices in the order of numbers
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Int

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name
from tangent_jax.data.labels import note_alike, note_joined, read_labels
from tangent_jax.data.left_out import leave_out, note
from tangent_jax.data.sources import Dataset, Examples, pick
from tangent_jax.data.splits import SPELLINGS, one_name_each, split_of_name
from tangent_jax.io.paths import Place
from tangent_jax.io.records import first_names, short

T = TypeVar("T")
HELD_OUT = 5  # without a test split, every fifth image is test, by content identifier


@dataclasses.dataclass(frozen=True)
class Rows:
    """The images of a data set; the sequences have an entry for each of them.

    Args:
        name: The name of the data set; `path` names it in errors.
        names: The names of the images, all different.
        splits: The name of each image's split, in any spelling; "" where the data set has none.
        labels: As they are written: a class index, a class name or a Boolean, None for none.
        read: The encoded bytes of image i, or its array of uint8; other processes receive it by pickle.
        where: The file of image i, and the place of its bytes there: its identifier is stored for it. None stores none.
        classes: The names of the class indices, None if the labels themselves are the classes.
        empty: Where folders are the classes, those that hold nothing and keep their places: another class without an
            image is refused. None: `classes` are a list, and none of them needs an image.
        groups: The group of each image, None for none: training images of a group are held out together.
        row: How an error names row i, by default by the image's name.
        is_whole: A single split trains as it is, and is not divided.
    """

    name: str
    path: object
    names: Sequence[str]
    splits: Sequence[str]
    labels: Sequence[Any]
    read: Callable[[int], bytes | np.ndarray]
    where: Callable[[int], tuple[Place, str]] | None = None
    classes: Sequence[str] | None = None
    empty: Sequence[str] | None = None
    groups: Sequence[Any] | None = None
    row: Callable[[int], str] | None = None
    is_whole: bool = False


def by_name(function: Callable[[str], T], names: Sequence[str], i: int) -> T:
    """The function of the name of row i: a reader of names becomes one of rows by `partial`."""
    return function(names[i])


def dataset_of(rows: Rows) -> Dataset:
    """The data set of rows; what is left out of it is recorded (left_out.py).

    Raises:
        InputError: Splits of other names alone, labels that are no classes, and no labelled row.
    """
    rows_of: dict[str, list[int]] = {}
    for i, title in enumerate(rows.splits):
        rows_of.setdefault(title, []).append(i)
    split_by_title = read_splits(rows_of, rows.path)
    used = [i for title in split_by_title for i in rows_of[title]]

    row_name = rows.row or rows.names.__getitem__
    labels = read_labels([rows.labels[i] for i in used], rows.classes, rows.path, lambda k: row_name(used[k]))
    numbers = np.full(len(rows.names), -1, np.int32)
    numbers[used] = labels.numbers
    splits: dict[str, Examples] = {}
    for title, split in split_by_title.items():
        own = np.array(rows_of[title])
        missing: list[int] = own[numbers[own] < 0].tolist()
        if missing:
            leave_out("rows", "without a label", len(missing), rows.names[missing[0]], of=title or rows.name)
        labelled = own[numbers[own] >= 0]
        if len(labelled):
            splits[split] = examples_of(rows, labelled, numbers[labelled], is_trained=split in ("", "train"))
    check_labels(rows, labels.classes, splits)

    note_alike(labels.classes)
    if rows.classes is None:
        note_joined(labels.classes)
    seen = {*labels.numbers.tolist()}
    unseen = [name for i, name in enumerate(labels.classes) if i not in seen]
    empty = tuple(name for name in unseen if rows.empty is None or name in rows.empty)
    if empty:
        count = f"{len(empty)} of {len(labels.classes)} classes"
        note(f"{count} have no image here, and keep their places: {first_names(empty)}")
    is_divided = {*splits} in ({""}, {"train"}) and not rows.is_whole
    if is_divided:
        note("one split: every fifth image by content is test")
        splits = by_content(*splits.values())
    classes_from = "images" if rows.classes is None or rows.empty is not None else "list"
    return Dataset(rows.name, labels.classes, splits, (), empty, classes_from, is_divided)


def read_splits(rows_of: dict[str, list[int]], path: object) -> dict[str, str]:
    """The split of each name that says one; rows of other names are left out. A single split may have any name."""
    if len(rows_of) <= 1:
        return {title: split_of_name(title) or "" for title in rows_of}
    split_by_title = one_name_each(rows_of, path)
    if not split_by_title:
        raise InputError(
            f"the splits of {path} must have names that say train, validation or test; they are"
            f" {first_names(sorted(rows_of))}. Rename them"
        )
    for title, rows in rows_of.items():
        if title not in split_by_title:
            leave_out("rows", "a split of another name", len(rows), of=title)
    return split_by_title


def examples_of(rows: Rows, own: Int[np.ndarray, "k"], labels: Int[np.ndarray, "k"], is_trained: bool) -> Examples:
    """The examples of a split: the rows `own` and their class indices; those that are trained on have groups."""
    chosen: list[int] = own.tolist()
    where = None if rows.where is None else pick(rows.where, own)
    examples = Examples(tuple(rows.names[i] for i in chosen), labels, pick(rows.read, own), where)
    if rows.groups is None or not is_trained:
        return examples
    return examples.in_groups([rows.groups[i] for i in chosen], rows.path)


def check_labels(rows: Rows, classes: Sequence[str], splits: dict[str, Examples]) -> None:
    """Raises InputError unless a row has a label, and labels of training images are fewer than the images."""
    count = sum(map(len, splits.values()))
    if not count:
        raise InputError(f"a row of {rows.path} must have a label; none of its {len(rows.names)} rows has one")
    if rows.classes is None and {*map(caseless_name, classes)} <= {*SPELLINGS}:
        raise InputError(
            f"the labels of {rows.path} must be classes; they are names of splits, {first_names(classes)}."
            " ?label=COLUMN chooses another column, and of csv: ?split=COLUMN reads this one"
        )
    if rows.classes is None and count == len(classes) > 1 and {"", "train"} & {*splits}:
        raise InputError(
            f"a class of {rows.path} must have several images; each of its {count} rows has a label of its own, such as"
            f" {short(classes[0])}, as captions and identifiers have. ?label=COLUMN chooses another column"
        )


def by_content(examples: Examples) -> dict[str, Examples]:
    """Train and test by the content identifier; every class trains.

    A class whose images would all be test images trains on the one with the smallest identifier. So adding or removing
    an image moves no image of another class, and of its own class only this one. Without any test image, the smallest
    identifier of a class of several images is test; there is no test split if each class has one image.
    """
    identifiers = examples.identifiers()
    test = np.array([int(name[:8], 16) % HELD_OUT == 0 for name in identifiers], bool)
    rows = {label: np.flatnonzero(examples.labels == label) for label in {*examples.labels[test].tolist()}}
    for several in rows.values():
        if test[several].all():
            first = min(identifiers[i] for i in several)
            test[[i for i in several if identifiers[i] == first]] = False
    if not test.any():
        test = first_to_spare(identifiers, examples.labels)
    if not test.any():
        return {"train": examples}
    return {"train": examples.take(np.flatnonzero(~test)), "test": examples.take(np.flatnonzero(test))}


def first_to_spare(identifiers: Sequence[str], labels: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """A mask of the image with the smallest identifier, and its copies, of the classes that keep another image."""
    images: dict[int, set[str]] = {}
    for label, identifier in zip(labels.tolist(), identifiers, strict=True):
        images.setdefault(label, set()).add(identifier)
    spare = {min(several): label for label, several in images.items() if len(several) > 1}
    first = min(spare, default=None)
    return np.array([name == first for name in identifiers], bool) & (labels == spare.get(first or "", -1))
