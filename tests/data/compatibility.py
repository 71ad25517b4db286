"""The table of data layouts in docs/reference/compatibility.md: tiny ones are made and opened; the outcome is a row.

python tests/data/compatibility.py      writes the table anew
"""

import dataclasses
import gzip
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from data import layouts  # noqa: E402
from data.folder_layouts import FOLDER_LAYOUTS  # noqa: E402
from data.layouts import IMAGE, as_parquet, as_saved, as_tar, write_partitions  # noqa: E402
from data.tiny_tfds import place  # noqa: E402

from tangent_jax.core.checks import InputError  # noqa: E402
from tangent_jax.data.registry import open_dataset  # noqa: E402

PAGE = ROOT / "docs/reference/compatibility.md"
BEGIN, END = "<!-- data -->", "<!-- /data -->"
HEAD = """
## Data sets

Each is a tiny one in this layout: of Hugging Face's datasets, torchvision's ImageFolder, fastai, webdataset, pandas,
Excel, Kaggle, TensorFlow Datasets. [Data formats](data.md) has the rules. A refusal is the sentence of the error; PATH
stands for the folder.
"""


def png(i: int) -> bytes:
    """A picture of its own for each number."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@dataclasses.dataclass(frozen=True)
class Row:
    """A layout: its reader, its name, and a function that makes it in a folder and returns its specification."""

    reader: str
    name: str
    make: Callable[[Path], str]


# CSVs


def csv(lines: list[str], images: list[str] | None = None, query: str = "", encoding: str = "utf-8"):
    """A CSV of these lines beside images; {i} and {kind} and {held} fill six lines from the second on."""

    def make(root: Path) -> str:
        for i, name in enumerate(images or [f"a/{i}.png" for i in range(6)]):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(png(i))
        texts = lines[:-1] + [
            lines[-1].format(i=i, kind="xy"[i % 2], n=i % 2, held=i > 3, split="test" if i > 3 else "train")
            for i in range(6)
        ]
        (root / "data.csv").write_bytes("\n".join(texts).encode(encoding))
        return f"csv:{root}/data.csv{query}"

    return make


CSVS = {
    "path,label,split": csv(["path,label,split", "a/{i}.png,{kind},{split}"]),
    "semicolons, of Excel": csv(["path;label;split", "a/{i}.png;{kind};{split}"]),
    "tabs, UTF-16, of Excel": csv(["path\tlabel\tsplit", "a/{i}.png\t{kind}\t{split}"], encoding="utf-16"),
    "first line sep=;": csv(["sep=;", "path;label;split", "a/{i}.png;{kind};{split}"]),
    "UTF-8 with its mark": csv(["path,label,split", "a/{i}.png,{kind},{split}"], encoding="utf-8-sig"),
    "Windows-1252": csv(["path,label,split", "a/{i}.png,{kind}\u00e9,{split}"], encoding="cp1252"),
    "pandas' index, trailing commas": csv([",path,label,split,,", "{i},a/{i}.png,{kind},{split},,"]),
    "paths of Windows": csv(["path,label,split", "a\\{i}.png,{kind},{split}"]),
    "another letter case of suffixes": csv(["path,label,split", "a/{i}.PNG,{kind},{split}"]),
    "a drive letter": csv(["path,label,split", "C:\\me\\a\\{i}.png,{kind},{split}"]),
    "names without folder and suffix (Kaggle's dog breeds)": csv(
        ["id,breed,split", "k{i},{kind},{split}"], [f"train/k{i}.png" for i in range(6)], "?image=id&label=breed"
    ),
    "columns of other names": csv(["file,kind,split", "a/{i}.png,{kind},{split}"]),
    "fastai's is_valid": csv(["path,label,is_valid", "a/{i}.png,{kind},{held}"], query="?split=is_valid"),
    "numbers of folds": csv(["path,label,fold", "a/{i}.png,{kind},{i}"], query="?split=fold"),
    "labels 0.0, 1.0": csv(["path,label,split", "a/{i}.png,{n}.0,{split}"]),
    "labels nan beside names": csv(["path,label,split", "b.png,nan,train", "a/{i}.png,{kind},{split}"],
                                   [*(f"a/{i}.png" for i in range(6)), "b.png"]),
    "one-hot columns (ISIC)": csv(["path,MEL,NV", "a/0.png,0.0,1.0", "a/{i}.png,1.0,0.0"]),
}  # fmt: skip


# Tars


def tars(files: dict[str, list[str]], label: str = "{n}", pack: Callable[[bytes], bytes] = bytes, query: str = ""):
    """Tars by name, of six samples, each with members of these names."""

    def make(root: Path) -> str:
        for name, members in files.items():
            pairs = [(m.format(i=i), label.format(i=i, n=i % 2)) for i in range(6) for m in members]
            is_image = [m.lower().endswith((".png", ".jpg", ".webp")) for m, _ in pairs]
            content = [(m, png(i) if own else text.encode()) for i, ((m, text), own) in
                       enumerate(zip(pairs, is_image, strict=True))]  # fmt: skip
            path = as_tar(root / name, content)
            path.write_bytes(pack(path.read_bytes()))
        return f"wds:{root}{query}"

    return make


def splits(*members: str) -> dict[str, list[str]]:
    """The same members in a tar of each split."""
    return {"train-000.tar": [*members], "test-000.tar": [*members]}


TARS = {
    "KEY.png, KEY.cls": tars(splits("{i}.png", "{i}.cls")),
    "KEY.PNG, KEY.CLS": tars(splits("{i}.PNG", "{i}.CLS")),
    "KEY.webp, KEY.txt": tars(splits("{i}.webp", "{i}.txt"), "kind {n}"),
    "KEY.json": tars(splits("{i}.png", "{i}.json"), '{{"kind": {n}}}'),
    "KEY.json of several fields": tars(splits("{i}.png", "{i}.json"), '{{"kind": {n}, "width": 8}}'),
    "captions, and no label": tars({"train-0.tar": ["{i}.png", "{i}.txt"]}, "caption number {i}"),
    "pickled labels alone": tars(splits("{i}.png", "{i}.pyd")),
    "keys with a dot, the same extension in all": tars(splits("{i}.final.png", "{i}.final.cls")),
    "keys with dots that are parts of numbers": tars(splits("v0.{i}.png", "v0.{i}.cls")),
    "gzipped: .tar.gz": tars({f"{name}.gz": m for name, m in splits("{i}.png", "{i}.cls").items()}, pack=gzip.compress),
    "joined by cat": tars(splits("{i}.png", "{i}.cls"), pack=lambda content: content + renamed(content)),
    "cut off": tars(splits("{i}.png", "{i}.cls"), pack=lambda content: content[: len(content) // 3]),
    "train and train_small": tars({"train-0.tar": ["{i}.png", "{i}.cls"], "train_small-0.tar": ["{i}.png", "{i}.cls"]}),
}


def renamed(content: bytes) -> bytes:
    """The tar with other keys."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive, tempfile.TemporaryDirectory() as folder:
        members = [(f"x{m.name}", archive.extractfile(m).read()) for m in archive]  # pyright: ignore
        return as_tar(Path(folder) / "t.tar", members).read_bytes()


# Hugging Face


def parquet(names: list[str], label: list | pa.Array | None = None, features: dict | None = None, query: str = ""):
    """Parquet files by name, of six images and a column of labels."""
    values = [0, 1, 0, 1, 0, 1] if label is None else label

    def make(root: Path) -> str:
        for number, name in enumerate(names):
            images = [png(10 * number + i) for i in range(6)]
            as_parquet(root / name, {"image": images, "label": values}, features or {"image": IMAGE})
        return f"hf:{root}{query}"

    return make


def saved(root: Path) -> str:
    """A DatasetDict of save_to_disk."""
    for split in ("train", "test"):
        as_saved(root / split, {"image": [png(i) for i in range(6)], "label": [0, 1] * 3})
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    return f"hf:{root}"


def partitioned(root: Path) -> str:
    """Parquet whose folders are columns."""
    return write_partitions(root, [layouts.Row("test" if i > 3 else "train", "ab"[i % 2], png(i)) for i in range(6)])


BOTH = ["train.parquet", "test.parquet"]
NAMES = {"image": IMAGE, "label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}
HUB = {
    "data/train-00000-of-00001.parquet": parquet([f"data/{s}-00000-of-00001.parquet" for s in ("train", "test")]),
    "the same with a hash": parquet([f"data/{s}-00000-of-00001-6a8dc1a5ac1bc6e9.parquet" for s in ("train", "test")]),
    "default/train/0000.parquet": parquet([f"default/{s}/0000.parquet" for s in ("train", "test")]),
    "save_to_disk": saved,
    "a missing shard": parquet(["data/train-00000-of-00002-6a8dc1a5ac1bc6e9.parquet"]),
    "shards of two uploads": parquet([f"train-00000-of-00001-{h}.parquet" for h in ("6a8dc1a5", "0fee9a5b")]),
    "train/ and train_small/": parquet(["train/0.parquet", "train_small/0.parquet"]),
    "splits of other names": parquet([f"data/fold{i}-00000-of-00001.parquet" for i in range(2)]),
    "two configurations": parquet(["a/train/0000.parquet", "b/train/0000.parquet"]),
    "a ClassLabel with a class of no image": parquet(BOTH, None, NAMES),
    "labels that are floats": parquet(BOTH, [0.0, 1.0, None, float("nan"), 0.0, 1.0]),
    "labels that are Booleans": parquet(BOTH, [True, False] * 3),
    "labels in string_view, of polars": parquet(BOTH, pa.array(["a", "b"] * 3, pa.string_view())),
    "labels in a dictionary": parquet(BOTH, pa.array(["a", "b"] * 3).dictionary_encode()),
    "split=train/label=a/0.parquet, of pandas and Spark": partitioned,
    "labels with fractions": parquet(BOTH, [0.25, 1.0] * 3),
    "lists of labels": parquet(BOTH, [[0, 1]] * 6),
    "indices beside a name": parquet(BOTH, ["0", "1", "0", "cat", "0", "1"]),
    "captions": parquet(BOTH[:1], [f"a cat on mat {i}" for i in range(6)]),
}


# TFDS


def prepared(spec: str, *places: tuple[str, dict]):
    """A set prepared by TFDS in these folders, with these fields of dataset_info.json."""

    def make(root: Path) -> str:
        for where, fields in places:
            place(root, where, **fields)
        return spec.replace("DIR", str(root))

    return make


CONFIGS = [(f"tiny/{name}/1.0.0", {"configName": name}) for name in ("160px", "full")]
VERSIONS = [(f"tiny/{version}", {}) for version in ("1.0.0", "2.0.0", "10.0.0")]
TFDS = {
    "array_record": prepared("tfds:tiny@DIR", ("tiny/1.0.0", {})),
    "another feature": prepared("tfds:tiny@DIR?label=kind", ("tiny/1.0.0", {})),
    "a list of labels": prepared("tfds:tiny@DIR?label=tags", ("tiny/1.0.0", {})),
    "versions 1.0.0, 2.0.0, 10.0.0": prepared("tfds:tiny@DIR", *VERSIONS),
    "version 1.*.*": prepared("tfds:tiny:1.*.*@DIR", *VERSIONS),
    "a version that is not there": prepared("tfds:tiny:3.0.0@DIR", *VERSIONS),
    "a configuration": prepared("tfds:tiny/160px@DIR", *CONFIGS),
    "several configurations, none named": prepared("tfds:tiny@DIR", *CONFIGS),
    "a configuration that is not there": prepared("tfds:tiny/big@DIR", *CONFIGS),
    "tfrecord": prepared("tfds:tiny@DIR", ("tiny/1.0.0", {"fileFormat": "tfrecord"})),
}


# Folders


def folder(names: list[str]):
    """A folder of images of these names."""

    def make(root: Path) -> str:
        for i, name in enumerate(names):
            path = root / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(i))
        return f"folder:{root / 'photos'}"

    return make


READERS = {
    "folder:": {name: folder(names) for name, names in FOLDER_LAYOUTS.items()},
    "hf:": HUB,
    "wds:": TARS,
    "csv:": CSVS,
    "tfds:": TFDS,
}
ROWS = [Row(reader, name, make) for reader, layouts in READERS.items() for name, make in layouts.items()]


def outcome(row: Row) -> str:
    """The splits, classes and remarks of a layout as it opens now, or the sentence of its refusal."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        try:
            dataset = open_dataset(row.make(root))
            sizes = ", ".join(f"{split} {len(part)}" for split, part in sorted(dataset.splits.items()))
            said = f"read: {sizes}; classes {', '.join(dataset.classes)}"
            said += "".join(f"; \u201c{remark}\u201d" for remark in dataset.remarks)
        except InputError as error:
            said = f"refused: {error}"
        return said.replace(str(root), "PATH").replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


def line(row: Row) -> str:
    """The line of a layout in the table."""
    name = row.name.replace("|", "\\|").replace("*", "\\*")
    return f"| `{row.reader}` | {name} | {outcome(row)} |"


def section() -> str:
    """The whole table, with its head."""
    return "\n".join([HEAD, "| reader | layout | result |", "|---|---|---|", *map(line, ROWS), ""])


def main() -> None:
    """Writes the table of the page anew."""
    page = PAGE.read_text()
    if BEGIN not in page:
        page = page.replace("<!-- /images -->\n", f"<!-- /images -->\n\n{BEGIN}\n{END}\n", 1)
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{section()}{END}{after}")


if __name__ == "__main__":
    main()
