"""The same rows in every format are the same data set; a new format is tested by its entry in `FORMATS`."""

import pickle

import pytest
from data.layouts import FORMATS, ROWS, contents, of_split

from tangent_jax.data.identifiers import content_identifier
from tangent_jax.data.registry import READERS, open_dataset


def test_every_format_is_tested(tmp_path):
    kinds = {write(tmp_path, ROWS).partition(":")[0] for write in FORMATS.values()}
    assert kinds == READERS.keys() - {"digits", "tfds"}  # of these test_sources.py and test_tfds.py


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_rows_are_the_same_data_set(tmp_path, name):
    dataset = open_dataset(FORMATS[name](tmp_path, ROWS))
    assert contents(dataset) == {split: of_split(ROWS, split) for split in ("train", "test")}
    assert (dataset.classes, dataset.remarks, dataset.is_divided) == (("cat", "dog"), (), False)
    for part in dataset.splits.values():
        read = pickle.loads(pickle.dumps(part.read))  # as for processes that decode
        assert [read(i) for i in range(len(part))] == [part.read(i) for i in range(len(part))]
        assert part.identifiers() == tuple(content_identifier(part.read(i)) for i in range(len(part)))
        assert len({part.where(i) for i in range(len(part))}) == len({*part.names}) == len(part)
        assert all(part.where(i)[0].is_file() for i in range(len(part)))
