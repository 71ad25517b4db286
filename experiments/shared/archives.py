"""The paper's data sets as their authors publish them, unpacked, each with its official split.

    caltech256   256_ObjectCategories/001.ak47/*.jpg    no official split: Griffin et al.'s protocol, 60
                                                        training images per class, the rest test
    mit67        Images/CLASS/*.jpg                     TrainImages.txt, TestImages.txt
    aircraft     data/images/*.jpg                      data/images_variant_{train,val,test}.txt
    cub200       CUB_200_2011/images/CLASS/*.jpg        images.txt, image_class_labels.txt, train_test_split.txt
    cars         cars_train/, cars_test/                devkit/cars_{train,test}_annos*.mat, cars_meta.mat
    dogs         Images/CLASS/*.jpg                     train_list.mat, test_list.mat
    pets         images/*.jpg                           annotations/trainval.txt, test.txt
    dtd1..dtd10  images/CLASS/*.jpg                     labels/{train,val,test}{1..10}.txt

A folder holds these, or one above it. A missing list is named.
"""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.io import loadmat

from tangent_jax.core.checks import InputError
from tangent_jax.data import SUFFIXES, content_identifier
from tangent_jax.io.records import read_lines


class Listed(NamedTuple):
    """One image of an archive: its file, its split, and the name of its class."""

    path: Path
    split: str
    label: str


def locate(path: Path, *markers: str) -> Path:
    """The folder that contains every marker: `path`, or one up to two levels below it."""
    below = [p for depth in ("*", "*/*") for p in sorted(path.glob(depth)) if p.is_dir()]
    for root in [path, *below] if path.is_dir() else []:
        if all((root / marker).exists() for marker in markers):
            return root
    missing = ", ".join(marker for marker in markers if not (path / marker).exists())
    raise InputError(
        f"{path} must be an unpacked archive with {', '.join(markers)}; it lacks {missing}. Unpack the official "
        "archive there"
    )


def lines(path: Path) -> list[str]:
    """The lines of a list, without empty lines and comments."""
    return [line for line in read_lines(path) if not line.startswith("#")]


def read_mat(path: Path) -> dict[str, Any]:
    """The content of a .mat file."""
    return loadmat(io.BytesIO(path.read_bytes()), simplify_cells=True)


def caltech256(folder: Path) -> Iterator[Listed]:
    """Caltech-256 without its clutter; 60 images of each class train, the first by content hash."""
    root = folder if any(folder.glob("001.*")) else locate(folder, "256_ObjectCategories") / "256_ObjectCategories"
    for label in sorted(p for p in root.iterdir() if p.is_dir() and "clutter" not in p.name):
        images = [p for p in label.iterdir() if p.suffix.lower() in SUFFIXES]
        ranked = sorted(images, key=lambda p: content_identifier(p.read_bytes()))
        for number, path in enumerate(ranked):
            yield Listed(path, "train" if number < 60 else "test", label.name)


def cub200(folder: Path) -> Iterator[Listed]:
    """CUB-200-2011, birds."""
    names = ("images", "image_class_labels", "train_test_split", "classes")
    root = locate(folder, *(f"{name}.txt" for name in names), "images")
    table = {name: dict(line.split(" ", 1) for line in lines(root / f"{name}.txt")) for name in names}
    for key, name in table["images"].items():
        label = table["classes"][table["image_class_labels"][key]]
        yield Listed(root / "images" / name, "train" if table["train_test_split"][key] == "1" else "test", label)


def cars(folder: Path) -> Iterator[Listed]:
    """Stanford Cars."""
    root = locate(folder, "cars_train", "cars_test", "devkit/cars_train_annos.mat", "devkit/cars_meta.mat")
    labelled = [p for p in (root / "devkit", root) if (p / "cars_test_annos_withlabels.mat").exists()]
    if not labelled:
        raise InputError(f"{root} must hold cars_test_annos_withlabels.mat beside devkit/; it is missing")
    classes = [str(name) for name in read_mat(root / "devkit/cars_meta.mat")["class_names"]]
    annotations = {
        "train": root / "devkit/cars_train_annos.mat",
        "test": labelled[0] / "cars_test_annos_withlabels.mat",
    }
    for split, path in annotations.items():
        for row in np.atleast_1d(read_mat(path)["annotations"]):
            yield Listed(root / f"cars_{split}" / str(row["fname"]), split, classes[int(row["class"]) - 1])


@dataclasses.dataclass(frozen=True)
class Lists:
    """An archive with a list of the images of each split.

    Attributes:
        images: The folder of images.
        lists: The list of each split.
        pair(line): (file below `images`, class name).
    """

    images: str
    lists: Mapping[str, str]
    pair: Callable[[str], tuple[str, str]]

    def read(self, folder: Path) -> Iterator[Listed]:
        """The images of the unpacked archive."""
        root = locate(folder, self.images, *self.lists.values())
        for split, file in self.lists.items():
            for name, label in map(self.pair, read_list(root / file)):
                yield Listed(root / self.images / name, split, label)


def read_list(path: Path) -> list[str]:
    """The lines of a list, or the texts of a .mat list."""
    return [*map(str, np.atleast_1d(read_mat(path)["file_list"]))] if path.suffix == ".mat" else lines(path)


def in_class_folder(file: str) -> tuple[str, str]:
    """(file, class) of CLASS/IMAGE."""
    return file, file.split("/")[0]


def of_aircraft(line: str) -> tuple[str, str]:
    """(file, variant) of a line "IMAGE VARIANT"."""
    image, variant = line.split(" ", 1)
    return f"{image}.jpg", variant


def of_pets(line: str) -> tuple[str, str]:
    """(file, breed) of a line "BREED_NUMBER ..."."""
    stem = line.split()[0]
    return f"{stem}.jpg", stem.rpartition("_")[0]


def three_lists(form: str) -> dict[str, str]:
    """The list of each split, whose names have train, val and test at %s."""
    return {"train": form % "train", "validation": form % "val", "test": form % "test"}


LISTED = {
    "mit67": Lists("Images", {"train": "TrainImages.txt", "test": "TestImages.txt"}, in_class_folder),
    "aircraft": Lists("images", three_lists("images_variant_%s.txt"), of_aircraft),
    "dogs": Lists("Images", {"train": "train_list.mat", "test": "test_list.mat"}, in_class_folder),
    "pets": Lists("images", {"train": "annotations/trainval.txt", "test": "annotations/test.txt"}, of_pets),
    **{f"dtd{n}": Lists("images", three_lists(f"labels/%s{n}.txt"), in_class_folder) for n in range(1, 11)},
}
ARCHIVES: dict[str, Callable[[Path], Iterator[Listed]]] = {
    "caltech256": caltech256,
    "cub200": cub200,
    "cars": cars,
    **{name: archive.read for name, archive in LISTED.items()},
}


def table_of(name: str, folder: Path, beside: Path) -> tuple[str, dict[str, int]]:
    """(the text of a CSV of an archive's images, by paths from the folder `beside`; the number of images by split)."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["path", "label", "split"])
    counts: dict[str, int] = {}
    try:
        for path, split, label in ARCHIVES[name](folder):
            rows.writerow([path.absolute().relative_to(beside.absolute()).as_posix(), label, split])
            counts[split] = counts.get(split, 0) + 1
    except InputError:
        raise
    except Exception as error:  # scipy's reader of .mat files raises many kinds of errors
        raise InputError(
            f"the lists of {name} must be whole in {folder}; {type(error).__name__}: {error}. Unpack the archive again"
        ) from error
    return out.getvalue(), counts
