"""Sources, decoding and shards, on small files of the tests' own."""

import json
import unicodedata

import numpy as np
import pytest
from photos import as_zip, picture, summary, write

from tangent_jax.core.checks import InputError
from tangent_jax.core.names import columns
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.sources import Dataset


def test_digits_are_split_by_writer_order():
    dataset = open_dataset("digits")
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 898, "test": 899}
    image = dataset.splits["test"].read(0)
    assert (image.shape, image.dtype, image.max()) == ((8, 8, 3), np.uint8, 255)
    assert set(dataset.splits["train"].identifiers()).isdisjoint(dataset.splits["test"].identifiers())


def test_a_folder_with_train_and_test_inside(tmp_path):
    write(
        tmp_path, "train/b/1.png", "train/a/2.PNG", "train/a/3.jpg", "test/a/4.png", "test/b/5.png", "test/b/note.txt"
    )
    dataset = open_dataset(f"folder:{tmp_path}")
    assert dataset.classes == ("a", "b")
    assert summary(dataset) == {"train": [("train/a/2.PNG", 0), ("train/a/3.jpg", 0), ("train/b/1.png", 1)],
                                "test": [("test/a/4.png", 0), ("test/b/5.png", 1)]}  # fmt: skip
    assert dataset.splits["train"].read(2) == (tmp_path / "train/b/1.png").read_bytes()


def test_a_folder_of_classes_is_split_by_content(tmp_path):
    write(tmp_path, *(f"{c}/{i}.png" for c in "ab" for i in range(40)))
    dataset = open_dataset(f"folder:{tmp_path}")
    assert len(dataset.splits["train"]) + len(dataset.splits["test"]) == 80
    assert 4 <= len(dataset.splits["test"]) <= 32
    before = set(dataset.splits["test"].names)
    gone = dataset.splits["train"].names[0]
    (tmp_path / gone).unlink()
    assert set(open_dataset(f"folder:{tmp_path}").splits["test"].names) == before


def test_outer_folder_and_hidden_are_skipped(tmp_path):
    names = [f"photos/train/{c}/1.png" for c in "ab"] + ["photos/test/a/2.png", "photos/.cache/x/3.png"]
    write(tmp_path, *names, "photos/train/a/deep/4.png")
    (tmp_path / "photos/.DS_Store").write_text("")
    dataset = open_dataset(
        f"folder:{as_zip(tmp_path / 'z.zip', {n: b'' for n in names} | {'__MACOSX/photos/x.png': b''})}"
    )
    assert summary(dataset) == {"test": [(names[2], 0)], "train": [(names[0], 0), (names[1], 1)]}
    whole = open_dataset(f"folder:{tmp_path}")
    assert summary(whole)["train"] == [(names[0], 0), ("photos/train/a/deep/4.png", 0), (names[1], 1)]


def test_zip_reads_like_folder_or_manifest(tmp_path):
    images = {f"{split}/{c}/{i}.png": picture() for split in ("train", "test") for c in "ab" for i in range(2)}
    plain = open_dataset(f"folder:{as_zip(tmp_path / 'plain.zip', images)}")
    assert [len(plain.splits[s]) for s in ("train", "test")] == [4, 4]
    items = [[name, name.split("/")[0], int("/b/" in name)] for name in images]
    manifest = json.dumps({"classes": ["x", "y"], "items": items})
    listed = open_dataset(f"folder:{as_zip(tmp_path / 'listed.zip', {**images, 'manifest.json': manifest})}")
    assert listed.classes == ("x", "y")
    assert summary(listed) == summary(plain)
    assert listed.splits["test"].read(3) == images["test/b/1.png"]
    assert listed.splits["train"].take(np.array([2])).identifiers() == listed.splits["train"].identifiers()[2:3]


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("nowhere", "a data set must be one of digits, folder:PATH, hf:PATH, wds:PATH, csv:FILE, tfds:NAME"),
        ("folder:/nowhere", "does not exist"),
        ("folder:", "must be one of digits"),
        ("{file}", "must be one of digits"),
        ("folder:{file}", "a folder or a zip"),
    ],
)
def test_a_wrong_specification_is_one_clear_line(tmp_path, spec, match):
    (tmp_path / "file.txt").write_text("no zip")
    with pytest.raises(InputError, match=match):
        open_dataset(spec.format(here=tmp_path, file=tmp_path / "file.txt"))


def test_a_class_without_images_is_named(tmp_path):
    write(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/1.png")
    (tmp_path / "train/empty").mkdir()
    (tmp_path / "train/empty/1.raw").write_bytes(b"x")
    with pytest.raises(
        InputError,
        match=r"must have a training image of every class; it has none of empty.*left out 1 file of empty",
    ):
        open_dataset(f"folder:{tmp_path}")


def test_class_of_other_splits_is_named(tmp_path):
    write(tmp_path, *(f"{split}/{name}/1.png" for split in ("train", "test") for name in "ab"))
    write(tmp_path, "test/c/1.png", "test/c/2.png", "val/c/1.png", "val/a/1.png")
    with pytest.raises(InputError, match=r"it has none of c\. Add some, or remove the class from every split"):
        open_dataset(f"folder:{tmp_path}")


def test_empty_class_folder_keeps_place(tmp_path):
    write(tmp_path, "train/a/1.png", "train/c/1.png", "test/a/1.png")
    (tmp_path / "train/b").mkdir()
    dataset = open_dataset(f"folder:{tmp_path}")
    assert (dataset.classes, dataset.empty, dataset.train.labels.tolist()) == (("a", "b", "c"), ("b",), [0, 2])
    assert "1 of 3 classes have no image here, and keep their places: b" in "\n".join(dataset.remarks)


def test_an_empty_split_is_named(tmp_path):
    write(tmp_path, "train/a/1.png", "train/b/1.png")
    (tmp_path / "test/a").mkdir(parents=True)
    with pytest.raises(InputError, match=r"must have images; there are none in test"):
        open_dataset(f"folder:{tmp_path}")


def test_a_data_set_needs_a_train_split():
    with pytest.raises(InputError, match="x must have a train split"):
        Dataset("x", ("a", "b"), {})


@pytest.mark.parametrize("reader", ["csv", "manifest"])
def test_unicode_forms_are_one_name(tmp_path, reader):
    """Lists that macOS wrote (NFD) name the files and classes of other systems (NFC)."""
    apart = unicodedata.normalize("NFD", "é")
    names = [f"{split}-é-{c}.png" for split in ("train", "test") for c in "ab"]
    classes = {"a": f"caf{apart}", "b": "bar"}
    listed = [name.replace("é", apart) for name in names]
    if reader == "csv":
        write(tmp_path, *names)
        lines = [f"{name},{classes[name[-5]]},{name.split('-')[0]}" for name in listed]
        (tmp_path / "set.csv").write_text("\n".join(["path,label,split", *lines]))
        (tmp_path / "classes.txt").write_text("\n".join(classes.values()))
        dataset = open_dataset(f"csv:{tmp_path}/set.csv")
    else:
        items = [[name, name.split("-")[0], "ab".index(name[-5])] for name in listed]
        manifest = json.dumps({"classes": [*classes.values()], "items": items})
        files = {name: picture() for name in names} | {"manifest.json": manifest}
        dataset = open_dataset(f"folder:{as_zip(tmp_path / 'set.zip', files)}")
    assert dataset.classes == ("café", "bar")
    assert sorted(name for part in dataset.splits.values() for name in part.names) == sorted(names)
    assert all(dataset.train.read(i) for i in range(2))
    assert columns(dataset.classes, [classes["a"]]).tolist() == [0]


LISTED = ["cat", "emu", "ant"]  # not in the order of names; no image is of emu


def open_listed(root, reader, classes=None, *gone):
    """A data set whose only test image of cat has no training image, once `gone` is left out."""
    images = {name: picture() for name in ("train/ant/1.png", "train/cat/1.png", "test/ant/2.png", "test/cat/2.png")}
    images = {name: content for name, content in images.items() if name not in gone}
    if reader == "folder":
        return open_dataset(f"folder:{as_zip(root / f'{len(gone)}.zip', images)}", classes)
    for name, content in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    lines = [f"{name},{name.split('/')[1]},{name.split('/')[0]}" for name in images]
    (root / "set.csv").write_text("\n".join(["path,label,split", *lines]))
    return open_dataset(f"csv:{root}/set.csv", classes)


@pytest.mark.parametrize("reader", ["folder", "csv"])
def test_given_classes_depend_on_no_image(tmp_path, reader):
    whole, less = (open_listed(tmp_path, reader, LISTED, *gone) for gone in ([], ["train/cat/1.png"]))
    assert whole.classes == less.classes == tuple(LISTED)
    assert (whole.classes_from, whole.empty, less.empty) == ("caller", ("emu",), ("emu",))
    assert (whole.train.labels.tolist(), less.train.labels.tolist()) == ([2, 0], [2])
    assert not whole.train.every_class  # no class needs a readable image
    with pytest.raises(InputError, match="must have a training image of every class; it has none of cat"):
        open_listed(tmp_path, reader, None, "train/cat/1.png")
    for wrong, match in {
        ("ant", "emu"): "classes must name the class of every image.*they lack cat, and no image is of emu. Correct",
        ("ant",): "classes must be two names or more, none of them empty; got 'ant'",
        ("ant", "cat", " "): "none of them empty",
        ("ant", "cat", "ant "): "must have different names",
    }.items():
        with pytest.raises(InputError, match=match):
            open_listed(tmp_path, reader, wrong)


def test_a_data_set_says_what_names_its_classes(tmp_path):
    assert open_dataset("digits").classes_from == "list"
    assert open_listed(tmp_path, "folder").classes_from == "images"
    assert open_listed(tmp_path, "csv").classes_from == "images"
    (tmp_path / "classes.txt").write_text("cat\nant\n")
    assert open_listed(tmp_path, "csv").classes_from == "list"
    items = [[f"{split}/{c}.png", split, "ab".index(c)] for split in ("train", "test") for c in "ab"]
    files = {name: picture() for name, _, _ in items}
    files["manifest.json"] = json.dumps({"classes": ["a", "b"], "items": items})
    assert open_dataset(f"folder:{as_zip(tmp_path / 'listed.zip', files)}").classes_from == "list"
