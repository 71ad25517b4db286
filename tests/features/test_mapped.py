"""Rows of feature maps on disk: resumed after any kill, with the bits of one pass, and erased like inputs."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from helpers import small

from tangent_jax.core.checks import InputError
from tangent_jax.data.sources import Examples
from tangent_jax.features import mapped
from tangent_jax.features.extract import Cache, extract
from tangent_jax.features.mapped import keep_rows, key_of
from tangent_jax.features.row_store import erase, identifiers_of
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.ntk import feature_map
from tangent_jax.solver.mapped import map_once, rows_of

N = 150  # three chunks
PICTURES = np.random.default_rng(0).integers(0, 256, (N, 9, 9, 3), np.uint8)


@pytest.fixture
def case(tmp_path):
    """(a feature map, features of 150 pictures of which two are one image, their cache)."""
    map_ = feature_map(Pretrained(*small(), "test"), width=16, blocks=1)
    names = tuple(f"image {i}" for i in range(N))
    examples = Examples(names, np.arange(N, dtype=np.int32) % 3, lambda i: PICTURES[0 if i == 149 else i])
    cache = Cache(tmp_path)
    return map_, extract(map_, examples, cache), cache


def computed(monkeypatch, after=None):
    """The numbers of images of each call that computes rows; KeyboardInterrupt after a number of calls."""
    calls = []
    compute = mapped.compute_rows

    def count(map_, data, batch):
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(len(data))
        return compute(map_, data, batch)

    monkeypatch.setattr(mapped, "compute_rows", count)
    return calls


def kept(case, rows=None):
    """The rows of a new process, of all images or some."""
    map_, data, cache = case
    once = map_once(map_, data, partial(keep_rows, cache))
    return rows_of(map_, once if rows is None else once.take(rows))


def test_interrupted_pass_goes_on(case, monkeypatch):
    whole = rows_of(*case[:2])
    with monkeypatch.context() as patch:
        calls = computed(patch, after=2)
        with pytest.raises(KeyboardInterrupt):
            kept(case)
        assert calls == [64, 64]
    calls = computed(monkeypatch)
    np.testing.assert_array_equal(kept(case), whole)
    assert calls == [N - 1 - 128]  # of two copies one
    np.testing.assert_array_equal(kept(case), whole)
    assert len(calls) == 1


def test_parts_share_what_any_of_them_computed(case, monkeypatch):
    whole = rows_of(*case[:2])
    calls = computed(monkeypatch)
    first, second = np.arange(0, 100, 2), np.arange(30, 149)
    np.testing.assert_array_equal(kept(case, first), whole[first])
    np.testing.assert_array_equal(kept(case, second), whole[second])
    np.testing.assert_array_equal(kept(case), whole)
    assert [calls[0], sum(calls)] == [50, 149]


def test_an_altered_chunk_is_computed_again(case, monkeypatch):
    whole = kept(case)
    folder = case[2].path / key_of(case[0], case[2], 32)
    with (folder / "rows.bin").open("r+b") as file:
        file.write(b"altered")
    calls = computed(monkeypatch)
    np.testing.assert_array_equal(kept(case), whole)
    assert calls == [1]


def test_removed_rows_are_erased_with_inputs(case):
    map_, data, cache = case
    kept(case)
    removed = data.examples[7][0]
    assert [erase(folder, removed.__eq__) for folder in sorted(cache.path.iterdir())] == [True, True]
    for folder in cache.path.iterdir():
        assert removed not in identifiers_of(folder)
    with pytest.raises(InputError, match="must stay while their features are in use"):
        kept(case)
    left = np.delete(np.arange(N), 7)
    np.testing.assert_array_equal(kept(case, left), rows_of(map_, data.take(left)))


def test_the_key_follows_what_decides_the_rows(case):
    map_, _, cache = case
    keys = {key_of(map_, cache, 32), key_of(map_, cache, 16), key_of(map_, Cache(cache.folder, "float16"), 32)}
    for change in ({"seed": 1}, {"directions": 2}, {"width": 9}, {"parts": ("h",)}):
        given = {"width": 16, "blocks": 1} | change
        keys.add(key_of(feature_map(Pretrained(*small(), "test"), **given), cache, 32))
    w = jax.tree.map(lambda x: x + 1e-3, map_.predict.w)
    keys.add(key_of(dataclasses.replace(map_, predict=dataclasses.replace(map_.predict, w=w)), cache, 32))
    keys.add(key_of(map_.in_dtype("bfloat16"), cache, 32))
    assert len(keys) == 9
    assert key_of(dataclasses.replace(map_, outputs=5), cache, 32) in keys  # the head decides no row
