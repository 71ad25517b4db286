"""Groups of images: a pattern of their names, or a column; they decide what is held out, and nothing else."""

import pytest
from data.layouts import FORMATS, NAMED, ROWS, refused
from data.tiny_tfds import place
from photos import write

from tangent_jax.core.identities import identity
from tangent_jax.data.registry import open_dataset

TRACKS = [f"{split}/{c}/{t}_{f}.png" for split in ("train", "test") for c in "ab" for t in range(3) for f in range(2)]
LINES = [f"{i}.png,{'xy'[i % 2]},p{i // 4},{'test' if i > 7 else 'train'}" for i in range(10)]


def listing(root, rows=LINES):
    """The specification of a CSV with a column of patients."""
    write(root, *(row.split(",")[0] for row in rows))
    (root / "l.csv").write_text("\n".join(["path,label,patient,split", *rows]))
    return f"csv:{root / 'l.csv'}"


@pytest.mark.parametrize("name", FORMATS)
def test_groups_change_nothing_else(tmp_path, name):
    spec = FORMATS[name](tmp_path, ROWS)
    question = "([^/]+)_[0-9]+[.]png" if name in NAMED else "who"
    plain, dataset = open_dataset(spec), open_dataset(f"{spec}?group={question}")
    group_of = {row.image: row.group for row in ROWS}
    assert dataset.train.groups == tuple(group_of[dataset.train.read(i)] for i in range(len(dataset.train)))
    assert dataset.test.groups is None
    for split, part in plain.splits.items():
        assert dataset.splits[split].names == part.names
        assert dataset.splits[split].identifiers() == part.identifiers()


@pytest.mark.parametrize("kind", ["folder", "places"])
@pytest.mark.parametrize("pattern", ["[^/]+/[0-9]+_", r"([ab]/\d+)_\d+\.png$", "(?:a|b)/.+?_"])
def test_pattern_groups_training_images(tmp_path, kind, pattern):
    write(tmp_path / "set", *TRACKS)
    spec = f"folder:{tmp_path / 'set'}"
    if kind == "places":
        spec = f"folder:?train={tmp_path}/set/train&test={tmp_path}/set/test"
    plain = open_dataset(spec)
    dataset = open_dataset(f"{spec}{'&' if '?' in spec else '?'}group={pattern}")
    assert dataset.train.groups is not None
    assert [name.rpartition("_")[0].removeprefix("train/") for name in dataset.train.names] == [
        group.rstrip("_") for group in dataset.train.groups
    ]
    assert (plain.train.groups, dataset.test.groups) == (None, None)
    for split, part in plain.splits.items():
        assert dataset.splits[split].names == part.names
        assert dataset.splits[split].identifiers() == part.identifiers()
    assert dataset.name == plain.name
    assert identity(dataset.identity()[:2]) == identity(plain.identity())
    assert identity(dataset.identity()) != identity(plain.identity())  # runs that hold out are others
    assert dataset.remarks == (*plain.remarks, "6 groups of 12 training images are held out whole")


def test_pattern_without_match_is_refused(tmp_path):
    write(tmp_path, *TRACKS, "train/a/alone.png")
    spec = f"folder:{tmp_path}"
    refused(
        f"{spec}?group=[0-9]+_", "a group; it gives none to 1 of 13, such as train/a/alone.png. Correct the column or"
    )
    refused(f"{spec}?group=([0-9]*)", "gives none to 13 of 13")
    refused(f"{spec}?group=(_", r"\?group must be a regular expression; got \(_: ")
    refused(f"{spec}?group=", r"or PATH\?group=PATTERN")
    refused(f"{spec}?group=a&group=b", "each once")
    refused(f"{spec}?folders=leaves&train=a", "choices about folders must be")
    assert open_dataset(f"{spec}?group=_|alone").train.groups.count("alone") == 1


def test_groups_in_test_are_said(tmp_path):
    write(tmp_path, *(f"{c}/{t}_{f}.png" for c in "ab" for t in range(2) for f in range(20)))
    dataset = open_dataset(f"folder:{tmp_path}?group=[ab]/[0-9]+")
    assert "4 groups of train are in test too: its accuracy counts them" in dataset.remarks
    assert {*dataset.train.groups} == {"a/0", "a/1", "b/0", "b/1"}


def test_csv_column_groups_training_rows(tmp_path):
    spec = listing(tmp_path)
    dataset = open_dataset(f"{spec}?group=patient")
    assert dataset.train.groups == ("p0",) * 4 + ("p1",) * 4
    assert (dataset.test.groups, dataset.train.take([5, 0]).groups) == (None, ("p1", "p0"))
    assert dataset.train.identifiers() == open_dataset(spec).train.identifiers()
    refused(f"{spec}?group=customer", r"must name one column customer; .* Write \?group=COLUMN")
    refused(f"{listing(tmp_path, [*LINES[:7], '7.png,x,,train', *LINES[8:]])}?group=patient", "1 of 8, such as 7.png")
    assert open_dataset(f"{listing(tmp_path, [*LINES, '10.png,,,train', '11.png,x,,test'])}?group=patient").train.groups


def test_tfds_feature_groups_training_images(tmp_path):
    place(tmp_path, "tiny/1.0.0")
    spec = f"tfds:tiny@{tmp_path}"
    assert open_dataset(f"{spec}?group=number").train.groups == tuple(5 * y for y in open_dataset(spec).train.labels)
    refused(f"{spec}?group=tags", "the group column must hold one number, text or Boolean; tags of .* holds Sequence")
