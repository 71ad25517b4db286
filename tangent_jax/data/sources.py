"""Where images come from: one Dataset for `digits`, folders and zips, and TFDS.

digits                  scikit-learn's handwritten digits (real, no network), split by writer order
folder:PATH             class sub-folders; train/ and test/ (and validation/) inside; or a zip of
                        either, or a zip with manifest.json {"classes", "items": [name, split, class]}
tfds:NAME[@DATA_DIR]    a TensorFlow Datasets set prepared as array_record, read without TensorFlow
"""

import dataclasses
import functools
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tangent_jax.core import refusal, require

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff")
HELD_OUT = 5  # without a test split, every fifth image by content is test


@dataclasses.dataclass(frozen=True)
class Examples:
    """One split: names, labels ("n" int32), and how to read an image (encoded bytes or a uint8 array)."""

    names: tuple[str, ...]
    labels: np.ndarray
    read: Callable[[int], bytes | np.ndarray]

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: np.ndarray) -> "Examples":
        """The examples at `rows`, in that order."""
        rows = np.asarray(rows)
        return Examples(tuple(self.names[i] for i in rows), self.labels[rows], lambda i: self.read(int(rows[i])))

    def identifiers(self) -> tuple[str, ...]:
        """The content identifier of each example: SHA-256 (hex) of its bytes, whatever its name."""
        return self._identifiers

    @functools.cached_property
    def _identifiers(self) -> tuple[str, ...]:
        return tuple(content_identifier(self.read(i)) for i in range(len(self)))


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Named splits over one list of classes."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Examples]

    @property
    def train(self) -> Examples:
        return self.splits["train"]

    @property
    def test(self) -> Examples:
        """The split that accuracy is reported on: test, or validation where a set has no test labels."""
        for name in ("test", "validation"):
            if name in self.splits:
                return self.splits[name]
        raise refusal("Dataset", f"a test or validation split in {self.name}", sorted(self.splits))

    def __post_init__(self) -> None:
        require(len(self.classes) >= 2, "open_dataset", f"at least two classes in {self.name}", len(self.classes))
        require("train" in self.splits, "open_dataset", f"a train split in {self.name}", sorted(self.splits))
        for split, examples in self.splits.items():
            expected = f"images in every split of {self.name}"
            require(len(examples), "open_dataset", expected, f"none in {split}", "Add some")
        counts = np.bincount(self.splits["train"].labels, minlength=len(self.classes))
        expected, do = f"a training image of every class of {self.name}", "Add images or remove the class"
        for class_name, count in zip(self.classes, counts, strict=True):
            require(count > 0, "open_dataset", expected, f"none of {class_name}", do)


def content_identifier(content: bytes | np.ndarray) -> str:
    """SHA-256 (hex) of encoded bytes, or of an array's shape and bytes."""
    if isinstance(content, np.ndarray):
        content = str(content.shape).encode() + np.ascontiguousarray(content).tobytes()
    return hashlib.sha256(content).hexdigest()


def existing(where: str) -> Path:
    path = Path(where).expanduser()
    require(path.exists(), "open_dataset", "a file or folder", f"{path}, which does not exist")
    return path


def digits() -> Dataset:
    """1,797 handwritten digits, 8 x 8; the files are in writer order, the first half trains."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    images = np.repeat(np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None], 3, -1)
    labels, half = bunch.target.astype(np.int32), len(images) // 2

    def split(start: int, stop: int) -> Examples:
        names = tuple(f"digit {i}" for i in range(start, stop))
        return Examples(names, labels[start:stop], lambda i: images[start + i])

    return Dataset("digits", tuple("0123456789"), {"train": split(0, half), "test": split(half, len(images))})


def files(root: Path, names: Iterable[str], labels: Iterable[int]) -> Examples:
    """Examples that are files under `root`."""
    members = tuple(names)

    def read(i: int) -> bytes:
        try:
            return (root / members[i]).read_bytes()
        except OSError as error:
            raise refusal("open_dataset", "a readable file", f"{root / members[i]} ({error.strerror})") from error

    return Examples(members, np.fromiter(labels, np.int32), read)


def folder(where: str) -> Dataset:
    """Class sub-folders, with or without train/ and test/, on disk or in a zip; or a zip's manifest."""
    path = existing(where)
    if path.is_dir():
        names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
        folders = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_dir())
        manifest = json.loads((path / "manifest.json").read_text()) if (path / "manifest.json").exists() else None

        def make(names: Iterable[str], labels: Iterable[int]) -> Examples:
            return files(path, names, labels)
    else:
        require(zipfile.is_zipfile(path), "open_dataset", "a folder or a zip", path, "Unpack it, or fetch it again")
        archive = zipfile.ZipFile(path)
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        folders = sorted({name.rpartition("/")[0] for name in archive.namelist()} - {""})
        manifest = json.loads(archive.read("manifest.json")) if "manifest.json" in names else None

        def make(names: Iterable[str], labels: Iterable[int]) -> Examples:
            members = tuple(names)
            return Examples(members, np.fromiter(labels, np.int32), lambda i: read_member(archive, members[i]))

    if manifest is not None:
        return from_manifest(path, manifest, set(names), make)
    classes, items_by_split = by_folder(names, folders)
    splits = {split: make([n for n, _ in items], [y for _, y in items]) for split, items in items_by_split.items()}
    return Dataset(path.stem, classes, splits if "train" in splits else by_content(splits[""]))


def by_folder(names: list[str], folders: list[str]) -> tuple[tuple[str, ...], dict[str, list[tuple[str, int]]]]:
    """Classes, and (name, class index) by split; the split is "" where there are no folders train and test.

    A single folder around everything, hidden files and what macOS adds to a zip are passed over.
    """
    visible = [f for f in folders if not f.startswith("__MACOSX") and not any(p.startswith(".") for p in f.split("/"))]
    images = [n for n in names if n.lower().endswith(SUFFIXES) and n.rpartition("/")[0] in visible]
    tops = {folder.split("/")[0] for folder in visible}
    around = f"{min(tops)}/" if len(tops) == 1 and not tops & {n.rpartition("/")[0] for n in images} else ""
    parts = {name: name.removeprefix(around).split("/") for name in [*images, *visible] if name.startswith(around)}
    splits = {"train", "test", "validation"} & {part[0] for part in parts.values()}
    depth = 1 if splits else 0
    inside = {name: part for name, part in parts.items() if part[0] in splits or not splits}
    classes = tuple(sorted({inside[name][depth] for name in visible if len(inside.get(name, ())) > depth}))
    index = {name: i for i, name in enumerate(classes)}
    items_by_split: dict[str, list[tuple[str, int]]] = {split: [] for split in sorted(splits) or [""]}
    for name in images:
        part = inside.get(name, [])
        if len(part) > depth + 1:
            items_by_split[part[0] if splits else ""].append((name, index[part[depth]]))
    return classes, items_by_split


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """One member of a zip; threads may read together, as ZipFile locks its file."""
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise refusal("open_dataset", f"a readable {name} in {archive.filename}", error) from error


def from_manifest(path: Path, manifest: dict, present: set[str], make: Callable[..., Examples]) -> Dataset:
    """The splits that a manifest's items [name, split, class index] name."""
    items, classes = manifest.get("items", []), tuple(manifest.get("classes", []))
    for name, _, label in items:
        require(name in present, "open_dataset", f"every image of the manifest in {path}", f"none named {name}")
        require(0 <= label < len(classes), "open_dataset", f"a class index below {len(classes)}", f"{label} of {name}")
    names = {split: [item for item in items if item[1] == split] for split in sorted({item[1] for item in items})}
    if "train" not in names:  # one split of whatever name
        names = {"train": items}
    return Dataset(
        path.stem, classes, {split: make([i[0] for i in rows], [i[2] for i in rows]) for split, rows in names.items()}
    )


def by_content(examples: Examples) -> dict[str, Examples]:
    """Train and test by the content's hash: one image coming or going moves no other."""
    test = np.array([int(name[:8], 16) % HELD_OUT == 0 for name in examples.identifiers()], bool)
    return {"train": examples.take(np.flatnonzero(~test)), "test": examples.take(np.flatnonzero(test))}


def tfds(where: str) -> Dataset:
    """A TFDS data set, prepared as array_record, through its random-access data sources."""
    try:
        import tensorflow_datasets
    except ImportError as error:
        do = "pip install 'tangent-jax[data]'"
        raise refusal("open_dataset", "tensorflow-datasets", "no such package", do) from error
    name, _, data_dir = where.partition("@")
    once = f"Prepare it once where TensorFlow is installed: tfds build {name} --file_format=array_record"
    try:
        prepared = sorted(path.parent for path in Path(data_dir).glob("**/dataset_info.json")) if data_dir else []
        versions = [path for path in prepared if name.split("/")[0] in path.parts or path == Path(data_dir)]
        builder: Any = (
            tensorflow_datasets.builder_from_directory(versions[-1])
            if versions
            else tensorflow_datasets.builder(name, try_gcs=False, data_dir=data_dir or None)
        )
        if not builder.info.splits:
            raise LookupError("no split is prepared")
        sources = {split: builder.as_data_source(split) for split in builder.info.splits}
        classes = tuple(builder.info.features["label"].names)
    except Exception as error:
        detail = [*str(error).strip().splitlines(), ""][0]
        expected, do = f"the TFDS set {name}, prepared as array_record", f"{once}, then pass tfds:NAME@DATA_DIR"
        raise refusal("open_dataset", expected, f"{type(error).__name__}: {detail}", do) from error

    def examples(split: str) -> Examples:
        source = sources[split]
        labels = np.array([int(source[i]["label"]) for i in range(len(source))], np.int32)
        names = tuple(f"{split}/{i}" for i in range(len(labels)))
        return Examples(names, labels, lambda i: np.asarray(source[i]["image"]))

    return Dataset(name, classes, {split: examples(split) for split in sources})
