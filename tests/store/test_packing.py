"""Components as named arrays and texts, for file formats of one's own."""

import jax
import numpy as np
import pytest
from demo import Demo

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError

demo = Demo()


def component(name):
    """A component of one of the kinds that are packed."""
    if name == "statistics":
        origin = tj.store.make_provenance(demo.map, classes=["a", "b", "c"])
        return tj.Component(demo.statistics.tree, origin)
    parts = {"weights": (), "with provenance": (demo.origin,), "with factors": (demo.origin, demo.curvature)}
    return tj.Component(demo.fitted.dw, *parts[name])


@pytest.mark.parametrize("name", ["weights", "with provenance", "with factors", "statistics"])
def test_a_component_comes_back_from_an_npz_to_the_bit(tmp_path, name):
    kept = component(name)
    arrays, texts = tj.store.pack(kept)
    np.savez(tmp_path / "component.npz", **arrays)
    with np.load(tmp_path / "component.npz") as file:
        again = tj.store.unpack(dict(file), texts)
    assert trees.fingerprint(again.dw) == trees.fingerprint(kept.dw)
    assert again.provenance == kept.provenance
    assert jax.tree.structure(again.factors) == jax.tree.structure(kept.factors)
    for mine, its in zip(jax.tree.leaves(again.factors), jax.tree.leaves(kept.factors), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_provenance_with_other_numbers_counts_as_anothers():
    arrays, texts = tj.store.pack(component("with provenance"))
    assert tj.store.unpack(arrays, texts).provenance.is_own
    path = min(arrays)
    assert not tj.store.unpack({**arrays, path: arrays[path] + 1}, texts).provenance.is_own


def test_other_arrays_are_refused():
    with pytest.raises(InputError, match=r"mine\.npz must hold arrays named dw/PATH, .* got \['kernel'\]"):
        tj.store.unpack({"kernel": np.zeros(3)}, {}, "mine.npz")
    arrays, texts = tj.store.pack(component("with factors"))
    few = {path: leaf for path, leaf in arrays.items() if path != "factors/weight"}
    with pytest.raises(InputError, match=r"mine\.npz must hold the factors of a component"):
        tj.store.unpack(few, texts, "mine.npz")
