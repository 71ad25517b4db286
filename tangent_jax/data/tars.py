"""Tars in webdataset's format: members with the same key form a sample, an image and its label.

    PATH.tar, PATH-{000..099}.tar, {train,test}-{0..9}.tar, PATH-*.tar, or a folder of tars; their names say the split
    KEY.jpg (.png, .webp, ...)          the image; where a sample has several, one is chosen: ?image=EXTENSION
    KEY.cls, KEY.txt, KEY.label         the label, a class index or name, the first of these that is there; or
    KEY.json                            its fields; ?label=FIELD chooses, if several may be the label; ?group=FIELD
    classes.txt                         in the folder of the tars: the names of the class indices, a line each

A key ends at the first dot of a member's name, as in webdataset: p1.final.jpg is the image final.jpg of p1. Letter case
of extensions makes no difference. Tars may be gzipped (tar_members.py). Tars that were joined (`cat a.tar b.tar`, which
`tar -i` reads) are read to the last one.

The headers of a tar are read once: the index of identifiers.py stores them until the tar changes. Nothing is unpacked,
so a member's name cannot write anywhere. A tar without its closing block is truncated, and refused. An image is named
TAR/KEY. Left out, each with a remark: samples without a label, or without an image that is a plain file.
"""

import contextlib
import dataclasses
import glob
import gzip
import json
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.data.columns import Column, as_groups, choose, classes_beside, options
from tangent_jax.data.identifiers import file_state, keep, key_of, look_up
from tangent_jax.data.layouts import is_hidden
from tangent_jax.data.left_out import leave_out, note
from tangent_jax.data.rows import Rows
from tangent_jax.data.sources import SUFFIXES, check_size
from tangent_jax.data.splits import by_split
from tangent_jax.data.tar_members import read_bytes
from tangent_jax.io.git_lfs import check_no_pointer
from tangent_jax.io.paths import Place, absolute, any_path, names_below, open_file, read_range
from tangent_jax.io.progress import progress_bar
from tangent_jax.io.records import as_text, first_names, parse_json

MOST_TARS = 100_000
MOST_JSON = 1 << 20  # bytes
LONGEST = 256  # the most bytes, or letters, of a label
BLOCK = 512  # bytes of a block; a block of zeros closes a tar
GZIP = b"\x1f\x8b"  # the first bytes of a gzip
FORMAT = 3  # of the lists in the index
ENDINGS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
LABELS = ("cls", "label", "class", "cls2")
TEXTS = ("txt", "text")
NUMBERS = ("index", "id", "inx", "count")
"""Extensions of members that hold a label: a text only if nothing else does, a number only if it is chosen."""
KINDS = {int: "whole numbers", str: "texts", float: "numbers", bool: "Booleans", list: "lists", type(None): "null"}


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sample's key, the (offset, size) of its images by extension, and its labels by field: cls, or a JSON's."""

    key: str
    images: dict[str, tuple[int, int]]
    labels: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Listing:
    """The samples of a tar, and how many of its members are neither image nor label, by extension.

    Attributes:
        packed: It is gzipped.
        joined: The number of tars that were joined to it.
    """

    samples: tuple[Sample, ...]
    others: dict[str, int]
    packed: bool
    joined: int


def tars(where: str) -> Rows:
    """The rows of webdataset's tars."""
    pattern, chosen = options(where, "wds:PATH", ("image", "label", "group"))
    root, found, is_pattern = match_tars(pattern)
    groups = by_split(root, {file: str(file.relative_to(root)) for file in found}, series_of, is_pattern)
    files = tuple(file for group in groups.values() for file in group)
    splits = [split for split, group in groups.items() for _ in group]
    with progress_bar(len(files), "tar") as bar:
        listings = [list_samples(file, bar) for file in files]
    note_members(files, listings)
    place_of = [place for place, listing in enumerate(listings) for _ in listing.samples]
    samples = [sample for listing in listings for sample in listing.samples]

    if not any(sample.labels for sample in samples) and any("/" in sample.key for sample in samples):
        raise InputError(
            f"the tars of {root} must hold labels, as KEY.cls, KEY.json or KEY.txt; they hold none. If their folders"
            " are classes, unpack them, and open the folder as folder:PATH"
        )
    extension = choose_image(samples, chosen, root)
    label = choose_label(samples, chosen, root)
    group = choose_label(samples, chosen, root, "group") if "group" in chosen else None
    images = [s.images.get(extension) if extension else next(iter(s.images.values()), None) for s in samples]
    spans = [(place, *image) for place, image in zip(place_of, images, strict=True) if image is not None]
    used = [sample for sample, image in zip(samples, images, strict=True) if image is not None]
    without_image = [sample.key for sample, image in zip(samples, images, strict=True) if image is None]
    leave_out("samples", "without an image", len(without_image), *without_image[:1])
    table = np.array(spans, np.int64).reshape(-1, 3)
    tar_names = [str(file.relative_to(root)) for file in files]
    names = tuple(f"{tar_names[place]}/{sample.key}" for (place, _, _), sample in zip(spans, used, strict=True))
    packed = tuple(listing.packed for listing in listings)
    return Rows(
        absolute(root).stem,
        absolute(root),
        names,
        [splits[place] for place, _, _ in spans],
        [sample.labels.get(label) for sample in used],
        partial(read_member, files, packed, table, names),
        partial(span_of, files, table),
        classes_beside(root),
        groups=None if group is None else as_groups([sample.labels.get(group) for sample in used]),
    )


def note_members(files: Sequence[Place], listings: Sequence[Listing]) -> None:
    """Notes tars that were joined, and leaves out the members that are neither images nor labels, by extension."""
    others: Counter[str] = Counter()
    for file, listing in zip(files, listings, strict=True):
        others.update(listing.others)
        if listing.joined > 1:
            note(f"{file.name} holds {listing.joined} joined tars, and all are read")
    for ending, count in others.most_common():
        leave_out("members", "neither an image nor a label", count, of=ending)


def choose_label(samples: Sequence[Sample], chosen: Mapping[str, str], root: Place, kind: str = "label") -> str:
    """The field of the labels (or groups, `kind`): the chosen one, KEY.cls, or the only one of its rank."""
    kinds: dict[str, set[str]] = {}
    for sample in samples:
        for field, label in sample.labels.items():
            kinds.setdefault(field, set()).add(KINDS[type(label)])
    last = {field: field.rpartition(".")[2] for field in kinds}
    are_texts = {*last.values()} <= {*TEXTS, *NUMBERS}  # captions, unless there is nothing else
    plain = {"whole numbers", "texts", "null"}
    plain = plain if any(several <= plain for several in kinds.values()) else {*KINDS.values()}
    columns = []
    for field in sorted(kinds):
        is_of_rank = (
            field == "cls" if "cls" in kinds else last[field] not in NUMBERS and (are_texts or last[field] not in TEXTS)
        )
        fits = "lists" not in kinds[field] and (kind in chosen or (is_of_rank and kinds[field] <= plain))
        columns.append(Column(field, " and ".join(sorted(kinds[field])), fits))
    return choose(kind, chosen, columns, root)


def choose_image(samples: Sequence[Sample], chosen: Mapping[str, str], root: Place) -> str | None:
    """The extension of the images if it is chosen; None where each sample has one image, of any extension."""
    extensions = sorted({extension for sample in samples for extension in sample.images})
    if "image" in chosen or not extensions:
        columns = [Column(extension, "an image", True) for extension in extensions]
        return choose("image", {kind: name.lower() for kind, name in chosen.items() if kind == "image"}, columns, root)
    several = next((sample for sample in samples if len(sample.images) > 1), None)
    if several is not None:
        raise InputError(
            f"a sample of {root} must have one image; {several.key} has {first_names(sorted(several.images))}. Write"
            " ?image=EXTENSION to choose, or _ for dots in keys, which end at the first dot of a name"
        )
    return None


# Names


def match_tars(pattern: str) -> tuple[Any, list[Any], bool]:
    """(the surrounding folder, the tars that match, whether they are named one by one or by a pattern)."""
    folder = any_path(pattern)
    text = str(folder)
    if folder.is_dir():
        below = [folder / name for name in names_below(folder) if not is_hidden(name)]
        files = [path for path in below if path.name.lower().endswith(ENDINGS) and path.is_file()]
        if not files:
            raise InputError(f"{text} must hold tars; it holds none")
        return folder, files, False
    names = [*islice(braces(text), MOST_TARS + 1)]
    if len(names) > MOST_TARS:
        raise InputError(f"a pattern must name at most {MOST_TARS:,} tars; {pattern} names more")
    root = any_path(os.path.dirname(re.split("[{*]", text)[0]) or ".")
    if isinstance(root, Path):
        files = [Path(path) for name in names for path in (sorted(glob.glob(name)) if "*" in name else [name])]
    else:
        relative = [name.removeprefix(f"{root}/") for name in names]
        files = [path for name in relative for path in (root.glob(name) if "*" in name else [root / name])]
    if not files:
        raise InputError(f"{pattern} must name tars; no file has such a name")
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise InputError(
            f"all tars of {pattern} must be there; {len(missing)} are not, such as {missing[0]}. Fetch them, or name"
            " the existing ones"
        )
    return root, [*dict.fromkeys(files)], True


def series_of(name: str) -> str:
    """The name of the series of a tar, without its number and suffix."""
    endings = [ending for ending in ENDINGS if name.lower().endswith(ending)]
    stem = name[: -max(map(len, endings), default=0) or None]
    return re.sub(r"([\W_]*(of)?[\W_]*[0-9]+)+$", "", stem) or name


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


def list_samples(file: Place, bar: Any) -> Listing:
    """The samples of a tar, from the index or by its headers."""
    key = key_of(file_state(file), f"\0samples {FORMAT}")
    bar.update()
    with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError):  # missing or damaged
        *entries, (_, others, packed, joined) = json.loads(look_up([key])[0] or "")
        samples = (Sample(k, {e: (int(o), int(n)) for e, (o, n) in i.items()}, dict(f)) for k, i, f in entries)
        return Listing(tuple(samples), dict(others), bool(packed), int(joined))
    try:
        found = read_headers(file)
    except InputError:
        raise
    except Exception as error:  # tarfile and zlib raise many kinds of errors
        raise InputError(
            f"{file} must be a whole tar, plain or gzipped; {type(error).__name__}: {error}. Unpack it, or fetch it"
            " again"
        ) from error
    if key is not None:
        entries = [(sample.key, sample.images, sample.labels) for sample in found.samples]
        keep({key: json.dumps([*entries, ("", found.others, found.packed, found.joined)])})
    return found


def read_headers(file: Place) -> Listing:
    """The samples of a tar, by its headers and the members that hold labels."""
    samples: dict[str, Sample] = {}
    others: Counter[str] = Counter()
    joined = 0
    check_no_pointer(file)
    packed = read_range(file, 0, len(GZIP)) == GZIP
    with open_file(file) as opened, gzip.GzipFile(fileobj=opened) if packed else opened as content:
        size = None if packed else content.seek(0, os.SEEK_END)
        content.seek(0)
        while True:
            with tarfile.open(fileobj=content, mode="r:") as archive:
                for member in archive:
                    end = member.offset_data + member.size
                    if member.size < 0 or (size is not None and end > size):
                        raise InputError(f"{file} must be a whole tar; its {member.name} is cut off. Fetch it again")
                    add_member(samples, others, member, content, file)
                closing = archive.offset
            content.seek(closing)
            if content.read(BLOCK) != bytes(BLOCK):
                raise InputError(f"{file} must be a whole tar; it has no closing block. Fetch it again")
            joined += 1
            # another tar may follow the zeros: tar itself stops here, and so would lose it
            block = bytes(BLOCK)
            while block == bytes(BLOCK):
                block = content.read(BLOCK)
            if not block.strip(b"\0"):
                return Listing(tuple(samples.values()), dict(others), packed, joined)
            try:
                tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise InputError(
                    f"{file} must be a whole tar; bytes follow its closing block that are no tar. Fetch it again"
                ) from error
            content.seek(content.tell() - BLOCK)


def add_member(
    samples: dict[str, Sample], others: Counter[str], member: tarfile.TarInfo, content: Any, file: Place
) -> None:
    """Adds a member to its sample, or counts it among the others."""
    folder, slash, name = member.name.removeprefix("./").rpartition("/")
    stem, _, extension = name.partition(".")
    extension = extension.lower()
    last = extension.rpartition(".")[2]
    if not stem or member.isdir() or re.match("__[^/]*__($|/)", member.name):  # hidden files; webdataset's own notes
        return
    is_image = f".{extension}".endswith(SUFFIXES)
    is_label = last in (*LABELS, *TEXTS, *NUMBERS, "json")
    is_caption = last in TEXTS and member.size > LONGEST
    if not (is_image or is_label) or is_caption or not is_plain(member):
        others[f".{last}" + (" (long texts)" if is_caption else " (links)" if is_image or is_label else "")] += 1
        return
    key = folder + slash + stem
    sample = samples.setdefault(key, Sample(key, {}, {}))
    if is_image:
        if extension in sample.images:
            raise InputError(f"the members of {file} must have different names; {member.name} is there twice")
        sample.images[extension] = member.offset_data, member.size
        return
    where = f"{member.name} in {file}"
    most = MOST_JSON if last == "json" else LONGEST
    if member.size > most:
        raise InputError(f"a label must have at most {most:,} bytes; {where} has {member.size}")
    content.seek(member.offset_data)
    for field, label in fields_of(extension, content.read(member.size), where).items():
        if str(sample.labels.get(field, label)) != str(label):
            raise InputError(
                f"{key} in {file} must have one {field}; it has two, the second in {member.name}. Remove one"
            )
        sample.labels[field] = label


def is_plain(member: tarfile.TarInfo) -> bool:
    """True for a file with contiguous bytes in the tar."""
    return member.isreg() and member.type != tarfile.GNUTYPE_SPARSE and not member.issparse()


def fields_of(extension: str, content: bytes, where: str) -> dict[str, Any]:
    """The labels by field in a member: a text by its extension, or the fields of a JSON."""
    before, _, last = extension.rpartition(".")
    if last != "json":
        return {extension: as_text(content, where).strip()}
    prefix = f"{before}." if before else ""
    fields = parse_json(content, where)
    labels: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list):
            labels[prefix + name] = value[:3]
        elif type(value) in KINDS and (not isinstance(value, str) or len(value) <= LONGEST):
            labels[prefix + name] = value
    return labels


def read_member(
    files: tuple[Place, ...], packed: tuple[bool, ...], spans: np.ndarray, names: tuple[str, ...], i: int
) -> bytes:
    """The bytes of the image of row `i`; spans: (file, offset, size) of each, "n 3"."""
    place, offset, size = spans[i].tolist()
    check_size(size, names[i])
    try:
        content = read_bytes(files[place], offset, size, packed[place])
    except (OSError, zlib.error) as error:
        raise InputError(f"{files[place]} must be a readable tar; {error}") from error
    if len(content) != size:
        raise InputError(f"{names[i]} must be whole; it has {len(content)} bytes, not {size}")
    return content


def span_of(files: tuple[Place, ...], spans: np.ndarray, i: int) -> tuple[Place, str]:
    """The tar of row `i`, with its offset and size there."""
    place, offset, size = spans[i].tolist()
    return files[place], f"{offset} {size}"
