"""Folders, zips and manifests as they are found: every oddity is read, said, or refused in one line."""

import json
import os
import zipfile

import numpy as np
import pytest
from photos import as_zip, picture, summary, write

from tangent_jax.core.checks import InputError
from tangent_jax.data import sources
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.rows import by_content
from tangent_jax.data.sources import Examples

PLAIN = [f"{split}/{c}/{i}.png" for split in ("train", "test") for c in "ab" for i in range(2)]


def opened(root):
    return open_dataset(f"folder:{root}")


def test_capital_letters_and_val_name_splits(tmp_path):
    write(tmp_path, "Train/a/1.png", "Train/b/1.png", "TEST/a/2.png", "val/b/3.png")
    assert {split: len(part) for split, part in opened(tmp_path).splits.items()} == {
        "test": 1, "train": 2, "validation": 1,
    }  # fmt: skip


def test_test_images_alone_do_not_train(tmp_path):
    write(tmp_path, "test/a/1.png", "test/b/1.png")
    with pytest.raises(InputError, match="must have a train split; it has test: name the training images train"):
        opened(tmp_path)


def test_what_is_left_out_is_said(tmp_path):
    write(tmp_path, *PLAIN, "train/a/._0.png", "train/.hidden/1.png", "train/stray.png")
    (tmp_path / "train/a/Thumbs.db").write_bytes(b"x")
    (tmp_path / "train/b/gone.png").symlink_to("nowhere.png")
    dataset = opened(tmp_path)
    assert [name for name, _ in summary(dataset)["train"]] == sorted(PLAIN[:4])
    said = "\n".join(dataset.remarks)
    for words in (
        "left out 1 file: links to nothing, such as train/b/gone.png",
        "left out 3 files: hidden, or added by the system, such as train/.hidden/1.png",
        "left out 1 image of train: in no class folder of a split, such as train/stray.png",
    ):
        assert words in said, said


def test_links_are_followed_but_no_circle(tmp_path):
    write(tmp_path, "elsewhere/1.png", "data/train/a/1.png", "data/test/a/2.png", "apart/b/3.png")
    (tmp_path / "data/train/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/validation").symlink_to(tmp_path / "apart")
    (tmp_path / "data/train/a/up").symlink_to(tmp_path / "data")
    dataset = opened(tmp_path / "data")
    assert summary(dataset) == {
        "test": [("test/a/2.png", 0)], "train": [("train/a/1.png", 0), ("train/b/1.png", 1)],
        "validation": [("validation/b/3.png", 1)],
    }  # fmt: skip
    assert "a link that leads in a circle" in "\n".join(dataset.remarks)


def test_copies_are_counted_once(tmp_path):
    write(tmp_path, *PLAIN)
    for copy in ("train/a/copy.png", "train/b/copy.png", "test/a/copy.png"):
        (tmp_path / copy).write_bytes((tmp_path / "train/a/0.png").read_bytes())
    lines = "\n".join(opened(tmp_path).copies())
    assert "1 images of test are in train too" in lines
    assert "1 images are in two classes" in lines
    assert "2 training images are copies of others, one of them 3 times" in lines


def test_every_fifth_image_by_content_is_test():
    names = tuple(f"{i}" for i in range(500))
    parts = by_content(Examples(names, np.zeros(500, np.int32), lambda i: bytes(300) + f"{i}".encode()))
    assert 70 < len(parts["test"]) < 130
    assert {*parts["train"].names} | {*parts["test"].names} == {*names}


# Zips

FLAGS = {"encrypted": (6, 8, 1), "deflate64": (8, 10, 9)}  # offsets of the field in local and central headers, value


def damaged(path, how):
    images = {name: picture() for name in PLAIN}
    method = zipfile.ZIP_DEFLATED if how == "damaged" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in images.items():
            archive.writestr(name, content)
    content = bytearray(path.read_bytes())
    at = content.index(b"train/a/0.png")
    if how in FLAGS:
        local, central, value = FLAGS[how]
        content[at - 30 + local] = value
        second = content.index(b"train/a/0.png", content.index(b"PK\x01\x02"))
        content[second - 46 + central] = value
    elif how == "damaged":
        content[at + 20 : at + 60] = os.urandom(40)
    else:
        content[at + 40] ^= 1
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("how", ["encrypted", "deflate64", "damaged", "flipped"])
def test_unreadable_member_is_told_when_read(tmp_path, how):
    dataset = opened(damaged(tmp_path / "d.zip", how))
    assert len(dataset.train.identifiers()) == 4  # told apart from readable ones, by its name
    with pytest.raises(InputError, match=r"train/a/0\.png in .* must be readable") as error:
        dataset.train.read(0)
    assert "\n" not in str(error.value)
    assert dataset.train.read(1)


def test_oversized_member_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 10)
    dataset = opened(as_zip(tmp_path / "z.zip", {name: picture() for name in PLAIN}))
    with pytest.raises(InputError, match="an image must have at most"):
        dataset.train.read(0)


ITEM = ["a.png", "train", 0]
MANIFESTS = {
    "short": ({"classes": ["x", "y"], "items": [["a.png", "train"]]}, "3 entries"),
    "dict": ({"classes": ["x", "y"], "items": {"a.png": 0}}, "a list"),
    "text label": ({"classes": ["x", "y"], "items": [["a.png", "train", "0"]]}, "a whole number"),
    "a missing image": ({"classes": ["x", "y"], "items": [["b.png", "train", 0]]}, "there is none named b.png"),
    "text classes": ({"classes": "xy", "items": [ITEM]}, "classes of .* must be a list"),
    "classes twice": ({"classes": ["x", "x"], "items": [ITEM, ["a.png", "test", 1]]}, "must have different names"),
    "misspelt split": (
        {"classes": ["x", "y"], "items": [ITEM, ["a.png", "tset", 1]]},
        "must be train, test or validation",
    ),
    "label too high": (
        {"classes": ["x", "y"], "items": [["a.png", "train", 10**30]]},
        "the label of a.png in .* is 10+: none of the 2 classes, x, y",
    ),
}


@pytest.mark.parametrize("how", MANIFESTS)
def test_malformed_manifest_names_its_field(tmp_path, how):
    content, match = MANIFESTS[how]
    path = as_zip(tmp_path / "m.zip", {"a.png": picture(), "manifest.json": json.dumps(content)})
    with pytest.raises(InputError, match=match) as error:
        opened(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["[]", "{}", "not json", json.dumps({"name": "a web app", "icons": []})])
def test_foreign_manifest_is_not_ours(tmp_path, content):
    write(tmp_path, *PLAIN)
    (tmp_path / "manifest.json").write_text(content)
    assert opened(tmp_path).classes == ("a", "b")


@pytest.mark.parametrize(("content", "match"), [("[]", "object"), ("{}", "classes and items"), ("no json", "JSON")])
def test_manifest_of_a_zip_is_ours(tmp_path, content, match):
    path = as_zip(tmp_path / "m.zip", {"x/a.png": picture(), "y/b.png": picture(), "manifest.json": content})
    with pytest.raises(InputError, match=match):
        opened(path)


def test_split_of_splits_is_refused(tmp_path):
    write(tmp_path, "train/a/1.png", "train/b/2.png", "test/a/3.png", "test/b/4.png")
    with pytest.raises(InputError, match=r"holds folders of splits .*name one of them"):
        open_dataset(f"folder:?train={tmp_path}")


@pytest.mark.parametrize("spec", ["folder:~no_such_user/x", "folder:a\0b"])
def test_specification_without_path_is_refused(spec):
    with pytest.raises(InputError, match=" must be "):
        open_dataset(spec)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08", b"PK\x03\x04 and no end", b"\xff\xd8\xff", b""])
def test_file_that_is_no_zip_is_refused(tmp_path, content):
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(InputError, match=r"a folder or a zip; .*data is neither: .*Unpack it, fetch it again"):
        open_dataset(f"folder:{tmp_path / 'data'}")


def test_pointer_of_git_lfs_is_no_zip(tmp_path):
    (tmp_path / "data").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(InputError, match="git lfs pull"):
        open_dataset(f"folder:{tmp_path / 'data'}")
