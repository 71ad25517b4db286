"""Layouts of folders that people have open as they are meant, or are refused with the question."""

import numpy as np
import pytest
from data.folder_layouts import FOLDER_LAYOUTS, both
from photos import as_zip, picture, write

from tangent_jax.core import InputError
from tangent_jax.data.folders import by_content
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.sources import Examples


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize(("name", "files", "outcome"), FOLDER_LAYOUTS, ids=[row[0] for row in FOLDER_LAYOUTS])
def test_a_layout_opens_as_it_is_meant_or_is_refused(tmp_path, kind, name, files, outcome):
    place = tmp_path / "set"
    if kind == "folder":
        write(place, *files)
    else:
        place = as_zip(tmp_path / "set.zip", {file: picture() for file in files})
    if isinstance(outcome, str):
        with pytest.raises(InputError, match=outcome):
            open_dataset(f"folder:{place}")
    else:
        assert {split: len(part) for split, part in open_dataset(f"folder:{place}").splits.items()} == outcome


def test_a_class_may_have_the_name_of_a_split(tmp_path):
    write(tmp_path, *(f"{name}/{i}.png" for name in ("bus", "train", "car") for i in range(12)))
    assert open_dataset(f"folder:{tmp_path}").classes == ("bus", "car", "train")


def test_a_copy_of_the_tree_inside_itself_is_left_out(tmp_path):
    write(tmp_path, *(f"{root}{name}/{i}.png" for root in ("", "brain/") for name in ("yes", "no") for i in range(12)))
    dataset = open_dataset(f"folder:{tmp_path}")
    assert dataset.classes == ("no", "yes")
    assert sum(map(len, dataset.splits.values())) == 24
    assert "left out 24 images of brain" in "\n".join(dataset.remarks)


def test_folders_of_splits_are_named_in_the_specification(tmp_path):
    write(tmp_path, *both("part1/", "part2/"))
    dataset = open_dataset(f"folder:{tmp_path}?train=part1&test=part2")
    assert dataset.test.names == ("part2/cat/1.png", "part2/dog/1.png")
    with pytest.raises(InputError, match="no folder part3"):
        open_dataset(f"folder:{tmp_path}?train=part1&test=part3")


def test_a_class_of_one_image_is_trained_on():
    names = tuple(f"{i}" for i in range(100))
    labels = np.array([*range(50), *[50] * 50], np.int32)
    parts = by_content(Examples(names, labels, lambda i: f"{i}".encode()))
    assert {*parts["train"].labels.tolist()} == {*range(51)}
    assert {*parts["test"].labels.tolist()} == {50}


@pytest.mark.parametrize("oddity", ["backslashes", "no flag"])
def test_names_of_foreign_zips_are_read(tmp_path, oddity):
    path = as_zip(tmp_path / "z.zip", {f"{split}/{name}/1.png": picture() for split in ("train", "test")
                                       for name in ("caf\u00e9", "dog")})  # fmt: skip
    content = path.read_bytes()
    if oddity == "backslashes":
        content = content.replace(b"train/dog/", b"train\\dog\\").replace(b"test/dog/", b"test\\dog\\")
    else:
        content = content.replace(b"\x00\x08\x00\x00", b"\x00\x00\x00\x00")
    path.write_bytes(content)
    dataset = open_dataset(f"folder:{path}")
    assert dataset.classes == ("caf\u00e9", "dog")
    assert len(dataset.remarks) == 1
    assert dataset.train.read(1)


def test_class_names_that_differ_in_case_are_said_or_refused(tmp_path):
    write(tmp_path, *both("train/", "test/", classes=("cat", "Cat")))
    assert "differ in letter case alone" in "\n".join(open_dataset(f"folder:{tmp_path}").remarks)
    write(tmp_path, "test/CAT/1.png")
    with pytest.raises(InputError, match="one has no training image: write them alike"):
        open_dataset(f"folder:{tmp_path}")
