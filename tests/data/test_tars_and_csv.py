"""webdataset's tars and lists of paths: read as folders are, or refused in one line."""

import json
import tarfile

import pytest
from data.layouts import as_tar, refused
from photos import picture, write

from tangent_jax.data.registry import open_dataset

# Tars


def sample(key, label, name="cls"):
    return [(f"{key}.png", picture()), (f"{key}.{name}", label)]


def test_labels_of_a_tar_are_names_or_a_field_of_json(tmp_path):
    as_tar(tmp_path / "train.tar", [m for i in range(4) for m in sample(i, f"{'ab'[i % 2]}\n".encode())])
    as_tar(tmp_path / "test.tar", sample(0, b"b"))
    assert open_dataset(f"wds:{tmp_path}").classes == ("a", "b")
    fields = [json.dumps({"kind": "ab"[i % 2], "width": i, "good": True}).encode() for i in range(4)]
    as_tar(tmp_path / "train.tar", [m for i in range(4) for m in sample(i, fields[i], "json")])
    as_tar(tmp_path / "test.tar", sample(0, fields[0], "json"))
    refused(f"wds:{tmp_path}", r"one column of labels in .*; got kind, width\. Write PATH\?label=COLUMN")
    assert open_dataset(f"wds:{tmp_path}?label=kind").classes == ("a", "b")


def test_class_0_of_a_json_is_a_class_and_two_labels_of_a_sample_are_refused(tmp_path):
    """Class 0 was left out whole as "without a label"; of two labels the later won (FOUND, 81)."""
    labels = [json.dumps({"cls": i % 3}).encode() for i in range(6)]
    as_tar(tmp_path / "train.tar", [m for i in range(6) for m in sample(i, labels[i], "json")])
    as_tar(tmp_path / "test.tar", sample(0, labels[0], "json"))
    dataset = open_dataset(f"wds:{tmp_path}")
    assert (dataset.classes, dataset.train.labels.tolist()) == (("0", "1", "2"), [0, 1, 2, 0, 1, 2])
    as_tar(tmp_path / "train.tar", [*sample("a", b"0"), ("a.json", b'{"cls": 0, "width": 3}'), *sample("b", b"1")])
    assert len(open_dataset(f"wds:{tmp_path}?label=cls").train) == 2
    as_tar(tmp_path / "train.tar", [*sample("a", b"0"), ("a.json", b'{"cls": 1}'), *sample("b", b"1")])
    refused(f"wds:{tmp_path}", "one cls of a in .*; got two, and a.json has the second")


def test_samples_without_a_member_are_left_out_and_said(tmp_path):
    members = [*sample("a", b"0"), *sample("b", b"1"), ("c.png", picture()), ("d.cls", b"1"), *sample("e/f", b"0")]
    members += [
        ("g.png", (tarfile.SYMTYPE, "/etc/passwd")),
        ("g.cls", b"1"),
        *sample("/abs/../h", b"1"),
        ("i.txt", b""),
    ]
    as_tar(tmp_path / "train-0.tar", members)
    as_tar(tmp_path / "test-0.tar", sample("a", b"1"))
    dataset = open_dataset(f"wds:{tmp_path}")
    assert [name.partition("/")[2] for name in dataset.train.names] == ["a", "b", "e/f", "/abs/../h"]
    assert dataset.remarks == (
        "left out 2 samples: without an image, such as d",
        "left out 1 of 5 rows of train: without a label, such as train-0.tar/c",
    )


def test_tars_that_are_not_whole_are_refused(tmp_path):
    whole = as_tar(tmp_path / "train.tar", [m for i in range(4) for m in sample(i, b"%d" % (i % 2))])
    content = whole.read_bytes()
    spec = f"wds:{tmp_path}"
    ends = [i for i in range(512, len(content), 512) if content[i : i + 512].startswith(b"3.png")]
    for cut, match in ((ends[0], "closing block"), (ends[0] + 700, "3.png cut off"), (ends[0] + 100, "a whole tar")):
        whole.write_bytes(content[:cut])
        refused(spec, match)
    damaged = bytearray(content)
    damaged[ends[0] + 150] ^= 1  # its checksum
    whole.write_bytes(damaged)
    refused(spec, "closing block")
    as_tar(whole, [*sample("a", b"0"), ("a.png", picture()), *sample("b", b"1")])
    refused(spec, "a.png twice")
    as_tar(whole, [*sample("a", b"0"), ("a.seg.png", picture()), *sample("b", b"1")])
    refused(spec, r"one column of images in .*; got png, seg\.png")
    as_tar(whole, [*sample("a", b"{}}", "json")])
    refused(spec, "JSON in a.json in")
    as_tar(whole, [("a.txt", b"")])
    refused(spec, "a column of labels in .*; got none")


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("train-{0..3}.tar", "2 that do not exist, such as .*train-2.tar"),
        ("x-*.tar", "tars named .*x-"),
        ("{0..99999}{0..99999}.tar", "at most 100,000 tars"),
        ("train-{3..0}.tar", "tars named"),
        ("train-{.tar", "1 that do not exist"),
        ("train-0.tar?split=a", "tars name their splits"),
    ],
)
def test_a_pattern_that_names_no_tars_is_one_line(tmp_path, pattern, match):
    for i in range(2):
        as_tar(tmp_path / f"train-{i}.tar", sample(i, b"0"))
    refused(f"wds:{tmp_path}/{pattern}", match)


# CSV


def test_the_columns_of_a_csv_are_chosen_and_one_split_is_divided(tmp_path):
    (tmp_path / "a").mkdir()
    for i in range(30):
        (tmp_path / f"a/{i}.png").write_bytes(b"photo %d" % i)
    rows = [f"a/{i}.png,{i % 3},{'xyz'[i % 3]}" for i in range(30)]
    (tmp_path / "l.csv").write_text("\ufeff" + "\n".join(["file,place,kind", *rows]))
    refused(f"csv:{tmp_path}/l.csv", r"a column path in .*; got file, place, kind. Write PATH\?image=COLUMN")
    dataset = open_dataset(f"csv:{tmp_path}/l.csv?image=file&label=kind")
    assert (dataset.classes, sum(map(len, dataset.splits.values()))) == (("x", "y", "z"), 30)
    assert open_dataset(f"csv:{tmp_path}/l.csv?image=file&label=place").classes == ("0", "1", "2")


@pytest.mark.parametrize(("stray", "row"), [("1.0", 3), ("01", 3), ("-2", 3), ("cat", 3)])
def test_one_stray_label_does_not_turn_class_indices_into_names(tmp_path, stray, row):
    """The classes were 1, 10, 2 in that order (FOUND, 81)."""
    labels = ["0", "1", stray, "2", "10", "-1", "", *["0", "1", "2", "10"] * 8]
    write(tmp_path, *(f"{i}.png" for i in range(len(labels))))
    rows = [f"{i}.png,{label}" for i, label in enumerate(labels)]
    (tmp_path / "l.csv").write_text("\n".join(["path,label", *rows]))
    refused(f"csv:{tmp_path}/l.csv", f"all class indices 0, 1, 2, ..., or all names; got '{stray}' of row {row} among")
    (tmp_path / "l.csv").write_text("\n".join(["path,label", *(r for i, r in enumerate(rows) if i != 2)]))
    assert open_dataset(f"csv:{tmp_path}/l.csv").classes == ("0", "1", "2", "10")
    (tmp_path / "l.csv").write_text("path,label\n0.png,a\n1.png,-1\n2.png,b")
    refused(f"csv:{tmp_path}/l.csv", r"class indices >= 0, or names, in .*; got \['-1'\]")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "a header and rows"),
        ("path,label\n0.png", "2 entries in every row"),
        ("path,path\n0.png,a", "columns of different names"),
        ("path,label\nnone.png,a\n0.png,b", r"none named \['none.png'\] \(1 missing\)"),
        ('path,label\n"0.png,a', "a CSV in"),
        ("path,label,split\n0.png,a,val\n0.png,b,valid", "val and valid both say validation"),
        ("path,label,split\n0.png,a,fold1\n0.png,b,fold2", "at least two classes"),
        ("path,label,split\n0.png,a,test\n0.png,b,validation", "a train split"),
    ],
)
def test_a_csv_that_is_no_list_of_images_is_one_line(tmp_path, text, match):
    write(tmp_path, "0.png")
    (tmp_path / "l.csv").write_text(text)
    refused(f"csv:{tmp_path}/l.csv", match)
