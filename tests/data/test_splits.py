"""Spellings of splits: any spelling, in any reader, gives one set of splits."""

import unicodedata

import pytest
from data.layouts import as_parquet, as_tar
from photos import as_zip, picture, write

from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.splits import one_name_each, split_of_flag, split_of_name

SPELLED = {
    "train": ("train", "TRAIN", "Training", "seg_train", "train_set", "training_set", "trainset", "train2017", "trn"),
    "validation": ("val", "valid", "Validation", "dev", "seg_val", "val2017", "valset"),
    "test": ("test", "Testing", "seg_test", "test-set", "testset", "TestData", "eval", "evaluation"),
}
PAIRS = [(spelling, split) for split, spellings in SPELLED.items() for spelling in spellings]


def from_csv(root, names):
    rows = [f"{label}{i}.png,{label},{name}" for i, name in enumerate(names) for label in ("cat", "dog")]
    write(root, *(row.split(",")[0] for row in rows))
    (root / "set.csv").write_text("\n".join(["path,label,split", *rows, ""]))
    return f"csv:{root / 'set.csv'}"


def from_folder(root, names):
    write(root, *(f"{name}/{label}/{i}.png" for i, name in enumerate(names) for label in ("cat", "dog")))
    return f"folder:{root}"


def from_zip(root, names):
    members = {f"{name}/{label}/{i}.png": picture() for i, name in enumerate(names) for label in ("cat", "dog")}
    return f"folder:{as_zip(root / 'set.zip', members)}"


def from_tars(root, names):
    for name in names:
        members = [(f"{i}.{suffix}", content) for i, label in enumerate((b"cat", b"dog"))
                   for suffix, content in (("png", picture()), ("cls", label))]  # fmt: skip
        as_tar(root / f"{name}-000000.tar", members)
    return f"wds:{root}"


def from_parquet(root, names):
    for name in names:
        as_parquet(root / f"{name}-00000-of-00001.parquet", {"image": [picture(), picture()], "label": [0, 1]})
    return f"hf:{root}"


READERS = {"csv": from_csv, "folder": from_folder, "zip": from_zip, "wds": from_tars, "hf": from_parquet}
"""The specification of a data set with an image of each class in each split, by reader; add a reader here."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("i", range(max(map(len, SPELLED.values()))))
def test_any_spelling_in_any_reader_gives_one_set_of_splits(tmp_path, reader, i):
    names = [spellings[i % len(spellings)] for spellings in SPELLED.values()]
    dataset = open_dataset(READERS[reader](tmp_path, names))
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 2, "validation": 2, "test": 2}
    assert dataset.classes == ("cat", "dog")


@pytest.mark.parametrize(("name", "split"), PAIRS)
def test_a_spelling_names_its_split_composed_or_not(name, split):
    assert split_of_name(name) == split
    assert split_of_name(unicodedata.normalize("NFD", f"é_{name}")) == split


@pytest.mark.parametrize("name", ["cat", "contest", "latest", "restrain", "devil", "valley", "images", ""])
def test_a_word_that_holds_a_spelling_names_no_split(name):
    assert split_of_name(name) is None


@pytest.mark.parametrize("names", [("train", "train_small"), ("Train", "train"), ("val", "validation")])
def test_two_names_of_one_split_are_refused_by_both_names(names):
    with pytest.raises(InputError, match=f"{names[0]} and {names[1]} both say"):
        one_name_each(names, "photos")


def test_a_column_of_booleans_says_a_split_by_its_name():
    assert [split_of_flag("is_valid", value) for value in (True, "False", "1", 0)] == [
        "validation", "train", "validation", "train",
    ]  # fmt: skip
    assert split_of_flag("is_training_image", "0") == "test"
    assert split_of_flag("is_valid", "maybe") is None
    assert split_of_flag("valid", "True") is None
    assert split_of_flag("is_red", "True") is None
