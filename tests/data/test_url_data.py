"""Data sets at URLs are those of the same files on disk: classes, names, labels, bytes; and what goes wrong is told."""

import itertools

import fsspec
import pytest
from data.layouts import as_parquet, as_saved, as_tar, refused
from photos import as_zip, photographs, picture, summary

from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset

NUMBERS = itertools.count()
IMAGES = [picture() for _ in range(6)]
LABELS = [0, 1, 0, 1, 0, 1]


def at_url(root):
    """The URL of a copy of a folder, or the folder of a file, in memory."""
    url = f"memory://data/{next(NUMBERS)}"
    fs = fsspec.filesystem("memory")
    for path in root.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"{url}/{path.relative_to(root)}", path.read_bytes())
    return url


def tar_of(rows):
    return [(f"{i}.{end}", content) for i in rows for end, content in
            (("png", IMAGES[i]), ("cls", b"%d" % LABELS[i]))]  # fmt: skip


def columns(rows):
    return {"image": [IMAGES[i] for i in rows], "label": [LABELS[i] for i in rows]}


def make(kind, root):
    """Writes a small data set; returns (kind of the specification, its name below the root)."""
    if kind == "folder":
        photographs(root, 2)
        (root / "train/cat/note.txt").write_text("")
    elif kind == "zip":
        as_zip(root / "z.zip", {f"{s}/{c}/{i}.png": IMAGES[i] for s in ("train", "test") for c in "ab" for i in (0, 1)})
        return "folder", "/z.zip"
    elif kind == "parquet":
        as_parquet(root / "data/train-00000-of-00001.parquet", columns(range(4)))
        as_parquet(root / "data/test-00000-of-00001.parquet", columns((4, 5)))
        return "hf", ""
    elif kind in ("tars", "tar names"):
        as_tar(root / "train-0.tar", tar_of(range(2)))
        as_tar(root / "train-1.tar", tar_of(range(2, 4)))
        as_tar(root / "test-0.tar", tar_of((4, 5)))
        return "wds", "" if kind == "tars" else "/{train-{0..1},test-*}.tar"
    elif kind == "csv":
        for i, image in enumerate(IMAGES):
            (root / f"{i}.png").write_bytes(image)
        lines = [f"{i}.png,{'ab'[LABELS[i]]},{'test' if i > 3 else 'train'}" for i in range(6)]
        (root / "labels.csv").write_text("\n".join(["path,label,split", *lines]))
        return "csv", "/labels.csv"
    return "folder", ""


@pytest.mark.parametrize("kind", ["folder", "zip", "parquet", "tars", "tar names", "csv"])
def test_a_data_set_at_a_url_is_that_on_disk(kind, tmp_path):
    root = tmp_path / "z"
    root.mkdir()
    name, path = make(kind, root)
    here, there = open_dataset(f"{name}:{root}{path}"), open_dataset(f"{name}:{at_url(root)}{path}")
    assert (here.classes, summary(here), here.remarks) == (there.classes, summary(there), there.remarks)
    for split, examples in here.splits.items():
        other = there.splits[split]
        assert examples.identifiers() == other.identifiers()
        assert [examples.read(i) for i in range(len(examples))] == [other.read(i) for i in range(len(examples))]


def test_what_changes_after_it_was_listed_is_told(tmp_path):
    root = tmp_path / "z"
    photographs(root, 2)
    url = at_url(root)
    dataset, fs = open_dataset(f"folder:{url}"), fsspec.filesystem("memory")
    train = dataset.train
    fs.pipe_file(f"{url}/{train.names[0]}", b"longer than it was")
    fs.rm_file(f"{url}/{train.names[1]}")
    with pytest.raises(InputError, match=r"must be as it was listed; got \d+ bytes.*: it changed"):
        train.read(0)
    with pytest.raises(InputError, match="does not exist"):
        train.read(1)


def test_what_is_no_data_set_at_a_url_is_one_line(tmp_path):
    (tmp_path / "z").mkdir()
    as_saved(tmp_path / "z/train", columns(range(6)))
    url = at_url(tmp_path / "z")
    refused(f"hf:{url}", "files at a URL must be parquet")
    refused("folder:memory://data/nothing", "memory://data/nothing must be a file or folder; it does not")
    refused("wds:memory://data/nothing/{0..1}.tar", "2 are not, such as")
    refused("csv:memory://data/nothing.csv", "does not exist")
