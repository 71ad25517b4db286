"""A refusal of an opening says what the reader left out, in every reader.

`hat` has a test image and no training image, so that each opening is refused; the things left out are drawn.
"""

import tempfile
from pathlib import Path

import pytest
from data.layouts import ROWS, TABLES, Row, refused
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
    "train/hat/.1.jpg.icloud": "no images by their names (.icloud)",
    "train/hat/a.zip": "no images by their names (.zip)",
    "train/hat/.hidden.png": "hidden, or added by the system",
    "train/stray.png": "in no class folder of a split",
}
"""Files that are left out of a folder, and why."""


def from_folder(root, names):
    write(root, *USED, *names)
    return f"folder:{root}"


def from_zip(root, names):
    return f"folder:{as_zip(root / 'set.zip', {name: picture() for name in [*USED, *names]})}"


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


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_refusal_counts_rows_without_a_label(tmp_path, name, count):
    """hat has no training image."""
    rows = [*ROWS, Row("test", "hat", picture()), *(Row("train", None, picture()) for _ in range(count))]
    left_out = f"; left out {count} rows? of train: without a label" if count else "every split$"
    refused(TABLES[name](tmp_path, rows), f"none of hat. .*{left_out}")


@pytest.mark.parametrize(
    ("reader", "name"), [("hf", "train.parquet"), ("hf", "train.arrow"), ("wds", "train.tar"), ("csv", "l.csv")]
)
def test_a_pointer_of_git_lfs_is_named(tmp_path, reader, name):
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(f"{reader}:{tmp_path / name}", "a pointer of Git LFS .* git lfs pull")
