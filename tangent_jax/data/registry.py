"""Data sets by name: `open_dataset(spec)`."""

import dataclasses
import os
import re
from collections.abc import Sequence

from tangent_jax.core.checks import InputError
from tangent_jax.data.csv_file import csv_file
from tangent_jax.data.folders import folder
from tangent_jax.data.hugging_face import hugging_face
from tangent_jax.data.left_out import opening
from tangent_jax.data.sources import Dataset, digits
from tangent_jax.data.tars import tars
from tangent_jax.data.tfds import tfds

KNOWN = "digits, folder:PATH, hf:PATH, wds:PATH, csv:FILE, tfds:NAME"


def open_dataset(spec: str, classes: Sequence[str] | None = None) -> Dataset:
    r"""Opens the data set of a specification.

    Args:   spec: digits, folder:PATH, hf:PATH, wds:PATH, csv:FILE, or tfds:NAME[@DATA_DIR]; ?group=COLUMN, of a folder
            ?group=PATTERN, says which training images are held out together; classes: a list of names that does not
            depend on the images, as private training needs it, in the order of class indices; None: those of the
            data set. A class of the list may have no image.
    Raises: InputError for an unknown kind, a missing path, a class without images, fewer than two classes, and images
            of a class that `classes` lacks.

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
    with opening() as record:
        dataset = read_dataset(os.fspath(spec))
        dataset = dataset.check_classes() if classes is None else dataset.in_classes(classes)
    return dataclasses.replace(dataset, remarks=(*record.remarks(), *dataset.untested(), *dataset.grouped()))


def without_groups(spec: str) -> str:
    """The specification without ?group=, which decides what is held out and nothing of the images.

    >>> without_groups("folder:what?/signs.zip?group=[0-9]+_"), without_groups("csv:a.csv?group=y&label=x")
    ('folder:what?/signs.zip', 'csv:a.csv?label=x')
    """
    spec = re.sub(r"\?group=[^&]*(&?)", lambda found: "?" if found[1] else "", spec)
    return re.sub(r"&group=[^&]*", "", spec)


def read_dataset(spec: str) -> Dataset:
    """Reads the data set of a specification within an opening, which records the things left out."""
    kind, _, where = spec.partition(":")
    if kind == "digits":
        return digits()
    if spec[:1] in ("'", '"'):
        raise InputError(
            f"a data set must be without quotes in its specification; got {spec}. A shell keeps quotes that are inside "
            "a variable: use an array, as in docs/howto/clusters.md"
        )
    if os.path.exists(spec):
        reader = "csv" if spec.lower().endswith(".csv") else "folder"
        raise InputError(f"a data set must name its reader; got {spec}. Write {reader}:{spec}, or another of {KNOWN}")
    openers = {"folder": folder, "hf": hugging_face, "wds": tars, "csv": csv_file, "tfds": tfds}
    if kind not in openers or not where:
        raise InputError(f"a data set must be one of {KNOWN}; got {spec}")
    return openers[kind](where)
