"""Losses against their definitions, and their convexity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, normal

from tangent_jax.core import InputError
from tangent_jax.train import losses

LABELS = np.array([2, 0, 1, 2, 2])


def test_rescaled_square_is_its_definition(x64):
    f = normal(1, (5, 3))
    want = [
        (0.5 * (f[b, y] - 4) ** 2 + sum(f[b, c] ** 2 for c in range(3) if c != y)) / 3 for b, y in enumerate(LABELS)
    ]
    assert_rel_close(losses.rescaled_square(f, LABELS, alpha=0.5, kappa=4.0), jnp.array(want))
    assert_rel_close(losses.mean_squared(f, LABELS), jnp.mean((f - jax.nn.one_hot(LABELS, 3)) ** 2, -1))


def test_cross_entropy_is_its_definition(x64):
    f = normal(1, (5, 3))
    assert_rel_close(losses.cross_entropy(f, LABELS), -jnp.log(jax.nn.softmax(f))[jnp.arange(5), LABELS])


@pytest.mark.parametrize("name", losses.LOSSES)
def test_every_loss_is_convex_in_the_logits(x64, name):
    loss = losses.make_loss(name)
    hessians = jax.vmap(jax.hessian(lambda f, y: loss(f[None], y[None])[0]))(normal(1, (5, 3)), jnp.asarray(LABELS))
    assert float(jnp.linalg.eigvalsh(hessians).min()) > -1e-12


@pytest.mark.parametrize(
    "wrong", [("hinge", {}), ("rsl", {"alpha": 0.0}), ("rsl", {"kappa": -1.0}), ("ce", {"kappa": 2.0})]
)
def test_an_impossible_loss_is_refused(wrong):
    name, hyper_parameters = wrong
    with pytest.raises(InputError, match="make_loss: expected"):
        losses.make_loss(name, **hyper_parameters)


def test_the_papers_hyper_parameters_are_the_defaults(x64):
    f = normal(1, (5, 3))
    assert_rel_close(losses.make_loss("rsl")(f, LABELS), losses.rescaled_square(f, LABELS, 1.0, 15.0))
    assert_rel_close(losses.make_loss("rsl", kappa=5.0)(f, LABELS), losses.rescaled_square(f, LABELS, 1.0, 5.0))
