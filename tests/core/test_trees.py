"""Partial trees, their sums and their fingerprints."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, normal

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Dual

W = {"b": {"y": np.arange(6.0).reshape(2, 3), "x": np.ones(2)}, "a": np.zeros(())}


def test_leaves_and_nest_are_inverse():
    assert list(trees.leaves(W)) == ["a", "b/x", "b/y"]
    assert_rel_close(trees.nest(trees.leaves(W)), W)


def test_add_moves_only_the_leaves_of_the_part():
    got = trees.add(W, {"b": {"x": 2 * np.ones(2)}})
    assert (np.asarray(got["b"]["x"]) == 3).all()
    assert got["b"]["y"] is W["b"]["y"]


def test_restrict_takes_the_structure_of_the_part():
    assert trees.restrict(W, {"b": {"y": None, "x": 0}}) == {"b": {"y": None, "x": W["b"]["x"]}}


def test_pair_marks_frozen_leaves_with_none():
    pairs = trees.pair(W, {"b": {"x": np.full(2, 7.0)}})
    assert pairs["a"] == Dual(W["a"], None)
    assert (pairs["b"]["x"].tangent == 7).all()
    assert trees.pair(W, {})["b"]["x"].tangent is None


def test_fingerprint_sees_bits_not_order():
    first = trees.fingerprint(W)
    assert trees.fingerprint({"a": W["a"], "b": dict(reversed(W["b"].items()))}) == first
    flipped = W["b"]["y"].copy()
    flipped[1, 2] = np.nextafter(flipped[1, 2], 9)
    changes = [
        {"y": flipped},
        {"y": W["b"]["y"].astype(np.float32)},
        {"y": W["b"]["y"].reshape(3, 2)},
        {"z": W["b"]["y"]},
    ]
    assert len({first, *(trees.fingerprint({**W, "b": {"x": W["b"]["x"], **change}}) for change in changes)}) == 5


def test_the_squared_norm_is_over_the_whole_tree():
    tree = {"a": normal(1, (3, 2)), "b": normal(2, (4,))}
    assert_rel_close(trees.squared_norm(tree), jnp.sum(tree["a"] ** 2) + jnp.sum(tree["b"] ** 2))


def test_a_part_of_another_tree_is_refused():
    with pytest.raises(InputError, match="dw must be a part of w; w lacks its leaf c"):
        trees.check_part(W, {"c": 1.0})
