"""The columns of a table (parquet, tars, CSV, TFDS): which of them holds images, labels or groups.

PATH?image=NAME&label=NAME      the columns, needed if several fit
PATH?group=NAME                 training images with the same entry in this column are held out together
classes.txt, classnames.txt     beside the data: one class name per line, in the order of the class indices, which
                                may stand before the names

Columns that describe an image, such as its width, are labels only if they are chosen.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from tangent_jax.core.checks import InputError
from tangent_jax.data.labels import NO_LABEL
from tangent_jax.data.left_out import note
from tangent_jax.data.splits import SPELLINGS
from tangent_jax.io.paths import Place
from tangent_jax.io.records import first_names, read_lines, short

MUST = {
    "image": "the encoded bytes of one image (csv: reads a table of their paths)",
    "label": "one class index, class name or Boolean",
    "group": "one number, text or Boolean",
}


DESCRIPTIONS = ("width", "height", "size", "id", "index", "inx", "count", "image_id", "split", "__index_level_0__")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column that may hold the images, or the labels: what it holds, in words, and whether that fits.

    Attributes:
        stated: The file itself says that this is the column.
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
    name = chosen.get(kind)
    held = first_names([f"{column.name} ({column.holds})" for column in columns]) or "none"
    if kind == "label" and name != "split" and any(column.name == "split" and column.fits for column in columns):
        note("the column split is not read: splits are in the names of files and folders")
    if name is not None:
        named = [column for column in columns if column.name == name]
        if not named:
            raise InputError(f"{kind}={name} must name a column of {where}; its columns are {held}")
        if not named[0].fits:
            raise InputError(f"the {kind} column must hold {MUST[kind]}; {name} of {where} holds {named[0].holds}")
        return name
    fitting = [column for column in columns if column.fits and column.stated]
    others = [column for column in columns if column.fits and column.name != chosen.get("group")]
    fitting = fitting or [c for c in others if c.name.rpartition(".")[2].lower() not in DESCRIPTIONS]
    if not fitting:
        how = f". Write ?{kind}=COLUMN to take one of them" if others else ""
        raise InputError(f"{where} must have a column of {kind}s, each {MUST[kind]}; its columns are {held}{how}")
    if len(fitting) > 1:
        names = ", ".join(column.name for column in fitting)
        raise InputError(
            f"{where} must have one column of {kind}s; {names} may each be it. Write ?{kind}=COLUMN to choose"
        )
    return fitting[0].name


def as_groups(values: Sequence[Any]) -> list[Any]:
    """The groups of the entries of a column; None for an entry that says none."""
    return [None if str(value).strip() in NO_LABEL else value for value in values]


def classes_beside(folder: Place) -> tuple[str, ...] | None:
    """The names of classes.txt or classnames.txt in a folder, or around the folder of a split; None without them."""
    folders = (folder, folder.parent) if folder.name.lower() in SPELLINGS else (folder,)
    paths = [place / name for place in folders for name in ("classes.txt", "classnames.txt")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    lines = read_lines(path)
    numbered = [re.fullmatch(r"([0-9]+)\s*[\s:,]\s*(.+)", line) for line in lines]
    numbers = [int(match[1]) for match in numbered if match]
    names = tuple(match[2] for match in numbered if match)
    is_numbered = numbers in ([*range(len(lines))], [*range(1, len(lines) + 1)])  # PaddleClas's, CUB's
    if not names or not is_numbered or len({*names}) < len(names):  # 1 euro, 2 euro
        return tuple(lines)
    note(f"the numbers before the names of {path.name} are left out, such as that of {short(lines[0])}")
    return names
