"""Tars in webdataset's format: members with the same key form a sample, an image and its label.

    PATH.tar, PATH-{000..099}.tar, {train,test}-{0..9}.tar, PATH-*.tar, or a folder of tars; their names say the split
    KEY.jpg (.png, .webp, ...)          the image; where a sample has several, one is chosen: ?image=EXTENSION
    KEY.cls                             the label, a class index or name; or
    KEY.json                            its fields, of which one is the label: ?label=FIELD
    classes.txt                         in the folder of the tars: the names of the class indices, a line each

The headers of a tar are read once: the index of identifiers.py stores them until the tar changes. Nothing is unpacked,
so a member's name cannot write anywhere. A tar without its closing block is truncated, and refused. An image is named
TAR/KEY. Left out, each with a remark: samples without a label, or without an image that is a plain file.
"""

import contextlib
import dataclasses
import glob
import json
import os
import re
import tarfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax.core import InputError, progress_bar, refusal, require
from tangent_jax.core.files import expand_path
from tangent_jax.core.records import as_text, parse_json
from tangent_jax.core.url_paths import Place, UrlPath, as_place, name_below, read_range
from tangent_jax.core.urls import is_url
from tangent_jax.data.columns import Label, Part, as_labels, assemble, by_split, choose, classes_beside, options
from tangent_jax.data.identifiers import file_state, keep, key_of, look_up
from tangent_jax.data.layouts import is_hidden
from tangent_jax.data.left_out import LeftOut, leave_out
from tangent_jax.data.sources import SUFFIXES, Dataset, check_size

MOST_TARS = 100_000
MOST_JSON = 1 << 20  # bytes
LONGEST = 256  # the most bytes, or letters, of a label
BLOCK = 512  # bytes of a block; a block of zeros closes a tar


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sample's key, the (offset, size) of its images by extension, and its labels by field: cls, or a JSON's."""

    key: str
    images: dict[str, tuple[int, int]]
    labels: dict[str, int | str]


def tars(where: str) -> Dataset:
    """Opens the data set of webdataset's tars."""
    pattern, chosen = options(where)
    require("split" not in chosen, "open_dataset", "PATH?image=EXTENSION&label=FIELD: tars name their splits", where)
    root, names = match_tars(pattern)
    groups = by_split(root, names)
    files = tuple(file for group in groups.values() for file in group)
    with progress_bar(len(files), "tar") as bar:
        samples = [(place, sample) for place, file in enumerate(files) for sample in list_samples(file, bar)]
    labels, extension = labels_of([s for _, s in samples], chosen.get("label"), root), chosen.get("image")
    check_images([s for _, s in samples], extension, root)
    spans, bare = {}, []
    for row, (place, sample) in enumerate(samples):
        image = sample.images.get(extension) if extension else next(iter(sample.images.values()), None)
        if image is None:
            bare.append(sample.key)
        else:
            spans[row] = place, *image
    if bare:
        leave_out(LeftOut("samples", "without an image", len(bare), bare[0]))
    split_at, parts = [split for split, group in groups.items() for _ in group], {}
    for split in groups:
        rows = [row for row, (place, *_) in spans.items() if split_at[place] == split]
        table = np.array([spans[row] for row in rows], np.int64).reshape(-1, 3)
        own = tuple(f"{name_below(files[samples[row][0]], root)}/{samples[row][1].key}" for row in rows)
        read, span = partial(read_member, files, table, own), partial(span_of, files, table)
        parts[split] = Part(own, [labels[row] for row in rows], read, span)
    return assemble(root.absolute(), parts, classes_beside(root))


def labels_of(samples: list[Sample], chosen: str | None, root: Place) -> list[Label]:
    """The label of each sample, by the chosen field, KEY.cls, or the only field."""
    fields = sorted({field for sample in samples for field in sample.labels})
    field = choose("label", chosen, ["cls"] if "cls" in fields else fields, fields, root)
    labels: list[Label] = [sample.labels.get(field) for sample in samples]
    texts = ["" if label is None else str(label) for label in labels]
    return as_labels(texts, root) if field == "cls" else labels


def check_images(samples: list[Sample], chosen: str | None, root: Place) -> None:
    """Raises InputError if samples have several images and none is chosen, or if no sample has the chosen one."""
    extensions = sorted({extension for sample in samples for extension in sample.images})
    several = any(len(sample.images) > 1 for sample in samples)
    choose("image", chosen, extensions if several else extensions[:1], extensions, root)


# Names


def match_tars(pattern: str) -> tuple[Any, list[Any]]:
    """(the surrounding folder, the tars that match a pattern)."""
    text = pattern if is_url(pattern) else str(expand_path("open_dataset", pattern))
    whole = as_place("open_dataset", text)
    if whole.is_dir():
        files = [file for file in sorted(whole.rglob("*.tar")) if not is_hidden(name_below(file, whole))]
        require(files, "open_dataset", f"tars in {text}", "none")
        return whole, files
    names = [*islice(braces(text), MOST_TARS + 1)]
    require(len(names) <= MOST_TARS, "open_dataset", f"at most {MOST_TARS:,} tars", f"more by {pattern}")
    root = as_place("open_dataset", os.path.dirname(re.split("[{*]", text)[0]) or ".")
    if isinstance(root, UrlPath):
        own = [name.removeprefix(f"{root}/") for name in names]
        files = [path for name in own for path in (root.glob(name) if "*" in name else [root / name])]
    else:
        files = [Path(path) for name in names for path in (sorted(glob.glob(name)) if "*" in name else [name])]
    require(files, "open_dataset", f"tars named {pattern}", "none")
    missing = [str(file) for file in files if not file.is_file()]
    got = f"{len(missing)} that do not exist, such as {missing[:1]}"
    require(not missing, "open_dataset", f"the tars {pattern}", got, "Fetch them, or name those that are there")
    return root, [*dict.fromkeys(files)]


def braces(text: str) -> Iterator[str]:
    """Yields the names that {000..099} and {a,b} in a text expand to."""
    match = re.search(r"\{([^{}]*)\}", text)
    if match is None:
        yield text
        return
    ends = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", match[1])
    numbers = range(int(ends[1]), int(ends[2]) + 1) if ends else ()
    for word in (f"{number:0{len(ends[1])}d}" for number in numbers) if ends else match[1].split(","):
        yield from braces(text[: match.start()] + word + text[match.end() :])


# Members


def list_samples(file: Place, bar: Any) -> tuple[Sample, ...]:
    """The samples of a tar, from the index or by its headers."""
    key = key_of(file_state(file), "\0samples")
    bar.update()
    with contextlib.suppress(ValueError, TypeError, AttributeError):  # missing or damaged
        entries = json.loads(look_up([key])[0] or "")
        return tuple(Sample(k, {e: (int(o), int(n)) for e, (o, n) in i.items()}, dict(f)) for k, i, f in entries)
    try:
        samples = read_headers(file)
    except InputError:
        raise
    except Exception as error:  # tarfile raises many kinds of errors
        do = "Fetch it again; tars are not to be compressed"
        raise refusal("open_dataset", f"a whole tar {file}", f"{type(error).__name__}: {error}", do) from error
    if key is not None:
        keep({key: json.dumps([(sample.key, sample.images, sample.labels) for sample in samples])})
    return samples


def read_headers(file: Place) -> tuple[Sample, ...]:
    """The samples of a tar, by its headers and the members that hold labels."""
    samples: dict[str, Sample] = {}
    whole, do = f"a whole tar {file}", "Fetch it again"
    with file.open("rb") as content, file.open("rb") as own, tarfile.open(fileobj=own, mode="r:") as archive:
        size = content.seek(0, os.SEEK_END)
        for member in archive:
            end = member.offset_data + member.size
            require(member.size >= 0 and end <= size, "open_dataset", whole, f"{member.name} cut off", do)
            folder, slash, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            is_image = f".{extension}".lower().endswith(SUFFIXES)
            if not stem or not (is_image or extension in ("cls", "json")) or not is_plain(member):
                continue
            sample = samples.setdefault(folder + slash + stem, Sample(folder + slash + stem, {}, {}))
            if is_image:
                once = extension not in sample.images
                require(once, "open_dataset", f"members of different names in {file}", f"{member.name} twice")
                sample.images[extension] = member.offset_data, member.size
                continue
            check_label(extension, member.size, f"{member.name} in {file}")
            content.seek(member.offset_data)
            new = fields_of(extension, content.read(member.size), f"{member.name} in {file}")
            other = [field for field, label in new.items() if str(sample.labels.get(field, label)) != str(label)]
            expected = f"one {other[0] if other else ''} of {sample.key} in {file}"
            require(not other, "open_dataset", expected, f"two, and {member.name} has the second", "Remove one")
            sample.labels.update(new)
        content.seek(archive.offset)
        require(content.read(BLOCK) == bytes(BLOCK), "open_dataset", whole, "one without its closing block", do)
    return tuple(samples.values())


def is_plain(member: tarfile.TarInfo) -> bool:
    """True for a file with contiguous bytes in the tar."""
    return member.isreg() and member.type != tarfile.GNUTYPE_SPARSE and not member.issparse()


def check_label(extension: str, size: int, name: str) -> None:
    """Raises InputError for more bytes than a label, or its JSON, may have."""
    most = LONGEST if extension == "cls" else MOST_JSON
    require(size <= most, "open_dataset", f"a label of at most {most:,} bytes", f"{name} of {size}")


def fields_of(extension: str, content: bytes, name: str) -> dict[str, int | str]:
    """The labels by field in a member: whole numbers and short texts."""
    if extension == "cls":
        return {"cls": as_text("open_dataset", content, name).strip()}
    fields = parse_json("open_dataset", content, name)
    is_short = {n: not isinstance(v, str) or len(v) <= LONGEST for n, v in fields.items()}
    return {n: v for n, v in fields.items() if type(v) in (int, str) and is_short[n]}


def read_member(files: tuple[Place, ...], spans: np.ndarray, names: tuple[str, ...], i: int) -> bytes:
    """The bytes of the image of row `i`; spans: (file, offset, size) of each, "n 3"."""
    place, offset, size = spans[i].tolist()
    check_size(size, names[i])
    try:
        content = read_range(files[place], offset, size)
    except OSError as error:
        raise refusal("open_dataset", "a readable tar", f"{files[place]} ({error.strerror})") from error
    require(len(content) == size, "open_dataset", f"a whole {names[i]}", f"{len(content)} bytes, not {size}")
    return content


def span_of(files: tuple[Place, ...], spans: np.ndarray, i: int) -> tuple[Place, str]:
    """The tar of row `i`, with its offset and size there."""
    place, offset, size = spans[i].tolist()
    return files[place], f"{offset} {size}"
