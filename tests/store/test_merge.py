"""Merges: exact where the objective is quadratic, the same in any order, without a component after its removal."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense import flat, jacobian, ridge
from helpers import assert_rel_close, components, composed, filled, origin, part, predictor, private_task
from jax.flatten_util import ravel_pytree

from tangent_jax.composition.component import Component
from tangent_jax.composition.merge import MERGES, WEIGHTED, Merger, host, merge
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.subsets import Subset
from tangent_jax.privacy.mechanism import Spent, make_mechanism
from tangent_jax.solver.problem import make_curvature
from tangent_jax.store.factors import read_factors, write_factors
from tangent_jax.store.merging import add_all
from tangent_jax.store.packing import pack, unpack
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import make_objective

OBJECTIVE = make_objective("rsl", 0.1)
MEANS = ("mean", *WEIGHTED)
"""The merges that are means, weighted or not: of one component it is the component itself."""


@functools.cache
def measured():
    """Factors at the anchor of `part` and `origin`."""
    with jax.enable_x64(False):  # whichever test asks first
        predict, _ = predictor(depth=1)
        stage = predict.subset.stage
        x = np.random.default_rng(0).standard_normal((4, *predict.model.input_shape(stage))).astype(np.float32)
        return jax.tree.map(np.asarray, make_curvature(predict, Batches(x, np.array([0, 3, 1, 6])), OBJECTIVE))


def factors(s):
    """Factors of `part(s)`: other ones for every s, positive definite beyond the rounding of f32."""
    rng, scale = np.random.default_rng(s), 1.0 + s

    def moved(leaf):
        if leaf.ndim < 3:  # the count, and the sums of inputs
            return scale * leaf
        v = rng.standard_normal((*leaf.shape[:-1], 3)).astype(np.float32)
        return scale * leaf + v @ v.swapaxes(-1, -2) + 0.1 * np.eye(leaf.shape[-1])

    return host(jax.tree.map(moved, measured()))


def make_store(path, count=3, **changes):
    store = Store(path)
    for s in range(count):
        store.add(f"shard {s}", part(s), origin(s, **changes), factors(s))
    return store


def all_of(count):
    return {f"shard {s}": part(s) for s in range(count)}, {f"shard {s}": factors(s) for s in range(count)}


@pytest.mark.parametrize("how", MERGES)
def test_one_component_is_itself_in_any_order(how):
    parts, own = all_of(5)
    parts = {  # of unequal size, in f64: sums that rounding to f32 hides
        name: jax.tree.map(lambda leaf, s=s: 1.1 * 3.0**s * np.asarray(leaf, np.float64), parts[name])
        for s, name in enumerate(parts)
    }
    turned = dict(reversed(parts.items())), dict(reversed(own.items()))
    assert trees.fingerprint(merge(components(parts, own), how)) == trees.fingerprint(merge(components(*turned), how))
    same = {name: factors(1) for name in parts}
    if how in MEANS:
        assert_rel_close(merge(components({"a": part(1)}, {"a": factors(1)}), how), part(1), 1e-5)
        assert_rel_close(merge(components(parts, same), how), composed(parts), 1e-6)


@pytest.mark.parametrize("how", WEIGHTED)
def test_merge_is_its_weighted_mean(x64, how):
    parts, own = all_of(2)
    parts, own, penalty = *jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (parts, own)), 0.3
    merged = trees.leaves(merge(components(parts, own), how, penalty))
    if how != "fisher":  # a kernel with its bias is a kernel of the inputs (x, 1)
        own = {name: factors.layers() for name, factors in own.items()}
    total = own["shard 0"] + own["shard 1"]

    def blocks(path, leaves):
        v = total.as_blocks(path, leaves[path])
        bias = leaves[path.replace("kernel", "bias")].reshape(len(v), 1, -1)
        return v if how == "fisher" else np.concatenate([v, bias], 1)

    for path in ("block_0/mlp_in/kernel", "block_0/attention/value/kernel"):
        left, right = 0, 0
        for name, dw in parts.items():
            a, g = own[name].kernels[path]
            n, mean = own[name].count, total.kernels[path][1] / total.count
            if how == "inputs":
                mean = np.trace(mean, axis1=1, axis2=2)[:, None, None] / mean.shape[-1] * np.eye(mean.shape[-1])
            hessians = [
                np.kron(a[h], mean[h]) + n * penalty * np.eye(a.shape[-1] * mean.shape[-1]) for h in range(len(a))
            ]
            if how == "fisher":
                diagonals = [np.diag(np.kron(a[h], g[h])) / n + n * penalty for h in range(len(a))]
                hessians = [np.diag(diagonal) for diagonal in diagonals]
            v = blocks(path, trees.leaves(dw))
            hessians = np.stack(hessians)
            left, right = left + hessians, right + np.einsum("hij,hj->hi", hessians, v.reshape(len(v), -1))
        expected = np.linalg.solve(left, right[:, :, None])[:, :, 0]
        np.testing.assert_allclose(blocks(path, merged).reshape(len(a), -1), expected, rtol=1e-9)


def test_ties_averages_elected_signs():
    def of(a, b):
        return {"a": np.array(a, np.float32), "b": np.array(b, np.float32).reshape(1, -1)}

    small, zeros = [0.1, -0.1, 0.1, 0.1, -0.1], [0.0] * 5
    parts = {
        "x": of([8, -4, *small], [7, 0, 0.1, *small]),  # 15 numbers: 3 stay, wherever they lie
        "y": of([-3, -2, *small], [9, 0, 0.1, *small]),
        "z": of([-3, 0, *small], [0, 6, 2, *small]),
    }
    merged = merge(components(parts), "ties")
    want = of([8, -3, *zeros], [8, 6, 2, *zeros])  # 8 alone outweighs -3 - 3; the means of -4, -2 and of 7, 9
    jax.tree.map(np.testing.assert_array_equal, merged, want)
    assert {leaf.dtype for leaf in jax.tree.leaves(merged)} == {np.dtype(np.float32)}
    wide = {name: {"a": np.array([value])} for name, value in {"x": 0.1, "y": 0.2, "z": 0.3}.items()}
    turned = dict(reversed(wide.items()))  # in f64 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1
    assert trees.fingerprint(merge(components(wide, {}), "ties")) == trees.fingerprint(
        merge(components(turned, {}), "ties")
    )
    level = merge(
        components({"a": of([1, -1], [1]), "b": of([-1, 1], [1])}), "ties"
    )  # equal entries stay together, or cancel
    jax.tree.map(np.testing.assert_array_equal, level, of([0, 0], [1]))


@pytest.mark.parametrize("how", [how for how in MERGES if how not in MEANS])
def test_a_store_merges_without_factors(tmp_path, how):
    store = filled(tmp_path / "store")
    parts, _ = all_of(3)
    assert trees.fingerprint(store.compose(how=how)) == trees.fingerprint(merge(components(parts), how))
    remove(store, plan_removal(store, names=["shard 1"]))
    del parts["shard 1"]
    assert trees.fingerprint(store.compose(how=how)) == trees.fingerprint(merge(components(parts), how))
    with pytest.raises(InputError, match="components must be at least 1; got none"):
        merge({}, how)
    with pytest.raises(InputError, match="components must be of one subset; got b with other leaves"):
        merge(components({"a": {"w": np.ones(1)}, "b": {"w": np.ones(2)}}), how)


def test_one_decomposition_serves_every_ridge():
    """Each component is read as often for seven ridges as for one."""
    parts, own = all_of(3)
    reads = []

    class Read(dict):
        def __getitem__(self, name):
            reads.append(name)
            return super().__getitem__(name)

    for how in WEIGHTED:
        reads.clear()
        merger = Merger(Read(components(parts, own)), how)
        for penalty in (1e-6, 1e-3, 0.5, 10.0):
            assert trees.fingerprint(merger.at(penalty)) == trees.fingerprint(
                merge(components(parts, own), how, penalty)
            )
        assert sorted(reads) == sorted([*own, *own, *own, min(own)])  # provenance, factors, terms; and the form
    with pytest.raises(InputError, match="penalty"):
        merger.at(0.0)


@pytest.mark.parametrize("how", ["inputs", "curvature"])
@pytest.mark.parametrize("leaves", [("head/kernel",), ("head/kernel", "head/bias")])
def test_optimal_heads_merge_to_optimum(x64, leaves, how):
    """Inputs and signals of a head are independent, so that its factors are its Hessian: with a bias too, as one block
    with the kernel.
    """
    predict, _, x, y = private_task("blocks", 0)
    size = sum(trees.leaves(predict.w)[path].size for path in leaves)
    predict = dataclasses.replace(predict, subset=Subset("head", leaves, predict.subset.stage, size))
    zeros, parts, own = predict.zeros(), {}, {}
    unravel = ravel_pytree(zeros)[1]
    j, f = jacobian(predict, zeros, x)
    for name, rows in {"a": np.arange(4), "b": np.arange(4, 6)}.items():
        dw = ridge(j[rows], f[rows], np.asarray(y)[rows], total=0.1 * len(rows))
        parts[name] = unravel(jnp.asarray(dw))
        own[name] = make_curvature(predict, Batches(x, y, rows=rows, batch_size=2), OBJECTIVE)
    joint = ridge(j, f, np.asarray(y), total=0.6)
    np.testing.assert_allclose(flat(merge(components(parts, own), how, 0.1)), joint, rtol=1e-9, atol=1e-9)
    assert np.abs(flat(composed(parts)) - joint).max() > 1e-3


def test_removal_takes_factors_along(tmp_path):
    store = Store(tmp_path / "store")
    assert add_all(store, make_store(tmp_path / "apart")) == [f"shard {s}" for s in range(3)]
    kept = store.factors("shard 1")
    assert trees.fingerprint(kept) == trees.fingerprint(factors(1))
    assert kept.layouts == factors(1).layouts
    merged = store.compose(how="curvature", penalty=0.1)
    parts, own = all_of(3)
    assert trees.fingerprint(merged) == trees.fingerprint(merge(components(parts, own), "curvature", 0.1))
    before = {path.name for path in (tmp_path / "store/factors").iterdir()}
    remove(store, plan_removal(store, names=["shard 1"]))
    after = {path.name for path in (tmp_path / "store/factors").iterdir()}
    assert len(before) == 3
    assert len(after) == 2
    never = {name: parts[name] for name in ("shard 0", "shard 2")}
    for how in MERGES:
        assert trees.fingerprint(store.compose(how=how)) == trees.fingerprint(merge(components(never, own), how))
    assert verify(Store(tmp_path / "store")) == []
    (path,) = (p for p in (tmp_path / "store/factors").iterdir() if p.name == min(after))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert any("altered" in line for line in verify(store))


def test_factors_are_read_as_written(tmp_path):
    write_factors(tmp_path / "factors.safetensors", factors(2))
    again = read_factors(tmp_path / "factors.safetensors")
    assert trees.fingerprint(again) == trees.fingerprint(factors(2))
    assert (again.layouts, again.anchor) == (factors(2).layouts, factors(2).anchor)
    predict, _ = predictor(depth=1)
    assert again.anchor == "".join(fingerprints(predict.w))


NO_SUMS = {
    "NaN": (lambda a, g: (a * np.nan, g), "got NaN or infinity in head/kernel"),
    "infinity": (lambda a, g: (a, g + np.inf), "got NaN or infinity in head/kernel"),
    "negative": (lambda a, g: (-a, g), "got a negative eigenvalue in head/kernel"),
    "negative signals": (lambda a, g: (a, g - np.linalg.norm(g) * np.eye(7)), "got a negative eigenvalue"),
    "asymmetric": (lambda a, g: (a, np.triu(g)), "got an asymmetry in head/kernel"),
    "no matrix": (lambda a, g: (a, g[:, :3]), r"factors of head/kernel must .*; got shape \(1, 3, 7\)"),
    "narrow": (lambda a, g: (a, g[:, :3, :3]), "factors of head/kernel must have 84 numbers; got 36"),
}


@pytest.mark.parametrize("case", NO_SUMS)
def test_impossible_factors_are_refused(tmp_path, case):
    change, message = NO_SUMS[case]
    good, store = factors(1), make_store(tmp_path / "store", 1)
    wrong = dataclasses.replace(good, kernels={**good.kernels, "head/kernel": change(*good.kernels["head/kernel"])})
    with pytest.raises(InputError, match=message):
        store.add("ann", part(1), origin(1), wrong)
    assert [*store] == ["shard 0"]
    for provenance in (origin(1), None):
        with pytest.raises(InputError, match=f"mine: .*{message}"):
            unpack(*pack(Component(part(1), provenance, wrong)), "mine")
    for how in WEIGHTED:
        with pytest.raises(InputError, match=f"component ann: .*{message}"):
            merge({"ann": Component(part(1), None, wrong), "bob": Component(part(0), None, factors(0))}, how)


@pytest.mark.parametrize("how", MERGES)
def test_non_finite_weights_are_refused(how):
    parts, own = all_of(2)
    parts["shard 1"] = trees.scale(np.nan, parts["shard 1"])
    with pytest.raises(InputError, match=r"component shard 1: .* must be finite; got NaN or infinity"):
        merge(components(parts, own), how)


def with_block(path):
    """Factors with a block of one more leaf."""
    return dataclasses.replace(factors(2), blocks={**factors(2).blocks, path: np.ones((1, 2, 2))})


def without_bias():
    """A tree without the bias of the head, and factors of such trees."""
    less = trees.nest({path: leaf for path, leaf in trees.leaves(part(0)).items() if path != "head/bias"})
    blocks = {path: block for path, block in factors(0).blocks.items() if path != "head/bias"}
    biases = tuple(pair for pair in factors(0).biases if pair[1] != "head/bias")
    sums = {path: factors(0).sums[path] for path, _ in biases}
    return less, dataclasses.replace(factors(0), blocks=blocks, biases=biases, sums=sums)


OF_STORES = {
    "anchor": (lambda: (dataclasses.replace(factors(2), anchor="another"), {}), "factors must be at the component's"),
    "leaf": (lambda: (with_block("not/a/leaf"), {}), "factors must be of the component's leaves"),
    "private": (
        lambda: (factors(2), {"privacy": Spent(make_mechanism(3.0, 1e-5), 50, True)}),
        "factors must be None for a private component",
    ),
}


@pytest.mark.parametrize("case", OF_STORES)
def test_foreign_factors_are_not_added(case, tmp_path):
    make, message = OF_STORES[case]
    wrong, changes = make()
    store = make_store(tmp_path / "store", 2)
    with pytest.raises(InputError, match=message):
        store.add("shard 2", part(2), origin(2, **changes), wrong)
    assert [*store] == ["shard 0", "shard 1"]


def test_store_names_component_without_factors(tmp_path):
    store = make_store(tmp_path / "store", 2)
    store.add("shard 2", part(2), origin(2))
    assert not store.has_factors("shard 2")
    with pytest.raises(InputError, match=r"components must have factors; got shard 2 without"):
        store.compose(how="curvature")
    with pytest.raises(InputError, match="shard 2 must have factors; it has none"):
        store.factors("shard 2")


def pair_without_bias():
    """Two components of other leaves, with factors of the fewer."""
    less, own = without_bias()
    return components({"a": part(0), "b": less}, {"a": own, "b": own})


def two_anchors():
    """Two components with factors at two anchors."""
    other = dataclasses.replace(factors(1), anchor="another")
    return components({"a": part(0), "b": part(1)}, {"a": factors(0), "b": other})


def narrow():
    """A component whose leaves have fewer numbers than its factors."""
    wrong = trees.nest({path: leaf[:1] for path, leaf in trees.leaves(part(0)).items()})
    return components({"a": wrong}, {"a": factors(0)})


UNMERGEABLE = {
    "penalty": (lambda: components(*all_of(2)), "curvature", 0.0, "penalty must be a finite number > 0"),
    "how": (lambda: components(*all_of(2)), "sum", 0.1, "how must be one of mean"),
    "two anchors": (two_anchors, "curvature", 0.1, "factors that are added must be at one anchor"),
    "leaf": (
        lambda: components({"a": part(0)}, {"a": with_block("not/a/leaf")}),
        "curvature",
        0.1,
        "factors must be of the step's leaves; got those of not/a/leaf",
    ),
    "two subsets": (pair_without_bias, "inputs", 0.1, "components must be of one subset; got b with other leaves"),
    "narrow": (narrow, "curvature", 0.1, "factors of .* numbers"),
}


@pytest.mark.parametrize("case", UNMERGEABLE)
def test_unmergeable_is_refused(case):
    make, how, penalty, message = UNMERGEABLE[case]
    with pytest.raises(InputError, match=message):
        merge(make(), how, penalty)
