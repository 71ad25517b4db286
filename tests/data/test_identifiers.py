"""The index of content identifiers: nothing is read twice for its name, and a wrong index names no image."""

import os
import pickle
import sqlite3
import stat

import pytest
from data.layouts import FEATURES, IMAGE, as_parquet, as_tar
from photos import as_zip, picture, write

from tangent_jax.core.checks import InputError
from tangent_jax.data import folders, identifiers, sources, tars
from tangent_jax.data.registry import open_dataset

NAMES = [f"{split}/{c}/{i}.png" for split in ("train", "test") for c in "ab" for i in range(3)]


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index of the test's own, that keeps files of this moment too."""
    monkeypatch.setattr(identifiers, "INDEX", str(tmp_path / "cache/index.sqlite"))
    monkeypatch.setattr(identifiers, "TICK", -1)
    return tmp_path / "cache/index.sqlite"


@pytest.fixture
def reads(monkeypatch):
    """The names of files that are read, in order."""
    names, read = [], folders.read_file
    monkeypatch.setattr(folders, "read_file", lambda root, name: names.append(name) or read(root, name))
    return names


def every(dataset):
    return {split: part.identifiers() for split, part in dataset.splits.items()}


def test_image_is_identified_once(tmp_path, index, reads):
    write(tmp_path / "d", *NAMES)
    first = every(open_dataset(f"folder:{tmp_path}/d"))
    assert sorted(reads) == sorted(NAMES)
    reads.clear()
    assert every(open_dataset(f"folder:{tmp_path}/d")) == first
    assert not reads
    (tmp_path / "d/test/a/1.png").write_bytes(picture())
    write(tmp_path / "d", "train/a/9.png")
    second = every(open_dataset(f"folder:{tmp_path}/d"))
    assert sorted(reads) == ["test/a/1.png", "train/a/9.png"]
    index.unlink()
    assert every(open_dataset(f"folder:{tmp_path}/d")) == second


def test_index_in_other_folder_is_reached(tmp_path, index, reads):
    write(tmp_path / "d", *NAMES)
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    with identifiers.index_in(folder):
        dataset = open_dataset(f"folder:{tmp_path}/d")
        every(dataset)
        reads.clear()
        every(open_dataset(f"folder:{tmp_path}/d"))
    assert not reads
    assert not index.exists()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "index.sqlite").stat().st_mode) == 0o600
    gone = dataset.train.identifiers()[0]
    assert gone.encode() in (folder / "index.sqlite").read_bytes()
    identifiers.forget(identifiers.index_path(folder), {gone}.__contains__, set())
    assert gone.encode() not in (folder / "index.sqlite").read_bytes()


@pytest.mark.parametrize("how", ["in place", "by another"])
def test_replaced_file_is_read_again(tmp_path, index, reads, how):
    """os.utime sets the time of the last write back, and not that of the last change."""
    write(tmp_path / "d", *NAMES)
    path = tmp_path / "d/test/a/1.png"
    first, state = every(open_dataset(f"folder:{tmp_path}/d")), path.stat()
    content = path.read_bytes()[:-1] + b"x"
    if how == "in place":
        with path.open("r+b") as file:
            file.write(content)
    else:
        (tmp_path / "new").write_bytes(content)
        os.replace(tmp_path / "new", path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    reads.clear()
    assert every(open_dataset(f"folder:{tmp_path}/d")) != first
    assert reads == ["test/a/1.png"]


def test_a_file_of_this_moment_is_not_kept(tmp_path, index, monkeypatch):
    monkeypatch.setattr(identifiers, "TICK", 2)
    write(tmp_path, "a.png")
    assert identifiers.file_state(tmp_path / "a.png") is None
    later = (tmp_path / "a.png").stat().st_ctime_ns + 3 * 10**9
    monkeypatch.setattr(identifiers.time, "time_ns", lambda: later)
    assert identifiers.file_state(tmp_path / "a.png")


def test_changed_image_is_not_decoded(tmp_path, index):
    """Altered between the two, or identified by an index that is wrong."""
    write(tmp_path / "d", *NAMES)
    part = open_dataset(f"folder:{tmp_path}/d").train
    read = part.read_identified()
    assert read(1) == (tmp_path / "d/train/a/1.png").read_bytes()
    (tmp_path / "d/train/a/1.png").write_bytes(picture())
    with pytest.raises(InputError, match=r"the image train/a/1.png must be as it was identified; it was altered"):
        read(1)
    every(open_dataset(f"folder:{tmp_path}/d"))
    with sqlite3.connect(index) as database:
        database.execute("update texts set text = ?", ("0" * 64,))
    wrong = open_dataset(f"folder:{tmp_path}/d").train
    with pytest.raises(InputError, match=r"if it stays, delete .*index\.sqlite"):
        wrong.read_identified()(0)


@pytest.mark.parametrize("how", ["no database", "another table", "folder", "read-only", "no home"])
def test_broken_index_reads_images(tmp_path, index, reads, monkeypatch, how):
    write(tmp_path / "d", *NAMES)
    index.parent.mkdir()
    if how == "no database":
        index.write_bytes(b"x" * 5000)
    elif how == "another table":
        with sqlite3.connect(index) as database:
            database.execute("create table texts (a)")
    elif how == "folder":
        index.mkdir()
    elif how == "read-only":
        monkeypatch.setattr(identifiers, "INDEX", "/proc/tangent_jax/index.sqlite")
    else:
        monkeypatch.setattr(identifiers, "INDEX", "~nobody_of_this_name/index.sqlite")
    first = every(open_dataset(f"folder:{tmp_path}/d"))
    assert every(open_dataset(f"folder:{tmp_path}/d")) == first
    assert len(reads) == 2 * len(NAMES)


def test_identify_and_decode_read_once(tmp_path, reads):
    """Also where the splits are made by content. Nothing is held that was decoded, or in another process."""
    write(tmp_path, *(f"{c}/{i}.png" for c in "ab" for i in range(40)))
    dataset = open_dataset(f"folder:{tmp_path}")
    assert not pickle.loads(pickle.dumps(dataset.train.held))
    for part in dataset.splits.values():
        read = part.read_identified()
        assert tuple(identifiers.content_identifier(read(i)) for i in range(len(part))) == part.identifiers()
    assert sorted(reads) == sorted(f"{c}/{i}.png" for c in "ab" for i in range(40))
    assert not dataset.train.held
    assert dataset.train.held.room == sources.MOST_HELD


def test_only_so_many_bytes_are_held(tmp_path, reads, monkeypatch):
    monkeypatch.setattr(sources.Held, "room", 1000)
    write(tmp_path, *NAMES)
    part = open_dataset(f"folder:{tmp_path}").train
    part.identifiers()
    assert 1 <= len(part.held) < len(part)
    assert sum(map(len, part.held.values())) <= 1000
    assert [part.read_identified()(i) for i in range(len(part))] == [(tmp_path / n).read_bytes() for n in part.names]


def test_zips_and_rows_are_known_by_their_file(tmp_path, index, monkeypatch):
    as_zip(tmp_path / "z.zip", {name: picture() for name in NAMES})
    columns = {"image": [picture() for _ in range(4)], "label": [0, 1, 0, 1]}
    for split in ("train", "test"):
        as_parquet(tmp_path / f"hub/{split}.parquet", columns)
    for spec in (f"folder:{tmp_path}/z.zip", f"hf:{tmp_path}/hub"):
        first = every(open_dataset(spec))
        again = open_dataset(spec)
        for part in again.splits.values():
            vars(part)["read"] = None
        assert every(again) == first


def test_tar_headers_are_read_once(tmp_path, index, monkeypatch):
    def write_tar(labels):
        members = [m for i, y in enumerate(labels) for m in ((f"{i}.png", picture()), (f"{i}.cls", b"%d" % y))]
        return as_tar(tmp_path / "d/train.tar", members)

    write_tar([0, 1, 0])
    as_tar(tmp_path / "d/test.tar", [("0.png", picture()), ("0.cls", b"1")])
    calls, read = [], tars.read_headers
    monkeypatch.setattr(tars, "read_headers", lambda file: calls.append(file.name) or read(file))
    first = open_dataset(f"wds:{tmp_path}/d")
    second = open_dataset(f"wds:{tmp_path}/d")
    assert calls == ["test.tar", "train.tar"]
    assert [second.train.read(i) for i in range(3)] == [first.train.read(i) for i in range(3)]
    assert second.train.labels.tolist() == [0, 1, 0]
    write_tar([1, 0, 1])
    assert open_dataset(f"wds:{tmp_path}/d").train.labels.tolist() == [1, 0, 1]
    assert calls[2:] == ["train.tar"]
    with sqlite3.connect(index) as database:
        database.execute("update texts set text = '[[1, 2]]'")
    assert open_dataset(f"wds:{tmp_path}/d").train.labels.tolist() == [1, 0, 1]


def identified(spec):
    return sorted(name for names in every(open_dataset(spec)).values() for name in names)


def test_index_holds_place_not_name(tmp_path, index):
    """Two columns of images have the same names; a row that goes renames those after it, in other files too."""
    features = {"front": IMAGE, "back": IMAGE, "label": FEATURES["label"]}
    rows = {"front": [picture() for _ in range(10)], "back": [picture() for _ in range(10)], "label": [0, 1] * 5}
    files = {"train-00000-of-00002": slice(0, 4), "train-00001-of-00002": slice(4, 8), "test": slice(8, 10)}
    for name, part in files.items():
        columns = {column: values[part] for column, values in rows.items()}
        as_parquet(tmp_path / f"d/{name}.parquet", columns, features)
    for _ in range(2):  # by reading, and from the index
        for column in ("front", "back"):
            wanted = sorted(map(sources.content_identifier, rows[column]))
            assert identified(f"hf:{tmp_path}/d?image={column}") == wanted
    fewer = {name: values[1:4] for name, values in rows.items()}
    as_parquet(tmp_path / "d/train-00000-of-00002.parquet", fewer, features)
    assert identified(f"hf:{tmp_path}/d?image=front") == sorted(map(sources.content_identifier, rows["front"][1:]))


def test_sample_images_have_own_identifiers(tmp_path, index):
    pictures = {(key, kind): picture() for key in range(6) for kind in ("rgb.png", "depth.png")}
    for split, keys in (("train", range(4)), ("test", range(4, 6))):
        members = [(f"{key}.{kind}", content) for (key, kind), content in pictures.items() if key in keys]
        as_tar(tmp_path / f"{split}.tar", [*members, *((f"{key}.cls", b"%d" % (key % 2)) for key in keys)])
    for kind in ("rgb.png", "depth.png"):
        wanted = sorted(sources.content_identifier(pictures[key, kind]) for key in range(6))
        assert identified(f"wds:{tmp_path}?image={kind}") == wanted


def test_failing_index_still_leaves_images_out(tmp_path, index):
    write(tmp_path / "d", *NAMES)
    index.parent.mkdir()
    index.write_bytes(b"x" * 5000)
    part = open_dataset(f"folder:{tmp_path}/d").train
    assert len(part.without({part.identifiers()[0]})) == len(part) - 1
