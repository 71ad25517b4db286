"""A refusal of an opening says what the reader left out, in every reader.

`hat` has a test image and no training image, so that each opening is refused; the things left out are drawn.
"""

import tempfile
from pathlib import Path

import pytest
from data.layouts import as_parquet, as_tar, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from photos import as_zip, picture, write

from tangent_jax.core.checks import InputError
from tangent_jax.data.left_out import MOST_SAID
from tangent_jax.data.registry import open_dataset

CLASSES = ("cat", "dog", "hat")
USED = [f"train/{name}/1.png" for name in CLASSES[:2]] + [f"test/{name}/1.png" for name in CLASSES]
FILES = {
    "train/hat/a.cr2": "no images by their names (.cr2)",
    "train/hat/.1.jpg.icloud": "placeholders of iCloud",
    "train/hat/a.zip": "archives to be unpacked (.zip)",
    "train/hat/.hidden.png": "hidden",
    "train/@eaDir/hat/1.png": "added by Synology",
    "train/stray.png": "in no class folder of a split",
}
"""Files that are left out of a folder, and why."""


def from_folder(root, names):
    write(root, *USED, *names)
    return f"folder:{root}"


def from_zip(root, names):
    return f"folder:{as_zip(root / 'set.zip', {name: picture() for name in [*USED, *names]})}"


def from_csv(root, count):
    names = [(name, name.split("/")[1], name.split("/")[0]) for name in USED]
    names += [(f"{i}.png", "", "train") for i in range(count)]
    write(root, *(name for name, _, _ in names))
    (root / "set.csv").write_text("\n".join(["path,label,split", *map(",".join, names), ""]))
    return f"csv:{root / 'set.csv'}"


def from_parquet(root, count):
    for split, labels in {"train": [0, 1, *[-1] * count], "test": [0, 1, 2]}.items():
        features = {"image": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}
        columns = {"image": [picture() for _ in labels], "label": labels}
        as_parquet(root / f"{split}-00000-of-00001.parquet", columns, features)
    return f"hf:{root}"


def from_tars(root, count):
    for split, labels in {"train": [b"cat", b"dog", *[b""] * count], "test": [b"cat", b"dog", b"hat"]}.items():
        members = []
        for i, label in enumerate(labels):
            members += [(f"{i}.png", picture())] if label else []
            members += [(f"{i}.cls", label or b"hat")]
        as_tar(root / f"{split}-000000.tar", members)
    return f"wds:{root}"


ROWS = {"csv": (from_csv, "without a label"), "hf": (from_parquet, "without a label"),
        "wds": (from_tars, "without an image")}  # fmt: skip
"""The specification of a table with some rows that are left out, and why, by reader; add a reader here."""


def refusal_of(spec):
    """The words of the refusal of a specification."""
    with pytest.raises(InputError) as error:
        open_dataset(spec)
    return str(error.value)


@pytest.mark.parametrize("reader", [from_folder, from_zip])
@settings(max_examples=15, deadline=None)
@given(names=st.sets(st.sampled_from([*FILES])))
def test_a_refusal_says_which_files_were_left_out(reader, names):
    with tempfile.TemporaryDirectory() as folder:
        said = refusal_of(reader(Path(folder) / "set", sorted(names)) if reader is from_folder else
                          reader(Path(folder), sorted(names)))  # fmt: skip
    assert sum(FILES[name] in said for name in names) == min(len(names), MOST_SAID)
    assert (f"and {len(names) - MOST_SAID} more kinds" in said) == (len(names) > MOST_SAID)
    # the class that is refused comes first
    own = [FILES[name] for name in names if name in [*FILES][:3]]
    assert all(words in said for words in own)


@pytest.mark.parametrize("reader", ROWS)
@settings(max_examples=5, deadline=None)
@given(count=st.integers(0, 3))
def test_a_refusal_says_which_rows_were_left_out(reader, count):
    make, why = ROWS[reader]
    with tempfile.TemporaryDirectory() as folder:
        said = refusal_of(make(Path(folder), count))
    assert (f"left out {count} " in said and why in said) == (count > 0)


@pytest.mark.parametrize(
    ("reader", "name"), [("hf", "train.parquet"), ("hf", "train.arrow"), ("wds", "train.tar"), ("csv", "l.csv")]
)
def test_a_pointer_of_git_lfs_is_named(tmp_path, reader, name):
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(f"{reader}:{tmp_path / name}", "a pointer of Git LFS .* git lfs pull")
