"""Digests of arrays: equal for equal bytes wherever they lie, and read once from weights that were loaded."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tangent_jax.core import digests, trees
from tangent_jax.core.rows import Rows

X = np.arange(60.0, dtype=np.float32).reshape(20, 3)


def test_digest_ignores_memory_layout(tmp_path):
    X.tofile(tmp_path / "x")
    on_disk = np.memmap(tmp_path / "x", X.dtype, "r", shape=X.shape)
    twice = np.concatenate([X, X])
    same = [X, jnp.array(X), on_disk, Rows(twice, np.arange(20, 40)), np.asfortranarray(X)]
    assert len({*digests.digests(same)}) == 1
    others = [X + 1, X[:19], np.float32(0), np.zeros((0, 3), np.float32)]
    assert len({*digests.digests([X, *others])}) == 5


def test_digest_is_of_row_pieces(monkeypatch):
    monkeypatch.setattr(digests, "PIECE", 100)  # eight rows of twelve bytes
    parts = [hashlib.sha256(X[start : start + 8].tobytes()).digest() for start in (0, 8, 16)]
    assert digests.digests([X]) == [hashlib.sha256(b"".join(parts)).digest()]
    changed = X.copy()
    changed[19, 2] = 0
    assert digests.digests([changed]) != digests.digests([X])


def test_noted_array_is_read_once(monkeypatch):
    x, other, before = jnp.array(X), jnp.array(X), len(digests.KNOWN)
    digests.note(x, X)
    first = digests.digests([x, other])
    monkeypatch.setattr(digests, "digest_of_piece", None)
    assert digests.digests([x]) == first[:1] == first[1:]
    assert len(digests.KNOWN) == before + 1
    with pytest.raises(TypeError):  # another JAX array may share a caller's memory
        digests.digests([other])
    del x
    assert len(digests.KNOWN) == before


def test_numbers_that_can_change_are_read_again():
    x = X.copy()
    first = digests.digests([x])
    x[0] = -1
    assert digests.digests([x]) != first


def test_fingerprint_sees_dtype():
    wide = {"w": np.ones(3), "n": 2.0}
    assert trees.fingerprint(wide) != trees.fingerprint({"w": np.ones(3, np.float32), "n": 2.0})
    with jax.enable_x64(True):
        inside = trees.fingerprint(wide)
    assert inside == trees.fingerprint(wide)
