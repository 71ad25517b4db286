"""A CSV of images, or JSON lines: one line for each image, with its path and its label.

    path,label                      the header; ?image=COLUMN&label=COLUMN choose columns of other names
    a/1.jpg,cat                     paths are relative to the file, or to ?folder=FOLDER beside it; labels: labels.py
    path,label,split                the optional column `split`, or ?split=COLUMN: train, validation, test
    path,label,is_valid             ?split=is_valid: True is validation, False is train
    path,label,patient              ?group=patient: training images of one patient are held out together
    {"path": ..., "of": {"kind": ...}}      a JSON object a line (SageMaker, Vertex AI): the columns path and of.kind

Columns are divided by a comma, or by the semicolon, tab, bar or space that divides the header (said in a remark), or
by what the first line `sep=;` of Excel or ?sep= says. Text is UTF-8, or UTF-16 with its mark. Columns without a name,
such as the index of pandas, are not read, nor are empty lines.

Paths of Windows are read with their backslashes as folders, and those in a bucket without it. A path that no file has
is found, with a remark, without its quotes or %20, by another letter case, space or Unicode form, and a name without
folder or suffix by its only file in the folders below. The image's name is its path from the file's folder, in
Unicode's composed form, also where the file has a whole path. Left out, with a remark: lines without a path.
"""

import csv
import dataclasses
import functools
import io
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from posixpath import join, normpath
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name, composed_name, other_spellings
from tangent_jax.data.columns import as_groups, classes_beside, options
from tangent_jax.data.layouts import is_hidden
from tangent_jax.data.left_out import leave_out, note
from tangent_jax.data.rows import Rows, by_name
from tangent_jax.data.sources import SUFFIXES, existing_path, place_of_file, read_file
from tangent_jax.data.splits import NO, SPELLINGS, YES, split_of_flag
from tangent_jax.io.paths import Place, absolute, names_below, read_range
from tangent_jax.io.records import first_names, parse_json, read_text, short

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
PACKED = {
    b"\x1f\x8b": "a gzipped file. Unpack it: gunzip PATH",
    b"PK\3\4": "a workbook of Excel or a zip. Save it as CSV UTF-8, or open a zip of images as folder:PATH",
    b"PAR1": "parquet. Open it as hf:PATH, or write it as a CSV if it holds paths instead of images",
}
"""What a file is that begins so, and what to do with it."""
BUCKET = re.compile(r"[A-Za-z0-9]+://[^/]*/")


@dataclasses.dataclass(frozen=True)
class Table:
    """A CSV: the names of its columns, its rows, and the line of each row in the file."""

    path: Place
    separator: str
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    def column(self, name: str) -> list[str]:
        """The entries of a column, without surrounding spaces."""
        place = self.header.index(name)
        return [row[place].strip() for row in self.rows]


def csv_file(where: str) -> Rows:
    """The rows of a CSV."""
    name, chosen = options(where, "csv:FILE", ("image", "label", "split", "sep", "folder", "group"))
    path = existing_path(name)
    if not path.is_file():
        raise InputError(f"csv: must name a CSV file; {path} is a folder")
    start = read_range(path, 0, 4)
    for mark, what in PACKED.items():
        if start.startswith(mark):
            raise InputError(f"csv: must name a CSV file; {path} is {what.replace('PATH', str(path))}")
    folder = chosen.pop("folder", "").rstrip("/")
    if not (path.parent / folder).is_dir():
        raise InputError(f"folder must be the images' folder beside {path.name}; there is no {folder}")
    sep = chosen.pop("sep", None)
    wanted = {"image": "path", "label": "label"} | chosen
    table = read_table(path, sep, {*wanted.values()})
    if "split" not in wanted and "split" in table.header:
        wanted["split"] = "split"
    check_columns(table, wanted)
    if "split" not in wanted:
        note_unread_splits(table, {*wanted.values()})

    root = f"{absolute(path.parent)}/"
    plain = [text.removeprefix("file://") for text in table.column(wanted["image"])]
    texts = [
        normpath(join(folder, text)).removeprefix(root) if text and not BUCKET.match(text) else text for text in plain
    ]
    files = find_images(table, texts, folder)
    labels = table.column(wanted["label"])
    if all(re.fullmatch(r"-?[0-9]+,0+|", label) for label in labels):  # 1,0 of a language with decimal commas
        labels = [label.replace(",", ".") for label in labels]
    splits = read_splits(table, wanted["split"]) if "split" in wanted else [""] * len(files)
    groups = as_groups(table.column(wanted["group"])) if "group" in wanted else None

    used = [i for i, file in enumerate(files) if file]
    files = tuple(files[i] for i in used)
    return Rows(
        path.stem,
        path,
        tuple(map(composed_name, files)),
        [splits[i] for i in used],
        [labels[i] for i in used],
        partial(by_name, partial(read_file, path.parent), files),
        partial(by_name, partial(place_of_file, path.parent), files),
        classes_beside(path.parent),
        groups=groups and [groups[i] for i in used],
        row=lambda i: f"line {table.lines[used[i]]}",
    )


# Text


def read_table(path: Place, sep: str | None, wanted: set[str]) -> Table:
    """The table of a CSV; notes columns that are not divided by commas. `wanted`: names of columns."""
    lines = [*io.StringIO(read_text(path), newline="")]
    stated = re.fullmatch(r'"?sep=(.)"?', lines[0].strip("\r\n"), re.IGNORECASE) if lines else None  # Excel's own line
    skipped = 1 if stated else 0
    first = next((line for line in lines[skipped:] if line.strip()), "")
    guess = stated[1] if stated else None
    if first.lstrip()[:1] in ("{", "["):
        return read_json_lines(path, lines)
    separator = as_separator(sep) if sep is not None else guess or divider(path, first, wanted)
    reader = csv.reader(iter(lines[skipped:]), delimiter=separator, skipinitialspace=True, strict=True)
    try:
        found = [(reader.line_num + skipped, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputError(f"{path} must be a CSV; its line {reader.line_num + skipped} is not: {error}") from error
    if len(found) < 2:
        raise InputError(f"{path} must hold a header and rows, one for each image; it holds {len(found)} lines")
    header = [name.strip() for name in found[0][1]]
    needed = max((i + 1 for i, name in enumerate(header) if name), default=0)
    for line, row in found[1:]:
        beyond = [cell for cell in row[len(header) :] if cell.strip()]
        if len(row) < needed or beyond:
            raise InputError(
                f"each line of {path} must have {needed} entries, as its first line; line {line} has {len(row)}. An"
                f" entry that holds the separator {separator!r} must stand in quotes, a missing one be left empty, and"
                " lines of several labels be left out"
            )
    # a row may be shorter where trailing columns have no name
    rows = [row + [""] * (len(header) - len(row)) for _, row in found[1:]]
    if separator != "," and sep is None:
        note(f"the columns of {path.name} are divided by {SEPARATORS.get(separator, repr(separator))}")
    return Table(path, separator, header, rows, [line for line, _ in found[1:]])


def read_json_lines(path: Place, lines: Sequence[str]) -> Table:
    """The table of a file with a JSON object in each line."""
    objects: dict[int, dict[str, str]] = {}
    must = "csv: must name a CSV, or JSON with an object in each line"
    how = (
        'Write {"path": "a.jpg", "label": "cat"} in a line for each image, as to_json(FILE, orient="records",'
        " lines=True) of pandas does"
    )
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                objects[number] = flat(parse_json(line, f"line {number} of {path}"))
            except InputError as error:
                raise InputError(f"{must}; {error}. {how}") from error
    if len(objects) < 2:
        raise InputError(f"{must}; {path} holds one object. {how}")
    header = [*dict.fromkeys(key for cells in objects.values() for key in cells)]
    rows = [[cells.get(key, "") for key in header] for cells in objects.values()]
    return Table(path, ",", header, rows, [*objects])


def flat(value: Any, name: str = "") -> dict[str, str]:
    """The cells of a JSON value by their names; those of objects in objects are joined by a dot, as by pandas."""
    if isinstance(value, dict):
        cells: dict[str, str] = {}
        for key, inner in value.items():
            cells |= flat(inner, f"{name}.{key}" if name else key)
        return cells
    text = value if isinstance(value, str) else str(value) if isinstance(value, bool) else json.dumps(value)
    return {name: "" if value is None else text}


def as_separator(text: str) -> str:
    """The separator that ?sep= means: one character, or `tab`."""
    separator = "\t" if text == "tab" else text
    if len(separator) != 1 or separator in '"\r\n':
        raise InputError(f"sep must be one character, such as ; or |, or the word tab; got {text}")
    return separator


def divider(path: Place, line: str, wanted: set[str]) -> str:
    """The separator of a header: the one that gives the wanted columns, or the only one in it; else a comma."""
    cells = {mark: {cell.strip() for cell in next(csv.reader([line], delimiter=mark), [])} for mark in SEPARATORS}
    giving = [mark for mark in SEPARATORS if wanted <= cells[mark]]
    if len(giving) == 1:
        return giving[0]
    dividing = [mark for mark in SEPARATORS if len(cells[mark]) > 1 and mark != " "]
    if len(dividing) > 1:
        marks = " and ".join("tab" if mark == "\t" else mark for mark in dividing)
        raise InputError(
            f"the header of {path} must show what divides its columns; it has {marks}. Write ?sep= with one of them"
        )
    is_list = any(word.lower().endswith(SUFFIXES) for word in line.split())  # Caffe's, mmpretrain's, PaddleClas's
    return dividing[0] if dividing else " " if is_list and " " in line.strip() else ","


# Columns


def check_columns(table: Table, wanted: Mapping[str, str]) -> None:
    """Raises InputError unless each of the wanted columns, by kind, is there once."""
    wrong = {kind: name for kind, name in wanted.items() if table.header.count(name) != 1}
    images = [cell for cell in table.header if cell.lower().endswith(SUFFIXES)]
    if not wrong and wanted["image"] not in images:
        return
    if images:
        header = missing_header(table, wanted)
        divided = ", divided by a tab" if table.separator == "\t" else ""
        how = f"Add this line before it{divided}: {header}" if header else "Add a line that names all columns"
        raise InputError(
            f"{table.path} must begin with the names of its columns; its first line is a row,"
            f" {short(table.separator.join(table.header))}. {how}"
        )
    choices = "&".join(f"{kind}=COLUMN" for kind in wrong)
    how = f"Write ?{choices} to choose, or correct the line"
    hot = one_hot_columns(table) if "label" in wrong else []
    if hot:
        start = table.header.index(hot[0])
        how = (
            f"{first_names(hot)} hold a 1 for the class of each image: write one column, in pandas"
            f' table["{wanted["label"]}"] = table.iloc[:, {start}:{start + len(hot)}].idxmax(axis=1)'
        )
    raise InputError(
        f"the first line of {table.path} must name one column {' and '.join(wrong.values())}; it names"
        f" {first_names(table.header)}. {how}"
    )


def one_hot_columns(table: Table) -> list[str]:
    """The columns of 0 and 1, if there are several side by side and each row has a single 1 in them; else none."""
    texts = {name: table.column(name) for name in table.header if name and table.header.count(name) == 1}
    columns = {name: cells for name, cells in texts.items() if {*cells} <= {"0", "1", "0.0", "1.0"}}
    is_one_hot = len(columns) > 1 and all(sum(map(float, row)) == 1 for row in zip(*columns.values(), strict=True))
    is_together = ",".join(columns) in ",".join(table.header)
    return [*columns] if is_one_hot and is_together else []


def missing_header(table: Table, wanted: Mapping[str, str]) -> str:
    """The header of a table whose first line is a row, "" if its rows do not show which column is which.

    The path has a suffix of images, and a split is one by all its texts, as in Vertex AI's lists.
    """
    names: list[str] = []
    for place, cell in enumerate(table.header):
        texts = {caseless_name(text.strip()) for text in (cell, *(row[place] for row in table.rows))} - {""}
        is_split = texts <= {*SPELLINGS, "unassigned"}
        kind = "image" if cell.lower().endswith(SUFFIXES) else "split" if is_split else "label"
        names += [{"split": "split", **wanted}[kind]] if texts else [""]
    used = [name for name in names if name]
    are_clear = {*used} >= {wanted["image"], wanted["label"]} and len({*used}) == len(used)
    return table.separator.replace("\t", " ").join(names).rstrip() if are_clear else ""


# Splits


def read_splits(table: Table, name: str) -> list[str]:
    """The split of each row by a column: its text, or, in a column of truth values, what the column's name says."""
    texts = table.column(name)
    answers = {text: split_of_flag(name, text) for text in {*texts}}
    if {text.lower() for text in texts} <= {*YES, *NO, ""} and not any(answers.values()):
        raise InputError(
            f"the column {name} of {table.path} must say the split of each row; its name does not say what its truth"
            " values mean. Name it is_valid, is_test or is_train"
        )
    spelled: dict[str, str] = {}  # one word in two letter cases is one name
    return [answers[text] or spelled.setdefault(caseless_name(text), text) or "no split" for text in texts]


def note_unread_splits(table: Table, wanted: set[str]) -> None:
    """Notes columns that say a split and are not read, as none was chosen."""
    for name in [name for name in table.header if name and name not in wanted and table.header.count(name) == 1]:
        texts = {*table.column(name)}
        if all(caseless_name(text) in SPELLINGS or split_of_flag(name, text) for text in texts):
            note(f"the column {name} seems to say the split, and is not read; ?split={name} reads it")


# Images


def find_images(table: Table, texts: Sequence[str], folder: str) -> list[str]:
    """The file of each row below the CSV's folder, "" for a row without a path; InputError if a row names no file."""
    parent = table.path.parent
    below = Files(parent, folder)
    if not isinstance(parent, Path):
        names_below(parent)  # one listing, which fsspec keeps, instead of two requests for each row
    files = [text if not text or (parent / text).is_file() else below.find(text) for text in texts]
    missing = [text for text, file in zip(texts, files, strict=True) if file is None]
    if missing:
        named = below.named(missing[0])
        missing = [text for text in missing if bool(below.named(text)) == bool(named)]
        what = "are missing, such as" if not named else f"are several files each ({first_names(named)}), such as"
        raise InputError(
            f"{len(missing)} of {len(texts)} images of {table.path} {what} {short(missing[0])}: write"
            f" paths from the folder of {table.path.name}, or of ?folder=FOLDER in it, to files with suffixes"
        )
    found = [file or "" for file in files]
    lines = [line for line, file in zip(table.lines, found, strict=True) if not file]
    leave_out("rows", "without a path", len(lines), f"line {lines[0]}" if lines else "")
    changed = [(file, text) for file, text in zip(found, texts, strict=True) if file != text]
    if changed:
        file, text = changed[0]
        note(f"{len(changed)} files are written otherwise in {table.path.name}, such as {file} for {text}")
    return found


class Files:
    """The files below a root, by their spelling in one letter case, space and Unicode form.

    Args:
        folder: The folder below the root whose images are found by their names alone.
    """

    def __init__(self, root: Place, folder: str) -> None:
        self.root = root
        self.folder = folder

    def find(self, text: str) -> str | None:
        """The file of a path in another spelling, or the only image of this name in the folders below; or None."""
        plain = BUCKET.sub("", text, count=1)
        for path in (str(PurePosixPath(plain.replace("\\", "/"))), *other_spellings(plain)):
            if (self.root / path).is_file():
                return path
            found = [file for file in self.by_path.get(caseless_name(path), []) if (self.root / file).is_file()]
            if len(found) == 1:
                return found[0]
        found = self.named(text)
        return found[0] if len(found) == 1 else None

    def named(self, text: str) -> list[str]:
        """The images of this name, or of this name without its suffix."""
        return self.by_name.get(caseless_name(text.removeprefix(f"{self.folder}/")), [])

    @functools.cached_property
    def by_path(self) -> dict[str, list[str]]:
        """The files and folders by their paths."""
        found: dict[str, list[str]] = {}
        for file in names_below(self.root):
            found.setdefault(caseless_name(file), []).append(file)
        return found

    @functools.cached_property
    def by_name(self) -> dict[str, list[str]]:
        """The images below the folder by their names with and without suffixes."""
        found: dict[str, list[str]] = {}
        for file in (file for files in self.by_path.values() for file in files):
            path = PurePosixPath(file)
            is_image = path.suffix.lower() in SUFFIXES and not is_hidden(file)
            if is_image and path.is_relative_to(self.folder):
                for name in {path.name, path.stem}:
                    found.setdefault(caseless_name(name), []).append(file)
        return found
