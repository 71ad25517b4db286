"""Data sets at s3:// are those of the same files on disk: classes, names, labels, bytes; what goes wrong is told."""

import dataclasses
import pickle

import pytest
from data.layouts import as_parquet, as_saved, as_tar, refused
from photos import as_zip, photographs, picture, summary

from tangent_jax.core.checks import InputError
from tangent_jax.data.identifiers import index_in
from tangent_jax.data.registry import open_dataset

IMAGES = [picture() for _ in range(6)]
LABELS = [0, 1, 0, 1, 0, 1]


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
def test_a_data_set_at_a_url_is_that_on_disk(kind, s3, tmp_path):
    """Its index of content identifiers, too: with it no image is read again."""
    root = tmp_path / "z"
    root.mkdir()
    name, path = make(kind, root)
    url = s3.put(root)
    with index_in(tmp_path):
        here, there = open_dataset(f"{name}:{root}{path}"), open_dataset(f"{name}:{url}{path}")
        assert (here.classes, summary(here), here.remarks) == (there.classes, summary(there), there.remarks)
        for split, examples in here.splits.items():
            assert examples.identifiers() == there.splits[split].identifiers()
            read = pickle.loads(pickle.dumps(there.splits[split].read))  # as for the processes that decode
            assert [examples.read(i) for i in range(len(examples))] == [read(i) for i in range(len(examples))]
        again = open_dataset(f"{name}:{url}{path}").train
        read = set()
        watched = dataclasses.replace(again, read=lambda i: read.add(i) or again.read(i))
        assert watched.identifiers() == here.train.identifiers()
        assert not read


def test_images_of_a_table_at_a_url_may_lie_in_a_folder(s3, tmp_path):
    (tmp_path / "z/images").mkdir(parents=True)
    (tmp_path / "z/images/a.png").write_bytes(IMAGES[0])
    (tmp_path / "z/images/b.png").write_bytes(IMAGES[1])
    (tmp_path / "z/t.csv").write_text("path,label,split\na.png,x,train\nb.png,y,train\na.png,x,test\n")
    spec = f"csv:{s3.put(tmp_path / 'z')}/t.csv"
    refused(spec, r"3 of 3 images of .* are missing, .*\?folder=FOLDER")
    assert open_dataset(f"{spec}?folder=images").train.names == ("images/a.png", "images/b.png")


def test_an_image_that_was_replaced_after_it_was_identified_is_refused(s3, tmp_path):
    photographs(tmp_path / "z", 2)
    url = s3.put(tmp_path / "z")
    train = open_dataset(f"folder:{url}").train
    read = train.read_identified()
    train.held.clear()
    s3.fs.pipe_file(f"{url}/{train.names[0]}", IMAGES[0])
    s3.fs.rm_file(f"{url}/{train.names[1]}")
    with pytest.raises(InputError, match=f"{train.names[0]} must stay as it was listed; it was replaced since"):
        read(0)
    with pytest.raises(InputError, match=f"{train.names[1]} must be reachable; got FileNotFoundError"):
        read(1)


def test_what_is_no_data_set_at_a_url_is_one_line(s3, tmp_path):
    (tmp_path / "z").mkdir()
    as_saved(tmp_path / "z/train", columns(range(6)))
    url = s3.put(tmp_path / "z")
    refused(f"hf:{url}", "files at a URL must be parquet")
    refused("folder:s3://bucket/nothing", "s3://bucket/nothing must be a file or folder; it does not")
    refused("folder:s3://none/nothing", "s3://none/nothing must be a file or folder; it does not")
    refused("wds:s3://bucket/nothing/{0..1}.tar", "2 are not, such as")
    refused("csv:s3://bucket/nothing.csv", "does not exist")
    refused("folder:memory://data/x", "a URL must begin with s3://")
    s3.fs.pipe_file(f"{url}/t.tar", b"version https://git-lfs.github.com/spec/v1")
    refused(f"wds:{url}/t.tar", "it is a pointer of Git LFS")
    s3.fs.pipe_file(f"{url}/t.zip", b"PK")
    refused(f"folder:{url}/t.zip", "is another file")
