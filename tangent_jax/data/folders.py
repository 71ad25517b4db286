"""Folders and zips of photographs: class sub-folders, with or without splits, or a manifest.

    CLASS/IMAGE                     every fifth image, by content hash, is test
    train/CLASS/IMAGE, test/...     splits: train, test, validation (or val, valid), in any letter case
    manifest.json                   {"classes": [name, ...], "items": [[image, split, class index], ...]}

Left out, each with a remark: hidden files and folders, files in a class that are not images, images in no class, broken
links, and links that form a circle. Other links are followed. A manifest.json in a zip must have this form; in a folder
it is read only if it has `classes` and `items`.
"""

import dataclasses
import os
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np

from tangent_jax.core import InputError, refusal, require
from tangent_jax.core.records import convert, parse_json
from tangent_jax.core.url_paths import Place, UrlPath
from tangent_jax.data.sources import SUFFIXES, Dataset, Examples, check_size, existing_path, files

HELD_OUT = 5  # without a test split, every fifth image is test, by content hash
SPLITS = {"train": "train", "test": "test", **dict.fromkeys(("validation", "val", "valid"), "validation")}
Make = Callable[[Iterable[str], Iterable[int]], Examples]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of manifest.json: names of classes, and (image, split, class index)."""

    classes: tuple[str, ...]
    items: tuple[tuple[str, str, int], ...]


def folder(where: str) -> Dataset:
    """Opens the data set of a folder or a zip."""
    path = existing_path(where)
    if path.is_dir():
        names, folders, remarks = walk(path)
        manifest = folder_manifest(path) if "manifest.json" in names else None
        if manifest is not None:
            return from_manifest(path, manifest, {*names}, lambda names, labels: files(path, names, labels))
        return from_folders(path, names, folders, remarks, lambda names, labels: files(path, names, labels))
    archive = open_zip(path)
    names = sorted(name for name in archive.namelist() if not name.endswith("/"))

    def make(names: Iterable[str], labels: Iterable[int]) -> Examples:
        members = tuple(names)
        read = partial(read_nth, archive, members)
        return Examples(members, np.fromiter(labels, np.int32), read, lambda i: (path, members[i]))

    if "manifest.json" in names:
        content = read_member(archive, "manifest.json")
        manifest = parse_json("open_dataset", content, f"manifest.json in {path}")
        return from_manifest(path, manifest, {*names}, make)
    folders = sorted({name.rpartition("/")[0] for name in archive.namelist()} - {""})
    return from_folders(path, names, folders, [], make)


# Folders


def walk(root: Place) -> tuple[list[str], list[str], list[str]]:
    """(files, folders, remarks) below a folder, by sorted relative names; follows links, but not in circles."""
    if isinstance(root, UrlPath):
        below = [(str(path.relative_to(root)), path.is_file()) for path in root.below() if path != root]
        return [name for name, is_file in below if is_file], [name for name, is_file in below if not is_file], []
    names, folders, remarks, seen = [], [], [], set()
    for where, inner, own in os.walk(root, followlinks=True):
        here = Path(where).relative_to(root)
        real = os.path.realpath(where)
        if real in seen:
            remarks.append(f"left out {here}: a link that leads in a circle, or to a folder that is read already")
            inner.clear()
            continue
        seen.add(real)
        folders += [] if where == os.fspath(root) else [str(here)]
        names += [str(here / name) for name in own if (root / here / name).is_file()]
        dangling = [str(here / name) for name in own if not (root / here / name).exists()]
        remarks += [f"left out {name}: a link to nothing" for name in sorted(dangling)]
    return sorted(names), sorted(folders), remarks


def folder_manifest(path: Place) -> dict | None:
    """A folder's manifest.json if it has our form, else None: many programs write a file of this name."""
    try:
        manifest = parse_json("open_dataset", (path / "manifest.json").read_bytes(), path)
    except InputError:
        return None
    return manifest if {"classes", "items"} <= {*manifest} else None


def from_folders(path: Place, names: list[str], folders: list[str], remarks: list[str], make: Make) -> Dataset:
    """The data set of class sub-folders, in splits if their parents name splits."""
    classes, items_by_split, more = by_folder(names, folders)
    splits = {split: make([n for n, _ in items], [y for _, y in items]) for split, items in items_by_split.items()}
    do = "Name the folder of training images train"
    require("train" in splits or "" in splits, "open_dataset", f"a train split in {path}", sorted(splits), do)
    return Dataset(path.stem, classes, splits if "train" in splits else by_content(splits[""]), (*remarks, *more))


def is_hidden(name: str) -> bool:
    """True for a hidden file, a file in a hidden folder, or a file that macOS adds to a zip."""
    return name.startswith("__MACOSX") or any(part.startswith(".") for part in name.split("/"))


def by_folder(
    names: list[str], folders: list[str]
) -> tuple[tuple[str, ...], dict[str, list[tuple[str, int]]], list[str]]:
    """Returns the classes, (name, class index) by split, and remarks; the split is "" if folders name none.

    A single folder around all files is skipped.
    """
    visible = [f for f in folders if not is_hidden(f)]
    shown = [n for n in names if not is_hidden(n)]
    images = [n for n in shown if n.lower().endswith(SUFFIXES)]
    tops = {folder.split("/")[0] for folder in visible}
    alone = len(tops) == 1 and not {t.lower() for t in tops} & {*SPLITS}
    around = f"{min(tops)}/" if alone and not tops & {n.rpartition("/")[0] for n in images} else ""
    parts = {name: name.removeprefix(around).split("/") for name in [*images, *visible] if name.startswith(around)}
    split_of = {part[0]: SPLITS[part[0].lower()] for part in parts.values() if part[0].lower() in SPLITS}
    twice = len({*split_of.values()}) < len(split_of)
    require(not twice, "open_dataset", "one folder for each split", ", ".join(sorted(split_of)))
    depth = 1 if split_of else 0
    inside = {name: part for name, part in parts.items() if part[0] in split_of or not split_of}
    classes = tuple(sorted({inside[name][depth] for name in visible if len(inside.get(name, ())) > depth}))
    index = {name: i for i, name in enumerate(classes)}
    items: dict[str, list[tuple[str, int]]] = {split: [] for split in sorted(split_of.values()) or [""]}
    for name in images:
        part = inside.get(name, [])
        if len(part) > depth + 1:
            items[split_of[part[0]] if split_of else ""].append((name, index[part[depth]]))
    used = {name for pairs in items.values() for name, _ in pairs}
    unused = {
        "hidden files": [n for n in names if is_hidden(n) and not n.startswith("__MACOSX") and n not in used],
        "files that are no images": [n for n in shown if n not in images and n != "manifest.json"],
        "images in no class": [n for n in images if n not in used],
    }
    remarks = [f"left out {len(group)} {kind}, such as {group[0]}" for kind, group in unused.items() if group]
    return classes, items, remarks


def by_content(examples: Examples) -> dict[str, Examples]:
    """Train and test by the content identifier: adding or removing an image moves no other image."""
    test = np.array([int(name[:8], 16) % HELD_OUT == 0 for name in examples.identifiers()], bool)
    return {"train": examples.take(np.flatnonzero(~test)), "test": examples.take(np.flatnonzero(test))}


# Zips and manifests


class Archive(zipfile.ZipFile):
    """A zip that is open for reading; a process that receives it opens it again."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.open() if isinstance(place, UrlPath) else place)
        self.place = place

    def __reduce__(self) -> tuple:
        return open_zip, (self.place,)


def open_zip(path: Place) -> Archive:
    """Opens a zip; InputError for another file."""
    try:
        return Archive(path)
    except InputError:
        raise
    except Exception as error:
        got = f"{path} ({type(error).__name__})"
        raise refusal("open_dataset", "a folder or a zip", got, "Unpack it, or fetch it again") from error


def read_member(archive: Archive, name: str) -> bytes:
    """Reads one member of a zip, up to the size limit of images; thread-safe, as ZipFile locks its file."""
    expected = f"a readable {name} in {archive.place}"
    try:
        size = archive.getinfo(name).file_size
        check_size(size, name)
        with archive.open(name) as member:
            content = member.read(size + 1)
    except InputError:
        raise
    except Exception as error:  # damaged, encrypted, or compressed in an unknown way
        raise refusal("open_dataset", expected, f"{type(error).__name__}: {error}") from error
    require(len(content) == size, "open_dataset", expected, f"{len(content)} bytes, not {size}")
    return content


def read_nth(archive: Archive, members: tuple[str, ...], i: int) -> bytes:
    """The bytes of member `i` of `members`."""
    return read_member(archive, members[i])


def from_manifest(path: Place, content: dict, present: set[str], make: Make) -> Dataset:
    """The data set of a manifest, in the splits that its items name."""
    where = f"manifest.json of {path}"
    manifest = convert(Manifest, {k: v for k, v in content.items() if k in ("classes", "items")}, "open_dataset", where)
    items, classes = manifest.items, manifest.classes
    for name, _, label in items:
        require(name in present, "open_dataset", f"every image of {where}", f"none named {name}")
        require(0 <= label < len(classes), "open_dataset", f"a class index below {len(classes)}", f"{label} of {name}")
    names: dict[str, list] = {}
    for item in items:
        names.setdefault(item[1], []).append(item)
    if len(names) == 1:
        names = {"train": [*items]}  # a single split, of any name
    unknown = sorted({*names} - {*SPLITS})
    require(not unknown, "open_dataset", f"splits of {', '.join(SPLITS)} in {where}", ", ".join(unknown))
    return Dataset(
        path.stem,
        classes,
        {SPLITS[split]: make([i[0] for i in rows], [i[2] for i in rows]) for split, rows in sorted(names.items())},
    )
