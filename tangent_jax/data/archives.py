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

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.io import loadmat

from tangent_jax.core.checks import InputError
from tangent_jax.data.identifiers import content_identifier
from tangent_jax.data.sources import SUFFIXES, Dataset, files
from tangent_jax.io.records import read_lines
from tangent_jax.remote.url_paths import Place


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


def mit67(path: Place) -> Dataset:
    """MIT-67, indoor scenes."""
    root = locate(path, "Images", "TrainImages.txt", "TestImages.txt")
    listed = {name: lines(root / f"{file}Images.txt") for name, file in (("train", "Train"), ("test", "Test"))}
    lists = {name: [(item, item.split("/")[0]) for item in items] for name, items in listed.items()}
    return from_lists("mit67", root / "Images", lists)


def aircraft(path: Place) -> Dataset:
    """FGVC-Aircraft, by variant."""
    names = {"train": "train", "validation": "val", "test": "test"}
    root = locate(path, "images", *(f"images_variant_{file}.txt" for file in names.values()))
    listed = {
        split: [line.split(" ", 1) for line in lines(root / f"images_variant_{f}.txt")] for split, f in names.items()
    }
    lists = {split: [(f"{image}.jpg", variant) for image, variant in pairs] for split, pairs in listed.items()}
    return from_lists("aircraft", root / "images", lists)


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


def dogs(path: Place) -> Dataset:
    """Stanford Dogs."""
    root = locate(path, "Images", "train_list.mat", "test_list.mat")
    lists = {}
    for name in ("train", "test"):
        listed = np.atleast_1d(read_mat(root / f"{name}_list.mat")["file_list"])
        lists[name] = [(str(item), str(item).split("/")[0]) for item in listed]
    return from_lists("dogs", root / "Images", lists)


def pets(path: Place) -> Dataset:
    """Oxford Pets, by breed."""
    root = locate(path, "images", "annotations/trainval.txt", "annotations/test.txt")
    lists = {}
    for name, file in (("train", "trainval"), ("test", "test")):
        stems = [line.split()[0] for line in lines(root / f"annotations/{file}.txt")]
        lists[name] = [(f"{stem}.jpg", stem.rpartition("_")[0]) for stem in stems]
    return from_lists("pets", root / "images", lists)


def dtd(path: Place, split: int = 1) -> Dataset:
    """Describable Textures (DTD), by one of the ten official splits."""
    names = {"train": "train", "validation": "val", "test": "test"}
    root = locate(path, "images", *(f"labels/{file}{split}.txt" for file in names.values()))
    listed = {name: lines(root / f"labels/{file}{split}.txt") for name, file in names.items()}
    lists = {name: [(item, item.split("/")[0]) for item in items] for name, items in listed.items()}
    return from_lists(f"dtd{split}", root / "images", lists)


ARCHIVES: dict[str, Callable[..., Dataset]] = {
    "caltech256": caltech256,
    "mit67": mit67,
    "aircraft": aircraft,
    "cub200": cub200,
    "cars": cars,
    "dogs": dogs,
    "pets": pets,
    "dtd": dtd,
}

SPLITS = {"dtd": 10}
"""The number of official splits of an archive; the first is read by default."""
