"""Data sets at s3:// are those of the same files on disk: classes, names, labels, bytes; what goes wrong is told."""

import pickle

import pytest
from data.layouts import FORMATS, ROWS, as_saved, contents, refused
from photos import photographs, picture

from tangent_jax.core.checks import InputError
from tangent_jax.data.identifiers import index_in
from tangent_jax.data.registry import open_dataset

IMAGES = [picture() for _ in range(2)]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "arrow"])
def test_files_at_a_url_are_those_on_disk(s3, tmp_path, name):
    """Their index of content identifiers, too: with it no image is read again."""
    root = tmp_path / "z"
    root.mkdir()
    spec = FORMATS[name](root, ROWS)
    url = spec.replace(str(root), s3.put(root))
    with index_in(tmp_path):
        here, there = open_dataset(spec), open_dataset(url)
        assert contents(here) == contents(there)
        for split, part in here.splits.items():
            other = there.splits[split]
            assert (part.names, part.identifiers()) == (other.names, other.identifiers())
            read = pickle.loads(pickle.dumps(other.read))
            assert [read(i) for i in range(len(part))] == [part.read(i) for i in range(len(part))]
        again = open_dataset(url).train
        vars(again)["read"] = None
        assert again.identifiers() == here.train.identifiers()


def test_tar_pattern_at_url_equals_disk(s3, tmp_path):
    spec = FORMATS["tars"](tmp_path, ROWS)
    pattern = "/{train-00000{0..0},test-*}.tar"
    here, there = open_dataset(spec + pattern), open_dataset(f"wds:{s3.put(tmp_path)}{pattern}")
    assert contents(here) == contents(there) == contents(open_dataset(spec))


def test_table_at_url_reads_images_in_folder(s3, tmp_path):
    (tmp_path / "z/images").mkdir(parents=True)
    (tmp_path / "z/images/a.png").write_bytes(IMAGES[0])
    (tmp_path / "z/images/b.png").write_bytes(IMAGES[1])
    (tmp_path / "z/t.csv").write_text("path,label,split\na.png,x,train\nb.png,y,train\na.png,x,test\n")
    spec = f"csv:{s3.put(tmp_path / 'z')}/t.csv"
    assert open_dataset(f"{spec}?folder=images").train.names == ("images/a.png", "images/b.png")
    assert open_dataset(spec).train.names == ("images/a.png", "images/b.png")
    refused(f"{spec}?folder=other", "there is no other")


def test_replaced_image_is_refused(s3, tmp_path):
    photographs(tmp_path / "z", 2)
    url = s3.put(tmp_path / "z")
    train = open_dataset(f"folder:{url}").train
    read = train.read_identified()
    train.held.clear()
    s3.fs.pipe_file(f"{url}/{train.names[0]}", IMAGES[0])
    s3.fs.rm_file(f"{url}/{train.names[1]}")
    with pytest.raises(InputError, match=f"{train.names[0]} must stay as it was listed; it was replaced since"):
        read(0)
    with pytest.raises(InputError, match=f"{train.names[1]} must be reachable; got FileNotFoundError"):
        read(1)


def test_what_is_no_data_set_at_a_url_is_one_line(s3, tmp_path):
    (tmp_path / "z").mkdir()
    as_saved(tmp_path / "z/train", {"image": IMAGES, "label": [0, 1]})
    url = s3.put(tmp_path / "z")
    refused(f"hf:{url}", "files at a URL must be parquet")
    refused("folder:s3://bucket/nothing", "s3://bucket/nothing must be a file or folder; it does not")
    refused("folder:s3://none/nothing", "s3://none/nothing must be a file or folder; it does not")
    refused("wds:s3://bucket/nothing/{0..1}.tar", "2 are not, such as")
    refused("csv:s3://bucket/nothing.csv", "does not exist")
    refused("folder:memory://data/x", "a URL must begin with s3://")
    s3.fs.pipe_file(f"{url}/t.tar", b"version https://git-lfs.github.com/spec/v1")
    refused(f"wds:{url}/t.tar", "it is a pointer of Git LFS")
    s3.fs.pipe_file(f"{url}/t.zip", b"PK")
    refused(f"folder:{url}/t.zip", "is neither")
