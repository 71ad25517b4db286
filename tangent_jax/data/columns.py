"""Data sets with columns: splits by name, one column of images, one of labels, and classes.

    PATH?image=NAME&label=NAME      the columns, needed if several fit; a CSV also takes &split=NAME
    classes.txt                     beside the data: one class name per line, in the order of the class indices

A split is a word in the name of a file, or of the nearest folder around it: train, test, validation, or another one of
SPELLINGS. A single split is divided by content, like a folder without splits. Labels are class indices or class names.
Indices without names become classes "0", "1", ...; names are sorted. Left out, each with a remark: rows without a label
(null, -1, empty), splits without labels, splits of other names.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from tangent_jax.core import require
from tangent_jax.core.records import read_lines
from tangent_jax.core.url_paths import Place, name_below
from tangent_jax.data.folders import by_content
from tangent_jax.data.left_out import LeftOut, leave_out, note
from tangent_jax.data.sources import Dataset, Examples
from tangent_jax.data.splits import SPELLINGS, one_name_each, split_of_name

Label = int | str | None


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of one split on disk; `read` and `where` as in Examples."""

    names: Sequence[str]
    labels: Sequence[Label]
    read: Callable[[int], bytes]
    where: Callable[[int], tuple[Place, str]]


def options(where: str) -> tuple[str, dict[str, str]]:
    """(path, columns by image, label, split) of the part of a specification after the colon."""
    path, mark, text = where.partition("?")
    pairs = parse_qsl(text, keep_blank_values=True)
    expected = "PATH?image=COLUMN&label=COLUMN&split=COLUMN, each at most once"
    good = len({*dict(pairs)} & {"image", "label", "split"}) == len(pairs) and all(value for _, value in pairs)
    require(path and good and (pairs or not mark), "open_dataset", expected, where)
    return path, dict(pairs)


def choose(kind: str, chosen: str | None, fitting: Sequence[str], present: Sequence[str], where: object) -> str:
    """The column of images or labels: the chosen one, or the only one that fits."""
    do = f"Write PATH?{kind}=COLUMN"
    if chosen is not None:
        require(chosen in present, "open_dataset", f"a column {chosen} in {where}", ", ".join(present) or "none", do)
        return chosen
    require(fitting, "open_dataset", f"a column of {kind}s in {where}", "none")
    require(len(fitting) == 1, "open_dataset", f"one column of {kind}s in {where}", ", ".join(fitting), do)
    return fitting[0]


def split_of(file: str) -> tuple[str, tuple[str, ...]]:
    """(split, surrounding folders) of a file's relative name; "" if no word names a split."""
    parts = Path(file).parts
    for place in reversed(range(len(parts))):
        split = split_of_name(parts[place])
        if split:
            return split, parts[:place]
    return "", ()


def by_split(root: Place, files: Sequence[Any]) -> dict[str, list[Any]]:
    """The files of each split, by their names below `root`, sorted; files of no split are left out beside others."""
    groups: dict[str, list[Any]] = {}
    around: set[str] = set()
    for file in files:
        split, folders = split_of(name_below(file, root))
        groups.setdefault(split, []).append(file)
        around |= {"/".join(folders) or "."} if split else set()
    do = "Name the path of one data set"
    require(len(around) < 2, "open_dataset", f"one data set in {root}", " and ".join(sorted(around)), do)
    unnamed = groups.pop("") if len(groups) > 1 and "" in groups else []
    if unnamed:
        leave_out(LeftOut("files", "of no split", len(unnamed), str(unnamed[0])))
    return groups


def classes_beside(folder: Place) -> tuple[str, ...] | None:
    """The names of classes.txt in a folder, or None."""
    path = folder / "classes.txt"
    return tuple(read_lines("open_dataset", path)) if path.is_file() else None


def assemble(path: Place, parts: Mapping[str, Part], classes: Sequence[str] | None) -> Dataset:
    """The data set of its parts, by split; `classes`: the names of the class indices, if known."""
    split_by_name = one_name_each(parts, path)
    unknown = [name for name in parts if name not in split_by_name] if len(parts) > 1 else []
    for name in unknown:
        count = len(parts[name].names)
        leave_out(LeftOut("rows", f"a split that is none of {', '.join(SPELLINGS)}", count, of=name or "no split"))
    known = {name: part for name, part in parts.items() if name not in unknown}
    labels = {label for part in known.values() for label in part.labels if not is_missing(label)}
    names, index = class_index(path, labels, classes)
    splits: dict[str, Examples] = {}
    for name, part in known.items():
        split = split_by_name.get(name, "")
        numbers = np.array([index.get(label, -1) for label in part.labels], np.int32)
        missing, rows = np.flatnonzero(numbers < 0), np.flatnonzero(numbers >= 0)
        if len(missing):
            first = str(part.names[missing[0]])
            leave_out(LeftOut("rows", "without a label", len(missing), first, len(numbers), of=name or path.name))
        if len(rows):
            whole = Examples(tuple(part.names), numbers, part.read, part.where)
            splits[split] = whole.take(rows) if len(missing) else whole
    if {*splits} in ({""}, {"train"}):
        splits = by_content(*splits.values())
        note("one split: every fifth image by content is test")
    return Dataset(path.stem, names, splits)


def is_missing(label: Label) -> bool:
    """True for a value that means no label."""
    return label is None or label in (-1, "")


def class_index(
    path: Place, labels: Collection[Label], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[Label, int]]:
    """Returns the names of the classes, and the class index of each distinct label."""
    distinct: list[Any] = [*labels]
    kinds = {type(label) for label in distinct}
    require(len(kinds) < 2, "open_dataset", f"class indices or class names in {path}", "both")
    distinct.sort()
    negative = [label for label in distinct if isinstance(label, int) and label < 0]
    require(not negative, "open_dataset", f"class indices >= 0 in {path}, or -1 for no label", negative[:1])
    if classes is None:
        return tuple(map(str, distinct)), {label: i for i, label in enumerate(distinct)}
    index: dict[Label, int] = {name: i for i, name in enumerate(classes)}
    index = {i: i for i in range(len(classes))} if kinds == {int} else index
    wrong = [label for label in distinct if label not in index]
    expected = f"labels of {path} that are one of its {len(classes)} classes, or an index below {len(classes)}"
    require(not wrong, "open_dataset", expected, wrong[:1])
    return tuple(classes), index


def as_labels(texts: Sequence[str], where: object) -> list[Label]:
    """Labels from text: class indices if all are whole numbers 0, 1, 2, ..., class names if none is.

    An empty text, or -1 among indices, means no label.
    Raises: InputError naming the first label of a mixture: a stray 1.0 or 01 would turn all indices into names.
    """
    indices = [re.fullmatch("0|[1-9][0-9]{0,17}", text) is not None for text in texts]
    if not any(indices):
        negative = [text for text in texts if re.fullmatch("-[0-9]+", text)]
        require(not negative, "open_dataset", f"class indices >= 0, or names, in {where}", negative[:1])
        return [*texts]
    odd = [i for i, text in enumerate(texts) if not indices[i] and text not in ("", "-1")]
    expected, do = f"labels of {where} that are all class indices 0, 1, 2, ..., or all names", "Write them alike"
    got = f"{texts[odd[0]]!r} of row {odd[0] + 1} among indices" if odd else ""
    require(not odd, "open_dataset", expected, got, do)
    return [None if text in ("", "-1") else int(text) for text in texts]
