"""LoRA, adapters and whole networks under differential privacy, in the coordinates that `private` trains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import apply, assert_rel_close, assert_sums_are_vmapped_ones, images, small, tree_normal

from tangent_jax.core import trees
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import nonlinear, tangent
from tangent_jax.privacy.mechanism import Spent, make_mechanism
from tangent_jax.privacy.norms import clipped_gradients
from tangent_jax.privacy.public import whiten
from tangent_jax.privacy.train import fit_private
from tangent_jax.train.batches import Batches
from tangent_jax.train.losses import CrossEntropy

Y = jnp.array([0, 3, 6, 1])
CASES = {
    "lora, tangent": ("lora_b", tangent),
    "lora, network": ("lora", nonlinear),
    "adapter, tangent": ("adapter", tangent),
    "adapter, network": ("adapter", nonlinear),
    "all blocks": ("blocks", tangent),
}


def task(case):
    """A whitened predictor of both blocks, a step, and four inputs."""
    (kind, make), (model, w) = CASES[case], small()
    made = Pretrained(model, w, "")
    if kind != "blocks":
        method = made.with_adapters if kind == "adapter" else made.with_lora
        made = method(3, 2, jax.random.key(0))
    anchor = Pretrained(made.model, trees.cast(made.w, w["norm"]["bias"].dtype), "")
    predict = whiten(make(anchor, 2, kind))
    dw = jax.tree.map(lambda leaf: 0.1 * leaf, tree_normal(40, predict.zeros()))
    return predict, dw, apply(predict.model, predict.w, images(4), 0, predict.subset.stage)


@jax.jit
def clip(predict, dw, x, present, clip_norm):
    return clipped_gradients(predict, dw, x, Y, present, loss=CrossEntropy(), clip_norm=clip_norm)


@pytest.mark.parametrize("case", CASES)
def test_closed_form_is_the_vmapped_one(x64, case):
    assert_sums_are_vmapped_ones(*task(case), Y)


@pytest.mark.parametrize("case", CASES)
def test_one_example_moves_sum_by_clip_norm(x64, case):
    """One that is taken out, or whose gradient is not finite; at twice the clip norm by twice as much."""
    predict, dw, x = task(case)
    for clip_norm in (1e-3, 2e-3):
        whole = clip(predict, dw, x, jnp.ones(4), clip_norm)
        assert (*sorted(trees.leaves(whole.value)),) == predict.subset.paths
        for gone in range(4):
            without = clip(predict, dw, x, jnp.ones(4).at[gone].set(0), clip_norm)
            poisoned = clip(predict, dw, x.at[gone, 0, 0].set(jnp.nan), jnp.ones(4), clip_norm)
            assert_rel_close(poisoned.value, without.value)
            assert int(poisoned.non_finite) == 1
            moved = trees.norm(trees.plus(whole.value, trees.scale(-1.0, without.value)))
            np.testing.assert_allclose(moved, clip_norm, rtol=1e-9)


@pytest.mark.parametrize("case", ["lora, network", "adapter, tangent", "all blocks"])
def test_every_kind_pays_the_same(case):
    predict, _, x = task(case)
    mechanism = make_mechanism(3.0, 1e-5, steps=2)
    fitted = fit_private(predict, Batches(np.asarray(x), np.asarray(Y)), mechanism=mechanism)
    assert fitted.info.spent == Spent(mechanism, 2, private=True)
    assert all(leaf.any() for leaf in jax.tree.leaves(fitted.dw))  # each leaf has its noise
