"""webdataset's tars: read as folders are, or refused in one line."""

import bz2
import gzip
import json
import pickle
import tarfile

import pytest
from data.layouts import as_tar, refused
from photos import picture

from tangent_jax.data import tar_members
from tangent_jax.data.registry import open_dataset

# Tars


def sample(key, label, name="cls"):
    return [(f"{key}.png", picture()), (f"{key}.{name}", label)]


def test_tar_labels_are_names_or_json(tmp_path):
    as_tar(tmp_path / "train.tar", [m for i in range(4) for m in sample(i, f"{'ab'[i % 2]}\n".encode())])
    as_tar(tmp_path / "test.tar", sample(0, b"b"))
    assert open_dataset(f"wds:{tmp_path}").classes == ("a", "b")
    fields = [json.dumps({"kind": "ab"[i % 2], "width": i, "good": True}).encode() for i in range(4)]
    as_tar(tmp_path / "train.tar", [m for i in range(4) for m in sample(i, fields[i], "json")])
    as_tar(tmp_path / "test.tar", sample(0, fields[0], "json"))
    assert open_dataset(f"wds:{tmp_path}").classes == ("a", "b")  # a width is no label
    assert open_dataset(f"wds:{tmp_path}?label=width").classes == ("0", "1", "2", "3")


@pytest.mark.parametrize("name", ["classnames.txt", "classes.txt"])
@pytest.mark.parametrize("text", ["a cat\na dog\n", "0 a cat\n1 a dog\n", "1: a cat\n2: a dog\n"])
def test_names_of_classes_are_beside_tars(tmp_path, name, text):
    """As CLIP_benchmark has them: ROOT/classnames.txt, ROOT/train/0.tar."""
    for split in ("train", "test"):
        as_tar(tmp_path / f"{split}/0.tar", [m for i in range(4) for m in sample(i, f"{i % 2}".encode())])
    (tmp_path / name).write_text(text)
    assert open_dataset(f"wds:{tmp_path}").classes == ("a cat", "a dog")
    assert open_dataset(f"wds:{tmp_path}/train/{{0..0}}.tar").classes == ("a cat", "a dog")


def test_tars_of_class_folders_are_unpacked(tmp_path):
    names = [f"./{split}/{name}/{i}.png" for split in ("train", "test") for name in ("cat", "dog") for i in range(2)]
    path = as_tar(tmp_path / "photos.tar", [(name, picture()) for name in names])
    refused(f"wds:{path}", "must hold labels, .*; they hold none. If their folders are classes, unpack them, and open")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert open_dataset(f"folder:{tmp_path}/unpacked").classes == ("cat", "dog")


def test_names_may_begin_with_a_dot_and_slash(tmp_path):
    """`tar cf set.tar .` writes them so."""
    members = [(f"./{name}", content) for i in range(4) for name, content in sample(i, f"{i % 2}".encode())]
    as_tar(tmp_path / "train.tar", members)
    as_tar(tmp_path / "test.tar", members)
    assert open_dataset(f"wds:{tmp_path}").train.names[0] == "train.tar/0"


def test_json_class_0_and_two_labels(tmp_path):
    """Class 0 was left out whole as "without a label"; of two labels the later won."""
    labels = [json.dumps({"cls": i % 3}).encode() for i in range(6)]
    as_tar(tmp_path / "train.tar", [m for i in range(6) for m in sample(i, labels[i], "json")])
    as_tar(tmp_path / "test.tar", sample(0, labels[0], "json"))
    dataset = open_dataset(f"wds:{tmp_path}")
    assert (dataset.classes, dataset.train.labels.tolist()) == (("0", "1", "2"), [0, 1, 2, 0, 1, 2])
    as_tar(tmp_path / "train.tar", [*sample("a", b"0"), ("a.json", b'{"cls": 0, "width": 3}'), *sample("b", b"1")])
    assert len(open_dataset(f"wds:{tmp_path}?label=cls").train) == 2
    as_tar(tmp_path / "train.tar", [*sample("a", b"0"), ("a.json", b'{"cls": 1}'), *sample("b", b"1")])
    refused(f"wds:{tmp_path}", "a in .* must have one cls; it has two, the second in a.json")


def test_samples_without_member_are_left_out(tmp_path):
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
        "left out 1 member of .png (links): neither an image nor a label",
        "left out 3 samples: without an image, such as d",
        "left out 1 row of train: without a label, such as train-0.tar/c",
        "test has no image of 1 of 2 classes: 0",
    )


def test_tars_that_are_not_whole_are_refused(tmp_path):
    whole = as_tar(tmp_path / "train.tar", [m for i in range(4) for m in sample(i, b"%d" % (i % 2))])
    content = whole.read_bytes()
    spec = f"wds:{tmp_path}"
    ends = [i for i in range(512, len(content), 512) if content[i : i + 512].startswith(b"3.png")]
    for cut, match in (
        (ends[0], "no closing block"),
        (ends[0] + 700, "its 3.png is cut off"),
        (ends[0] + 100, "a whole tar"),
    ):
        whole.write_bytes(content[:cut])
        refused(spec, match)
    damaged = bytearray(content)
    damaged[ends[0] + 150] ^= 1  # its checksum
    whole.write_bytes(damaged)
    refused(spec, "closing block")
    as_tar(whole, [*sample("a", b"0"), ("a.png", picture()), *sample("b", b"1")])
    refused(spec, "different names; a.png is there twice")
    as_tar(whole, [*sample("a", b"0"), ("a.seg.png", picture()), *sample("b", b"1")])
    refused(spec, r"must have one image; a has png, seg\.png\. Write \?image=EXTENSION")
    as_tar(whole, [*sample("a", b"{}}", "json")])
    refused(spec, "a.json in .* must be JSON")
    as_tar(whole, [("a.bin", b"")])
    refused(spec, "a column of images, .*; its columns are none; left out 1 member of .bin: neither")


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("train-{0..3}.tar", "2 are not, such as .*train-2.tar"),
        ("x-*.tar", "must name tars; no file has such a name"),
        ("{0..99999}{0..99999}.tar", "at most 100,000 tars"),
        ("train-{3..0}.tar", "must name tars; no file"),
        ("train-{.tar", "1 are not, such as"),
        ("train-0.tar?split=a", r"must be wds:PATH\?image=...&label=...&group=..., each choice"),
    ],
)
def test_a_pattern_that_names_no_tars_is_one_line(tmp_path, pattern, match):
    for i in range(2):
        as_tar(tmp_path / f"train-{i}.tar", sample(i, b"0"))
    refused(f"wds:{tmp_path}/{pattern}", match)


def two(root, name="train-0.tar", names=("png", "cls"), labels=(b"a", b"b")):
    """A tar of two samples, k0 and k1."""
    members = [
        (f"k{i}.{e}", c) for i, label in enumerate(labels) for e, c in ((names[0], picture()), (names[1], label))
    ]
    return as_tar(root / name, members)


@pytest.mark.parametrize(
    "names", [("PNG", "CLS"), ("webp", "txt"), ("jpg", "label"), ("png", "cls.txt"), ("png", "TXT")]
)
def test_label_is_read_in_any_case(tmp_path, names):
    two(tmp_path, names=names)
    two(tmp_path, "test-0.tar", names)
    dataset = open_dataset(f"wds:{tmp_path}")
    assert (dataset.classes, dataset.train.labels.tolist(), len(dataset.test)) == (("a", "b"), [0, 1], 2)


def test_caption_is_no_rival_of_label(tmp_path):
    for split in ("train", "test"):
        members = [
            m for i in range(2) for m in [*sample(i, b"%d" % i), (f"{i}.txt", b"a cat on a mat"), (f"{i}.id", b"7")]
        ]
        as_tar(tmp_path / f"{split}.tar", members)
    assert open_dataset(f"wds:{tmp_path}").classes == ("0", "1")
    as_tar(tmp_path / "train.tar", [m for i in range(2) for m in sample(i, b"%d" % i, "index")])
    as_tar(tmp_path / "test.tar", sample(0, b"0", "index"))
    refused(f"wds:{tmp_path}", r"its columns are index \(texts\)")
    assert open_dataset(f"wds:{tmp_path}?label=index").classes == ("0", "1")


def test_key_ends_at_first_dot(tmp_path):
    members = [*sample("p0", b"0"), *sample("p1.final", b"1"), *sample("p2", b"1")]
    as_tar(tmp_path / "train.tar", members)
    as_tar(tmp_path / "test.tar", sample("p0", b"0"))
    dataset = open_dataset(f"wds:{tmp_path}")
    assert len(dataset.train) == 2
    assert "left out 1 row of train: without a label, such as train.tar/p1" in dataset.remarks
    as_tar(tmp_path / "train.tar", [*sample("v0.5", b"0"), *sample("v0.6", b"1")])
    refused(f"wds:{tmp_path}", r"v0 has 5\.png, 6\.png\. Write .* or _ for dots in keys")
    for split in ("train", "test"):  # all alike: the field final.cls
        as_tar(tmp_path / f"{split}.tar", [*sample("p0.final", b"0"), *sample("p1.final", b"1")])
    assert open_dataset(f"wds:{tmp_path}").classes == ("0", "1")


def test_joined_tars_are_read_to_the_end(tmp_path):
    first, second = two(tmp_path), as_tar(tmp_path / "b.tar", [*sample("x", b"a"), *sample("y", b"b")])
    first.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()
    two(tmp_path, "test-0.tar")
    dataset = open_dataset(f"wds:{tmp_path}")
    assert [name.rpartition("/")[2] for name in dataset.train.names] == ["k0", "k1", "x", "y"]
    assert "train-0.tar holds 2 joined tars, and all are read" in dataset.remarks
    first.write_bytes(first.read_bytes() + b"text" * 200)
    refused(f"wds:{tmp_path}", "bytes follow its closing block that are no tar")


@pytest.mark.parametrize("name", ["train-0.tar.gz", "train-0.tgz", "train-0.tar"])
def test_gzipped_tar_is_read_without_copy(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tar_members, "STEP", 500)
    monkeypatch.setattr(tar_members, "PIECE", 100)
    photos = [picture() for _ in range(12)]
    members = [m for i, p in enumerate(photos) for m in ((f"{i:02d}.png", p), (f"{i:02d}.cls", b"%d" % (i % 2)))]
    plain = as_tar(tmp_path / "x", members).read_bytes()
    (tmp_path / "x").unlink()
    middle = len(plain) // 2
    (tmp_path / name).write_bytes(gzip.compress(plain[:middle]) + gzip.compress(plain[middle:]))  # as pigz does
    two(tmp_path, "test-0.tar", labels=(b"0", b"1"))
    train = open_dataset(f"wds:{tmp_path}").train
    read = pickle.loads(pickle.dumps(train.read))
    for row in (11, 0, 5, 5, 2, 9):
        assert read(row) == photos[row]
    assert {path.name for path in tmp_path.iterdir()} == {name, "test-0.tar"}
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    refused(f"wds:{tmp_path}", "must be a whole tar")


@pytest.mark.parametrize("pack", [bz2.compress, lambda content: b"Rar!\x1a\x07\1\0"])
def test_tar_of_other_packing_is_refused(tmp_path, pack):
    tar = two(tmp_path)
    tar.write_bytes(pack(tar.read_bytes()))
    refused(f"wds:{tmp_path}", "must be a whole tar, plain or gzipped; .*Unpack it")


def test_pattern_chooses_split_of_two_names(tmp_path):
    for name in ("train-000.tar", "train-001.tar", "train_small-000.tar", "test.tar"):
        two(tmp_path, name)
    refused(f"wds:{tmp_path}", "must have one name, and train and train_small both say train")
    assert len(open_dataset(f"wds:{tmp_path}/{{train-*,test}}.tar").train) == 4


def test_a_field_of_booleans_alone_is_the_label(tmp_path):
    texts = [b'{"is_cat": true}', b'{"is_cat": false}']
    as_tar(tmp_path / "train.tar", [m for i in range(4) for m in sample(i, texts[i % 2], "json")])
    assert open_dataset(f"wds:{tmp_path}").classes == ("False", "True")


def test_a_field_of_lists_is_no_label(tmp_path):
    as_tar(tmp_path / "train.tar", [m for i in range(2) for m in sample(i, b'{"tags": ["a", "b"]}', "json")])
    refused(f"wds:{tmp_path}?label=tags", r"tags of .* holds lists")
