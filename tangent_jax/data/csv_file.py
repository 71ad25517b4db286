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
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import caseless_name, composed_name
from tangent_jax.data.columns import Part, assemble, classes_beside, options
from tangent_jax.data.left_out import LeftOut, leave_out, note
from tangent_jax.data.sources import SUFFIXES, Dataset, existing_path, path_of, read_file
from tangent_jax.data.splits import NO, SPELLINGS, YES, split_of_flag
from tangent_jax.io.git_lfs import is_pointer, pointer_error
from tangent_jax.io.paths import Place, names_below
from tangent_jax.io.records import MARKS, first_names, short

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|data:")  # two letters or more: C: is a drive of Windows
DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")


@dataclasses.dataclass(frozen=True)
class Table:
    """A CSV: the names of its columns, its rows, the line of each row in the file, and what divides columns."""

    path: Place
    header: list[str]
    rows: list[list[str]]
    lines: list[int]
    mark: str = ","

    def column(self, name: str) -> list[str]:
        """The entries of a column, without surrounding spaces."""
        place = self.header.index(name)
        return [row[place].strip() for row in self.rows]

    def columns(self) -> str:
        """The names of the columns, for an error."""
        return ", ".join(name for name in self.header if name) or "none"


def csv_file(where: str) -> Dataset:
    """Opens the data set of a CSV."""
    name, chosen = options(where, "csv:FILE", ("image", "label", "split", "sep", "folder", "group"))
    path = existing_path(name)
    if not path.is_file():
        raise InputError(f"csv: must name a CSV file; {path} is a folder")
    folder = chosen.get("folder")
    if folder is not None and not (path.parent / folder).is_dir():
        raise InputError(f"folder must be the images' folder beside {path.name}; there is no {folder}")
    wanted = {"image": "path", "label": "label"} | {k: v for k, v in chosen.items() if k not in ("sep", "folder")}
    table = read_table(path, chosen.get("sep"), {*wanted.values()})
    if "split" not in wanted and "split" in table.header:
        wanted["split"] = "split"
    check_columns(table, wanted)

    texts = table.column(wanted["image"])
    if folder is not None:
        texts = [text and f"{folder.rstrip('/')}/{text}" for text in texts]
    files = find_images(table, wanted["image"], texts)
    labels = table.column(wanted["label"])
    if all(re.fullmatch(r"-?[0-9]+,0+|", label) for label in labels):  # 1,0 of a language with decimal commas
        labels = [label.replace(",", ".") for label in labels]
    splits = split_values(table, wanted["split"]) if "split" in wanted else [""] * len(texts)
    if "split" not in wanted:
        unread_splits(table, {*wanted.values()})
    groups = table.column(wanted["group"]) if "group" in wanted else None
    rows_of: dict[str, list[int]] = {}
    for row, file in enumerate(files):
        if file:
            rows_of.setdefault(splits[row], []).append(row)
    parts = {}
    for split, rows in rows_of.items():
        members = tuple(files[row] for row in rows)
        read = partial(read_file, path.parent, members)
        place = partial(path_of, path.parent, members)
        names = tuple(composed_name(member) for member in members)
        lines = [table.lines[row] for row in rows]
        row_labels = [labels[row] for row in rows]
        parts[split] = Part(
            names, row_labels, read, place, partial(line_of, lines), groups and [groups[row] for row in rows]
        )
    return assemble(path, parts, classes_beside(path.parent))


def line_of(lines: Sequence[int], i: int) -> str:
    """The name of a row in an error: its line in the file."""
    return f"line {lines[i]}"


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
    return Table(path, header, rows, [line for line, _ in found[1:]], separator)


def read_csv_text(path: Place) -> str:
    """The text of a CSV; InputError saying how to save a file of another encoding."""
    content = path.read_bytes()
    if is_pointer(content):
        raise pointer_error(path)
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    advice = "Save it as UTF-8 (in Excel: CSV UTF-8)"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} must be text in UTF-8; its byte {error.start + 1} is not, as in files of Excel in a code page of"
            f" Windows. {advice}"
        ) from error
    if "\0" in text:
        raise InputError(
            f"{path} must be text in UTF-8; it holds zero bytes, as UTF-16 without its mark does. {advice}"
        )
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
    twice = [name for name in wanted.values() if table.header.count(name) > 1]
    if twice:
        raise InputError(f"the columns of {table.path} must have different names; {twice[0]} is there twice")
    absent = {kind: name for kind, name in wanted.items() if name not in table.header}
    if not absent:
        return
    if any(names_image(cell) for cell in table.header):
        raise without_header(table, wanted)
    one_hot = one_hot_columns(table)
    if "label" in absent and one_hot:
        places = [table.header.index(name) for name in one_hot]
        is_run = places == [*range(places[0], places[-1] + 1)]
        those = f".iloc[:, {places[0]}:{places[-1] + 1}]" if is_run else f"[{one_hot}]"
        raise InputError(
            f"the labels of {table.path} must stand in one column; its {len(one_hot)} columns {first_names(one_hot)}"
            f" hold a 1 for the class of a row (one-hot). In pandas: table['label'] = table{those}.idxmax(axis=1)"
        )
    choices = "&".join(f"{kind}=COLUMN" for kind in absent)
    names = " and ".join(absent.values())
    raise InputError(f"{table.path} must have a column {names}; its columns are {table.columns()}. Write ?{choices}")


def without_header(table: Table, wanted: Mapping[str, str]) -> InputError:
    """Returns the InputError for a file whose first line is a row, as it names an image, with the header to add."""
    place = next(i for i, cell in enumerate(table.header) if names_image(cell))
    names = [f"column{i + 1}" for i in range(len(table.header))]
    names[place] = wanted["image"]
    others = [i for i in range(len(names)) if i != place]
    if others:
        names[others[0]] = wanted["label"]
    row = short(table.mark.join(table.header))
    return InputError(
        f"the first line of {table.path} must be its header, the names of its columns; it is a row, {row}. Write a line"
        f" before it, such as {table.mark.join(names)}"
    )


def names_image(cell: str) -> bool:
    """Returns True for a cell that ends as the name of an image does."""
    return cell.lower().endswith(SUFFIXES)


def one_hot_columns(table: Table) -> list[str]:
    """The columns of zeros and ones, if there are several and each row has one 1 in them; else none."""
    marks = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "False": 0, "True": 1}
    names = [name for name in table.header if name and table.header.count(name) == 1]
    names = [name for name in names if {*table.column(name)} <= marks.keys() and not split_of_flag(name, "1")]
    sums = [sum(row) for row in zip(*([marks[cell] for cell in table.column(name)] for name in names), strict=True)]
    return names if len(names) > 1 and {*sums} == {1} else []


# Splits


def split_values(table: Table, name: str) -> list[str]:
    """The split of each row by a column: its text, or, in a column of truth values, what the column's name says."""
    texts = table.column(name)
    answers = {text: split_of_flag(name, text) for text in {*texts}}
    if {text.lower() for text in texts} <= {*YES, *NO, ""} and not any(answers.values()):
        raise InputError(
            f"the column {name} of {table.path} must say the split of each row; it has {first_names(sorted({*texts}))},"
            " and its name does not say which split that is. Name it is_valid, is_test or is_train, or write train,"
            " validation and test in it"
        )
    # one word in two letter cases is one name
    return [answers[text] or caseless_name(text) or "no split" for text in texts]


def unread_splits(table: Table, wanted: set[str]) -> None:
    """Notes columns that say a split and are not read, as none was chosen."""
    for name in [name for name in table.header if name and name not in wanted and table.header.count(name) == 1]:
        texts = {*table.column(name)}
        if all(caseless_name(text) in SPELLINGS or split_of_flag(name, text) for text in texts):
            note(f"the column {name} seems to say the split, and is not read; ?split={name} reads it")


# Images


def find_images(table: Table, column: str, texts: Sequence[str]) -> list[str]:
    """The file of each row below the CSV's folder, "" for a row without a path.

    Raises: InputError with the cause, if a row names no file.
    """
    parent = table.path.parent
    folders = Folders(parent)
    if not isinstance(parent, Path):
        names_below(parent)  # one listing, which fsspec keeps, instead of two requests for each row
    files: list[str] = []
    missing: list[str] = []
    slashes: list[str] = []
    respelled: list[tuple[str, str]] = []
    for text in texts:
        plain = text.replace("\\", "/")
        if not text or (parent / text).is_file():
            files.append(text)
            continue
        if plain != text and (parent / plain).is_file():
            slashes.append(plain)
            files.append(plain)
            continue
        found = None if DRIVE.match(text) else folders.find(plain)
        if found is None:
            missing.append(text)
            continue
        respelled.append((found, text))
        files.append(found)
    if missing:
        raise InputError(cause_of_missing(table, column, missing, len(texts)))
    lines = [line for line, text in zip(table.lines, texts, strict=True) if not text]
    if lines:
        leave_out(LeftOut("rows", "without a path", len(lines), f"line {lines[0]}", len(texts)))
    if slashes:
        note(f"{len(slashes)} paths of Windows are read with / for their backslashes, such as {slashes[0]}")
    if respelled:
        found, text = respelled[0]
        those = f"{len(respelled)} files have another letter case or Unicode form than in {table.path.name}"
        note(f"{those}, such as {found} for {text}")
    return files


class Folders:
    """The names in the folders below a root, by their spelling in one letter case and Unicode form."""

    def __init__(self, root: Place) -> None:
        self.root = root
        self.names: dict[str, dict[str, list[str]]] = {}

    def find(self, path: str) -> str | None:
        """The one file below the root whose path differs only in letter case or Unicode form, or None."""
        found = ""
        for part in PurePosixPath(path).parts:
            if part in ("/", ".."):
                return None
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


def cause_of_missing(table: Table, column: str, missing: Sequence[str], count: int) -> str:
    """The sentence of a refusal: which images are missing, why, and how to write their paths."""
    urls = [text for text in missing if ADDRESS.match(text)]
    if urls:
        return (
            f"the column {column} of {table.path} must hold paths of files beside it; {len(urls)} of {count} are URLs,"
            f" such as {short(urls[0])}. Download the images first, and write their paths"
        )
    parent = table.path.parent
    text = missing[0]
    is_windows = bool(DRIVE.match(text))
    path = PureWindowsPath(text) if is_windows or "\\" in text else PurePosixPath(text)
    is_absolute = path.is_absolute()
    start = f"{len(missing)} of {count} images of {table.path} are missing, such as {short(text)}"
    relative = f"paths must be relative to the folder of {table.path.name}"
    kind = f", a path of {'a Windows' if is_windows else 'another'} machine: {relative}" if is_absolute else ""

    # the file may lie in the CSV's folder under the last part of the path
    steps = [part for part in path.parts if part != path.anchor]
    for after in range(1, len(steps)):
        end = "/".join(steps[after:])
        if (parent / end).is_file():
            before = text[: len(text) - len(end)]
            return f"{start}{kind or f': {relative}'}; {end} is there. Remove {short(before)} from the paths"

    # or in a folder that the path does not name, or with a suffix
    around = next(located(parent, path.name), None)
    if around is not None and not is_absolute and len(steps) == 1:
        folder, _, name = around.rpartition("/")
        must = f"{start}: the path must lead from the folder of {table.path.name} to the file"
        after_name = name.removeprefix(path.name)
        if not after_name:
            return f"{must}; {around} is there. Write ?folder={folder}"
        before = f"'{folder}/' + " if folder else ""
        text_of = f"{before}table['{column}'].astype(str) + '{after_name}'"
        return f"{must}, and has no suffix; {around} is there. In pandas: table['{column}'] = {text_of}"
    if around is not None:
        return f"{start}{kind or f': {relative}'}; {around} is there. Write the paths so"
    return f"{start}{kind}; no file below {parent} has this name. Fetch the images, or remove their rows"


def located(folder: Place, name: str) -> Iterator[str]:
    """Yields the files below a folder of this name, or of this name and a suffix, relative to it."""
    if isinstance(folder, Path):
        walk = os.walk(folder)
        below = (os.path.relpath(os.path.join(at, file), folder) for at, _, files in walk for file in sorted(files))
    else:
        below = names_below(folder)
    for path in below:
        last = path.rpartition("/")[2]
        if last == name or Path(last).stem == name:
            yield path
