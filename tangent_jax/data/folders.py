"""Folders and zips of photographs: class folders, with or without folders of splits around them, or a manifest.

    CLASS/IMAGE                     every fifth image, by content hash, is test
    train/CLASS/IMAGE, test/...     splits, by the spellings of splits.py; layouts.py tells splits from classes
    CLASS/train/IMAGE, CLASS/test/IMAGE     splits inside the classes
    PATH?train=FOLDER&test=FOLDER   folders of splits whose names say none
    ?train=PATH&test=PATH           folders or zips of splits that are in several places
    PATH?folders=classes            the folders are classes, though they hold folders of the same names
    PATH?group=PATTERN              training images whose names have the same match are held out together
    manifest.json                   {"classes": [name, ...], "items": [[image, split, class index], ...]}

Left out, each with a remark: hidden files and folders, files in a class that are not images, images in no class, broken
links, and links that form a circle. Other links are followed. A manifest.json in a zip must have this form; in a folder
it is read only if it has `classes` and `items`.
"""

import contextlib
import dataclasses
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl

import numpy as np
from jaxtyping import Bool, Int

from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.names import composed_name
from tangent_jax.data.formats import format_of, packing_of
from tangent_jax.data.layouts import Asked, Layout, layout
from tangent_jax.data.left_out import LeftOut, leave_out, note
from tangent_jax.data.sources import Dataset, Examples, check_size, existing_path, files
from tangent_jax.data.splits import one_name_each
from tangent_jax.io.git_lfs import check_no_pointer
from tangent_jax.io.paths import Place, absolute, names_below, open_file, read_range
from tangent_jax.io.records import convert, parse_json

HEAD = 512  # the first bytes of a file, which tell its kind
METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 93: "zstd", 95: "xz", 96: "JPEG", 98: "PPMd"}
"""Names of the compression methods of zips."""
READABLE = {
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
    zipfile.ZIP_BZIP2,
    zipfile.ZIP_LZMA,
    getattr(zipfile, "ZIP_ZSTANDARD", 0),
}
HELD_OUT = 5  # without a test split, every fifth image is test, by content hash
QUESTION = re.compile(r"\?(?=(?:train|validation|test|folders|group)=)")
Make = Callable[[Iterable[str], Iterable[int]], Examples]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of manifest.json: names of classes, and (image, split, class index)."""

    classes: tuple[str, ...]
    items: tuple[tuple[str, str, int], ...]


@dataclasses.dataclass(frozen=True)
class Source:
    """The files of a folder or a zip: names, folders, and `make`, the examples of names and labels."""

    path: Place
    names: list[str]
    folders: list[str]
    make: Make
    manifest: dict | None = None


def folder(where: str) -> Dataset:
    """Opens the data set of a folder or a zip."""
    path, asked = question_of(where)
    if not path:
        return from_places(asked)
    source = open_source(path)
    if source.manifest is not None:
        return from_manifest(source.path, source.manifest, {*source.names}, source.make, asked)
    found = layout(source.names, source.folders, source.path, asked)
    return from_layout(source.path.stem, found, lambda _, names, labels: source.make(names, labels), asked)


def open_source(where: str) -> Source:
    """Returns the files of a folder or a zip."""
    path = existing_path(where)
    if path.is_dir():
        names, folders = walk(path)
        manifest = folder_manifest(path) if "manifest.json" in names else None
        return Source(path, names, folders, partial(files, path), manifest)
    archive = open_zip(path)
    members = [info for info in archive.infolist() if not info.is_dir()]
    if members and all(info.flag_bits & 1 for info in members):
        raise InputError(f"{path} is encrypted by a password: unpack it with the password, and name the folder")
    if members and not any(info.compress_type in READABLE for info in members):
        check_method(path, members[0])
    member_of = member_names(archive)
    names = sorted(name for name in member_of if not name.endswith("/"))
    folders = sorted({name.rpartition("/")[0] for name in member_of} - {""})

    def make(names: Iterable[str], labels: Iterable[int]) -> Examples:
        shown = tuple(names)
        members = tuple(member_of[name] for name in shown)
        read = partial(read_nth, archive, members)
        return Examples(shown, np.fromiter(labels, np.int32), read, lambda i: (path, members[i]))

    manifest = None
    if "manifest.json" in names:
        content = read_member(archive, member_of["manifest.json"])
        manifest = parse_json(content, f"manifest.json in {path}")
    return Source(path, names, folders, make, manifest)


def from_places(asked: Asked) -> Dataset:
    """The data set of folders or zips of one split each, anywhere; names begin with the split: train/CLASS/IMAGE."""
    sources = {split: open_source(where) for split, where in asked.folders.items()}
    for split, source in sources.items():
        for other, outer in sources.items():
            if other != split and is_below(source.path, outer.path):
                raise InputError(
                    f"The images of {other} and {split} must be apart, and {outer.path} holds {source.path}: "
                    f"name the folder of {other} alone"
                )
    names = [f"{split}/{name}" for split, source in sources.items() for name in source.names]
    folders = [split for split in sources]
    folders += [f"{split}/{inner}" for split, source in sources.items() for inner in source.folders]
    where = " and ".join(str(source.path) for source in sources.values())
    found = layout(names, folders, where, Asked({split: split for split in sources}))

    def make(split: str, names: Sequence[str], labels: Iterable[int]) -> Examples:
        part = sources[split].make([name.removeprefix(f"{split}/") for name in names], labels)
        return dataclasses.replace(part, names=tuple(names))

    parents = {absolute(source.path).parent for source in sources.values()}
    named = sources["train"].path.stem
    return from_layout(parents.pop().name if len(parents) == 1 < len(sources) else named, found, make, asked)


def is_below(path: Place, outer: Place) -> bool:
    """Returns True for a path that is another one, or is in it."""
    if isinstance(path, Path) and isinstance(outer, Path):
        return path.resolve().is_relative_to(outer.resolve())
    return f"{path}/".startswith(f"{outer}/")


# Folders


def walk(root: Place) -> tuple[list[str], list[str]]:
    """(files, folders) below a folder, by sorted relative names; follows links, but not in circles."""
    if not isinstance(root, Path):
        below = names_below(root)
        return below, sorted({str(parent) for name in below for parent in PurePosixPath(name).parents} - {"."})
    names: list[str] = []
    folders: list[str] = []
    seen: set[str] = set()
    for where, inner, file_names in os.walk(root, followlinks=True):
        folder = Path(where).relative_to(root)
        real = os.path.realpath(where)
        if real in seen:
            why = "a link that leads in a circle, or to a folder that is read already"
            leave_out(LeftOut("folders", why, 1, str(folder)))
            inner.clear()
            continue
        seen.add(real)
        folders += [] if where == os.fspath(root) else [str(folder)]
        names += [str(folder / name) for name in file_names if (root / folder / name).is_file()]
        dangling = [str(folder / name) for name in file_names if not (root / folder / name).exists()]
        for name in sorted(dangling):
            leave_out(LeftOut("files", "a link to nothing", 1, name))
    return sorted(names), sorted(folders)


def folder_manifest(path: Place) -> dict | None:
    """A folder's manifest.json if it has our form, else None: many programs write a file of this name."""
    try:
        manifest = parse_json((path / "manifest.json").read_bytes(), path)
    except InputError:
        return None
    return manifest if {"classes", "items"} <= {*manifest} else None


def from_layout(
    name: str, found: Layout, make: Callable[[str, Sequence[str], Iterable[int]], Examples], asked: Asked
) -> Dataset:
    """The data set of a layout; `make`: the examples of a split's names and labels."""
    splits = {split: make(split, [n for n, _ in rows], [y for _, y in rows]) for split, rows in found.images.items()}
    if "train" not in splits and "" not in splits:
        raise InputError(
            f"{name} must have a training split, and has {' and '.join(sorted(splits))} alone: "
            "name the folder of training images train"
        )
    for class_name in found.empty:
        note(f"the folder of class {class_name} is empty: the class keeps its place, without images")
    splits = grouped(splits, name, asked.group)
    return Dataset(name, found.classes, divided(splits), empty=found.empty, is_divided=is_single(splits))


def question_of(where: str) -> tuple[str, Asked]:
    """Returns (path, the caller's word) of PATH?train=FOLDER&test=FOLDER or PATH?folders=classes, and &group=PATTERN.

    The path is "" where FOLDERs are paths of their own; other text after a question mark belongs to the path.
    """
    path, *rest = QUESTION.split(where, 1)
    pairs = parse_qsl("".join(rest).replace("+", "%2B"), keep_blank_values=True)
    names = {name for name, _ in pairs}
    known = {"train", "validation", "test", "folders", "group"}
    if not names or not names <= known or (not path and "train" not in names):
        return where, Asked()
    folders = dict(pairs)
    group = folders.pop("group", None)
    is_right = len(names) == len(pairs) and all(value.strip("/") for _, value in pairs)
    is_split = "train" in folders and "folders" not in folders
    is_by_class = folders == {"folders": "classes"}
    if not is_right or not (is_split or is_by_class or not folders):
        raise InputError(
            "A question about folders must be PATH?folders=classes or PATH?train=FOLDER&test=FOLDER, each once, with "
            f"train, or PATH?group=PATTERN, or with &group=PATTERN; got {where}"
        )
    return path, Asked({} if is_by_class else folders, is_by_class, group)


def grouped(splits: dict[str, Examples], where: object, pattern: str | None) -> dict[str, Examples]:
    """The splits; the training images are in groups by the first parenthesis of a pattern's match, or all of it."""
    split = next((split for split in ("train", "") if split in splits), None)
    if pattern is None or split is None:
        return splits
    try:
        expression = re.compile(composed_name(pattern))
    except re.error as error:
        raise InputError(f"?group must be a regular expression; got {pattern}: {error}") from error
    train = splits[split]
    matches = [expression.search(composed_name(name)) for name in train.names]
    groups = [(match[min(expression.groups, 1)] or None) if match else None for match in matches]
    return splits | {split: train.in_groups(groups, where)}


def divided(splits: dict[str, Examples]) -> dict[str, Examples]:
    """The splits; a single one, of training images or without a name, is divided by content."""
    if not is_single(splits):
        return splits
    note("one split: every fifth image by content is test")
    return by_content(*splits.values())


def is_single(splits: dict[str, Examples]) -> bool:
    """True for one split, of training images or without a name."""
    return {*splits} in ({""}, {"train"})


def by_content(examples: Examples) -> dict[str, Examples]:
    """Train and test by the content identifier; every class trains.

    A class whose images would all be test images trains on the one with the smallest identifier. So adding or removing
    an image moves no image of another class, and of its own class only this one. Without any test image, the smallest
    identifier of a class of several images is test; there is no test split if each class has one image.
    """
    identifiers = examples.identifiers()
    test = np.array([int(name[:8], 16) % HELD_OUT == 0 for name in identifiers], bool)
    rows = {label: np.flatnonzero(examples.labels == label) for label in {*examples.labels[test].tolist()}}
    for several in rows.values():
        if test[several].all():
            first = min(identifiers[i] for i in several)
            test[[i for i in several if identifiers[i] == first]] = False
    if not test.any():
        test = first_to_spare(identifiers, examples.labels)
    if not test.any():
        return {"train": examples}
    return {"train": examples.take(np.flatnonzero(~test)), "test": examples.take(np.flatnonzero(test))}


def first_to_spare(identifiers: Sequence[str], labels: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """A mask of the image with the smallest identifier, and its copies, of the classes that keep another image."""
    images: dict[int, set[str]] = {}
    for label, identifier in zip(labels.tolist(), identifiers, strict=True):
        images.setdefault(label, set()).add(identifier)
    spare = {min(several): label for label, several in images.items() if len(several) > 1}
    first = min(spare, default=None)
    return np.array([name == first for name in identifiers], bool) & (labels == spare.get(first or "", -1))


# Zips and manifests


class Archive(zipfile.ZipFile):
    """A zip that is open for reading; a process that receives it opens it again."""

    def __init__(self, place: Place) -> None:
        super().__init__(place if isinstance(place, Path) else open_file(place))
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
        check_no_pointer(path)
        raise InputError(f"folder: must name a folder or a zip; {path} is {other_file(path)}") from error


def other_file(path: Place) -> str:
    """The kind of a file that is no readable zip, by its first bytes, and the remedy, as an error says them."""
    start = read_range(path, 0, HEAD)
    kind = packing_of(start)
    if kind == "a zip":
        return "a zip without its end, as a copy that broke off or one part of several leaves it. Fetch it whole again"
    if start[257:262] == b"ustar":
        kind = "a tar"
    if kind:
        is_tar = "tar" in kind or "compressed" in kind
        return f"{kind}. Unpack it, and name the folder" + (
            f" (wds:{path} reads a tar of webdataset's format)" if is_tar else ""
        )
    kind = format_of(start)
    form = f", {kind if ' ' in kind else f'{kind} by its content'}" if kind else ""
    return f"another file{form}. Name the folder that holds the images"


def check_method(place: Place, info: zipfile.ZipInfo) -> None:
    """Raises InputError with the remedy for a member of a compression that this Python does not read."""
    if info.compress_type in READABLE:
        return
    name = METHODS.get(info.compress_type)
    method = f"{info.compress_type} ({name})" if name else f"{info.compress_type}"
    raise InputError(
        f"a zip must be stored or deflated; {info.filename} of {place} is compressed by method {method}. Unpack it,"
        " such as by 7z x, and name the folder, or zip it again"
    )


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
    subject = f"{name} in {archive.place} must be readable"
    try:
        check_method(archive.place, archive.getinfo(name))
        size = archive.getinfo(name).file_size
        check_size(size, name)
        with archive.open(name) as member:
            content = member.read(size + 1)
    except InputError:
        raise
    except Exception as error:  # damaged, encrypted, or compressed in an unknown way
        raise InputError(f"{subject}; {type(error).__name__}: {error}") from error
    if len(content) != size:
        raise InputError(f"{subject}; got {len(content)} bytes, not {size}")
    return content


def read_nth(archive: Archive, members: tuple[str, ...], i: int) -> bytes:
    """The bytes of member `i` of `members`."""
    return read_member(archive, members[i])


def from_manifest(path: Place, content: dict, present: set[str], make: Make, asked: Asked) -> Dataset:
    """The data set of a manifest, in the splits that its items name."""
    where = f"manifest.json of {path}"
    manifest = convert(Manifest, {k: v for k, v in content.items() if k in ("classes", "items")}, where)
    file_of = {composed_name(name): name for name in sorted(present)}
    items = [(file_of.get(composed_name(name), name), split, label) for name, split, label in manifest.items]
    classes = manifest.classes
    for name, _, label in items:
        if name not in present:
            raise InputError(f"{where} must list images that exist; there is none named {name}")
        whole_number(f"the class index of {name}", label, 0, len(classes) - 1)
    names: dict[str, list] = {}
    for item in items:
        names.setdefault(item[1], []).append(item)
    if len(names) == 1:
        names = {"train": items}  # a single split, of any name
    split_by_name = one_name_each(names, where)
    unknown = sorted({*names} - {*split_by_name})
    if unknown:
        raise InputError(f"the splits of {where} must be train, test or validation; got {', '.join(unknown)}")
    used = {label for _, _, label in items}
    empty = tuple(name for label, name in enumerate(classes) if label not in used)
    for name in empty:
        note(f"no image of {where} is of class {name}: the class keeps its place")
    splits = {
        split_by_name[split]: make([i[0] for i in rows], [i[2] for i in rows]) for split, rows in sorted(names.items())
    }
    return Dataset(path.stem, classes, grouped(splits, where, asked.group), empty=empty, classes_from="list")
