"""Layouts of folders that people have open as they are meant, or are refused with the question."""

import re

import numpy as np
import pytest
from data.compatibility import Row, folder, outcome, png
from data.folder_layouts import FOLDER_LAYOUTS, SPLIT, both
from hypothesis import given
from hypothesis import strategies as st
from photos import as_zip, picture, write

from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.data.rows import by_content
from tangent_jax.data.sources import Examples


@pytest.mark.parametrize("name", FOLDER_LAYOUTS)
def test_zip_reads_as_folder(name):
    """Whose outcome test_compatibility.py holds."""

    def zipped(root):
        return f"folder:{as_zip(root / 'photos', {file: png(i) for i, file in enumerate(FOLDER_LAYOUTS[name])})}"

    assert outcome(Row("folder:", name, zipped)) == outcome(Row("folder:", name, folder(FOLDER_LAYOUTS[name])))


def test_a_class_may_have_the_name_of_a_split(tmp_path):
    write(tmp_path, *(f"{name}/{i}.png" for name in ("bus", "train", "car") for i in range(12)))
    assert open_dataset(f"folder:{tmp_path}").classes == ("bus", "car", "train")


def test_tree_inside_itself_is_left_out(tmp_path):
    write(tmp_path, *(f"{root}{name}/{i}.png" for root in ("", "brain/") for name in ("yes", "no") for i in range(12)))
    dataset = open_dataset(f"folder:{tmp_path}")
    assert dataset.classes == ("no", "yes")
    assert sum(map(len, dataset.splits.values())) == 24
    assert "left out 24 images of brain" in "\n".join(dataset.remarks)


def test_split_folders_are_named_in_specification(tmp_path):
    write(tmp_path, *both("part1/", "part2/"))
    dataset = open_dataset(f"folder:{tmp_path}?train=part1&test=part2")
    assert dataset.test.names == ("part2/cat/1.png", "part2/dog/1.png")
    with pytest.raises(InputError, match="no folder part3"):
        open_dataset(f"folder:{tmp_path}?train=part1&test=part3")


def test_caller_makes_same_names_classes(tmp_path):
    """Each remedy of the refusal opens as it is written."""
    write(tmp_path, *(f"w/{name}/{year}/{i}.png" for name in ("cat", "dog") for year in (2022, 2023) for i in range(9)))
    with pytest.raises(InputError) as error:
        open_dataset(f"folder:{tmp_path}")
    second, first, third = re.findall(r"folder:[^ ;]+", str(error.value))
    assert open_dataset(first).classes == ("2022", "2023")
    assert len(open_dataset(first).train) == 18
    dataset = open_dataset(second)
    assert (dataset.classes, sum(map(len, dataset.splits.values()))) == (("cat", "dog"), 36)
    assert open_dataset(third).classes == ("2022", "2023")


@pytest.mark.parametrize("root", ["", "train/"])
def test_innermost_folders_are_classes(tmp_path, root):
    """Each remedy of a remark or a refusal opens as it is written."""
    inner = [f"{name}/{i}.png" for name in ("a/abbey", "a/bar/indoor", "b/beach", "b/cave/indoor") for i in range(9)]
    write(tmp_path, *(f"{root}{name}" for name in inner), *(f"test/{name}" for name in inner if root))
    dataset = open_dataset(f"folder:{tmp_path}")
    assert dataset.classes == ("a/abbey", "a/bar/indoor", "b/beach", "b/cave/indoor")
    (spec,) = re.findall(r"such as a/abbey; (folder:\S+) makes", "\n".join(dataset.remarks))
    assert open_dataset(spec).classes == ("a", "b")
    if root:
        places = f"folder:?train={tmp_path}/train&test={tmp_path}/test"
        assert open_dataset(places).classes == dataset.classes
        assert open_dataset(f"{places}&folders=classes").classes == ("a", "b")
    write(tmp_path, f"{root}a/stray.png")
    with pytest.raises(InputError, match=f"a, b of .* must hold images or folders alone, .*; {root}a holds") as error:
        open_dataset(f"folder:{tmp_path}")
    (spec,) = re.findall(r"write (folder:\S+)", str(error.value))
    assert open_dataset(spec).classes == ("a", "b")
    (tmp_path / root / "a/abbey/deep").mkdir()
    (tmp_path / root / "a/stray.png").rename(tmp_path / root / "a/abbey/deep/1.png")
    with pytest.raises(InputError, match=f"{root}a/abbey holds both"):
        open_dataset(f"folder:{tmp_path}")


def test_splits_between_class_folders_are_asked(tmp_path):
    """A station of SUN397 is no split. Each remedy opens as it is written."""
    write(tmp_path, *(f"{name}/{i}.png" for name in ("a/abbey", "t/train_station/platform") for i in range(9)))
    assert open_dataset(f"folder:{tmp_path}").classes == ("a/abbey", "t/train_station/platform")
    write(tmp_path / "kinds", *(f"{name}/{i}.png" for name in ("pet/cat", "vehicle/train") for i in range(9)))
    assert open_dataset(f"folder:{tmp_path}/kinds").classes == ("pet/cat", "vehicle/train")
    write(
        tmp_path / "deep", *(f"{name}/{split}/1.png" for name in ("pet/cat", "pet/dog", "tool/saw") for split in SPLIT)
    )
    with pytest.raises(InputError, match="its pet, tool hold folders of splits, such as pet/cat/test"):
        open_dataset(f"folder:{tmp_path}/deep")
    write(tmp_path / "set", *both("images/train/", "images/test/", "masks/train/"))
    with pytest.raises(InputError, match=r"its images, masks hold folders of splits, such as images/test") as error:
        open_dataset(f"folder:{tmp_path}/set")
    (inner,) = re.findall(r"the folder that holds them, (\w+)", str(error.value))
    assert len(open_dataset(f"folder:{tmp_path}/set/{inner}").test) == 2
    (spec,) = re.findall(r"write (folder:\S+)", str(error.value))
    assert open_dataset(spec).classes == ("images", "masks")


def test_archives_unpacked_twice_are_classes(tmp_path):
    write(tmp_path, *(f"train/{name}/{name}/{i}.png" for name in ("cat", "dog") for i in range(3)), *both("test/"))
    dataset = open_dataset(f"folder:{tmp_path}")
    assert (dataset.classes, len(dataset.train), len(dataset.test)) == (("cat", "dog"), 6, 2)


def test_folders_in_some_classes_are_said(tmp_path):
    write(tmp_path, *both("train/", "test/"), "train/emu/a/1.png", "test/emu/1.png")
    dataset = open_dataset(f"folder:{tmp_path}")
    assert dataset.classes == ("cat", "dog", "emu")
    assert dataset.remarks == ("folders in class folders belong to the class, such as those of train/emu",)


@pytest.mark.parametrize("name", ["no_label", "No Label", "unlabeled", "_unlabeled", "Unlabelled"])
@pytest.mark.parametrize("root", ["", "train/", "train/more/"])
def test_folders_without_labels_are_left_out(tmp_path, name, root):
    classes = [
        f"{split}{c}/{i}.png"
        for split in (root, "test/")
        for c in ("cat", "dog")
        for i in range(9)
        if split != "test/" or root
    ]
    write(tmp_path, *classes, f"{root}{name}/1.png", f"{root}{name}/in/2.png")
    dataset = open_dataset(f"folder:{tmp_path}")
    assert dataset.classes == ("cat", "dog")
    assert f"left out 2 images of {root}{name}: without a label" in "\n".join(dataset.remarks)
    (tmp_path / root / name).rename(tmp_path / root / "blank")
    (tmp_path / root / "blank/in/2.png").unlink()
    (tmp_path / root / "blank/in").rmdir()
    assert "blank" in open_dataset(f"folder:{tmp_path}").classes


@pytest.mark.parametrize(
    "names", [("0", "2", "10"), ("-2", "-1", "1", "10"), ("0.5", "2.5", "10.5"), ("1", "02", "10")]
)
def test_numbered_folders_are_ordered_by_number(tmp_path, names):
    write(tmp_path, *both("train/", "test/", classes=names))
    dataset = open_dataset(f"folder:{tmp_path}")
    assert (dataset.classes, dataset.remarks) == (names, ())
    write(tmp_path, *both("train/", "test/", classes=("a",)))
    assert open_dataset(f"folder:{tmp_path}").classes == (*sorted(names), "a")


def test_remedies_of_unclear_splits_work(tmp_path):
    write(tmp_path, "train/1.png", *both("val/"))
    with pytest.raises(InputError, match=r"train must lie in a folder for each class; .* Move them to train/CLASS"):
        open_dataset(f"folder:{tmp_path}")
    (tmp_path / "train/cat").mkdir()
    (tmp_path / "train/1.png").rename(tmp_path / "train/cat/1.png")
    write(tmp_path, "train/dog/1.png")
    assert open_dataset(f"folder:{tmp_path}").classes == ("cat", "dog")
    for name in ("cat", "dog"):
        (tmp_path / f"train/{name}").rename(tmp_path / name)
    (tmp_path / "train").rmdir()
    with pytest.raises(
        InputError, match=r"cat, dog lie beside val. Move them to train, or if all are classes"
    ) as error:
        open_dataset(f"folder:{tmp_path}")
    (spec,) = re.findall(r"write (folder:\S+)", str(error.value))
    assert open_dataset(spec).classes == ("cat", "dog", "val")


@pytest.mark.parametrize("kind", ["folder", "zip", "relative"])
def test_splits_may_be_in_several_places(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    files = {"one/x": both("w/"), "other/y": both(""), "z": both("")}
    if kind == "zip":
        (tmp_path / "one").mkdir()
        (tmp_path / "other").mkdir()
    for place, names in files.items():
        if kind == "zip":
            as_zip(tmp_path / f"{place}.zip", {name: picture() for name in names})
        else:
            write(tmp_path / place, *names)
    root, end = ("" if kind == "relative" else f"{tmp_path}/"), (".zip" if kind == "zip" else "")
    spec = f"folder:?train={root}one/x{end}&test={root}other/y{end}&validation={root}z{end}"
    dataset = open_dataset(spec)
    assert dataset.train.names == ("train/w/cat/1.png", "train/w/dog/1.png")
    assert dataset.test.names == ("test/cat/1.png", "test/dog/1.png")
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 2, "test": 2, "validation": 2}
    assert len({part.read(0) for part in dataset.splits.values()}) == 3


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("{root}?train=a&test=a/b", "must be apart, and a holds a/b"),
        ("{root}?train=a&test=a", "must be apart"),
        ("?train={root}/a&test={root}/a/b", "must be apart, and .*a holds .*a/b"),
        ("{root}?test=a", "with train"),
        ("{root}?train=a&folders=leaves", "PATH.folders=classes, PATH.train=FOLDER"),
    ],
)
def test_impossible_split_folders_are_refused(tmp_path, question, words):
    write(tmp_path, *both("a/", "a/b/", "s/train/", "s/test/"))
    with pytest.raises(InputError, match=words):
        open_dataset(f"folder:{question.format(root=tmp_path)}")


FOREIGN = [
    ".ipynb_checkpoints/1.png", "cat/Thumbs.db", "desktop.ini", "System Volume Information/cat/1.png", "dog/._1.png",
    "$RECYCLE.BIN/cat/1.png", "cat/.DS_Store", "@eaDir/cat/1.png/SYNOPHOTO_THUMB_M.jpg", "cat/@eaDir/1.png",
    "#recycle/cat/1.png", "dog/.@__thumb/1.png", "lost+found/1.png",
]  # fmt: skip
"""Files that systems add."""


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("root", ["", "train/"])
def test_files_of_programs_are_left_out(tmp_path, kind, root):
    tests = both("test/") if root else []
    names = [*both(root), *(f"{root}{name}" for name in FOREIGN), *tests]
    if kind == "folder":
        write(tmp_path / "set", *names)
    else:
        as_zip(tmp_path / "set.zip", {name: picture() for name in names})
    dataset = open_dataset(f"folder:{tmp_path}/set{'' if kind == 'folder' else '.zip'}")
    assert dataset.classes == ("cat", "dog")
    assert sum(map(len, dataset.splits.values())) == len(both("")) + len(tests)
    assert f"left out {len(FOREIGN)} files: hidden, or added by the system, such as" in "\n".join(dataset.remarks)


def test_class_of_placeholders_is_refused(tmp_path):
    write(tmp_path, *both("train/", "test/"), "train/hat/.1.jpg.icloud", "train/hat/.2.jpg.icloud", "test/hat/1.png")
    with pytest.raises(
        InputError, match=r"none of hat.*; left out 2 files of hat: no images by their names \(.icloud\)"
    ):
        open_dataset(f"folder:{tmp_path}")


def test_many_empty_classes_are_one_line(tmp_path):
    write(tmp_path, *both("train/", "test/"))
    for i in range(900):
        (tmp_path / f"train/{i}").mkdir()
    (remark,) = open_dataset(f"folder:{tmp_path}").remarks
    assert remark == "900 of 902 classes have no image here, and keep their places: 0, 1, 10, 100, 101, ..."
    for i in range(900):
        (tmp_path / f"train/{i}/a.txt").write_text("left")
    with pytest.raises(
        InputError, match=r"left out 900 files of 0, 1, 10, .*no images by their names \(.txt\), such as"
    ):
        open_dataset(f"folder:{tmp_path}")


def test_a_class_of_one_image_is_trained_on():
    names = tuple(f"{i}" for i in range(100))
    labels = np.array([*range(50), *[50] * 50], np.int32)
    parts = by_content(Examples(names, labels, lambda i: f"{i}".encode()))
    assert {*parts["train"].labels.tolist()} == {*range(51)}
    assert {*parts["test"].labels.tolist()} == {50}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=30))
def test_every_class_trains_in_division(images):
    """Copies of an image in one class are all test or all train."""
    labels = np.array([label for label, _ in images], np.int32)
    contents = [f"{content}".encode() for _, content in images]
    names = tuple(f"{i}" for i in range(len(images)))
    parts = by_content(Examples(names, labels, contents.__getitem__))
    assert {*parts["train"].labels.tolist()} == {*labels.tolist()}
    of_class = {label: {c for own, c in images if own == label} for label, _ in images}
    assert ("test" in parts) == any(len(several) > 1 for several in of_class.values())
    pairs = [{*zip(part.labels.tolist(), part.identifiers(), strict=True)} for part in parts.values()]
    assert sum(map(len, pairs)) == len({*images})


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


def test_case_twins_of_classes_are_said(tmp_path):
    write(tmp_path, *both("train/", "test/", classes=("cat", "Cat")))
    assert "cat differ in letter case, spaces or hyphens alone: they are two classes" in "\n".join(
        open_dataset(f"folder:{tmp_path}").remarks
    )
    write(tmp_path, "test/CAT/1.png")
    with pytest.raises(InputError, match="must have a training image of every class; it has none of CAT"):
        open_dataset(f"folder:{tmp_path}")
