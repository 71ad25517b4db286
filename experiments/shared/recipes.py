"""Recipes of the tables' data sets: the images of a publisher's archive, their splits, and how they are stored.

selections.json lists images that follow no rule, in the order of the zip: for textures10 the numbers of DTD's files,
for gtsrb43 TRACK_FRAME, for mnist10 the row (60,000 and above: in the t10k files), for clothing10 the beginnings of the
names of training images.

A zip is identified (`Prints`) by its classes and, by split and in order, its images' names; and by its bytes, through
content identifiers. The bytes of a resized JPEG depend on unknown versions of Pillow and its filter: then names agree
and bytes differ. MNIST's PNGs hold the published pixels.
"""

import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np
from PIL import Image

from experiments.shared.archives import cub200, locate
from tangent_jax.core.checks import InputError
from tangent_jax.data import SUFFIXES, content_identifier
from tangent_jax.io import records
from tangent_jax.io.files import fingerprint
from tangent_jax.io.paths import Place

SELECTIONS = Path(__file__).with_name("selections.json")
Chosen = dict[str, dict[str, str]]  # the images of a class and a split, as one string
TRAINING = 60_000  # the number of MNIST's train rows


class Stored(NamedTuple):
    """One image of the zip: its name, its split, the name of its class, and its bytes."""

    name: str
    split: str
    label: str
    content: bytes


class Prints(NamedTuple):
    """Fingerprints that identify a zip: of names, of bytes, and of decoded pixels ("" where they say no more)."""

    names: str
    content: str
    pixels: str = ""


class Recipe(NamedTuple):
    """The recipe of one data set.

    Attributes:
        archive: The files to unpack, and their publisher.
        make: Its images, from the folder and the selection.
        prints: The prints of the zip that the tables were measured on.
    """

    archive: str
    make: Callable[[Path, Chosen], Iterator[Stored]]
    prints: Prints


def resized(content: bytes, name: str, side: int, quality: int, square: bool = False) -> bytes:
    """A JPEG of an image whose shorter side is at most `side` pixels, or which is square."""
    try:
        with Image.open(io.BytesIO(content)) as opened:
            image = opened.convert("RGB")
    except OSError as error:
        raise InputError(f"{name} must be an image that can be read; got {type(error).__name__}") from error
    scale = min(1.0, side / min(image.size))
    width, height = (round(scale * length) for length in image.size)
    size = (side, side) if square else (width, height)
    out = io.BytesIO()
    (image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)).save(out, "JPEG", quality=quality)
    return out.getvalue()


def read(path: Place) -> bytes:
    """The bytes of a file of an archive; InputError if it is missing."""
    if not path.is_file():
        raise InputError(f"the archive must have the file {path.name}; there is none at {path}. Unpack it whole")
    return path.read_bytes()


def listed(chosen: Chosen) -> Iterator[tuple[str, str, str]]:
    """(class, split, entry) of the whole selection, in order."""
    for label, splits in chosen.items():
        for split, entries in splits.items():
            yield from ((label, split, entry) for entry in entries.split())


# The data sets


def birds(folder: Path, _: Chosen, classes: int = 50) -> Iterator[Stored]:
    """The first classes of CUB-200-2011, by its own split."""
    images = [*cub200(folder)]
    first = sorted({image.label for image in images})[:classes]
    for split in ("train", "test"):
        for image in images:
            if image.split == split and image.label in first:
                name = f"{image.path.parent.name}/{image.path.name}"
                yield Stored(name, split, image.label, resized(read(image.path), name, 256, 80))


def textures(folder: Path, chosen: Chosen) -> Iterator[Stored]:
    """Textures of DTD, in a split of our own."""
    root = locate(folder, "images")
    for label, split, number in listed(chosen):
        name = f"{label}/{label}_{int(number):04}.jpg"
        yield Stored(f"{split}/{name}", split, label, resized(read(root / "images" / name), name, 248, 85))


def signs(folder: Path, chosen: Chosen) -> Iterator[Stored]:
    """Traffic signs of GTSRB's Final_Training; all images of a track, one sign seen many times, are in one split."""
    root = locate(folder, "Images") / "Images"
    for label, split, entry in listed(chosen):
        name = "_".join(f"{int(part):05}" for part in entry.split("_"))
        content = read(root / f"{int(label):05}" / f"{name}.ppm")
        yield Stored(f"{split}/{label}/{name}.jpg", split, label, resized(content, name, 32, 85, square=True))


def handwriting(folder: Path, chosen: Chosen) -> Iterator[Stored]:
    """Digits of MNIST: rows of its train files, then of its t10k files."""
    parts = [[idx(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")] for part in MNIST]
    for label, split, entry in listed(chosen):
        row = int(entry)
        images, labels = parts[row >= TRAINING]
        row -= TRAINING * (row >= TRAINING)
        if row >= len(labels) or labels[row] != int(label):
            raise InputError(f"row {entry} of MNIST must be the digit {label}; it is another. Take the original files")
        out = io.BytesIO()
        Image.fromarray(images[row]).save(out, "PNG")
        yield Stored(f"{split}/{label}/{entry}.png", split, label, out.getvalue())


MNIST = ("train", "t10k")


def idx(folder: Path, name: str) -> np.ndarray:
    """The array of an IDX file of bytes, compressed or not."""
    path = folder / name
    content = read(path) if path.is_file() else gzip.decompress(read(folder / f"{name}.gz"))
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">u4")
    if content[:3] != b"\0\0\x08" or len(content) - start != int(np.prod(shape)):
        raise InputError(f"{name} must be an IDX file of bytes; got {len(content)} bytes of another kind")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def clothes(folder: Path, chosen: Chosen) -> Iterator[Stored]:
    """Photographs of clothing: some of each class's training images, all others."""
    root = locate(folder, "train", "validation", "test")
    for split in ("train", "validation", "test"):
        for label, splits in chosen.items():
            paths = sorted(p for p in (root / split / label).glob("*") if p.suffix.lower() in SUFFIXES)
            wanted = splits[split].split() if split in splits else [path.name for path in paths]
            for entry in wanted:
                matches = [path for path in paths if path.name.startswith(entry)]
                if len(matches) != 1:
                    raise InputError(
                        f"{split}/{label} must have one image {entry}*; got {len(matches)}. Unpack the archive whole"
                    )
                content = resized(read(matches[0]), matches[0].name, 256, 80)
                yield Stored(f"{split}/{label}/{matches[0].name}", split, label, content)


def sample(folder: Path, _: Chosen) -> Iterator[Stored]:
    """One photograph of each class of ImageNet, in the order of its classes."""
    for path in sorted(folder.glob("n*.JPEG")):
        yield Stored(path.name, "sanity", path.stem, resized(read(path), path.name, 248, 75))


RECIPES = {
    "cub50": Recipe(
        "CUB_200_2011.tgz of data.caltech.edu/records/65de6-vp158", birds,
        Prints("e91c074b74454b3a7ea5d9e5e86a11c632f10da14d60bcbe99b4fbfccaf23551",
               "31cff383982986c5d7610210ee50796033c5ff51f9db9474b57b19e84ca1e875")),
    "textures10": Recipe(
        "dtd-r1.0.1.tar.gz of robots.ox.ac.uk/~vgg/data/dtd", textures,
        Prints("d6ad2808c118c17c4e696de67acfdf2c0a5d25050a096924892b38065a5e322b",
               "3fe9b3ff4296b9968e8f837474b1879be92303995b314686a20e05d5460af28c")),
    "gtsrb43": Recipe(
        "GTSRB_Final_Training_Images.zip of the benchmark's archive, sid.erda.dk", signs,
        Prints("df34a24e14bf0bff53f84a45bd7d832c647e8577c3da55aa86946a80b744579a",
               "d42f07a1136d0c402c9832df29332ee3b7419f128009e72fb648366d3a4253b7")),
    "mnist10": Recipe(
        "the four original files of MNIST", handwriting,
        Prints("056299792e8293c6d8e6c43a5d7969b72450cca62eb1edf0ca5ed343f137c7a1",
               "09614f7b30d0cff728750aa37b3419be4cddb311cdfefbf8729e2bafba6ddd2f",
               "ed66866f49c14e1faa9bca66353e56ea74bbe6f1e878cbdf93be39c48745b5dc")),
    "clothing10": Recipe(
        "github.com/alexeygrigorev/clothing-dataset-small at 1196151", clothes,
        Prints("baedd521c93ab9a9e4b076b7a6e9d7fae4621aea89d82f15c56291e5fa4156f1",
               "8eb15dd244e8ac27fcf32d060cf1a7ab958c2420e5910c92cba12917891bfeca")),
    "imagenet_sample1000": Recipe(
        "github.com/EliSchwartz/imagenet-sample-images at bc69043", sample,
        Prints("1c4ed7eec8bc2a7113ade5269d898ffb8cf5f6d59d0817127183fa9926250f03",
               "b1ed5db3e29d354f143e983303e0bb17327e5148748ee38f442456979c584013")),
}  # fmt: skip


# How a zip is identified


def as_zip(images: Sequence[Stored]) -> bytes:
    """The bytes of a zip of images with their manifest; the same images give the same bytes."""
    out = io.BytesIO()
    members = [(image.name, image.content) for image in images]
    members.append(("manifest.json", json.dumps(manifest_of(images)).encode()))
    with ZipFile(out, "w") as archive:
        for name, content in members:
            archive.writestr(ZipInfo(name), content)
    return out.getvalue()


def manifest_of(images: Sequence[Stored]) -> dict[str, Any]:
    """The manifest of images, whose classes are in the order of their names."""
    classes = sorted({image.label for image in images})
    index = {name: i for i, name in enumerate(classes)}
    return {"classes": classes, "items": [[image.name, image.split, index[image.label]] for image in images]}


def prints_of(content: bytes, where: object, pixels: bool = False) -> tuple[Prints, dict[str, int]]:
    """The prints of a zip with a manifest, and its number of images by split; pixels: of the decoded ones too."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            manifest = records.parse_json(archive.read("manifest.json"), f"manifest.json in {where}")
            classes = manifest["classes"]
            items = [(name, split, label) for name, split, label in manifest["items"]]
            contents = [archive.read(name) for name, *_ in items]
    except (BadZipFile, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{where} must be a zip of images with their manifest; got {error}") from error
    by_split: dict[str, list[list[Any]]] = {}
    for name, split, label in items:
        by_split.setdefault(split, []).append([name, label])
    names = fingerprint(json.dumps([classes, by_split], sort_keys=True).encode())
    encoded = of_contents(items, map(content_identifier, contents))
    arrays = (np.asarray(Image.open(io.BytesIO(each))) for each in contents)
    decoded = of_contents(items, map(content_identifier, arrays)) if pixels else ""
    return Prints(names, encoded, decoded), {split: len(rows) for split, rows in sorted(by_split.items())}


def of_contents(items: Iterable[Sequence[Any]], identifiers: Iterable[str]) -> str:
    """The fingerprint of content identifiers with their splits and classes, in any order."""
    lines = sorted(f"{each} {split} {label}\n" for (_, split, label), each in zip(items, identifiers, strict=True))
    return fingerprint("".join(lines).encode())


def agreement(recipe: Recipe, content: bytes, path: Path) -> tuple[str, dict[str, int]]:
    """The agreement of a zip with that of the tables, "bytes", "pixels" or "names", and its images by split.

    Raises:
        InputError: If even the names differ.
    """
    got, counts = prints_of(content, path, bool(recipe.prints.pixels))
    if got.names != recipe.prints.names:
        raise InputError(
            f"{path} must have the classes, splits and images of the tables; it has {counts}. Make it from "
            f"{recipe.archive}"
        )
    same = {"bytes": got.content == recipe.prints.content, "pixels": got.pixels == recipe.prints.pixels != ""}
    return next((what for what, holds in same.items() if holds), "names"), counts


def chosen_of(name: str) -> Chosen:
    """The selection of a data set in selections.json; empty if a rule gives all its images."""
    return json.loads(SELECTIONS.read_text()).get(name, {})
