"""One model of several tasks is each task's own model where the others are silent."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, normal, predictor, tree_normal

import tangent_jax as tj
from tangent_jax.commands.shared.joint import OfOwnTask, fit_jointly
from tangent_jax.core.trees import body


@pytest.mark.parametrize(
    "loss", [tj.losses.RescaledSquare(alpha=2.0), tj.losses.CrossEntropy(), tj.losses.MeanSquared()]
)
def test_example_loss_is_of_own_outputs(x64, loss):
    outputs, label = normal(1, (4, 7)), jnp.array([0, 2, 1, 1])
    targets = jnp.stack([label, jnp.full(4, 3), jnp.full(4, 4)], 1)
    own = outputs[:, 3:]
    assert_rel_close(OfOwnTask(loss)(outputs, targets), loss(own, label))
    moved = outputs.at[:, :3].add(5.0)  # of another task
    assert_rel_close(OfOwnTask(loss)(moved, targets), loss(own, label))
    gradient = jax.grad(lambda z: OfOwnTask(loss)(z, targets).sum())(outputs)
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[:, :3].any()


def test_joint_model_of_one_task_is_single():
    predict, _ = predictor("blocks", 1)
    x = normal(4, (12, *predict.model.input_shape(predict.subset.stage)))
    examples = tuple((f"{i:064x}", f"{i}") for i in range(12))
    features = tj.Features(np.asarray(x), np.arange(12, dtype=np.int32) % 7, examples)
    recipe = tj.Recipe(epochs=2, batch_size=4)
    single = recipe.fit(predict, features).dw
    assert_rel_close(fit_jointly({"a": predict}, {"a": features}, recipe)["a"], single)
    other = dataclasses.replace(predict, w={**predict.w, "head": tree_normal(3, predict.w["head"])})
    several = fit_jointly({"a": predict, "b": other}, {"a": features, "b": features}, recipe)
    assert jax.tree.map(jnp.shape, several["b"]) == jax.tree.map(jnp.shape, single)
    assert_rel_close(body(several["a"]), body(several["b"]))
