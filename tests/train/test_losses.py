"""Losses against their definitions, and their convexity."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, normal

from tangent_jax.core import InputError
from tangent_jax.train import losses
from tangent_jax.train.objective import make_objective

LABELS = np.array([2, 0, 1, 2, 2])


def test_rescaled_square_is_its_definition(x64):
    f = normal(1, (5, 3))
    want = [
        (0.5 * (f[b, y] - 4) ** 2 + sum(f[b, c] ** 2 for c in range(3) if c != y)) / 3 for b, y in enumerate(LABELS)
    ]
    assert_rel_close(losses.RescaledSquare(alpha=0.5, kappa=4.0)(f, LABELS), jnp.array(want))
    assert_rel_close(losses.MeanSquared()(f, LABELS), jnp.mean((f - jax.nn.one_hot(LABELS, 3)) ** 2, -1))
    t = normal(2, (5, 3))
    assert_rel_close(losses.MeanSquared()(f, t), jnp.mean((f - t) ** 2, -1))


def test_cross_entropy_is_its_definition(x64):
    f = normal(1, (5, 3))
    assert_rel_close(losses.CrossEntropy()(f, LABELS), -jnp.log(jax.nn.softmax(f))[jnp.arange(5), LABELS])


@dataclasses.dataclass(frozen=True)
class Huber(losses.Loss):
    """A loss of a user's own, that knows nothing of its Hessian."""

    def __call__(self, outputs, targets):
        away = jnp.abs(outputs - targets)
        return 3 * jnp.where(away < 1, away**2 / 2, away - 0.5).sum(-1)


@pytest.mark.parametrize(
    "loss", [losses.RescaledSquare(0.5, 4.0), losses.MeanSquared(), losses.CrossEntropy(), Huber()]
)
@pytest.mark.parametrize("key", [None, 0])
def test_a_root_of_the_hessian_is_one(x64, loss, key):
    f = normal(1, (5, 3))
    y = normal(2, (5, 3)) if isinstance(loss, Huber) else jnp.asarray(LABELS)
    hessians = jax.vmap(jax.hessian(lambda f, y: loss(f[None], y[None])[0]))(f, y)
    root = loss.hessian_root(f, y, None if key is None else jax.random.key(key), 40_000)
    assert_rel_close(jnp.einsum("kbc,kbd->bcd", root, root), hessians, None if key is None else 0.03)


@pytest.mark.parametrize("loss", [losses.RescaledSquare(0.5, 4.0), losses.MeanSquared()])
def test_a_square_says_its_targets_and_precisions(x64, loss):
    f = normal(1, (5, 3))
    t, precision = loss.quadratic(LABELS, 3)
    assert_rel_close(loss(f, LABELS), jnp.sum(precision / 2 * (f - t) ** 2, -1))
    assert losses.CrossEntropy().quadratic(LABELS, 3) is None


def test_an_example_cannot_see_another_whatever_the_loss_says():
    """Coupled losses moved a clipped sum by 1.24 and 1.39 times its sensitivity (FOUND, 47)."""
    f, y = normal(1, (5, 3)), jnp.asarray(LABELS)
    for coupled in (
        lambda z, y: losses.CrossEntropy()(z - z.mean(0), y),
        lambda z, y: losses.CrossEntropy()((z - z.mean(0)) / (z.std(0) + 1), y),
        lambda z, y: losses.CrossEntropy()(z, y) / jnp.bincount(y, length=3)[y],
    ):
        objective = make_objective(coupled)
        together = objective.losses(f, y)
        alone = jnp.concatenate([objective.losses(f[i : i + 1], y[i : i + 1]) for i in range(5)])
        assert (together == alone).all()
        assert jnp.isfinite(objective.losses(f.at[1:].set(jnp.nan), y)[0])


@pytest.mark.parametrize("loss", [lambda z, y: jnp.mean(z), lambda z, y: z, lambda z, y: z[0]])
def test_a_loss_that_gives_another_shape_than_one_number_each_is_refused(loss):
    with pytest.raises(InputError, match=r"a loss or metric of shape \(1,\) for one example"):
        make_objective(loss).losses(normal(1, (5, 3)), jnp.asarray(LABELS))


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


def test_the_papers_hyper_parameters_are_the_defaults():
    assert losses.make_loss("rsl") == losses.RescaledSquare(1.0, 15.0)
    assert losses.make_loss("rsl", kappa=5.0) == losses.RescaledSquare(1.0, 5.0)
