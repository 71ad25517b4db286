"""Tensors in one file: texts that do not fit its header."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save

from tangent_jax.core.checks import InputError
from tangent_jax.io import tensors
from tangent_jax.io.tensors import LONG, MOST_HEADER, encode, read_header, read_tensors


def test_long_text_is_read_back(tmp_path):
    """A component names each of its images: a million names are more than a header holds (docs/benchmarks.md)."""
    path, text = tmp_path / "a.safetensors", "ü" + "x" * MOST_HEADER
    numbers, metadata = {"b": np.arange(3.0), "a": np.ones((2, 3), np.float32)}, {"long": text, "short": "y" * LONG}
    path.write_bytes(encode(numbers, metadata))
    read, texts = read_tensors(path)
    assert texts == metadata == read_header(path)[1]
    assert {name: value.tolist() for name, value in read.items()} == {n: v.tolist() for n, v in numbers.items()}
    assert {*json.loads(path.read_bytes()[8 : read_header(path)[2]])["__metadata__"]} == {"short"}


def test_ranks_and_orders_are_read_back(tmp_path):
    values = {
        "scalar": np.float32(3.0),
        "empty": np.zeros((0, 2), np.float32),
        "turned": np.arange(6.0).reshape(2, 3).T,
        "sliced": np.arange(8.0)[::2],
        "half": np.asarray(jnp.arange(3.0).astype(jnp.bfloat16)),
    }
    (tmp_path / "a.safetensors").write_bytes(encode(values, {}))
    read, _ = read_tensors(tmp_path / "a.safetensors")
    for name, value in values.items():
        assert (read[name].shape, read[name].dtype) == (np.shape(value), value.dtype), name
        assert np.array_equal(read[name], value), name


def test_impossible_metadata_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="the header must have at most 100,000,000 bytes; got 100,6"):
        encode({}, {f"{i}": "x" * LONG for i in range(100 * 10**6 // LONG + 1)})
    content = encode({}, {"provenance": "x" * (LONG + 1)})
    (tmp_path / "a.safetensors").write_bytes(content)
    monkeypatch.setattr(tensors, "MOST_TEXT", LONG)
    with pytest.raises(InputError, match="texts must have at most 1,048,576 bytes; got 1,048,577"):
        encode({}, {"provenance": "x" * (LONG + 1)})
    with pytest.raises(InputError, match=r"texts must have at most 1,048,576 bytes; got 1,048,577 in .*/a\."):
        read_tensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("value", [np.zeros(2), np.array([200, 65], np.uint8)])
def test_a_text_that_is_none_is_refused(tmp_path, value):
    (tmp_path / "a.safetensors").write_bytes(save({"__metadata__/provenance": value}))
    with pytest.raises(InputError, match=r"provenance of .* must be (text in UTF-8|one of U8)"):
        read_tensors(tmp_path / "a.safetensors")
