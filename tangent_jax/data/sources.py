"""`Dataset` and `Examples`: named splits of images, and the reading of a file that is one image."""

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import check_classes, composed_name
from tangent_jax.data.identifiers import content_identifier, forget, identify, index_path
from tangent_jax.io.paths import Place, any_path, explaining, size_of
from tangent_jax.io.records import first_names

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".heic", ".heif", ".hif", ".avif"),
)
"""The suffixes of images, in lower case; the content decides which format it is, and whether it can be read."""
T = TypeVar("T")
MOST_BYTES = 1 << 28  # the most bytes of one encoded image
MOST_HELD = 1 << 28  # the most bytes of images that a split holds in memory


class Held(dict):
    """Images by identifier, kept from their identification until they are decoded; empty in other processes."""

    room = MOST_HELD

    def hold(self, identifier: str, content: bytes | np.ndarray) -> None:
        """Keeps an image while there is room."""
        if isinstance(content, bytes) and len(content) <= self.room and identifier not in self:
            self.room -= len(content)
            self[identifier] = content

    def __reduce__(self) -> tuple:
        return Held, ()


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of one split: names, labels (class indices "n" int32), and read(i), encoded bytes or uint8 array.

    Attributes:
        where(i): The file of example i and the place of its bytes there; the content identifier is stored for it while
            the file's state lasts. An image that was read to be identified is `held`, within limits, so that it is read
            once.
        classes: The names of the class indices, if known.
        every_class: True for the training split of a data set, where each class must keep a readable example; a part of
            it (`take`) may lack classes.
        groups: The group of each example, if known: training examples of a group are held out together.
    """

    names: tuple[str, ...]
    labels: np.ndarray
    read: Callable[[int], bytes | np.ndarray]
    where: Callable[[int], tuple[Place, str]] | None = None
    held: Held = dataclasses.field(default_factory=Held, repr=False, compare=False)
    classes: tuple[str, ...] = ()
    every_class: bool = False
    groups: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: np.ndarray) -> "Examples":
        """The examples at `rows`, "k", in that order."""
        rows = np.asarray(rows)
        names = tuple(self.names[i] for i in rows)
        where = None if self.where is None else pick(self.where, rows)
        groups = self.groups and tuple(self.groups[i] for i in rows)
        part = Examples(names, self.labels[rows], pick(self.read, rows), where, self.held, self.classes, groups=groups)
        if "_identifiers" in vars(self):
            vars(part)["_identifiers"] = tuple(self._identifiers[i] for i in rows)
        return part

    def of_classes(self, classes: tuple[str, ...], every_class: bool, labels: np.ndarray | None = None) -> "Examples":
        """The same examples with the names of their classes, and with other class indices if `labels` are given."""
        labels = self.labels if labels is None else labels
        named = dataclasses.replace(self, classes=classes, every_class=every_class, labels=labels)
        if "_identifiers" in vars(self):
            vars(named)["_identifiers"] = self._identifiers
        return named

    def class_name(self, label: int) -> str:
        """The name of a class index, or the index where names are not known."""
        return self.classes[label] if label < len(self.classes) else f"class {label}"

    def in_groups(self, groups: Sequence[Any], where: object) -> "Examples":
        """The same examples with their groups, None for an example without.

        Raises:
            InputError: An example without a group; `where` names the data set in it.
        """
        missing = [i for i, group in enumerate(groups) if group is None]
        if missing:
            raise InputError(
                f"?group must give each training image of {where} a group; it gives none to {len(missing)} of"
                f" {len(self)}, such as {self.names[missing[0]]}. Correct the column or the pattern"
            )
        return dataclasses.replace(self, groups=tuple(groups))

    def without(self, identifiers: Set[str]) -> "Examples":
        """The examples without the removed ones that have these content identifiers; the index forgets those."""
        present = self.identifiers() if identifiers else ()
        removed = {i for i, identifier in enumerate(present) if identifier in identifiers}
        if not removed:
            return self
        with contextlib.suppress(OSError, InputError):  # a removal tells of an index that it cannot write
            forget(index_path(), identifiers.__contains__, {self.names[i] for i in removed})
        kept = self.take(np.array([i for i in range(len(self)) if i not in removed], int))
        return kept.of_classes(self.classes, self.every_class)

    def identifiers(self) -> tuple[str, ...]:
        """The content identifier of each example: SHA-256 (hex) of its bytes, independent of its name."""
        return self._identifiers

    def read_identified(self) -> Callable[[int], bytes | np.ndarray]:
        """A `read` that raises InputError for an example that no longer has its identifier."""
        return partial(read_checked, self.read, self.held, self.names, self.identifiers(), index_path())

    @functools.cached_property
    def _identifiers(self) -> tuple[str, ...]:
        pairs = zip(self.names, identify(len(self), self._identifier, self.where), strict=True)
        # an unreadable image is identified by its name, and reported when it is decoded
        return tuple(i or content_identifier(f"unreadable {n}".encode(errors="surrogateescape")) for n, i in pairs)

    def _identifier(self, i: int) -> str | None:
        try:
            content = self.read(i)
        except InputError:
            return None
        identifier = content_identifier(content)
        self.held.hold(identifier, content)
        return identifier


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Named splits over one list of classes; `remarks`: a line about each kind of file that was left out.

    Names of classes are composed (NFC), so that components of several machines have the same classes.

    Attributes:
        empty: The classes that have a place and a name, and no image in this data set.
        classes_from: "images" where their folders or labels name the classes, "list" where a list of the data set does
            (a manifest, classes.txt, ClassLabel), "caller" for a list of `in_classes`, whose classes need no image.
        is_divided: True where it has one split, of which every fifth image by content is test.
    """

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Examples]
    remarks: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    classes_from: Literal["images", "list", "caller"] = "images"
    is_divided: bool = False

    def in_classes(self, classes: Sequence[str]) -> "Dataset":
        """The data set with a list of classes that does not depend on its images, in the order of the list.

        Raises:
            InputError: Fewer than two classes, and an image of a class that the list lacks.
        """
        listed = tuple(name.strip() for name in check_classes(classes))
        if len(listed) < 2 or not all(listed):
            raise InputError(f"classes must be two names or more, none of them empty; got {first_names(listed)!r}")
        index = {name: i for i, name in enumerate(listed)}
        used = {label for part in self.splits.values() for label in part.labels.tolist()}
        lacking = [self.classes[label] for label in sorted(used) if self.classes[label].strip() not in index]
        if lacking:
            unused = [name for name in listed if name not in {own.strip() for own in self.classes}]
            said = f", and no image is of {first_names(unused)}" if unused else ""
            raise InputError(
                f"classes must name the class of every image of {self.name}; they lack {first_names(lacking)}{said}. "
                "Correct the list, or take their images out"
            )
        place = np.array([index.get(name.strip(), -1) for name in self.classes], np.int32)
        splits = {split: part.of_classes(listed, False, place[part.labels]) for split, part in self.splits.items()}
        images = {listed[label] for part in splits.values() for label in part.labels.tolist()}
        empty = tuple(name for name in listed if name not in images)
        return dataclasses.replace(self, classes=listed, splits=splits, empty=empty, classes_from="caller")

    def check_classes(self) -> "Dataset":
        """The data set; InputError unless two classes have images, and each class with an image has one to train on."""
        filled = len(self.classes) - len(self.empty)
        if filled < 2:
            raise InputError(
                f"{self.name} must have at least two classes; got {filled}. Put the images of each class in a"
                " folder, or name their classes in a column of labels"
            )
        trained = {*self.train.labels.tolist()}
        lacking = [name for i, name in enumerate(self.classes) if i not in trained and name not in self.empty]
        if lacking:
            raise InputError(
                f"{self.name} must have a training image of every class; it has none of {first_names(lacking)}. Add"
                " some, or remove the class from every split"
            )
        return self

    def identity(self) -> list:
        """The identity of the data set: its classes, every image's content and label by split, and training groups."""
        splits = [(name, part.identifiers(), part.labels) for name, part in sorted(self.splits.items())]
        return [self.classes, splits, *([self.train.groups] if self.train.groups else [])]

    def copies(self) -> list[str]:
        """A line for each kind of duplicate images: in train and test, in two classes, in train."""
        train = self.train.identifiers()
        lines: list[str] = []
        labels: dict[str, set[int]] = {}
        for part in self.splits.values():
            for name, label in zip(part.identifiers(), part.labels.tolist(), strict=True):
                labels.setdefault(name, set()).add(label)
        for split, part in self.splits.items():
            both = len({*part.identifiers()} & {*train}) if split != "train" else 0
            lines += [f"{both} images of {split} are in train too: its accuracy counts them"] if both else []
        torn = sum(len(several) > 1 for several in labels.values())
        lines += [f"{torn} images are in two classes"] if torn else []
        most = max(Counter(train).values(), default=0)
        more = len(train) - len({*train})
        lines += [f"{more} training images are copies of others, one of them {most} times there"] if more else []
        return lines

    def untested(self) -> list[str]:
        """A line for each split other than train without any image of some classes, which it cannot measure."""
        lines = []
        for split, part in sorted(self.splits.items()):
            seen = {*part.labels.tolist()}
            lacking = [name for i, name in enumerate(self.classes) if i not in seen and name not in self.empty]
            if lacking and split != "train":
                count = f"{len(lacking)} of {len(self.classes)} classes"
                lines.append(f"{split} has no image of {count}: {first_names(lacking)}")
        return lines

    def grouped(self) -> list[str]:
        """A line about the groups of training images, and one for each split that has images of the same groups."""
        if self.train.groups is None:
            return []
        groups = {*self.train.groups}
        lines = [f"{len(groups)} groups of {len(self.train)} training images are held out whole"]
        for split, part in self.splits.items():
            both = len(groups & {*(part.groups or ())}) if split != "train" else 0
            lines += [f"{both} groups of train are in {split} too: its accuracy counts them"] if both else []
        return lines

    @property
    def train(self) -> Examples:
        """The training split."""
        return self.splits["train"]

    @property
    def test(self) -> Examples:
        """The split for reported accuracy: test, or validation if test has no labels."""
        for name in ("test", "validation"):
            if name in self.splits:
                return self.splits[name]
        raise InputError(f"{self.name} must have a test or validation split; got {sorted(self.splits)}")

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(map(composed_name, self.classes)))
        object.__setattr__(self, "empty", tuple(map(composed_name, self.empty)))
        twice = [name for name, count in Counter(self.classes).items() if count > 1]
        if twice:
            raise InputError(f"the classes of {self.name} must have different names; got {twice[:1]} twice")
        if "train" not in self.splits:
            found = " and ".join(sorted(self.splits)) or "none"
            raise InputError(f"{self.name} must have a train split; it has {found}: name the training images train")
        for split, examples in self.splits.items():
            if not len(examples):
                raise InputError(f"every split of {self.name} must have images; there are none in {split}. Add some")
        required = "train" if self.classes_from != "caller" else None
        splits = {split: part.of_classes(self.classes, split == required) for split, part in self.splits.items()}
        object.__setattr__(self, "splits", splits)


def existing_path(where: str) -> Place:
    """The path of an existing file or folder; InputError for any other."""
    path = any_path(where)
    with explaining(path):
        is_there = path.exists()
    if not is_there:
        raise InputError(f"{path} must be a file or folder; it does not exist")
    return path


def read_file(root: Place, name: str) -> bytes:
    """The bytes of the image that is the file of this name below a folder."""
    path = root / name
    try:
        check_size(size_of(path), path)
        with explaining(path):
            return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} must be readable; {error.strerror}") from error


def place_of_file(root: Place, name: str) -> tuple[Place, str]:
    """(the file of this name below a folder, no place inside it: the file is the image)."""
    return root / name, ""


def pick(function: Callable[[int], T], rows: np.ndarray) -> Callable[[int], T]:
    """The function of row i as one of the i-th of the picked rows."""
    return partial(at_row, function, rows)


def at_row(function: Callable[[int], T], rows: np.ndarray, i: int) -> T:
    """The function's value at the row `rows[i]`."""
    return function(int(rows[i]))


def read_checked(
    read: Callable[[int], bytes | np.ndarray],
    held: Held,
    names: tuple[str, ...],
    identifiers: tuple[str, ...],
    index: str,
    i: int,
) -> bytes | np.ndarray:
    """The content of row `i`, checked against its identifier: held in memory (then released) or read again."""
    content = held.pop(identifiers[i], None)
    if content is not None:
        held.room += len(content)
        return content
    content = read(i)
    if content_identifier(content) != identifiers[i]:
        raise InputError(
            f"the image {names[i]} must be as it was identified; it was altered since. Run again; if it stays, delete "
            f"{index}"
        )
    return content


def check_size(size: int, name: object) -> None:
    """Raises InputError for more bytes than an encoded image may have, before they are read."""
    if size > MOST_BYTES:
        raise InputError(f"an image must have at most {MOST_BYTES >> 20} MiB; {name} has {size} bytes")
