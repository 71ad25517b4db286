"""Spellings of splits: any spelling, in any reader, gives one set of splits."""

import unicodedata

import pytest
from data.layouts import FORMATS, Row, contents, of_split
from photos import picture

from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.splits import one_name_each, split_of_flag, split_of_name

SPELLED = {
    "train": (
        "train",
        "train_val",
        "TRAIN",
        "Training",
        "seg_train",
        "train_set",
        "training_set",
        "trainset",
        "train2017",
        "trn",
    ),
    "validation": ("val", "valid", "Validation", "dev", "seg_val", "val2017", "valset"),
    "test": ("test", "Testing", "seg_test", "test-set", "testset", "TestData", "eval", "evaluation"),
}
PAIRS = [(spelling, split) for split, spellings in SPELLED.items() for spelling in spellings]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("i", range(max(map(len, SPELLED.values()))))
def test_any_spelling_names_its_split(tmp_path, name, i):
    titles = [spellings[i % len(spellings)] for spellings in SPELLED.values()]
    rows = [Row(title, label, picture()) for title in titles for label in ("cat", "dog")]
    dataset = open_dataset(FORMATS[name](tmp_path, rows))
    assert contents(dataset) == {split: of_split(rows, title) for split, title in zip(SPELLED, titles, strict=True)}


@pytest.mark.parametrize(("name", "split"), PAIRS)
def test_spelling_names_its_split(name, split):
    assert split_of_name(name) == split
    assert split_of_name(unicodedata.normalize("NFD", f"é_{name}")) == split


@pytest.mark.parametrize("name", ["cat", "contest", "latest", "restrain", "devil", "valley", "images", ""])
def test_longer_word_names_no_split(name):
    assert split_of_name(name) is None


@pytest.mark.parametrize("names", [("train", "train_small"), ("Train", "train"), ("val", "validation")])
def test_two_names_of_split_are_refused(names):
    with pytest.raises(InputError, match=f"{names[0]} and {names[1]} both say"):
        one_name_each(names, "photos")


def test_boolean_column_names_split():
    assert [split_of_flag("is_valid", value) for value in (True, "False", "1", 0)] == [
        "validation", "train", "validation", "train",
    ]  # fmt: skip
    assert split_of_flag("is_training_image", "0") == "test"
    assert split_of_flag("is_valid", "maybe") is None
    assert split_of_flag("valid", "True") is None
    assert split_of_flag("is_red", "True") is None
