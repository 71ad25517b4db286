"""The placement of examples and steps, and what all processes agree on."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from tangent_jax.core import placement
from tangent_jax.models.features import Features
from tangent_jax.train.batches import Batches

FOUR_DEVICES = """
import jax, numpy as np
from tangent_jax.core import placement
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import evaluate
from tangent_jax.train.fit import fit
assert placement.mesh().size == 4
divided, odd = placement.divided(np.ones((2, 8)), 1), placement.divided(np.ones((2, 6)), 1)
assert [s.data.shape for s in divided.addressable_shards] == [(2, 2)] * 4
assert odd.sharding.is_fully_replicated and odd.shape == (2, 6)
x = np.random.default_rng(0).standard_normal((64, 5)).astype("float32")
y = x.argmax(1).astype("int32") % 3
fitted = fit(lambda dw, x: x @ dw, Batches(x, y, jax.random.key(0)), start=np.zeros((5, 3), "float32"), epochs=2)
assert fitted.dw.sharding.is_fully_replicated and len(fitted.dw.devices()) == 4
print(np.asarray(fitted.dw).tolist())
"""


def test_a_run_on_four_devices_is_that_on_one():
    found = []
    for count in (4, 1):
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
        code = (
            FOUR_DEVICES
            if count == 4
            else FOUR_DEVICES.replace("== 4", "== 1").split("divided, odd")[0]
            + ("x = np" + FOUR_DEVICES.split("x = np", 1)[1].replace("== 4", "== 1"))
        )
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        text = subprocess.check_output([sys.executable, "-W", "ignore", "-c", code], env=environment, text=True)
        found.append(np.array(eval(text)))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-7)


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
