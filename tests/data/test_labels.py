"""The labels column of any mixture opens, or the refusal names the row and the value."""

import re

import pyarrow as pa
import pytest
from data.layouts import IMAGE, as_parquet, as_saved, refused
from hypothesis import given
from hypothesis import strategies as st
from photos import picture, write

from tangent_jax.core.checks import InputError
from tangent_jax.data.labels import NO_LABEL, read_labels
from tangent_jax.data.registry import open_dataset

WORDS = [
    "cat",
    "dog",
    " cat ",
    "caf\u00e9",
    "cafe\u0301",
    "None",
    "nan",
    "",
    "0",
    "10",
    "1.0",
    "01",
    "-1",
    "-2",
    "0.5",
    "True",
]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 12), st.sampled_from([0.0, 3.0, 0.5, -1.0, float("nan"), float("inf")]),
    st.sampled_from(WORDS), st.text(max_size=3), st.just([1, 2]),
)  # fmt: skip


def row(i):
    return f"row <{i}>"


@given(st.lists(VALUES, min_size=1, max_size=8), st.sampled_from([None, ("cat", "dog"), ("0", "1", "2")]))
def test_mixture_opens_or_names_row(values, classes):
    said = ""
    try:
        labels = read_labels(values, classes, "set", row)
    except InputError as error:
        said = str(error)
    if said:
        found = re.search(r"the label of row <(\d+)> in set is ", said)
        assert found
        value = values[int(found[1])]
        assert not str(value).isprintable() or str(value) in said
        return
    assert len(labels.numbers) == len(values)
    for value, number in zip(values, labels.numbers, strict=True):
        assert -1 <= number < len(labels.classes)
        if value is None or value != value:
            assert number == -1
        elif number >= 0 and isinstance(value, str) and classes is None:
            assert value.strip() not in NO_LABEL
    assert classes is None or labels.classes == classes


@pytest.mark.parametrize(
    ("values", "classes", "numbers"),
    [
        (["0.0", "10.0", "5", ""], ("0", "5", "10"), [0, 2, 1, -1]),
        ([0.0, 10.0, float("nan"), -1.0], ("0", "10"), [0, 1, -1, -1]),
        ([True, False, None], ("False", "True"), [1, 0, -1]),
        (["01", "02", "10"], ("01", "02", "10"), [0, 1, 2]),
        (["2", "10", "1"], ("1", "2", "10"), [1, 2, 0]),
        (["cafe\u0301", "caf\u00e9 "], ("caf\u00e9",), [0, 0]),
        ([10**20, 3], ("3", str(10**20)), [1, 0]),
    ],
)
def test_labels_mean_what_their_program_wrote(values, classes, numbers):
    labels = read_labels(values, None, "set", row)
    assert (labels.classes, labels.numbers.tolist()) == (classes, numbers)


def test_a_list_of_classes_decides():
    assert read_labels([True, False], ("no", "yes"), "set", row).numbers.tolist() == [1, 0]
    assert read_labels(["None", "b", "nan"], ("b", "None"), "set", row).numbers.tolist() == [1, 0, -1]
    assert read_labels(["7", "3"], ("3", "7"), "set", row).numbers.tolist() == [1, 0]
    assert read_labels(["1", "0"], ("3", "7"), "set", row).numbers.tolist() == [1, 0]


@pytest.mark.parametrize(
    "text",
    [
        '["a", "b"]',
        "['a']",
        '{"choices":["a","b"]}',
        "('a', 'b')",
        "[]",
        "[a, b]",
        "a|new",
        "a; b",
        "a,b",
        "b , a",
        "a/b",
        "a & b",
        "b+a",
        "a\uff0cb",
        "a\tnew",
        "a\nb",
    ],
)
def test_lists_in_a_text_are_refused(text):
    with pytest.raises(InputError, match=r"the label of row <2> in set is .*: a list of labels"):
        read_labels(["a", "b", text, "a"], None, "set", row)


@pytest.mark.parametrize(
    "values", [["0", "2", "0,2"], ["0", "1 2"], ["0,1,0", "1,0,0"], ["a|b", "b|c"], ["x; a", "y; x"]]
)
def test_lists_are_refused_without_names(values):
    """By class indices, or by parts that change places; a name that looks like a list is listed, as advised."""
    with pytest.raises(InputError, match=r"a list of labels .*, or if it is one name, list all .* in classes.txt"):
        read_labels(values, None, "set", row)
    assert read_labels(values, values, "set", row).classes == tuple(values)


@pytest.mark.parametrize(
    "names",
    [
        ("[unk]", "maillot", "maillot, tank suit", "ski", "ski mask", "tiger, Panthera tigris"),  # ImageNet
        ("animal|bird", "animal|cat"),  # a taxonomy
        ("&", "+", ",", "/", ";", "A", "A+", "|"),  # characters
    ],
)
def test_names_with_marks_are_names(names):
    assert read_labels([*names], None, "set", row).classes == names


def test_a_listed_name_is_no_list():
    assert read_labels(["a,b", "a", "b"], ("a", "a,b", "b"), "set", row).numbers.tolist() == [1, 0, 2]


@pytest.mark.parametrize("text", ["no_label", "Unlabeled", "_unlabeled", "no label", "unlabelled", "Untagged",
                                  "not-labelled", "no annotations", "unlabeled_images"])  # fmt: skip
def test_names_for_no_label_are_no_class(text):
    assert read_labels(["a", text, "b"], None, "set", row).numbers.tolist() == [0, -1, 1]
    assert read_labels(["a", text, "b"], ("a", text, "b"), "set", row).numbers.tolist() == [0, 1, 2]


# Columns of parquet and arrow


def write_column(root, values, kind, how="parquet"):
    """A data set of six images with a column of labels of one type of arrow, in train and test."""
    photos = [{"bytes": picture(), "path": None} for _ in range(6)]
    columns = {"image": photos, "label": values if isinstance(values, pa.Array) else pa.array(values, kind)}
    for split in ("train", "test"):
        if how == "arrow":
            as_saved(root / split, columns, None)
        else:
            as_parquet(root / f"{split}.parquet", columns, None)
    return f"hf:{root}"


@pytest.mark.parametrize("how", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        ([0.0, 1.0, 2.0, None, float("nan"), -1.0], pa.float32(), ("0", "1", "2")),
        ([True, False, None, True, True, False], pa.bool_(), ("False", "True")),
        (["a", "b", None, "a", "", "b"], pa.string_view(), ("a", "b")),
        (["a", "b", None, "a", "", "b"], pa.large_string(), ("a", "b")),
        ([0, 1, -1, None, 0, 1], pa.int8(), ("0", "1")),
        (pa.array(["a", "b", None, "a", "b", "b"]).dictionary_encode(), None, ("a", "b")),
        (pa.array([3, 5, None, 3, 5, 5], pa.uint16()).dictionary_encode(), None, ("3", "5")),
    ],
)
def test_labels_of_every_type_are_read(tmp_path, values, kind, classes, how):
    dataset = open_dataset(write_column(tmp_path, values, kind, how))
    assert dataset.classes == classes
    assert {*dataset.train.labels.tolist()} == {*range(len(classes))}


@pytest.mark.parametrize(
    ("values", "kind", "match"),
    [
        ([[1, 2]] * 6, pa.list_(pa.int64()), r"label \(list<.*>\)"),
        ([[1, 2]] * 6, pa.large_list(pa.int64()), r"label \(large_list<.*>\)"),
        ([{"a": 1}] * 6, pa.struct([("a", pa.int64())]), r"label \(struct<a: int64>\)"),
        ([1] * 6, pa.date32(), r"label \(date32\[day\]\)"),
    ],
)
def test_wrong_column_is_named_with_type(tmp_path, values, kind, match):
    spec = write_column(tmp_path, values, kind)
    refused(spec, "a column of labels, .*" + match)
    refused(f"{spec}?label=label", "the label column must hold one class index.*; label of .* holds")


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_images_of_every_type_of_bytes_are_read(tmp_path, kind):
    photos = [picture() for _ in range(2)]
    struct = pa.struct([("bytes", kind), ("path", pa.string_view())])
    for name, column in (
        ("plain", pa.array(photos, kind)),
        ("struct", pa.array([{"bytes": p} for p in photos], struct)),
    ):
        for split in ("train", "test"):
            as_saved(tmp_path / name / split, {"image": column, "label": [0, 1]}, None)
            as_parquet(tmp_path / name / "p" / f"{split}.parquet", {"image": column, "label": [0, 1]}, None)
        assert [open_dataset(f"hf:{tmp_path / name / 'p'}").train.read(i) for i in range(2)] == photos
        (tmp_path / name / "p").rename(tmp_path / f"{name} of parquet")
        assert [open_dataset(f"hf:{tmp_path / name}").train.read(i) for i in range(2)] == photos


def test_number_widths_may_differ(tmp_path):
    """A shard of pandas has floats where one of its labels is missing."""
    photos = [picture() for _ in range(3)]
    as_parquet(tmp_path / "train-00000-of-00002.parquet", {"image": photos, "label": [0, 1, 1]}, {"image": IMAGE})
    floats = {"image": photos, "label": [0.0, None, 1.0]}
    as_parquet(tmp_path / "train-00001-of-00002.parquet", floats, {"image": IMAGE})
    as_parquet(tmp_path / "test-00000-of-00001.parquet", {"image": photos, "label": [0, 1, 1]}, {"image": IMAGE})
    assert open_dataset(f"hf:{tmp_path}").train.labels.tolist() == [0, 1, 1, 0, 1]


# Files of the hub


HASHES = ("6a8dc1a5ac1bc6e9", "0fee9a5b1c2d3e4f", "b42ef0d4ee3a9d3a")


def shards(root, *names):
    """Files of two rows by their names."""
    for name in names:
        as_parquet(root / name, {"image": [picture(), picture()], "label": [0, 1]})
    return f"hf:{root}"


@pytest.mark.parametrize(
    "names",
    [
        (f"data/train-00000-of-00002-{HASHES[0]}.parquet", f"data/train-00001-of-00002-{HASHES[1]}.parquet",
         f"data/test-00000-of-00001-{HASHES[2]}.parquet"),
        ("train/0000.parquet", "train/0001.parquet", "test/0000.parquet"),
        ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"),
        ("plain/train_0.parquet", "plain/train_1.parquet", "plain/test.parquet"),
    ],
)  # fmt: skip
def test_shard_names_of_hub_are_read(tmp_path, names):
    dataset = open_dataset(shards(tmp_path, *names))
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 4, "test": 2}


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["train-00001-of-00003.parquet"], r"one file of each number of train-0 to 2; it holds \[1\]"),
        (["train/0000.parquet", "train/0002.parquet"], r"of each number of 0 to 2; it holds \[0, 2\]"),
        (["train-00000-of-00001.parquet", *(f"train-0000{i}-of-00002.parquet" for i in (0, 1))],
         r"it holds \[0, 0, 1\]. .* remove the files of an older"),
        (["train2014/0.parquet", "train2017/0.parquet"], "must have one name, and train2014 and train2017 both"),
    ],
)  # fmt: skip
def test_files_that_are_no_whole_splits_are_named(tmp_path, names, match):
    refused(shards(tmp_path, *names), match)


def test_image_folder_as_parquet_is_named(tmp_path):
    write(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg")
    refused(f"hf:{tmp_path}", f"it holds none. folder:{tmp_path} opens images")


def test_class_without_image_keeps_place(tmp_path):
    features = {"image": IMAGE, "label": {"names": ["a", "b", "c", "d"], "_type": "ClassLabel"}}
    for split in ("train", "test"):
        as_parquet(tmp_path / f"{split}.parquet", {"image": [picture(), picture()], "label": [2, 0]}, features)
    dataset = open_dataset(f"hf:{tmp_path}")
    assert (dataset.classes, dataset.train.labels.tolist()) == (("a", "b", "c", "d"), [2, 0])
    assert dataset.remarks == ("2 of 4 classes have no image here, and keep their places: b, d",)
    as_parquet(tmp_path / "test.parquet", {"image": [picture(), picture()], "label": [1, 0]}, features)
    refused(f"hf:{tmp_path}", "must have a training image of every class; it has none of b")


def test_doubtful_labels_are_said(tmp_path):
    photos = [picture() for _ in range(24)]
    captions = {"image": photos, "caption": [f"a cat number {i}" for i in range(24)]}
    as_parquet(tmp_path / "a/d.parquet", captions, {"image": IMAGE})
    refused(f"hf:{tmp_path / 'a'}", "each of its 24 rows has a label of its own, such as 'a cat number 0', as captions")
    for split in ("train", "test"):
        as_parquet(
            tmp_path / f"b/{split}.parquet", {"image": photos[:3], "label": ["Hat", "hat", "cup"]}, {"image": IMAGE}
        )
    dataset = open_dataset(f"hf:{tmp_path / 'b'}")
    assert dataset.classes == ("Hat", "cup", "hat")
    (remark,) = dataset.remarks
    assert remark.startswith("Hat and hat differ in letter case, spaces or hyphens alone")
    for split in ("train", "test"):
        as_parquet(tmp_path / f"c/{split}.parquet", {"image": photos[:3], "label": ["ski", "ski mask", "mask"]}, {})
    (remark,) = open_dataset(f"hf:{tmp_path / 'c'}").remarks
    assert remark.startswith("ski mask: read as names of classes, though their words are labels, too")
