"""Folders and zips of photographs: class folders, with or without folders of splits around them, or a manifest.

    CLASS/IMAGE                     every fifth image, by content hash, is test
    train/CLASS/IMAGE, test/...     splits, by the spellings of splits.py; layouts.py tells splits from classes
    PATH?train=FOLDER&test=FOLDER   folders of splits whose names say none
    manifest.json                   {"classes": [name, ...], "items": [[image, split, class index], ...]}

Left out, each with a remark: hidden files and folders, files in a class that are not images, images in no class, broken
links, and links that form a circle. Other links are followed. A manifest.json in a zip must have this form; in a folder
it is read only if it has `classes` and `items`.
"""

import contextlib
import dataclasses
import os
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np

from tangent_jax.core import InputError, refusal, require
from tangent_jax.core.records import convert, parse_json
from tangent_jax.core.url_paths import Place, UrlPath
from tangent_jax.data.layouts import layout
from tangent_jax.data.left_out import LeftOut, leave_out, note
from tangent_jax.data.sources import Dataset, Examples, check_size, existing_path, files
from tangent_jax.data.splits import one_name_each

HELD_OUT = 5  # without a test split, every fifth image is test, by content hash
Make = Callable[[Iterable[str], Iterable[int]], Examples]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of manifest.json: names of classes, and (image, split, class index)."""

    classes: tuple[str, ...]
    items: tuple[tuple[str, str, int], ...]


def folder(where: str) -> Dataset:
    """Opens the data set of a folder or a zip."""
    where, chosen = split_folders(where)
    path = existing_path(where)
    if path.is_dir():
        names, folders = walk(path)
        manifest = folder_manifest(path) if "manifest.json" in names else None
        if manifest is not None:
            return from_manifest(path, manifest, {*names}, lambda names, labels: files(path, names, labels))
        return from_folders(path, names, folders, chosen, lambda names, labels: files(path, names, labels))
    archive = open_zip(path)
    member_of = member_names(archive)
    names = sorted(name for name in member_of if not name.endswith("/"))

    def make(names: Iterable[str], labels: Iterable[int]) -> Examples:
        shown = tuple(names)
        members = tuple(member_of[name] for name in shown)
        read = partial(read_nth, archive, members)
        return Examples(shown, np.fromiter(labels, np.int32), read, lambda i: (path, members[i]))

    if "manifest.json" in names:
        content = read_member(archive, member_of["manifest.json"])
        manifest = parse_json("open_dataset", content, f"manifest.json in {path}")
        return from_manifest(path, manifest, {*names}, make)
    folders = sorted({name.rpartition("/")[0] for name in member_of} - {""})
    return from_folders(path, names, folders, chosen, make)


# Folders


def walk(root: Place) -> tuple[list[str], list[str]]:
    """(files, folders) below a folder, by sorted relative names; follows links, but not in circles."""
    if isinstance(root, UrlPath):
        below = [(str(path.relative_to(root)), path.is_file()) for path in root.below() if path != root]
        return [name for name, is_file in below if is_file], [name for name, is_file in below if not is_file]
    names, folders, seen = [], [], set()
    for where, inner, own in os.walk(root, followlinks=True):
        here = Path(where).relative_to(root)
        real = os.path.realpath(where)
        if real in seen:
            why = "a link that leads in a circle, or to a folder that is read already"
            leave_out(LeftOut("folder", why, 1, str(here)))
            inner.clear()
            continue
        seen.add(real)
        folders += [] if where == os.fspath(root) else [str(here)]
        names += [str(here / name) for name in own if (root / here / name).is_file()]
        dangling = [str(here / name) for name in own if not (root / here / name).exists()]
        for name in sorted(dangling):
            leave_out(LeftOut("file", "a link to nothing", 1, name))
    return sorted(names), sorted(folders)


def folder_manifest(path: Place) -> dict | None:
    """A folder's manifest.json if it has our form, else None: many programs write a file of this name."""
    try:
        manifest = parse_json("open_dataset", (path / "manifest.json").read_bytes(), path)
    except InputError:
        return None
    return manifest if {"classes", "items"} <= {*manifest} else None


def from_folders(path: Place, names: list[str], folders: list[str], chosen: dict[str, str], make: Make) -> Dataset:
    """The data set of class sub-folders, in splits if the folders around them are splits."""
    found = layout(names, folders, path, chosen)
    splits = {split: make([n for n, _ in rows], [y for _, y in rows]) for split, rows in found.images.items()}
    require(
        "train" in splits or "" in splits,
        "open_dataset",
        f"a train split in {path}",
        sorted(splits),
        "Name the folder of training images train",
    )
    for name in found.empty:
        note(f"the folder of class {name} is empty: the class keeps its place, without images")
    if {*splits} == {"train"} and found.unlabelled:
        note("one split has labels: every fifth image by content is test")
        splits = by_content(splits["train"])
    splits = splits if "train" in splits else by_content(splits[""])
    return Dataset(path.stem, found.classes, splits, empty=found.empty)


def split_folders(where: str) -> tuple[str, dict[str, str]]:
    """Returns (path, the folder of each split) of PATH?train=FOLDER&test=FOLDER; other questions belong to the path."""
    path, _, text = where.rpartition("?")
    pairs = parse_qsl(text, keep_blank_values=True)
    names = {name for name, _ in pairs}
    if not path or not names or not names <= {"train", "validation", "test"}:
        return where, {}
    if len(names) < len(pairs) or "train" not in names or not all(folder.strip("/") for _, folder in pairs):
        raise InputError(f"open_dataset: write PATH?train=FOLDER&test=FOLDER, each once, with train; got {where}")
    return path, dict(pairs)


def by_content(examples: Examples) -> dict[str, Examples]:
    """Train and test by the content identifier; every class trains.

    A class whose images would all be test images trains on the one with the smallest identifier. So adding or removing
    an image moves no image of another class, and of its own class only this one.
    """
    identifiers = examples.identifiers()
    test = np.array([int(name[:8], 16) % HELD_OUT == 0 for name in identifiers], bool)
    rows = {label: np.flatnonzero(examples.labels == label) for label in {*examples.labels[test].tolist()}}
    for several in rows.values():
        if test[several].all():
            first = min(identifiers[i] for i in several)
            test[[i for i in several if identifiers[i] == first]] = False
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


def member_names(archive: Archive) -> dict[str, str]:
    """Returns the name of each member in the archive by its name as read: with slashes, and in UTF-8.

    Windows programs write backslashes; several programs write UTF-8 without the flag that says so.
    """
    names: dict[str, str] = {}
    changed = {"backslashes in names are read as slashes": "", "names without the UTF-8 flag are read as UTF-8": ""}
    slashes, letters = changed
    for info in archive.infolist():
        name = info.filename
        if not info.flag_bits & 0x800 and not name.isascii():
            with contextlib.suppress(UnicodeError):
                name = name.encode("cp437").decode("utf-8")
                changed[letters] = changed[letters] or name
        if "\\" in name:
            name = name.replace("\\", "/")
            changed[slashes] = changed[slashes] or name
        names[name] = info.filename
    for line, first in changed.items():
        if first:
            note(f"{line}, such as {first}")
    return names


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
    split_by_name = one_name_each(names, where)
    unknown = sorted({*names} - {*split_by_name})
    require(not unknown, "open_dataset", f"splits of train, test, validation in {where}", ", ".join(unknown))
    used = {label for _, _, label in items}
    empty = tuple(name for label, name in enumerate(classes) if label not in used)
    for name in empty:
        note(f"no image of {where} is of class {name}: the class keeps its place")
    return Dataset(
        path.stem,
        classes,
        {
            split_by_name[split]: make([i[0] for i in rows], [i[2] for i in rows])
            for split, rows in sorted(names.items())
        },
        empty=empty,
    )
