"""Folders and zips of photographs: class folders, with or without folders of splits around them, or a manifest.

    CLASS/IMAGE                     without splits
    train/CLASS/IMAGE, test/...     splits, by the spellings of splits.py; layouts.py tells splits from classes
    CLASS/train/IMAGE, CLASS/test/IMAGE     splits inside the classes
    PATH?train=FOLDER&test=FOLDER   folders of splits whose names say none
    ?train=PATH&test=PATH           folders or zips of splits that are in several places
    PATH?folders=classes            the outer folders are classes, whatever folders they hold
    PATH?group=PATTERN              training images whose names have the same match are held out together
    manifest.json                   {"classes": [name, ...], "items": [[image, split, class index], ...]}

A single split of a manifest, of any name, trains, and is not divided.

Left out, each with a remark: hidden files and folders, files in a class that are not images, images in no class, broken
links, and links that form a circle. Other links are followed. A manifest.json is read if it has `classes` and `items`.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import parse_qsl

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import composed_name
from tangent_jax.data.layouts import Asked, Layout, layout
from tangent_jax.data.left_out import leave_out, note
from tangent_jax.data.rows import Rows, by_name
from tangent_jax.data.sources import existing_path, place_of_file, read_file
from tangent_jax.data.splits import one_name_each
from tangent_jax.data.zips import open_zip
from tangent_jax.io.paths import Place, absolute, names_below
from tangent_jax.io.records import convert, parse_json

T = TypeVar("T")
QUESTION = re.compile(r"\?(?=(?:train|validation|test|folders|group)=)")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of manifest.json: names of classes, and (image, split, class index)."""

    classes: tuple[str, ...]
    items: tuple[tuple[str, str, int], ...]


@dataclasses.dataclass(frozen=True)
class Source:
    """The files of a folder, of a zip, or of one for each split: `read` and `place` are of a file by its name."""

    name: str
    path: object
    names: list[str]
    folders: list[str]
    read: Callable[[str], bytes]
    place: Callable[[str], tuple[Place, str]]
    is_zip: bool = False


def folder(where: str) -> Rows:
    """The rows of a folder or a zip."""
    path, asked = question_of(where)
    source = open_source(existing_path(path)) if path else join_sources(asked.folders)
    manifest = manifest_of(source)
    if manifest is not None:
        found = listed(manifest, source)
    else:
        found = layout(source.names, source.folders, source.path, asked if path else asked.joined())
    items = [(name, split, label) for split, images in found.images.items() for name, label in images]
    names = tuple(name for name, _, _ in items)
    return Rows(
        source.name,
        source.path,
        names,
        [split for _, split, _ in items],
        [label for _, _, label in items],
        partial(by_name, source.read, names),
        partial(by_name, source.place, names),
        found.classes,
        found.empty,
        None if asked.group is None else groups_by(asked.group, names),
        is_whole=manifest is not None,
    )


def question_of(where: str) -> tuple[str, Asked]:
    """(path, explicit options) of PATH?train=FOLDER&test=FOLDER or PATH?folders=classes, and &group=PATTERN.

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
    is_by_class = folders.pop("folders", "classes") == "classes"
    if not is_right or not is_by_class or (folders and "train" not in folders):
        raise InputError(
            "choices about folders must be PATH?folders=classes, PATH?train=FOLDER&test=FOLDER, with train, or"
            f" PATH?group=PATTERN, joined by &, each once; got {where}"
        )
    return path, Asked(folders, "folders" in names, group)


def groups_by(pattern: str, names: Sequence[str]) -> list[str | None]:
    """The group of each name: the first parenthesis of a pattern's match, or all of the match; None without one."""
    try:
        expression = re.compile(composed_name(pattern))
    except re.error as error:
        raise InputError(f"?group must be a regular expression; got {pattern}: {error}") from error
    matches = [expression.search(composed_name(name)) for name in names]
    return [(match[min(expression.groups, 1)] or None) if match else None for match in matches]


# Sources


def open_source(path: Place) -> Source:
    """The files of a folder or a zip."""
    if path.is_dir():
        names, folders = walk(path)
        return Source(path.stem, path, names, folders, partial(read_file, path), partial(place_of_file, path))
    archive = open_zip(path)
    for line, first in archive.changed.items():
        note(f"{line}, such as {first}")
    names = sorted(name for name in archive.member_of if not name.endswith("/"))
    folders = sorted({name.rpartition("/")[0] for name in archive.member_of} - {""})
    return Source(path.stem, path, names, folders, archive.read_image, archive.place_of, is_zip=True)


def join_sources(places: Mapping[str, str]) -> Source:
    """The files of folders or zips of one split each, anywhere; names begin with the split: train/CLASS/IMAGE."""
    paths = {split: existing_path(where) for split, where in places.items()}
    for split, path in paths.items():
        for other, outer in paths.items():
            if other != split and is_below(path, outer):
                raise InputError(
                    f"The images of {other} and {split} must be apart, and {outer} holds {path}: "
                    f"name the folder of {other} alone"
                )
    sources = {split: open_source(path) for split, path in paths.items()}
    parents = {absolute(path).parent for path in paths.values()}
    name = parents.pop().name if len(parents) == 1 < len(paths) else sources["train"].name
    return Source(
        name,
        " and ".join(map(str, paths.values())),
        [f"{split}/{name}" for split, source in sources.items() for name in source.names],
        [*sources, *(f"{split}/{inner}" for split, source in sources.items() for inner in source.folders)],
        partial(in_split, {split: source.read for split, source in sources.items()}),
        partial(in_split, {split: source.place for split, source in sources.items()}),
    )


def in_split(functions: Mapping[str, Callable[[str], T]], name: str) -> T:
    """The value for SPLIT/NAME of the split's own function of NAME."""
    split, _, inner = name.partition("/")
    return functions[split](inner)


def is_below(path: Place, outer: Place) -> bool:
    """Returns True for a path that is another one, or is in it."""
    if isinstance(path, Path) and isinstance(outer, Path):
        return path.resolve().is_relative_to(outer.resolve())
    return f"{path}/".startswith(f"{outer}/")


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
            leave_out("folders", "a link that leads in a circle, or to a folder that is read already", 1, str(folder))
            inner.clear()
            continue
        seen.add(real)
        folders += [] if where == os.fspath(root) else [str(folder)]
        names += [str(folder / name) for name in file_names if (root / folder / name).is_file()]
        dangling = sorted(str(folder / name) for name in file_names if not (root / folder / name).exists())
        leave_out("files", "links to nothing", len(dangling), *dangling[:1])
    return sorted(names), sorted(folders)


def manifest_of(source: Source) -> Manifest | None:
    """The manifest.json of a source; in a folder None where it has another form, as many programs write this name.

    Raises:
        InputError: A manifest of a zip that has another form.
    """
    if "manifest.json" not in source.names:
        return None
    where = f"manifest.json of {source.path}"
    content = {}
    try:
        content = parse_json(source.read("manifest.json"), where)
    except InputError:
        if source.is_zip:
            raise
    if not {"classes", "items"} <= {*content}:
        if source.is_zip:
            raise InputError(f"{where} must have classes and items; it has others. Rename a file of another program")
        return None
    return convert(Manifest, {key: content[key] for key in ("classes", "items")}, where)


def listed(manifest: Manifest, source: Source) -> Layout:
    """The layout that a manifest says, whose images exist; a single split of any name trains."""
    where = f"manifest.json of {source.path}"
    file_of = {composed_name(name): name for name in source.names}
    images: dict[str, list[tuple[str, int]]] = {}
    for title, split, label in manifest.items:
        name = file_of.get(composed_name(str(PurePosixPath(title))))
        if name is None:
            raise InputError(f"{where} must list images that exist; there is none named {title}")
        images.setdefault(split, []).append((name, label))
    if len(images) == 1:
        return Layout(manifest.classes, {"train": next(iter(images.values()))}, None)
    unknown = sorted(images.keys() - one_name_each(images, where).keys())
    if unknown:
        raise InputError(f"the splits of {where} must be train, test or validation; got {', '.join(unknown)}")
    return Layout(manifest.classes, images, None)
