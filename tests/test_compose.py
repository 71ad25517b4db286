"""Sums of components are ensembles; removal re-sums, bit for bit."""

import jax
import numpy as np
import pytest
from helpers import assert_rel_close, images, small, tree_normal

from tangent_jax import compose, trees, vit
from tangent_jax.checks import InputError
from tangent_jax.linearize import linearize
from tangent_jax.subsets import make_subset
from tangent_jax.tangent_vit import TangentViT


@pytest.mark.parametrize("road", ["closed_form", "autodiff"])
def test_a_composed_output_is_the_ensemble_of_tangent_outputs(x64, road):
    config, w = small(2)
    subset = make_subset(config)
    components, weights = [tree_normal(1000 * s, subset.part(w)) for s in range(1, 4)], [0.5, -2.0, 1.25]
    roads = {
        "closed_form": lambda dw: TangentViT(config).apply({"params": w, "tangent": dw}, images()),
        "autodiff": lambda dw: linearize(lambda w, x: vit.ViT(config).apply({"params": w}, x), w)(dw, images()),
    }
    f = roads[road]
    ensemble = sum(weight * f(dw).tangent for weight, dw in zip(weights, components, strict=True))
    assert_rel_close(f(compose.weighted_sum(components, weights)).tangent, ensemble)


def test_removal_is_bitwise_what_had_never_been_there():
    config, w = small(2)
    parts = {f"shard {s}": tree_normal(1000 * s, make_subset(config).part(w)) for s in range(12)}
    without = {name: dw for name, dw in parts.items() if name != "shard 3"}
    before = trees.fingerprint(compose.mean(without))
    shuffled = dict(sorted(parts.items(), reverse=True))
    del shuffled["shard 3"]
    assert trees.fingerprint(compose.mean(shuffled)) == before
    # subtracting instead rounds: the guarantee is not vacuous
    subtracted = jax.tree.map(lambda m, d: (12 * m - d) / 11, compose.mean(parts), parts["shard 3"])
    assert trees.fingerprint(subtracted) != before


def test_components_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="components of one subset and architecture; got component 1"):
        compose.weighted_sum([{"a": np.ones(2)}, {"a": np.ones(3)}], [1, 1])
    with pytest.raises(InputError, match="weighted_sum: expected 0 >= 1 weights"):
        compose.mean({})
