"""Recipes of the tables' data sets, on small archives of the tests' own, and the fingerprints of what is at hand."""

import gzip
import io
import struct

import numpy as np
import pytest
from photos import picture
from PIL import Image
from run_binary import run

from experiments.shared import recipes
from tangent_jax.core.checks import InputError


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def photograph(width, height):
    return picture((width, height), "JPEG")


def put_birds(folder):
    names = [f"{label}/{i}.jpg" for label in ("001.Auk", "002.Owl") for i in range(3)]
    for name in names:
        put(folder / "CUB/images" / name, photograph(300, 260))
    tables = {
        "images": names,
        "image_class_labels": [1, 1, 1, 2, 2, 2],
        "train_test_split": [1, 0, 1, 1, 0, 0],
        "classes": ["001.Auk", "002.Owl"],
    }
    for name, rows in tables.items():
        put(folder / f"CUB/{name}.txt", "".join(f"{i} {row}\n" for i, row in enumerate(rows, 1)).encode())
    return {}, [("001.Auk/0.jpg", "train", "001.Auk"), ("001.Auk/2.jpg", "train", "001.Auk"),
                ("002.Owl/0.jpg", "train", "002.Owl"), ("001.Auk/1.jpg", "test", "001.Auk"),
                ("002.Owl/1.jpg", "test", "002.Owl"), ("002.Owl/2.jpg", "test", "002.Owl")], (295, 256)  # fmt: skip


def put_textures(folder):
    for number in (3, 110):
        put(folder / f"dtd/images/banded/banded_{number:04}.jpg", photograph(640, 300))
    return (
        {"banded": {"test": "110", "train": "3"}},
        [(f"{split}/banded/banded_{n}.jpg", split, "banded") for split, n in (("test", "0110"), ("train", "0003"))],
        (529, 248),
    )


def put_signs(folder):
    for frame in (0, 23):
        put(folder / f"GTSRB/Final_Training/Images/00007/00004_{frame:05}.ppm", picture((50, 41), "PPM"))
    return (
        {"07": {"test": "4_23", "train": "4_0"}},
        [("test/07/00004_00023.jpg", "test", "07"), ("train/07/00004_00000.jpg", "train", "07")],
        (32, 32),
    )


PIXELS = np.random.default_rng(0).integers(0, 256, (2, 5, 7), np.uint8)


def put_digits(folder, label=4):
    for part, rows in (("train", slice(0, 1)), ("t10k", slice(1, 2))):
        head = struct.pack(">IIII", 0x803, 1, 5, 7)
        put(folder / f"{part}-images-idx3-ubyte.gz", gzip.compress(head + PIXELS[rows].tobytes()))
        put(folder / f"{part}-labels-idx1-ubyte", struct.pack(">II", 0x801, 1) + bytes([label]))
    return (
        {"4": {"test": "60000", "train": "0"}},
        [("test/4/60000.png", "test", "4"), ("train/4/0.png", "train", "4")],
        (7, 5),
    )


def put_clothes(folder):
    for name in (
        "train/hat/aa1.jpg",
        "train/hat/ab2.jpg",
        "train/hat/ac3.jpg",
        "validation/hat/9.jpg",
        "test/hat/8.jpg",
    ):
        put(folder / name, photograph(200, 100))
    put(folder / "train/hat/note.txt", b"no image")
    names = ("train/hat/ac3.jpg", "train/hat/aa1.jpg", "validation/hat/9.jpg", "test/hat/8.jpg")
    return {"hat": {"train": "ac aa"}}, [(name, name.split("/")[0], "hat") for name in names], (200, 100)


def put_sample(folder):
    for name in ("n02_owl", "n01_auk"):
        put(folder / f"{name}.JPEG", photograph(496, 744))
    return {}, [(f"{name}.JPEG", "sanity", name) for name in ("n01_auk", "n02_owl")], (248, 372)


PUT = {
    "cub50": put_birds,
    "textures10": put_textures,
    "gtsrb43": put_signs,
    "mnist10": put_digits,
    "clothing10": put_clothes,
    "imagenet_sample1000": put_sample,
}


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_recipe_takes_archive_images_in_order(name, tmp_path):
    chosen, expected, size = PUT[name](tmp_path)
    images = [*recipes.RECIPES[name].make(tmp_path, chosen)]
    assert [(image.name, image.split, image.label) for image in images] == expected
    for image in images:
        opened = Image.open(io.BytesIO(image.content))
        assert (opened.size, opened.format) == (size, "PNG" if name == "mnist10" else "JPEG")


def test_digits_refuse_another_row(tmp_path):
    chosen, *_ = put_digits(tmp_path)
    stored = [np.asarray(Image.open(io.BytesIO(image.content))) for image in recipes.handwriting(tmp_path, chosen)]
    np.testing.assert_array_equal(stored, PIXELS[::-1])
    put_digits(tmp_path, label=5)
    with pytest.raises(InputError, match="row 60000 of MNIST must be the digit 4; it is another"):
        [*recipes.handwriting(tmp_path, chosen)]


def test_a_file_that_the_archive_lacks_is_named(tmp_path):
    put_textures(tmp_path)
    with pytest.raises(InputError, match=r"the archive must have the file banded_0007\.jpg; there is none at"):
        [*recipes.textures(tmp_path, {"banded": {"test": "7"}})]


def recipe_of(content, **changed):
    """A recipe whose prints are those of a zip, but for some."""
    prints, _ = recipes.prints_of(content, "zip", pixels=True)
    return recipes.Recipe("the archive", recipes.handwriting, prints._replace(**changed))


def test_zip_shares_images_or_is_refused(tmp_path):
    chosen, *_ = put_digits(tmp_path)
    images = [*recipes.handwriting(tmp_path, chosen)]
    content = recipes.as_zip(images)
    assert recipes.agreement(recipe_of(content), content, tmp_path) == ("bytes", {"test": 1, "train": 1})
    out = io.BytesIO()
    Image.open(io.BytesIO(images[0].content)).save(out, "PNG", optimize=True, compress_level=1)
    assert out.getvalue() != images[0].content
    encoded_otherwise = recipes.as_zip([images[0]._replace(content=out.getvalue()), images[1]])
    assert recipes.agreement(recipe_of(content), encoded_otherwise, tmp_path)[0] == "pixels"
    exchanged = recipes.as_zip([images[0]._replace(content=images[1].content), images[1]])
    assert recipes.agreement(recipe_of(content), exchanged, tmp_path)[0] == "names"
    assert recipes.agreement(recipe_of(content, pixels=""), encoded_otherwise, tmp_path)[0] == "names"
    for other in (images[::-1][:1], [images[0]._replace(split="train"), images[1]]):
        with pytest.raises(InputError, match="must have the classes, splits and images of the tables; it has"):
            recipes.agreement(recipe_of(content), recipes.as_zip(other), tmp_path)
    with pytest.raises(InputError, match="a zip of images with their manifest"):
        recipes.agreement(recipe_of(content), content[:40], tmp_path)


def test_zips_match_their_fingerprints(shared):
    for name, recipe in recipes.RECIPES.items():
        path = shared / f"data/{name}.zip"
        same, counts = recipes.agreement(recipe, path.read_bytes(), path)
        assert same == "bytes"
        chosen = [(label, split) for label, split, _ in recipes.listed(recipes.chosen_of(name))]
        if name in ("mnist10", "gtsrb43", "textures10"):
            assert {split: sum(own == split for _, own in chosen) for split in counts} == counts


def test_the_command_says_what_to_unpack(tmp_path):
    _, said = run("data", "mnist10", f"--to={tmp_path}/none.zip", code=1)
    assert said.strip().splitlines()[-1].startswith("data: --source=FOLDER must be given, or --to a zip to check")
