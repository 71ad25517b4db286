"""The paper's data sets as their authors publish them, unpacked, each with its official split.

    caltech256   256_ObjectCategories/001.ak47/*.jpg    no official split: Griffin et al.'s protocol, 60
                                                        training images per class, the rest test
    mit67        Images/CLASS/*.jpg                     TrainImages.txt, TestImages.txt
    aircraft     data/images/*.jpg                      data/images_variant_{train,val,test}.txt
    cub200       CUB_200_2011/images/CLASS/*.jpg        images.txt, image_class_labels.txt, train_test_split.txt
    cars         cars_train/, cars_test/                devkit/cars_{train,test}_annos*.mat, cars_meta.mat
    dogs         Images/CLASS/*.jpg                     train_list.mat, test_list.mat
    pets         images/*.jpg                           annotations/trainval.txt, test.txt

PATH is the folder that holds these, or one above it. A missing list is named.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from tangent_jax.core.checks import require
from tangent_jax.data.sources import SUFFIXES, Dataset, Examples, content_identifier, files


def locate(path: Path, *markers: str) -> Path:
    """The folder at or below `path` (two levels) that holds every marker."""
    candidates = [
        path,
        *sorted(p for p in path.glob("*") if p.is_dir()),
        *sorted(p for p in path.glob("*/*") if p.is_dir()),
    ]
    for root in candidates if path.is_dir() else []:
        if all((root / marker).exists() for marker in markers):
            return root
    missing = [marker for marker in markers if not (path / marker).exists()]
    require(
        False,
        "open_dataset",
        f"an unpacked archive with {', '.join(markers)}",
        f"{path} without {', '.join(missing)}",
        "Unpack the official archive there",
    )
    return path


def lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def listed(root: Path, items: list[tuple[str, str]], classes: tuple[str, ...]) -> Examples:
    """Examples of (file, class name) pairs under `root`."""
    index = {name: i for i, name in enumerate(classes)}
    return files(root, [name for name, _ in items], [index[label] for _, label in items])


def caltech256(path: Path) -> Dataset:
    root = path if any(path.glob("001.*")) else locate(path, "256_ObjectCategories") / "256_ObjectCategories"
    classes = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and "clutter" not in p.name))
    train, test = [], []
    for name in classes:
        images = [p for p in (root / name).iterdir() if p.suffix.lower() in SUFFIXES]
        ranked = sorted(images, key=lambda p: content_identifier(p.read_bytes()))  # no order of the authors'
        pairs = [(f"{name}/{p.name}", name) for p in ranked]
        train, test = train + pairs[:60], test + pairs[60:]
    return Dataset("caltech256", classes, {"train": listed(root, train, classes), "test": listed(root, test, classes)})


def mit67(path: Path) -> Dataset:
    root = locate(path, "Images", "TrainImages.txt", "TestImages.txt")
    split = {
        name: [(item, item.split("/")[0]) for item in lines(root / f"{file}Images.txt")]
        for name, file in (("train", "Train"), ("test", "Test"))
    }
    classes = tuple(sorted({label for items in split.values() for _, label in items}))
    return Dataset("mit67", classes, {name: listed(root / "Images", items, classes) for name, items in split.items()})


def aircraft(path: Path) -> Dataset:
    lists = {"train": "train", "validation": "val", "test": "test"}
    root = locate(path, "images", *(f"images_variant_{file}.txt" for file in lists.values()))
    split = {}
    for name, file in lists.items():
        pairs = [line.split(" ", 1) for line in lines(root / f"images_variant_{file}.txt")]
        split[name] = [(f"{image}.jpg", variant) for image, variant in pairs]
    classes = tuple(sorted({label for items in split.values() for _, label in items}))
    return Dataset(
        "aircraft", classes, {name: listed(root / "images", items, classes) for name, items in split.items()}
    )


def cub200(path: Path) -> Dataset:
    root = locate(path, "images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt", "images")
    table = {
        name: dict(line.split(" ", 1) for line in lines(root / f"{name}.txt"))
        for name in ("images", "image_class_labels", "train_test_split", "classes")
    }
    classes = tuple(table["classes"][key] for key in sorted(table["classes"], key=int))
    split: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for key, name in table["images"].items():
        label = table["classes"][table["image_class_labels"][key]]
        split["train" if table["train_test_split"][key] == "1" else "test"].append((name, label))
    return Dataset("cub200", classes, {name: listed(root / "images", items, classes) for name, items in split.items()})


def cars(path: Path) -> Dataset:
    root = locate(path, "cars_train", "cars_test", "devkit/cars_train_annos.mat", "devkit/cars_meta.mat")
    labelled = [p for p in (root / "devkit", root) if (p / "cars_test_annos_withlabels.mat").exists()]
    require(labelled, "open_dataset", "cars_test_annos_withlabels.mat beside devkit/", f"{root} without it")
    classes = tuple(str(name) for name in loadmat(root / "devkit/cars_meta.mat", simplify_cells=True)["class_names"])
    made = {}
    for name, annotations in (
        ("train", root / "devkit/cars_train_annos.mat"),
        ("test", labelled[0] / "cars_test_annos_withlabels.mat"),
    ):
        rows = np.atleast_1d(loadmat(annotations, simplify_cells=True)["annotations"])
        made[name] = files(root / f"cars_{name}", [str(r["fname"]) for r in rows], [int(r["class"]) - 1 for r in rows])
    return Dataset("cars", classes, made)


def dogs(path: Path) -> Dataset:
    root = locate(path, "Images", "train_list.mat", "test_list.mat")
    split = {}
    for name in ("train", "test"):
        found = np.atleast_1d(loadmat(root / f"{name}_list.mat", simplify_cells=True)["file_list"])
        split[name] = [(str(item), str(item).split("/")[0]) for item in found]
    classes = tuple(sorted({label for items in split.values() for _, label in items}))
    return Dataset("dogs", classes, {name: listed(root / "Images", items, classes) for name, items in split.items()})


def pets(path: Path) -> Dataset:
    root = locate(path, "images", "annotations/trainval.txt", "annotations/test.txt")
    split = {}
    for name, file in (("train", "trainval"), ("test", "test")):
        stems = [line.split()[0] for line in lines(root / f"annotations/{file}.txt")]
        split[name] = [(f"{stem}.jpg", stem.rpartition("_")[0]) for stem in stems]
    classes = tuple(sorted({label for items in split.values() for _, label in items}))
    return Dataset("pets", classes, {name: listed(root / "images", items, classes) for name, items in split.items()})


ARCHIVES: dict[str, Callable[[Path], Dataset]] = {
    "caltech256": caltech256,
    "mit67": mit67,
    "aircraft": aircraft,
    "cub200": cub200,
    "cars": cars,
    "dogs": dogs,
    "pets": pets,
}
