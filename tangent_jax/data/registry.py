"""Data sets by name: `open_dataset(spec)`, and the table of formats.

    spec -> READERS[kind].read(where) -> Rows -> dataset_of (rows.py) -> Dataset

A format is one entry of `READERS`: a function that finds the rows of a data set, without reading an image.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence

from tangent_jax.core.checks import InputError
from tangent_jax.data.arrays import digits
from tangent_jax.data.csv_file import csv_file
from tangent_jax.data.folders import folder
from tangent_jax.data.hugging_face import hugging_face
from tangent_jax.data.left_out import opening
from tangent_jax.data.rows import Rows, dataset_of
from tangent_jax.data.sources import Dataset
from tangent_jax.data.tars import tars
from tangent_jax.data.tfds import tfds


@dataclasses.dataclass(frozen=True)
class Reader:
    """A format: `form`, how a specification goes on after its kind ("" for nothing), and the reader of its rows."""

    form: str
    read: Callable[[str], Rows]


READERS = {
    "digits": Reader("", digits),
    "folder": Reader("PATH", folder),
    "hf": Reader("PATH", hugging_face),
    "wds": Reader("PATH", tars),
    "csv": Reader("FILE", csv_file),
    "tfds": Reader("NAME", tfds),
}
KNOWN = ", ".join(f"{kind}:{reader.form}".rstrip(":") for kind, reader in READERS.items())


def open_dataset(spec: str, classes: Sequence[str] | None = None) -> Dataset:
    r"""Opens the data set of a specification.

    Args:
        spec: digits, folder:PATH, hf:PATH, wds:PATH, csv:FILE, or tfds:NAME[@DATA_DIR]; ?group=COLUMN, of a folder
            ?group=PATTERN, says which training images are held out together.
        classes: A list of names that does not depend on the images, as private training needs it, in the order of class
            indices; None: those of the data set. A class of the list may have no image.

    Raises:
        InputError: An unknown kind, a missing path, a class without images, fewer than two classes, and images of a
            class that `classes` lacks.

    >>> folder = demo.folder()
    >>> _ = (folder / "set.csv").write_text("path,label,split\na.png,cat,train\nb.png,dog,train\nc.png,cat,test\n")
    >>> for seed, name in enumerate("abc"):
    ...     demo.picture(seed).save(folder / f"{name}.png")
    >>> data = tj.open_dataset(f"csv:{folder / 'set.csv'}")
    >>> data.classes, len(data.train), len(data.test)
    (('cat', 'dog'), 2, 1)
    >>> tj.open_dataset(f"csv:{folder / 'set.csv'}", classes=["dog", "cat", "emu"]).train.labels.tolist()
    [1, 0]
    """
    if not isinstance(spec, (str, os.PathLike)):
        raise InputError(f"a data set must be one of {KNOWN}; got {spec!r}")
    reader, where = reader_of(os.fspath(spec))
    with opening() as record:
        dataset = dataset_of(reader.read(where))
        dataset = dataset.check_classes() if classes is None else dataset.in_classes(classes)
    remarks = (*record.left_out, *record.notes, *dataset.untested(), *dataset.grouped())
    return dataclasses.replace(dataset, remarks=remarks)


def reader_of(spec: str) -> tuple[Reader, str]:
    """The reader of a specification, and what it reads."""
    kind, _, where = spec.partition(":")
    reader = READERS.get(kind)
    if reader is not None and bool(where) == bool(reader.form):
        return reader, where
    raise InputError(f"a data set must be one of {KNOWN}; got {spec}")


def without_groups(spec: str) -> str:
    """The specification without ?group=, which decides what is held out and nothing of the images.

    >>> without_groups("folder:what?/signs.zip?group=[0-9]+_"), without_groups("csv:a.csv?group=y&label=x")
    ('folder:what?/signs.zip', 'csv:a.csv?label=x')
    """
    spec = re.sub(r"\?group=[^&]*(&?)", lambda found: "?" if found[1] else "", spec)
    return re.sub(r"&group=[^&]*", "", spec)
