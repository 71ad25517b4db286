"""A CSV of images: one line for each image, with its path and its label.

    path,label                      the header; ?image=COLUMN&label=COLUMN choose columns of other names
    a/1.jpg,cat                     paths are relative to the file, or to ?folder=FOLDER beside it; labels: labels.py
    path,label,split                the optional column `split`, or ?split=COLUMN: train, validation, test
    path,label,is_valid             ?split=is_valid: True is validation, False is train
    path,label,patient              ?group=patient: training images of one patient are held out together

Columns are divided by a comma, or by the semicolon, tab or bar that divides the header (said in a remark), or as the
first line `sep=;` of Excel or ?sep= says. Text is UTF-8, or UTF-16 with its mark. Columns without a name, such as the
index of pandas, are not read, nor are empty lines.

Paths of Windows are read with their backslashes as folders. A path that no file has is found by another letter case or
Unicode form, if one file has it. The image's name is its path, in Unicode's composed form. Left out, with a remark:
lines without a path.
"""

import csv
import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name, composed_name
from tangent_jax.data.columns import as_groups, classes_beside, options
from tangent_jax.data.left_out import leave_out, note
from tangent_jax.data.rows import Rows, by_name
from tangent_jax.data.sources import existing_path, place_of_file, read_file
from tangent_jax.data.splits import NO, SPELLINGS, YES, split_of_flag
from tangent_jax.io.git_lfs import is_pointer, pointer_error
from tangent_jax.io.paths import Place, names_below
from tangent_jax.io.records import MARKS, short

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")


@dataclasses.dataclass(frozen=True)
class Table:
    """A CSV: the names of its columns, its rows, and the line of each row in the file."""

    path: Place
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

    texts = [f"{folder}/{text}" if folder and text else text for text in table.column(wanted["image"])]
    files = find_images(table, texts)
    labels = table.column(wanted["label"])
    if all(re.fullmatch(r"-?[0-9]+,0+|", label) for label in labels):  # 1,0 of a language with decimal commas
        labels = [label.replace(",", ".") for label in labels]
    splits = read_splits(table, wanted["split"]) if "split" in wanted else [""] * len(files)
    groups = as_groups(table.column(wanted["group"])) if "group" in wanted else [None] * len(files)

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
        groups=[groups[i] for i in used] if "group" in wanted else None,
        row=lambda i: f"line {table.lines[used[i]]}",
    )


# Text


def read_table(path: Place, sep: str | None, wanted: set[str]) -> Table:
    """The table of a CSV; notes columns that are not divided by commas. `wanted`: names of columns."""
    lines = [*io.StringIO(read_csv_text(path), newline="")]
    stated = re.fullmatch(r'"?sep=(.)"?', lines[0].strip("\r\n"), re.IGNORECASE) if lines else None  # Excel's own line
    skipped = 1 if stated else 0
    first = next((line for line in lines[skipped:] if line.strip()), "")
    guess = stated[1] if stated else None
    separator = as_separator(sep) if sep is not None else guess or divider(path, first, wanted)
    reader = csv.reader(iter(lines[skipped:]), delimiter=separator, strict=True)
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
                f"each line of {path} must have {needed} entries, as its header; line {line} has {len(row)}. An entry"
                f" that holds the separator {separator!r} must stand in quotes"
            )
    # a row may be shorter where trailing columns have no name
    rows = [row + [""] * (len(header) - len(row)) for _, row in found[1:]]
    if separator != "," and sep is None:
        note(f"the columns of {path.name} are divided by {SEPARATORS.get(separator, repr(separator))}")
    return Table(path, header, rows, [line for line, _ in found[1:]])


def read_csv_text(path: Place) -> str:
    """The text of a CSV; InputError saying how to save a file of another encoding."""
    content = path.read_bytes()
    if is_pointer(content):
        raise pointer_error(path)
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    must = f"{path} must be text in UTF-8, or in UTF-16 with its mark; save it so (in Excel: CSV UTF-8)"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(must) from error
    if "\0" in text:
        raise InputError(must)
    return text


def as_separator(text: str) -> str:
    """The separator that ?sep= means: one character, or `tab`."""
    separator = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(separator) != 1 or separator in '"\r\n':
        raise InputError(f"sep must be one character, such as ; or |, or the word tab; got {text}")
    return separator


def divider(path: Place, line: str, wanted: set[str]) -> str:
    """The separator of a header: the one that gives the wanted columns, or the only one in it; else a comma."""
    cells = {mark: {cell.strip() for cell in next(csv.reader([line], delimiter=mark), [])} for mark in SEPARATORS}
    giving = [mark for mark in SEPARATORS if wanted <= cells[mark]]
    if len(giving) == 1:
        return giving[0]
    dividing = [mark for mark in SEPARATORS if len(cells[mark]) > 1]
    if len(dividing) > 1:
        marks = " and ".join("tab" if mark == "\t" else mark for mark in dividing)
        raise InputError(
            f"the header of {path} must show what divides its columns; it has {marks}. Write ?sep= with one of them"
        )
    return dividing[0] if dividing else ","


# Columns


def check_columns(table: Table, wanted: Mapping[str, str]) -> None:
    """Raises InputError unless each of the wanted columns, by kind, is there once."""
    wrong = {kind: name for kind, name in wanted.items() if table.header.count(name) != 1}
    if wrong:
        choices = "&".join(f"{kind}=COLUMN" for kind in wrong)
        raise InputError(
            f"the first line of {table.path} must name one column {' and '.join(wrong.values())}; it is"
            f" {short(','.join(table.header))}. Add the line, or write ?{choices}"
        )


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
    # one word in two letter cases is one name
    return [answers[text] or caseless_name(text) or "no split" for text in texts]


def note_unread_splits(table: Table, wanted: set[str]) -> None:
    """Notes columns that say a split and are not read, as none was chosen."""
    for name in [name for name in table.header if name and name not in wanted and table.header.count(name) == 1]:
        texts = {*table.column(name)}
        if all(caseless_name(text) in SPELLINGS or split_of_flag(name, text) for text in texts):
            note(f"the column {name} seems to say the split, and is not read; ?split={name} reads it")


# Images


def find_images(table: Table, texts: Sequence[str]) -> list[str]:
    """The file of each row below the CSV's folder, "" for a row without a path; InputError if a row names no file."""
    parent = table.path.parent
    folders = Folders(parent)
    if not isinstance(parent, Path):
        names_below(parent)  # one listing, which fsspec keeps, instead of two requests for each row
    files = [text if not text or (parent / text).is_file() else folders.find(text) for text in texts]
    missing = [text for text, file in zip(texts, files, strict=True) if file is None]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(texts)} images of {table.path} are missing, such as {short(missing[0])}: write"
            f" paths from the folder of {table.path.name}, or of ?folder=FOLDER in it, to files with suffixes"
        )
    found = [file or "" for file in files]
    lines = [line for line, file in zip(table.lines, found, strict=True) if not file]
    leave_out("rows", "without a path", len(lines), f"line {lines[0]}" if lines else "")
    changed = [(file, text) for file, text in zip(found, texts, strict=True) if file != text]
    if changed:
        file, text = changed[0]
        those = f"{len(changed)} files have other slashes, letter case or Unicode form than in {table.path.name}"
        note(f"{those}, such as {file} for {text}")
    return found


class Folders:
    """The names in the folders below a root, by their spelling in one letter case and Unicode form."""

    def __init__(self, root: Place) -> None:
        self.root = root
        self.names: dict[str, dict[str, list[str]]] = {}

    def find(self, text: str) -> str | None:
        """The one file below the root whose path differs only in backslashes, letter case or Unicode form, or None."""
        path = text.replace("\\", "/")
        if path != text and (self.root / path).is_file():
            return path
        parts = PurePosixPath(path).parts
        if DRIVE.match(text) or {"/", ".."} & {*parts}:
            return None
        found = ""
        for part in parts:
            fitting = self.names_in(found).get(caseless_name(part), [])
            if len(fitting) != 1:
                return None
            found = f"{found}/{fitting[0]}" if found else fitting[0]
        return found if found and (self.root / found).is_file() else None

    def names_in(self, folder: str) -> dict[str, list[str]]:
        """The names in a folder, by spelling."""
        if folder not in self.names:
            place = self.root / folder if folder else self.root
            by_spelling: dict[str, list[str]] = {}
            for path in place.iterdir() if place.is_dir() else ():
                by_spelling.setdefault(caseless_name(path.name), []).append(path.name)
            self.names[folder] = by_spelling
        return self.names[folder]
