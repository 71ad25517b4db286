"""A CSV of images: one line for each image, with its path and its label.

    path,label              the header; the specification can choose columns of other names
    a/1.jpg,cat             paths are relative to the file; labels are class names or class indices
    path,label,split        the optional column `split`: train, validation or test

The path in the CSV is the image's name.
"""

import csv
import io
from functools import partial

from tangent_jax.core import refusal, require
from tangent_jax.core.records import read_text
from tangent_jax.core.url_paths import Place
from tangent_jax.data.columns import Part, as_labels, assemble, choose, classes_beside, options
from tangent_jax.data.sources import Dataset, existing_path, path_of, read_file


def csv_file(where: str) -> Dataset:
    """Opens the data set of a CSV."""
    name, chosen = options(where)
    path = existing_path(name)
    require(path.is_file(), "open_dataset", "a CSV file", f"the folder {path}")
    header, rows = table(path)
    wanted = {"image": "path", "label": "label", **({"split": "split"} if "split" in header else {}), **chosen}
    columns = {kind: header.index(choose(kind, name, (), header, path)) for kind, name in wanted.items()}
    missing = [row[columns["image"]] for row in rows if not (path.parent / row[columns["image"]]).is_file()]
    require(not missing, "open_dataset", f"every image of {path}", f"none named {missing[:1]} ({len(missing)} missing)")
    labels, groups = as_labels([row[columns["label"]].strip() for row in rows], path), {}
    for number, row in enumerate(rows):
        groups.setdefault(row[columns["split"]].strip() if "split" in columns else "", []).append(number)
    parts = {}
    for split, numbers in groups.items():
        names = tuple(rows[i][columns["image"]] for i in numbers)
        read, own = partial(read_file, path.parent, names), partial(path_of, path.parent, names)
        parts[split] = Part(names, [labels[i] for i in numbers], read, own)
    return assemble(path, parts, classes_beside(path.parent))


def table(path: Place) -> tuple[list[str], list[list[str]]]:
    """(header, rows) of a CSV."""
    try:
        text = io.StringIO(read_text("open_dataset", path), newline="")
        lines = [row for row in csv.reader(text, strict=True) if row]
    except csv.Error as error:
        raise refusal("open_dataset", f"a CSV in {path}", error) from error
    require(len(lines) > 1, "open_dataset", f"a header and rows in {path}", f"{len(lines)} lines")
    header = [name.strip() for name in lines[0]]
    require(len({*header}) == len(header), "open_dataset", f"columns of different names in {path}", ",".join(header))
    wrong = [i + 1 for i, row in enumerate(lines) if len(row) != len(header)]
    expected = f"{len(header)} entries in every row of {path}"
    require(not wrong, "open_dataset", expected, f"another number in row {wrong[:1]}")
    return header, lines[1:]
