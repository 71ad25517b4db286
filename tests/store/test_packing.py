"""Components as named arrays and texts, for file formats of one's own."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from demo import Demo
from flax.serialization import msgpack_restore, msgpack_serialize

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError

demo = Demo()
FEW = "statistics of few images"


def component(name):
    """A component of one of the kinds that are packed."""
    if name == "statistics":
        origin = tj.store.make_provenance(demo.map, classes=["a", "b", "c"])
        return tj.Component(demo.statistics.tree, origin)
    if name == FEW:
        few = tj.solver.make_statistics(demo.map, demo.train.take(np.arange(2)), ["a", "b", "c"])
        return tj.Component(few.tree, tj.store.make_provenance(demo.map, classes=few.classes))
    parts = {"weights": (), "with provenance": (demo.origin,), "with factors": (demo.origin, demo.curvature)}
    return tj.Component(demo.fitted.dw, *parts[name])


@pytest.mark.parametrize("name", ["weights", "with provenance", "with factors", "statistics", FEW])
def test_component_returns_from_npz(tmp_path, name):
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


def without(arrays, path):
    return {name: leaf for name, leaf in arrays.items() if name != path}


@pytest.mark.parametrize(
    ("name", "change", "refused"),
    [
        ("with provenance", lambda a: without(a, "dw/head/bias"), "the leaves .* names; got a difference in head/bias"),
        ("with provenance", lambda a: a | {"dw/new": np.ones(2, np.float32)}, "got a difference in new"),
        ("with provenance", lambda a: a | {"dw/head/bias": np.full(3, np.nan, np.float32)}, "head/bias must be finite"),
        ("weights", lambda a: a | {"dw/head/bias": np.full(3, np.inf, np.float32)}, "head/bias must be finite"),
        ("weights", lambda a: a | {"dw/head/bias": np.zeros(3, "V2")}, r"head/bias must be of floats; got \|V2"),
        ("statistics", lambda a: a | {"dw/counts": -a["dw/counts"]}, "counts must be whole numbers >= 0"),
        ("statistics", lambda a: a | {"dw/gram": 9 * a["dw/gram"]}, "."),
        (FEW, lambda a: a | {"dw/root": a["dw/root"][:-1]}, "root must hold n k - n"),
        (FEW, lambda a: a | {"dw/sums": a["dw/sums"][:, ::-1]}, "must be positive semi-definite"),
    ],
)
def test_what_a_store_refuses_is_refused(name, change, refused):
    kept = component(name)
    arrays, texts = tj.store.pack(kept)
    tampered = change(arrays)
    with pytest.raises(InputError, match=rf"^mine\.npz: .*{refused}"):
        tj.store.unpack(tampered, texts, "mine.npz")
    dw = trees.nest({path.removeprefix("dw/"): leaf for path, leaf in tampered.items()})
    with pytest.raises(InputError, match=refused):
        tj.Store(demo.folder() / "store").add("mine", dw, kept.provenance or demo.origin)


def test_msgpack_keeps_bfloat16():
    kept = tj.Component(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), demo.fitted.dw), demo.origin)
    again = tj.store.unpack(*msgpack_restore(msgpack_serialize([*tj.store.pack(kept)])))
    assert trees.fingerprint(again.dw) == trees.fingerprint(kept.dw)
    assert again.provenance == kept.provenance


def test_other_arrays_are_refused():
    with pytest.raises(InputError, match=r"mine\.npz must hold arrays named dw/PATH, .* got \['kernel'\]"):
        tj.store.unpack({"kernel": np.zeros(3)}, {}, "mine.npz")
    arrays, texts = tj.store.pack(component("with factors"))
    factors = {**json.loads(texts["factors"]), "anchor": "another"}
    with pytest.raises(InputError, match=r"^mine\.npz: factors must be at the component's anchor"):
        tj.store.unpack(arrays, {**texts, "factors": json.dumps(factors)}, "mine.npz")
    few = {path: leaf for path, leaf in arrays.items() if path != "factors/weight"}
    with pytest.raises(InputError, match=r"mine\.npz must hold the factors of a component"):
        tj.store.unpack(few, texts, "mine.npz")
