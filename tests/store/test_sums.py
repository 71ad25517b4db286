"""Sums of components are ensembles; removal re-sums, bit for bit."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, components, composed, images, small, tree_normal

from tangent_jax.composition.component import Component
from tangent_jax.composition.compose import compose, greedy_soup, sum_components
from tangent_jax.composition.sums import weighted_sum
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.linearization import linearize
from tangent_jax.models.subsets import make_subset
from tangent_jax.models.vit.modules import TangentViT


@pytest.mark.parametrize("road", ["closed_form", "autodiff"])
def test_composed_output_is_ensemble(x64, road):
    model, w = small(2)
    subset = make_subset(model)
    components, coefficients = [tree_normal(1000 * s, subset.part(w)) for s in range(1, 4)], [0.5, -2.0, 1.25]
    roads = {
        "closed_form": lambda dw: TangentViT(model.config).apply({"params": w, "tangent": dw}, images()),
        "autodiff": lambda dw: linearize(model.apply, w)(dw, images()),
    }
    f = roads[road]
    ensemble = sum(c * f(dw).tangent for c, dw in zip(coefficients, components, strict=True))
    assert_rel_close(f(weighted_sum(zip(coefficients, components, strict=True))).tangent, ensemble)


def test_removal_is_bitwise_never_there():
    model, w = small(2)
    parts = {f"shard {s}": tree_normal(1000 * s, make_subset(model).part(w)) for s in range(12)}
    without = {name: dw for name, dw in parts.items() if name != "shard 3"}
    before = trees.fingerprint(composed(without))
    shuffled = dict(sorted(parts.items(), reverse=True))
    del shuffled["shard 3"]
    assert trees.fingerprint(composed(shuffled)) == before
    # subtracting instead rounds: the guarantee is not vacuous
    subtracted = jax.tree.map(lambda m, d: (12 * m - d) / 11, composed(parts), parts["shard 3"])
    assert trees.fingerprint(subtracted) != before


def test_host_and_device_sum_to_same_bits():
    model, w = small(2)
    parts = [tree_normal(1000 * s, make_subset(model).part(w)) for s in range(5)]
    hosted = [jax.tree.map(np.asarray, part) for part in parts]
    before, coefficients = trees.fingerprint(hosted[0]), [0.3, -1.0, 0.7, 2.0, 1 / 3]
    results = [weighted_sum(zip(coefficients, given, strict=True)) for given in (parts, hosted)]
    assert len({trees.fingerprint(result) for result in results}) == 1
    assert trees.fingerprint(hosted[0]) == before


def test_transposed_leaves_are_summed():
    first, second = np.arange(12.0, dtype="f").reshape(3, 4).T, np.ones((4, 3), "f")
    for terms in ([first, second], [second, first]):
        total = weighted_sum((1.0, {"w": leaf}) for leaf in terms)
        assert (total["w"] == first + second).all()


def test_stream_needs_memory_of_a_few():
    big = 1 << 20

    def stream():
        for s in range(60):
            yield 1.0, {"a": np.full(big, s, np.float32)}

    tracemalloc.start()
    total = weighted_sum(stream())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total["a"][0] == sum(range(60))
    assert peak < 3.1 * 4 * big  # the sum, one component, and the multiple of one leaf, here the only one


def test_a_greedy_soup_keeps_what_helps():
    parts = components(
        {"good": {"a": np.array([1.0])}, "better": {"a": np.array([1.2])}, "bad": {"a": np.array([-9.0])}}
    )
    assert greedy_soup(parts, lambda dw: -abs(float(dw["a"][0]) - 1.15)) == ["better", "good"]
    with pytest.raises(InputError, match="at least 1"):
        greedy_soup({}, lambda dw: 0.0)


def test_weighted_sum_reads_only_weighed():
    parts = {"a": {"x": np.ones(3)}, "b": {"x": np.full(3, 2.0)}, "c": None}  # left out: of coefficient 0
    total = sum_components(parts, parts.__getitem__, {}, {"a": 1.0, "b": -3.0})
    assert (total["x"] == -5).all()
    assert (parts["a"]["x"] == 1).all()  # a first coefficient of 1 does not sum into the caller's component


BIG = {
    "float32": np.full(3, 3e38, np.float32),
    "float16": np.full(3, 6e4, np.float16),
    "bfloat16": np.full(3, 3e38, jnp.bfloat16),
    "on the device": jnp.full(3, 6e4, jnp.float16),
}


@pytest.mark.parametrize("case", BIG)
def test_non_finite_sum_is_refused(case):
    big, bad = Component({"x": BIG[case]}), Component({"x": BIG[case] + BIG[case].dtype.type(np.nan)})
    assert (compose([big, big])["x"] == BIG[case]).all()  # a mean fits
    with pytest.raises(InputError, match="the sum of components must be finite in their dtype; got infinity"):
        compose([big, big], [1.0, 1.0])
    with pytest.raises(InputError, match="component bob: x must be finite; got NaN or infinity"):
        compose({"ann": big, "bob": bad})
    assert jax.jit(lambda dw: compose([Component(dw)] * 2))({"x": jnp.ones(2)})["x"].tolist() == [1, 1]


def test_halves_are_summed_in_f32():
    """A bf16 component first made all bf16, and sums of f16 overflowed."""
    whole = {"kernel": np.full(3, 60000, np.float16)}
    total = weighted_sum([(0.5, whole)] * 3 + [(-0.5, whole)])
    assert (total["kernel"].dtype, total["kernel"].tolist()) == (np.float16, [60000.0] * 3)
    fine = {"kernel": np.array([1.0, 2.0**-11, 0], np.float16)}
    many = weighted_sum([(1 / 64, fine)] * 64)
    assert (many["kernel"] == fine["kernel"]).all()  # rounded once
    for other in ({"kernel": np.ones(3, np.float32)}, {"kernel": jnp.ones(3, jnp.bfloat16)}):
        with pytest.raises(InputError, match="of one subset, architecture and dtype"):
            weighted_sum([(1.0, whole), (1.0, other)])
    for empty in ({}, {"body": {}}):
        with pytest.raises(InputError, match="components must have leaves; got an empty one"):
            composed({"a": empty, "b": empty})


ONE = Component({"w": np.ones(2, np.float32)})
HALF = {"w": np.ones(2, np.float16)}
FITS = "components must be of one subset, architecture and dtype; got component 1"
WRONG = {
    "sizes": (lambda: weighted_sum([(1, {"a": np.ones(2)}), (1, {"a": np.ones(3)})]), FITS),
    "f32 and f16": (lambda: weighted_sum([(1, HALF), (1, ONE.dw)]), FITS),
    "bf16 and f16": (lambda: weighted_sum([(1, HALF), (1, {"w": jnp.ones(2, jnp.bfloat16)})]), FITS),
    "nothing": (lambda: weighted_sum([]), "components must be at least 1"),
    "no component": (lambda: compose({}), "components must be at least 1; got none"),
    "no coefficient": (lambda: compose({}, {}), "components must be at least 1; got none"),
    "no leaf": (lambda: composed({"a": {}, "b": {}}), "components must have leaves; got an empty one"),
    "no inner leaf": (lambda: composed({"a": {"body": {}}}), "components must have leaves; got an empty one"),
    "integers": (lambda: weighted_sum([(0.5, {"x": np.ones(3, int)})]), "floats"),
    "booleans": (lambda: weighted_sum([(0.5, {"x": np.ones(3, bool)})]), "floats"),
    "more coefficients": (lambda: compose([ONE], [1.0, 2.0]), "coefficients must be as many as components .1.; got 2"),
    "a word": (lambda: compose([ONE], "mean"), "coefficients must be numbers in a list, or by name; got 'mean'"),
    **{
        f"coefficient {str(given)[:4]}": (
            lambda given=given: compose([ONE, ONE], [given, 1]), f"coefficients must be a finite number .*; got {said}")
        for given, said in (
            ("one", "'one'"), (1j, "1j"), (10**4000, "an integer of 13288 bits"), (np.nan, "nan"), (np.inf, "inf"))
    },
}  # fmt: skip


@pytest.mark.parametrize(("call", "match"), WRONG.values(), ids=WRONG)
def test_what_has_no_sum_is_refused(call, match):
    with pytest.raises(InputError, match=match):
        call()
