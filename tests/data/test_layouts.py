"""Hugging Face files are read as folders are, or refused in one line; every layout gives the same images."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data.layouts import FEATURES, FORMATS, IMAGE, ROWS, as_parquet, as_saved, as_table, refused
from photos import picture

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data import hugging_face
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.shards import owners_of
from tangent_jax.data.workers import Decoder, decode_chunks

PHOTOS = [picture() for _ in range(8)]
TRAIN = {"image": PHOTOS[:5], "label": [0, 1, 1, 0, 1]}
TEST = {"image": PHOTOS[5:], "label": [1, 0, 1]}


def contents(dataset):
    """(image, class name) of each example, by split."""
    return {
        split: [(part.read(i), dataset.classes[y]) for i, y in enumerate(part.labels)]
        for split, part in dataset.splits.items()
    }


def pairs(columns, classes=("cat", "dog")):
    return [(image, classes[y]) for image, y in zip(columns["image"], columns["label"], strict=True)]


@pytest.mark.slow
def test_processes_decode_row_groups(tmp_path):
    part = open_dataset(FORMATS["parquet"](tmp_path, ROWS)).train
    decoder = Decoder(part.read_identified(), part.names, 8, Preprocessing())
    chunks = [range(0, 3), range(3, 8)]
    own = [images.copy() for images, errors in decode_chunks(decoder, chunks, 1) if not errors]
    assert all((a == b).all() for a, (b, _) in zip(own, decode_chunks(decoder, chunks), strict=True))


# Hugging Face


def test_image_is_named_by_path_or_row(tmp_path):
    images = [{"bytes": p, "path": path} for p, path in zip(PHOTOS, ["a.png", "b.png", "a.png", None], strict=False)]
    as_parquet(tmp_path / "train.parquet", {"image": images, "label": [0, 1, 0, 1]}, {"label": FEATURES["label"]})
    as_parquet(tmp_path / "test.parquet", {"image": images[:2], "label": [0, 1]}, {"label": FEATURES["label"]})
    dataset = open_dataset(f"hf:{tmp_path}")
    assert dataset.train.names == ("train/0/a.png", "train/b.png", "train/2/a.png", "train/3")
    assert dataset.test.names == ("test/a.png", "test/b.png")
    assert owners_of(dataset.train.names, {"b.png": "ada", "a.png": "bob"}) == [None, "ada", None, None]


def test_column_is_chosen_among_several(tmp_path):
    columns = {"photo": PHOTOS[:4], "mask": PHOTOS[4:], "species": ["a", "b", "a", "b"], "place": [3, 3, 7, 7]}
    for split in ("training", "dev"):
        as_parquet(tmp_path / f"d-{split}.parquet", columns, None)
    spec = f"hf:{tmp_path}"
    refused(spec, r"one column of images; photo, mask may each be it\. Write \?image=COLUMN")
    refused(f"{spec}?image=mask", r"one column of labels; species, place may each be it\. Write \?label=COLUMN")
    refused(
        f"{spec}?image=masks&label=place",
        r"image=masks must name a column of .*; its columns are photo \(binary\), mask \(binary\), species \(string\)",
    )
    refused(
        f"{spec}?image=mask&colour=red", r"must be hf:PATH\?image=...&label=...&group=..., each choice at most once"
    )
    refused(f"{spec}?image=mask&image=photo", "at most once")
    assert open_dataset(f"{spec}?image=mask&label=species").classes == ("a", "b")
    by_place = open_dataset(f"{spec}?image=mask&label=place")
    assert by_place.classes == ("3", "7")
    assert contents(by_place)["validation"] == [*zip(PHOTOS[4:], "3377", strict=True)]


def test_features_say_the_columns(tmp_path):
    columns = {"image": PHOTOS[:4], "raw": PHOTOS[4:], "label": [1, 0, 1, 0], "id": [5, 6, 7, 8]}
    for split in ("train", "eval"):
        as_parquet(tmp_path / f"{split}.parquet", columns)
    dataset = open_dataset(f"hf:{tmp_path}")
    assert contents(dataset)["test"] == pairs(columns)


def test_one_split_is_divided_by_content(tmp_path):
    photos = [b"photo %d" % i for i in range(40)]
    as_saved(tmp_path / "one", {"image": photos, "label": [0, 1, None, -1] * 10})
    dataset = open_dataset(f"hf:{tmp_path / 'one'}")
    assert {*dataset.splits} == {"train", "test"}
    assert sum(map(len, dataset.splits.values())) == 20
    assert "left out 20 rows of one: without a label, such as 2.png" in dataset.remarks
    assert "one split: every fifth image by content is test" in dataset.remarks
    as_saved(tmp_path / "two/train", {"image": photos, "label": [0, 1] * 20})
    as_saved(tmp_path / "two/test", {"image": photos, "label": [-1] * 40})
    two = open_dataset(f"hf:{tmp_path / 'two'}")
    assert {*two.train.labels.tolist()} == {0, 1}
    assert any("left out 40 rows of test" in line for line in two.remarks)


# Folders as columns, and names beside the files


def test_folders_are_columns(tmp_path):
    spec = FORMATS["partitions"](tmp_path / "set", ROWS)
    assert open_dataset(spec).classes == ("cat", "dog")
    refused(
        f"{spec}?label=split",
        "label=split must name a column of .*; its columns are .*, width .int64., label .folders.",
    )
    assert open_dataset(f"{spec}?label=label&group=who").train.groups
    for file in (tmp_path / "set").glob("**/*.parquet"):  # polars writes the columns of folders into the files, too
        table = pq.read_table(file, partitioning=None)
        for name in ("split", "label"):
            table = table.append_column(name, pa.array(["x"] * len(table)))
        pq.write_table(table, file)
    dataset = open_dataset(spec)
    assert (dataset.classes, {*dataset.splits}) == (("cat", "dog"), {"train", "test"})
    (tmp_path / "set/split=train/label=cat").rename(tmp_path / "set/split=train/cat")
    refused(spec, "all files of .* must have image and label of one type")


@pytest.mark.parametrize(("train", "test"), [("subset=train", "subset=val"), ("is_test=false", "is_test=true")])
def test_folders_of_other_keys_are_splits(tmp_path, train, test):
    for split in (train, test):
        for label in ("cat", "dog"):
            as_parquet(tmp_path / f"label={label}/{split}/0.parquet", {"image": PHOTOS[:4]}, {"image": IMAGE})
    dataset = open_dataset(f"hf:{tmp_path}")
    assert (dataset.classes, len(dataset.train), len(dataset.test)) == (("cat", "dog"), 8, 8)


def test_a_column_of_widths_is_no_label(tmp_path):
    columns = {"image": PHOTOS[:4], "width": [8, 9, 8, 9]}
    for split in ("train", "test"):
        as_parquet(tmp_path / f"{split}.parquet", columns, {"image": IMAGE})
    refused(f"hf:{tmp_path}", r"must have a column of labels.* its columns are .*\. Write \?label=COLUMN to take one")
    assert open_dataset(f"hf:{tmp_path}?label=width").classes == ("8", "9")


def test_a_column_of_splits_is_said(tmp_path):
    columns = {"image": PHOTOS, "label": ["a", "b"] * 4, "split": ["train"] * 6 + ["test"] * 2}
    as_parquet(tmp_path / "all.parquet", columns, {"image": IMAGE})
    for spec in (f"hf:{tmp_path}", f"hf:{tmp_path}?label=label"):
        dataset = open_dataset(spec)
        assert dataset.classes == ("a", "b")
        assert "the column split is not read: splits are in the names of files and folders" in dataset.remarks


def test_two_columns_may_be_the_label(tmp_path):
    """A folder is no better than the column `label` of the file."""
    for year in (2020, 2021):
        as_parquet(tmp_path / f"year={year}/0.parquet", {"image": PHOTOS[:4], "label": [0, 1, 0, 1]}, {"image": IMAGE})
    refused(f"hf:{tmp_path}", r"one column of labels; label, year may each be it. Write \?label=COLUMN to choose")
    assert sum(map(len, open_dataset(f"hf:{tmp_path}?label=label").splits.values())) == 8


CARD = """---
license: mit
dataset_info:{head}
  features:
  - name: image
    dtype: image
  - name: label
    dtype:
      class_label:
        names:{names}
---
# A set
"""
NAMED = CARD.format(head="", names="\n          '1': dog\n          '0': cat")


@pytest.mark.parametrize(
    ("place", "card"),
    [
        ("", NAMED),
        ("..", NAMED),
        ("", CARD.format(head="", names=" [cat, dog]")),
        ("", NAMED.replace("_info:\n  features", "_info:\n- config_name: default\n  features")),
    ],
)
def test_names_of_classes_are_in_readme(tmp_path, place, card):
    root = tmp_path / "repository/data"
    as_parquet(root / "train.parquet", TRAIN, {"image": IMAGE})
    as_parquet(root / "test.parquet", TEST, {"image": IMAGE})
    (root / place / "README.md").write_text(card)
    dataset = open_dataset(f"hf:{root}")
    assert (dataset.classes, dataset.remarks) == (("cat", "dog"), ())
    (root / place / "README.md").write_text(card.replace("cat", "no").replace("dog", "010"))
    assert open_dataset(f"hf:{root}").classes == ("no", "010")


@pytest.mark.parametrize(
    ("card", "remark"),
    [
        ("# no YAML\n---\n---\n", ""),
        (NAMED.replace("name: label", "name: kind"), ""),
        (NAMED.replace("'1'", "'2'"), "README.md are not read: KeyError: 1"),
        (NAMED.replace("mit", "[mit"), "README.md are not read: ParserError"),
        (NAMED.replace("mit", "caf\u00e9"), "README.md are not read: InputError"),
    ],
)
def test_other_cards_name_no_classes(tmp_path, card, remark):
    as_parquet(tmp_path / "train.parquet", TRAIN, {"image": IMAGE})
    as_parquet(tmp_path / "test.parquet", TEST, {"image": IMAGE})
    (tmp_path / "README.md").write_text(card, encoding="latin-1")
    dataset = open_dataset(f"hf:{tmp_path}")
    assert dataset.classes == ("0", "1")
    assert [remark in line for line in dataset.remarks] == ([True] if remark else [])


BAD = {
    "no image": (
        {"caption": ["a"], "label": [0]},
        None,
        r"a column of images, each .* \(csv: reads a table of their paths\); its columns are caption \(string\), label",
    ),
    "no label": (
        {"image": PHOTOS[:1]},
        {"image": IMAGE},
        "a column of labels, each one class index, class name or Boolean; its columns are image",
    ),
    "index too high": (
        {"image": PHOTOS[:2], "label": [0, 2]},
        FEATURES,
        "the label of row 1 of d.parquet in .* is 2: none of the 2 classes, cat, dog",
    ),
    "names no list": (
        TRAIN,
        {**FEATURES, "label": {"names": "ab", "_type": "ClassLabel"}},
        "the names of .* must be a list",
    ),
    "names of numbers": (
        TRAIN,
        {**FEATURES, "label": {"names": [1], "_type": "ClassLabel"}},
        "the names of .* must be text",
    ),
    "one class": ({"image": PHOTOS[:2], "label": ["a", "a"]}, {"image": IMAGE}, "at least two classes"),
}


@pytest.mark.parametrize("how", BAD)
def test_parquet_without_images_is_refused(tmp_path, how):
    columns, features, match = BAD[how]
    refused(f"hf:{as_parquet(tmp_path / 'd.parquet', columns, features)}", match)


def test_unrelated_files_are_refused(tmp_path):
    refused(f"hf:{tmp_path}", "must hold parquet or arrow files; it holds none")
    as_parquet(tmp_path / "a/train-00000-of-00002.parquet", TRAIN)
    refused(f"hf:{tmp_path}", r"one file of each number of train-0 to 1; it holds \[0\]")
    as_parquet(tmp_path / "a/train-00001-of-00002.parquet", {**TRAIN, "label": list("abcde")}, {"image": IMAGE})
    refused(f"hf:{tmp_path}", "must have image and label of one type, and the same classes; .*train-00001.* differs")
    swapped = {**FEATURES, "label": {"names": ["dog", "cat"], "_type": "ClassLabel"}}
    as_parquet(tmp_path / "a/train-00001-of-00002.parquet", TRAIN, swapped)
    refused(f"hf:{tmp_path}", "the same classes; .*train-00001.* differs")
    (tmp_path / "a/train-00001-of-00002.parquet").unlink()
    os.rename(tmp_path / "a/train-00000-of-00002.parquet", tmp_path / "a/train.parquet")
    as_parquet(tmp_path / "b/train.parquet", TRAIN)
    refused(f"hf:{tmp_path}", "must hold one data set; it holds a and b")
    as_saved(tmp_path / "b/test", TEST)
    refused(f"hf:{tmp_path}", r"must hold one kind of files; it holds \.arrow and \.parquet")
    refused(f"hf:{tmp_path}/b/test?split=x", r"must be hf:PATH\?image=...&label=...&group=..., each choice")
    (tmp_path / "b/test/data-00000-of-00001.arrow").unlink()
    refused(f"hf:{tmp_path}/b/test", "must hold all its files; .*data-00000-of-00001.arrow is missing")
    (tmp_path / "b/test/state.json").write_text('{"_data_files": [{"filename": ""}]}')
    refused(f"hf:{tmp_path}/b/test", "must hold all its files")


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_cut_file_is_refused(tmp_path, suffix):
    columns = {"image": [*PHOTOS[:5], None], "label": [0, 1] * 3}
    folder = tmp_path / "d"
    file = as_saved(folder, columns) / "data-00000-of-00001.arrow" if suffix == "arrow" else None
    file = file or as_parquet(folder / "d.parquet", columns)
    dataset = open_dataset(f"hf:{folder}")
    missing = [(part, i) for part in dataset.splits.values() for i, name in enumerate(part.names) if name.endswith("5")]
    ((part, i),) = missing
    with pytest.raises(InputError, match=r"row 5 of .* must hold an image"):
        part.read(i)
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    refused(f"hf:{folder}", "must be whole; .*Fetch it again")


def test_bad_arrow_offsets_are_refused(tmp_path):
    table = as_table(TRAIN)
    column = table.column("image").combine_chunks()
    offsets = np.frombuffer(column.field("bytes").buffers()[1], np.int32)
    as_saved(tmp_path / "test", TEST)
    file = as_saved(tmp_path / "train", TRAIN) / "data-00000-of-00001.arrow"
    content = file.read_bytes()
    wrong = offsets[:4].copy()
    wrong[-1] = 10**9
    assert content.count(offsets[:4].tobytes()) == 1
    file.write_bytes(content.replace(offsets[:4].tobytes(), wrong.tobytes()))
    refused(f"hf:{tmp_path}", "must be whole")


def test_oversized_row_group_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hugging_face, "MOST_GROUP", 100)
    as_parquet(tmp_path / "train.parquet", TRAIN)
    as_parquet(tmp_path / "test.parquet", TEST)
    with pytest.raises(InputError, match="a row group must have at most 0 MiB"):
        open_dataset(f"hf:{tmp_path}").train.read(0)


def test_missing_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    refused(
        f"hf:{as_parquet(tmp_path / 'd.parquet', TRAIN)}", r"hf: needs pyarrow, which is not installed. pip install"
    )
