"""Data sets with columns: splits by name, one column of images, one of labels, and classes.

    PATH?image=NAME&label=NAME      the columns, needed if several fit
    PATH?group=NAME                 training images with the same entry in this column are held out together
    classes.txt                     beside the data: one class name per line, in the order of the class indices

A split is a word in the name of a file, or of the nearest folder around it (splits.py). A single split is divided by
content, like a folder without splits. Labels are read by labels.py. Indices without names become classes "0", "1", ...,
in the order of their numbers; names are sorted. Left out, each with a remark: rows without a label, splits without
labels, splits of other names.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.data.folders import divided, is_single
from tangent_jax.data.labels import NO_LABEL, note_alike, read_labels, spellings
from tangent_jax.data.left_out import LeftOut, leave_out, note
from tangent_jax.data.sources import Dataset, Examples
from tangent_jax.data.splits import SPELLINGS, one_name_each, split_of_name
from tangent_jax.io.paths import Place
from tangent_jax.io.records import first_names, read_lines, short

IMAGES = "the encoded bytes of one image"
LABELS = "one class index, class name or Boolean"
GROUPS = "one number, text or Boolean"


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of one split on disk; `labels` as written; `read` and `where` as in Examples.

    `row(i)` names row i in errors about its label; without it, its image's name does. `groups` as written, if chosen.
    """

    names: Sequence[str]
    labels: Sequence[Any]
    read: Callable[[int], Any]
    where: Callable[[int], tuple[Place, str]] | None
    row: Callable[[int], str] | None = None
    groups: Sequence[Any] | None = None

    def named(self, i: int) -> str:
        """The name of row i in an error."""
        return self.names[i] if self.row is None else self.row(i)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column that may hold the images, or the labels: what it holds, in words, and whether that fits.

    `stated`: the file itself says that this is the column.
    """

    name: str
    holds: str
    fits: bool
    stated: bool = False


def options(where: str, form: str, allowed: Sequence[str]) -> tuple[str, dict[str, str]]:
    """(path, choices by name) of the part of a specification after its kind; `form`: how such a one is written."""
    path, mark, text = where.partition("?")
    pairs = parse_qsl(text, keep_blank_values=True)
    chosen = dict(pairs)
    are_right = {*chosen} <= {*allowed} and len(chosen) == len(pairs) and all(chosen.values())
    if not path or not are_right or (mark and not pairs):
        choices = "&".join(f"{name}=..." for name in allowed)
        raise InputError(f"a specification must be {form}?{choices}, each choice at most once; got {where}")
    return path, chosen


def choose(kind: str, chosen: Mapping[str, str], columns: Sequence[Column], where: object) -> str:
    """The column of images, labels or groups, `kind`: the chosen one, the stated one, or the only one that fits."""
    must = {"image": IMAGES, "label": LABELS, "group": GROUPS}[kind]
    name = chosen.get(kind)
    held = first_names([f"{column.name} ({column.holds})" for column in columns]) or "none"
    if name is not None:
        named = [column for column in columns if column.name == name]
        if not named:
            raise InputError(f"{kind}={name} must name a column of {where}; its columns are {held}")
        if not named[0].fits:
            raise InputError(f"the {kind} column must hold {must}; {name} of {where} holds {named[0].holds}")
        return name
    fitting = [column.name for column in columns if column.fits and column.name != chosen.get("group")]
    stated = [column.name for column in columns if column.fits and column.stated]
    if not fitting:
        raise InputError(f"{where} must have a column of {kind}s, each {must}; its columns are {held}")
    fitting = stated or fitting
    if len(fitting) > 1:
        raise InputError(
            f"{where} must have one column of {kind}s; {', '.join(fitting)} may each be it. Write"
            f" ?{kind}=COLUMN to choose"
        )
    return fitting[0]


# Splits


def split_of(file: str, stem: Callable[[str], str]) -> tuple[str, tuple[str, ...], str]:
    """(split, surrounding folders, name of the split) by a file's relative name; "" if no part names a split."""
    parts = PurePosixPath(file).parts
    for place in reversed(range(len(parts))):
        split = split_of_name(parts[place])
        if split:
            is_file = place == len(parts) - 1
            return split, parts[:place], stem(parts[place]) if is_file else parts[place]
    return "", (), ""


def by_split(
    root: Place, files: Sequence[Any], stem: Callable[[str], str], listed_by_user: bool = False
) -> dict[str, list[Any]]:
    """The files of each split, by their names below `root`, sorted; files of no split are left out beside others.

    Args:   stem: the name of a series of files, without what tells its files apart; listed_by_user: the user named the
            files one by one, or by a pattern.
    Raises: InputError for two data sets; for two names of one split, such as train and train_small, that were found.
    """
    groups: dict[str, list[Any]] = {}
    around: set[str] = set()
    names: set[str] = set()
    for file in files:
        split, folders, name = split_of(str(file.relative_to(root)), stem)
        groups.setdefault(split, []).append(file)
        if split:
            around.add("/".join(folders) or ".")
            names.add(name)
    if len(around) > 1:
        raise InputError(f"{root} must hold one data set; it holds {' and '.join(sorted(around))}. Name one of them")
    if not listed_by_user:
        one_name_each(names, root)
    unnamed = groups.pop("") if len(groups) > 1 and "" in groups else []
    if unnamed:
        leave_out(LeftOut("files", "of no split", len(unnamed), str(unnamed[0].relative_to(root)), len(files)))
    return groups


def content_of(below: Sequence[Any]) -> str:
    """The suffixes of the files below a folder, for an error."""
    suffixes = sorted({path.suffix for path in below if path.suffix and path.is_file()})
    return f"only files of {first_names(suffixes)}" if suffixes else "no file"


def classes_beside(folder: Place) -> tuple[str, ...] | None:
    """The names of classes.txt in a folder, or None."""
    path = folder / "classes.txt"
    return tuple(read_lines(path)) if path.is_file() else None


def assemble(path: Place, parts: Mapping[str, Part], classes: Sequence[str] | None, name: str | None = None) -> Dataset:
    """The data set of its parts, by split; `classes`: the names of the class indices, if known.

    `name` is the data set's name, by default the path's.
    Raises: InputError if several parts have names, and none says a split.
    """
    split_by_name = (
        one_name_each(parts, path) if len(parts) > 1 else {title: split_of_name(title) or "" for title in parts}
    )
    if not split_by_name:
        raise InputError(
            f"{path} has the splits {first_names(sorted(parts))}, and no name of them says train, validation or test"
            f" ({', '.join(SPELLINGS)}). Rename them"
        )
    for title in [title for title in parts if title not in split_by_name]:
        leave_out(LeftOut("rows", "a split of another name", len(parts[title].names), of=title))
    used_parts = {title: parts[title] for title in split_by_name}
    values = [label for part in used_parts.values() for label in part.labels]
    labels = read_labels(values, classes, path, partial(named_row, tuple(used_parts.values())))
    splits: dict[str, Examples] = {}
    start = 0
    for title, part in used_parts.items():
        numbers = labels.numbers[start : start + len(part.names)]
        start += len(part.names)
        missing = np.flatnonzero(numbers < 0)
        present = np.flatnonzero(numbers >= 0)
        if len(missing):
            why = f"without a label ({spellings([part.labels[int(i)] for i in missing])})"
            first = str(part.names[missing[0]])
            leave_out(LeftOut("rows", why, len(missing), first, len(numbers), of=title or path.name))
        if len(present):
            examples = Examples(tuple(part.names), numbers, part.read, part.where)
            examples = examples.take(present) if len(missing) else examples
            if part.groups is not None and split_by_name[title] in ("", "train"):
                groups = [part.groups[i] for i in present.tolist()]
                known = [None if str(group).strip() in NO_LABEL else group for group in groups]
                examples = examples.in_groups(known, path)
            splits[split_by_name[title]] = examples
    if not splits:
        raise InputError(f"a row of {path} must have a label; none of its {len(values)} rows has one")
    note_alike(labels.classes)
    count = sum(map(len, splits.values()))
    if classes is None and count == len(labels.classes) > 1 and {"", "train"} & {*splits}:
        raise InputError(
            f"a class of {path} must have several images; each of its {count} rows has a label of its own, such as"
            f" {short(labels.classes[0])}, as captions and identifiers have. ?label=COLUMN chooses another column"
        )
    used = {*labels.numbers.tolist()}
    empty = tuple(title for i, title in enumerate(labels.classes) if i not in used)
    if empty:
        note(
            f"{len(empty)} of {len(labels.classes)} classes have no image here, and keep their places: "
            f"{first_names(empty)}"
        )
    stated = "images" if classes is None else "list"
    more = {"empty": empty, "classes_from": stated, "is_divided": is_single(splits)}
    return Dataset(name or path.stem, labels.classes, divided(splits), **more)


def named_row(parts: Sequence[Part], row: int) -> str:
    """The name of a row of several parts in an error; `row`: its number, counted over all parts."""
    for part in parts:
        if row < len(part.names):
            return part.named(row)
        row -= len(part.names)
    raise IndexError(row)
