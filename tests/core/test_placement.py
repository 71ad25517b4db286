"""The placement of examples and steps, and what all processes agree on."""

import jax
import jax.numpy as jnp
import numpy as np

from tangent_jax.core import placement
from tangent_jax.models.features import Features
from tangent_jax.train.batches import Batches


def test_features_are_copied_to_the_device_once():
    pairs = tuple((f"{i}", f"{i}.jpg") for i in range(6))
    features = Features(np.arange(12.0, dtype=np.float32).reshape(6, 2), np.arange(6), pairs)
    first, second = (features.batches(jax.random.key(i), batch_size=2 + i).resident()[0] for i in range(2))
    assert first is second
    assert features.take(np.arange(3)).batches().resident()[0] is not first
    assert Batches(features.inputs, features.targets).resident()[0] is not first


def test_one_process_writes_and_agrees_with_itself():
    assert placement.is_writer()
    value = np.array([1, 2], np.uint32)
    assert placement.agreed(value) is value
    assert isinstance(placement.replicated({"a": np.ones(2)})["a"], jax.Array)
    assert placement.divided(jnp.ones((3, 2)), 0).shape == (3, 2)
