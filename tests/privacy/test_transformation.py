"""Clipped gradients, noise and optax, composed by hand: the steps of fit_private."""

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_rel_close

from tangent_jax.core.checks import InputError
from tangent_jax.privacy.clipping import ClippedSum, clipped_sum
from tangent_jax.privacy.mechanism import Mechanism, make_mechanism
from tangent_jax.privacy.norms import clipped_gradients
from tangent_jax.privacy.train import fit_private
from tangent_jax.privacy.transformation import privatizer
from tangent_jax.train.batches import Batches
from tangent_jax.train.losses import CrossEntropy
from tangent_jax.train.objective import make_objective

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 3)).astype(np.float32), RNG.integers(0, 3, 40)
START = {"kernel": jnp.zeros((3, 3))}
KEY = jax.random.key(7, impl="threefry2x32")


def linear(dw, x):
    return x @ dw["kernel"]


def trained(mechanism, optimizer, x=X, y=Y, steps=4):
    """A training loop as a user writes it."""
    state, dw = optimizer.init(START), START

    @jax.jit
    def step(dw, state):
        clipped = clipped_gradients(linear, dw, x, y, loss=CrossEntropy(), clip_norm=mechanism.clip_norm)
        updates, state = optimizer.update(clipped, state, dw)
        return optax.apply_updates(dw, updates), state

    for _ in range(steps):
        dw, state = step(dw, state)
    return dw


def test_loop_of_parts_is_fit_private():
    mechanism = make_mechanism(3.0, 1e-5, 4, clip_norm=0.5)
    parts = privatizer(mechanism, len(X), KEY), optax.scale(1 / mechanism.clip_norm), optax.sgd(0.1, momentum=0.9)
    options = {"optimizer": optax.sgd(0.1, momentum=0.9), "start": START, "seed": 7}
    fitted = fit_private(linear, Batches(X, Y), mechanism=mechanism, **options)
    assert_rel_close(trained(mechanism, optax.chain(*parts)), fitted.dw)


def test_noise_is_scaled_and_fresh():
    mechanism = Mechanism(0.5, 3.0, 10, 1e-5, sampling_rate=0.25)
    private, zeros = privatizer(mechanism, 40, KEY), {"a": jnp.zeros((100, 100)), "b": jnp.zeros(10_000)}
    state = private.init(zeros)
    total = ClippedSum(zeros, jnp.zeros(1), jnp.zeros((), int), 0.5)
    first, state = private.update(total, state)
    second, _ = private.update(total, state)
    draws = np.concatenate([np.ravel(leaf) for step in (first, second) for leaf in step.values()])
    scale = 3.0 * 0.5 / (0.25 * 40)
    assert abs(draws.std() / scale - 1) < 0.02  # 2/3 and 3/2 of it are far outside
    assert abs(draws.mean()) < 5 * scale / len(draws) ** 0.5
    parts = np.split(draws, 4)
    assert all(abs(np.corrcoef(a, b)[0, 1]) < 0.05 for i, a in enumerate(parts) for b in parts[:i])


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_accountant_composes_the_event(rate):
    mechanism = make_mechanism(3.0, 1e-5, 50, sampling_rate=rate)
    accountant = dp_accounting.pld.PLDAccountant().compose(mechanism.dp_event())
    assert accountant.get_epsilon(1e-5) == pytest.approx(mechanism.compute_epsilon(), rel=1e-3)
    assert mechanism.dp_event(7).count == 7
    assert dp_accounting.pld.PLDAccountant().compose(mechanism.dp_event(0)).get_epsilon(1e-5) == 0


def test_foreign_sum_is_refused():
    private = privatizer(make_mechanism(3.0, 1e-5, 4), 40, KEY)
    state = private.init(START)
    with pytest.raises(InputError, match=r"updates must be a ClippedSum, of clipped_gradients; got dict\. Pass it to"):
        private.update(START, state)
    total = clipped_gradients(linear, START, X, Y, loss=CrossEntropy(), clip_norm=2.0)
    with pytest.raises(InputError, match="clipped to the mechanism's norm 1; got 2"):
        private.update(total, state)
    with pytest.raises(InputError, match="mechanism must have gaussian noise; got discrete"):
        privatizer(make_mechanism(3.0, 1e-5, 4, noise="discrete"), 40, KEY)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        (0, "int"),
        (jax.random.PRNGKey(0), r"uint32 of shape \(2,\)"),
        (jax.random.split(KEY), r"key<fry> of shape \(2,\)"),
        (jax.random.key(0, impl="rbg"), r"key<rbg> of shape \(\)"),
    ],
)
def test_key_that_is_not_threefry_is_refused(key, given, untyped):
    with pytest.raises(InputError, match=f"key must be one key of threefry2x32; got {given}. Pass tj.privacy.secret"):
        privatizer(make_mechanism(3.0, 1e-5, 4), 40, key)


def test_delta_in_all_units_is_refused():
    mechanism = make_mechanism(3.0, 1 / 40, 4)
    privatizer(mechanism, 39, KEY)
    with pytest.raises(InputError, match=r"delta must be < 1 / examples = 0\.025; got 0\.025"):
        privatizer(mechanism, 40, KEY)


@pytest.mark.parametrize("clipped", [clipped_gradients, clipped_sum])
@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"loss": "ce"}, "loss must be one of tj.losses, such as .* gives one number for each example; got 'ce'"),
        ({"loss": make_objective("ce")}, "loss must be one of tj.losses.*; got Objective. Pass its `loss`"),
        ({"loss": 7}, "loss must be one of tj.losses.*; got int"),
        ({"loss": CrossEntropy}, "loss must be one of tj.losses.*; got <class '.*CrossEntropy'>"),
        ({"y": Y[:10]}, "y must have one target for each of 40 inputs; got 10"),
        ({"y": 3}, "y must be one array, an example a row; got a number"),
        ({"x": {"pixels": X}}, "x must be one array, an example a row; got a dict"),
        ({"present": np.ones(20)}, r"present must be 1 or 0 for each of 40 inputs, .*; got shape \(20,\)"),
        ({"present": np.ones((4, 5))}, r"present must be 1 or 0 for each of 40 inputs, .*; got shape \(4, 5\)"),
    ],
)
def test_wrong_loss_and_examples_are_named(clipped, changed, match, untyped):
    given = {"x": X, "y": Y, "present": np.ones(40), "loss": CrossEntropy(), **changed}
    with pytest.raises(InputError, match=match):
        clipped(linear, START, **given, clip_norm=1.0)


def test_summing_function_is_refused_under_jit():
    def normalised(dw, x):
        return linear(dw, x - x.mean(0))

    step = jax.jit(lambda x, y: clipped_gradients(normalised, START, x, y, loss=CrossEntropy(), clip_norm=1.0))
    with pytest.raises(InputError, match=r"predict must treat each example alone, .* sums over the examples"):
        step(X, Y)
