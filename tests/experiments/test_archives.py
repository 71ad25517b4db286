"""Official archives, as small copies of the tests' own, become a CSV that commands read."""

import json

import numpy as np
import pytest
from photos import write
from run_binary import run
from scipy.io import savemat

from experiments.shared.archives import table_of
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data.decode import decode
from tangent_jax.data.registry import open_dataset


def archive(tmp_path, name):
    """A small copy of each official layout; returns what the splits must be."""
    if name == "caltech256":
        write(tmp_path, *(f"256_ObjectCategories/{c}/{i}.jpg" for c in ("001.ak47", "002.flag") for i in range(62)),
              "256_ObjectCategories/257.clutter/1.jpg")  # fmt: skip
        return {"train": 120, "test": 4}, ("001.ak47", "002.flag")
    if name == "mit67":
        write(tmp_path, *(f"Images/{c}/{i}.jpg" for c in ("bar", "gym") for i in range(3)))
        (tmp_path / "TrainImages.txt").write_text("gym/0.jpg\nbar/1.jpg\n")
        (tmp_path / "TestImages.txt").write_text("bar/2.jpg\n")
        return {"train": 2, "test": 1}, ("bar", "gym")
    if name == "aircraft":
        write(tmp_path, *(f"fgvc/data/images/{i}.jpg" for i in range(4)))
        for split, lines in (("train", "0 DC-3\n1 Spitfire 2"), ("val", "2 DC-3"), ("test", "3 Spitfire 2")):
            (tmp_path / f"fgvc/data/images_variant_{split}.txt").write_text(lines + "\n")
        return {"train": 2, "validation": 1, "test": 1}, ("DC-3", "Spitfire 2")
    if name == "cub200":
        root = tmp_path / "CUB_200_2011"
        write(root, *(f"images/{c}/{i}.jpg" for c in ("001.A", "002.B") for i in range(2)))
        files = [f"{c}/{i}.jpg" for c in ("001.A", "002.B") for i in range(2)]
        for table, values in (
            ("images", files),
            ("image_class_labels", [1, 1, 2, 2]),
            ("train_test_split", [1, 0, 1, 0]),
        ):
            (root / f"{table}.txt").write_text("".join(f"{i + 1} {v}\n" for i, v in enumerate(values)))
        (root / "classes.txt").write_text("1 001.A\n2 002.B\n")
        return {"train": 2, "test": 2}, ("001.A", "002.B")
    if name == "cars":
        write(tmp_path, *(f"cars_{split}/{i}.jpg" for split in ("train", "test") for i in range(2)))
        (tmp_path / "devkit").mkdir()
        savemat(tmp_path / "devkit/cars_meta.mat", {"class_names": np.array(["Audi", "BMW"], object)})
        for path in ("devkit/cars_train_annos", "cars_test_annos_withlabels"):
            rows = np.array([("0.jpg", 2), ("1.jpg", 1)], [("fname", object), ("class", object)])
            savemat(tmp_path / f"{path}.mat", {"annotations": rows})
        return {"train": 2, "test": 2}, ("Audi", "BMW")
    if name == "dogs":
        write(tmp_path, *(f"Images/{c}/{i}.jpg" for c in ("n1-pug", "n2-lab") for i in range(2)))
        for split in ("train", "test"):
            files = np.array([f"{c}/{int(split == 'test')}.jpg" for c in ("n1-pug", "n2-lab")], object)
            savemat(tmp_path / f"{split}_list.mat", {"file_list": files})
        return {"train": 2, "test": 2}, ("n1-pug", "n2-lab")
    write(tmp_path, *(f"images/{c}_{i}.jpg" for c in ("Abyssinian", "great_dane") for i in range(2)))
    (tmp_path / "annotations").mkdir()
    for split, i in (("trainval", 0), ("test", 1)):
        (tmp_path / f"annotations/{split}.txt").write_text(f"#comment\nAbyssinian_{i} 1 1 1\ngreat_dane_{i} 2 2 1\n")
    return {"train": 2, "test": 2}, ("Abyssinian", "great_dane")


@pytest.mark.parametrize("name", ["caltech256", "mit67", "aircraft", "cub200", "cars", "dogs", "pets"])
def test_official_archive_becomes_a_table(tmp_path, name):
    counts, classes = archive(tmp_path, name)
    said = json.loads(run("data", name, f"--source={tmp_path}")[0])
    assert said == {"data": name, "file": f"{tmp_path}/{name}.csv", "images": counts}
    dataset = open_dataset(f"csv:{tmp_path}/{name}.csv")
    assert (dataset.name, dataset.classes) == (name, classes)
    assert {split: len(examples) for split, examples in dataset.splits.items()} == counts
    for examples in dataset.splits.values():
        assert decode(examples.read(0), "", 8, Preprocessing()).shape == (8, 8, 3)
        for label, file in zip(examples.labels, examples.names, strict=True):
            if "/" in file.partition("mages/")[2] or name == "pets":
                assert classes[label] in file
    if name == "cars":
        assert dataset.splits["train"].labels.tolist() == [1, 0]


def test_dtd_has_ten_tables(tmp_path):
    write(tmp_path, *(f"dtd/images/{c}/{c}_{i}.jpg" for c in ("banded", "dotted") for i in range(3)))
    (tmp_path / "dtd/labels").mkdir()
    for split in range(1, 11):
        for i, name in enumerate(("train", "val", "test")):
            listed = "".join(f"{c}/{c}_{(i + split) % 3}.jpg\n" for c in ("banded", "dotted"))
            (tmp_path / f"dtd/labels/{name}{split}.txt").write_text(listed)
    text, counts = table_of("dtd3", tmp_path, tmp_path)
    assert counts == {"train": 2, "validation": 2, "test": 2}
    assert text.splitlines()[1] == "dtd/images/banded/banded_0.jpg,banded,train"
    assert table_of("dtd1", tmp_path, tmp_path)[0].splitlines()[1] == "dtd/images/banded/banded_1.jpg,banded,train"


def test_an_archive_that_is_not_whole_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"an unpacked archive with images\.txt"):
        table_of("cub200", tmp_path, tmp_path)
    archive(tmp_path, "dogs")
    (tmp_path / "test_list.mat").write_bytes(b"damaged")
    with pytest.raises(InputError, match="the lists of dogs must be whole in"):
        table_of("dogs", tmp_path, tmp_path)
    _, err = run("data", "pets", f"--source={tmp_path}", "--to=/nowhere/pets.csv", code=1)
    assert "--to must be a CSV that does not exist yet, in --source or a folder above it" in err
