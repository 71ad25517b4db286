"""TFDS: names, configurations and versions mean what tfds.load makes of them; features are chosen."""

import json
import sys

from data.layouts import refused
from data.tiny_tfds import picture, place

from tangent_jax.data.identifiers import content_identifier
from tangent_jax.data.registry import open_dataset


def test_tfds_reads_without_tensorflow(tmp_path):
    place(tmp_path, "tiny/1.0.0")
    dataset = open_dataset(f"tfds:tiny@{tmp_path}")
    assert (dataset.classes, len(dataset.train), len(dataset.test)) == (("cat", "dog", "hen"), 4, 2)
    assert dataset.train.names[0] == "train/0"
    assert dataset.remarks == ("1 of 3 classes have no image here, and keep their places: hen",)
    assert "tensorflow" not in sys.modules


def test_images_are_bytes_of_prepared_files(tmp_path):
    place(tmp_path, "tiny/1.0.0")
    train = open_dataset(f"tfds:tiny@{tmp_path}").train
    found = {train.read(i): label for i, label in enumerate(train.labels)}
    assert found == {picture(i): i % 2 for i in range(4)}
    assert sorted(train.identifiers()) == sorted(content_identifier(picture(i)) for i in range(4))


def test_images_of_floats_are_refused(tmp_path):
    path = place(tmp_path, "tiny/1.0.0") / "features.json"
    path.write_text(path.read_text().replace('"uint8"', '"float32"').replace('"3"', '"1"'))
    refused(f"tfds:tiny@{tmp_path}", r"its columns are .*image \(Image of float32, whose range is not stated\)")


def test_a_label_is_chosen_by_its_feature(tmp_path):
    place(tmp_path, "tiny/1.0.0")
    spec = f"tfds:tiny@{tmp_path}"
    plain = open_dataset(spec)
    kind = open_dataset(f"{spec}?label=kind")
    assert (kind.classes, kind.train.labels.tolist()) == (("0", "1"), [1 - y for y in plain.train.labels])
    assert open_dataset(f"{spec}?label=number").classes == ("0", "5")
    refused(f"{spec}?label=tags", "label column must hold one class .*; tags of .* holds Sequence")
    refused(f"{spec}?label=none", r"label=none must name a column of .*; its columns are .*tags \(Sequence\)")
    stated = {"supervisedKeys": {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "kind"}]}}}
    place(tmp_path, "stated/1.0.0", **stated)
    assert open_dataset(f"tfds:stated@{tmp_path}").classes == ("0", "1")


def test_versions_are_compared_by_their_numbers(tmp_path):
    for version in ("1.0.0", "1.10.0", "2.0.0", "10.0.0"):
        place(tmp_path, f"tiny/{version}", splits=json.loads(splits(version)))
    for name, version in (("tiny", "10.0.0"), ("tiny:1.*.*", "1.10.0"), ("tiny:2.0.0", "2.0.0"), ("Tiny", "10.0.0")):
        assert len(open_dataset(f"tfds:{name}@{tmp_path}").train) == ROWS[version]
    assert (
        "read the highest of the versions 1.0.0, 1.10.0 of tiny" in open_dataset(f"tfds:tiny:1.*.*@{tmp_path}").remarks
    )
    refused(f"tfds:tiny:3.*.*@{tmp_path}", r"tiny:3.*.* must be prepared in .*; tiny/1.0.0, tiny/1.10.0, .* is there")
    refused(f"tfds:tiny:1@{tmp_path}", "a TFDS name is NAME, NAME/CONFIG or NAME/CONFIG:VERSION.*; got tiny:1")


ROWS = {"1.0.0": 2, "1.10.0": 3, "2.0.0": 4, "10.0.0": 4}


def splits(version):
    """The splits of a dataset_info.json; a version is told by the number of its training rows."""
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    rows = {"train": ROWS[version], "test": 2}
    return json.dumps([{"name": n, "shardLengths": [str(k)], "filepathTemplate": template} for n, k in rows.items()])


def test_configuration_is_named_or_default(tmp_path):
    for config in ("160px", "full"):
        place(tmp_path, f"tiny/{config}/1.0.0", configName=config)
    assert open_dataset(f"tfds:tiny/160px@{tmp_path}").name == "tiny/160px"
    refused(
        f"tfds:tiny@{tmp_path}", "tiny must be prepared in .*; tiny/160px/1.0.0, tiny/full/1.0.0 is there. Name one"
    )
    refused(f"tfds:tiny/big@{tmp_path}", "tiny/big must be prepared in .*; tiny/160px/1.0.0, tiny/full/1.0.0 is there")
    (tmp_path / "tiny/.config").mkdir()
    (tmp_path / "tiny/.config/metadata.json").write_text('{"default_config_name": "full"}')
    dataset = open_dataset(f"tfds:tiny@{tmp_path}")
    assert "read the configuration full, the default of tiny, of 160px, full" in dataset.remarks


def test_other_format_names_its_command(tmp_path):
    folder = place(tmp_path, "tiny/1.0.0", fileFormat="tfrecord")
    refused(f"tfds:tiny@{tmp_path}", f"is tfrecord, which only TensorFlow reads.*--dataset_version_dir={folder}")
    place(tmp_path, "both/1.0.0", fileFormat="tfrecord", alternativeFileFormats=["array_record"], name="tiny")
    assert len(open_dataset(f"tfds:both@{tmp_path}").train) == 4
    place(tmp_path, "old/1.0.0", fileFormat=None)
    refused(f"tfds:old@{tmp_path}", "is tfrecord, which only TensorFlow reads")


def test_unprepared_set_says_how(tmp_path):
    (tmp_path / "stanford_dogs").mkdir()
    for folder in ("/nowhere", tmp_path):
        refused(f"tfds:stanford_dogs@{folder}", r"; none is there. .*: tfds build \w+ --file_format=array_record")
