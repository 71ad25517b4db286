"""The paper's data sets as their authors publish them, unpacked, each with its official split.

    caltech256   256_ObjectCategories/001.ak47/*.jpg    no official split: Griffin et al.'s protocol, 60
                                                        training images per class, the rest test
    mit67        Images/CLASS/*.jpg                     TrainImages.txt, TestImages.txt
    aircraft     data/images/*.jpg                      data/images_variant_{train,val,test}.txt
    cub200       CUB_200_2011/images/CLASS/*.jpg        images.txt, image_class_labels.txt, train_test_split.txt
    cars         cars_train/, cars_test/                devkit/cars_{train,test}_annos*.mat, cars_meta.mat
    dogs         Images/CLASS/*.jpg                     train_list.mat, test_list.mat
    pets         images/*.jpg                           annotations/trainval.txt, test.txt
    dtd          images/CLASS/*.jpg                     labels/{train,val,test}{1..10}.txt: dtd:PATH@SPLIT, else 1

PATH is the folder that holds these, or one above it. A missing list is named.
"""

import dataclasses
import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from scipy.io import loadmat

from tangent_jax.core.checks import InputError
from tangent_jax.data.identifiers import content_identifier
from tangent_jax.data.sources import SUFFIXES, Dataset, files
from tangent_jax.io.paths import Place
from tangent_jax.io.records import read_lines


def locate(path: Place, *markers: str) -> Place:
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


def lines(path: Place) -> list[str]:
    """The lines of a list, without empty lines and comments."""
    return [line for line in read_lines(path) if not line.startswith("#")]


def read_mat(path: Place) -> dict[str, Any]:
    """The content of a .mat file."""
    return loadmat(io.BytesIO(path.read_bytes()), simplify_cells=True)


def from_lists(name: str, root: Place, lists: dict[str, list[tuple[str, str]]]) -> Dataset:
    """The data set of (file under `root`, class name) pairs by split."""
    classes = tuple(sorted({label for pairs in lists.values() for _, label in pairs}))
    index = {label: i for i, label in enumerate(classes)}
    splits = {
        split: files(root, [file for file, _ in pairs], [index[label] for _, label in pairs])
        for split, pairs in lists.items()
    }
    return Dataset(name, classes, splits)


def caltech256(path: Place) -> Dataset:
    """Caltech-256 without its clutter; 60 images of each class train, the first by content hash."""
    root = path if any(path.glob("001.*")) else locate(path, "256_ObjectCategories") / "256_ObjectCategories"
    lists: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and "clutter" not in p.name):
        images = [p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES]
        ranked = sorted(images, key=lambda p: content_identifier(p.read_bytes()))
        pairs = [(f"{folder.name}/{p.name}", folder.name) for p in ranked]
        lists = {"train": lists["train"] + pairs[:60], "test": lists["test"] + pairs[60:]}
    return from_lists("caltech256", root, lists)


def cub200(path: Place) -> Dataset:
    """CUB-200-2011, birds."""
    names = ("images", "image_class_labels", "train_test_split", "classes")
    root = locate(path, *(f"{name}.txt" for name in names), "images")
    table = {name: dict(line.split(" ", 1) for line in lines(root / f"{name}.txt")) for name in names}
    lists: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for key, name in table["images"].items():
        label = table["classes"][table["image_class_labels"][key]]
        lists["train" if table["train_test_split"][key] == "1" else "test"].append((name, label))
    return from_lists("cub200", root / "images", lists)


def cars(path: Place) -> Dataset:
    """Stanford Cars."""
    root = locate(path, "cars_train", "cars_test", "devkit/cars_train_annos.mat", "devkit/cars_meta.mat")
    labelled = [p for p in (root / "devkit", root) if (p / "cars_test_annos_withlabels.mat").exists()]
    if not labelled:
        raise InputError(f"{root} must hold cars_test_annos_withlabels.mat beside devkit/; it is missing")
    classes = tuple(str(name) for name in read_mat(root / "devkit/cars_meta.mat")["class_names"])
    splits = {}
    for name, annotations in (
        ("train", root / "devkit/cars_train_annos.mat"),
        ("test", labelled[0] / "cars_test_annos_withlabels.mat"),
    ):
        rows = np.atleast_1d(read_mat(annotations)["annotations"])
        names, labels = [str(row["fname"]) for row in rows], [int(row["class"]) - 1 for row in rows]
        splits[name] = files(root / f"cars_{name}", names, labels)
    return Dataset("cars", classes, splits)


@dataclasses.dataclass(frozen=True)
class Lists:
    """An archive with a list of the images of each split.

    `images`: the folder of images; `lists`: the list of each split; `pair(line)`: (file below `images`, class name).
    """

    images: str
    lists: Mapping[str, str]
    pair: Callable[[str], tuple[str, str]]

    def read(self, name: str, path: Place, split: int = 1) -> Dataset:
        """The data set of the unpacked archive, by one of its official splits."""
        lists = {title: file.format(split=split) for title, file in self.lists.items()}
        root = locate(path, self.images, *lists.values())
        pairs = {title: [*map(self.pair, read_list(root / file))] for title, file in lists.items()}
        return from_lists(f"{name}{split}" if name in SPLITS else name, root / self.images, pairs)


def read_list(path: Place) -> list[str]:
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
    "dtd": Lists("images", three_lists("labels/%s{split}.txt"), in_class_folder),
}

ARCHIVES: dict[str, Callable[..., Dataset]] = {
    "caltech256": caltech256,
    "cub200": cub200,
    "cars": cars,
    **{name: partial(archive.read, name) for name, archive in LISTED.items()},
}

SPLITS = {"dtd": 10}
"""The number of official splits of an archive; the first is read by default."""
