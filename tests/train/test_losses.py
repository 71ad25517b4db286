"""Losses against their definitions, and their convexity."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, normal

from tangent_jax import losses as public
from tangent_jax.commands.shared.table import TABLE
from tangent_jax.core.checks import InputError
from tangent_jax.store.recipe import Recipe
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


def numbers_of(name):
    """Numbers for the hyper-parameters of a named loss that are not its defaults: 0.5, 4, ..."""
    return {field.name: 0.5 * 8.0**i for i, field in enumerate(dataclasses.fields(losses.LOSSES[name]))}


OTHERS = {name: losses.make_loss(name, **numbers_of(name)) for name in losses.LOSSES}


@pytest.mark.parametrize("loss", [*OTHERS.values(), Huber()])
@pytest.mark.parametrize("key", [None, 0])
def test_a_root_of_the_hessian_is_one(x64, loss, key):
    f = normal(1, (5, 3))
    y = normal(2, (5, 3)) if isinstance(loss, Huber) else jnp.asarray(LABELS)
    hessians = jax.vmap(jax.hessian(lambda f, y: loss(f[None], y[None])[0]))(f, y)
    root = loss.hessian_root(f, y, None if key is None else jax.random.key(key), 40_000)
    assert_rel_close(jnp.einsum("kbc,kbd->bcd", root, root), hessians, None if key is None else 0.03)


@pytest.mark.parametrize("loss", [loss for loss in OTHERS.values() if isinstance(loss, losses.SquareLoss)])
def test_a_square_says_its_targets_and_precisions(x64, loss):
    f = normal(1, (5, 3))
    t, precision = loss.quadratic(LABELS, 3)
    assert_rel_close(loss(f, LABELS), jnp.sum(precision / 2 * (f - t) ** 2, -1))
    assert losses.CrossEntropy().quadratic(LABELS, 3) is None


def test_example_cannot_see_another():
    """Coupled losses moved a clipped sum by 1.24 and 1.39 times its sensitivity."""
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
def test_loss_of_other_shape_is_refused(loss):
    with pytest.raises(InputError, match=r"a loss or metric must give one number for each example"):
        make_objective(loss).losses(normal(1, (5, 3)), jnp.asarray(LABELS))


@pytest.mark.parametrize("loss", [*map(losses.make_loss, losses.LOSSES), *OTHERS.values()])
def test_every_loss_is_convex_in_the_logits(x64, loss):
    hessians = jax.vmap(jax.hessian(lambda f, y: loss(f[None], y[None])[0]))(normal(1, (5, 3)), jnp.asarray(LABELS))
    assert float(jnp.linalg.eigvalsh(hessians).min()) > -1e-12


@pytest.mark.parametrize("name", losses.LOSSES)
def test_named_loss_is_public_everywhere(name):
    """What CONTRIBUTING.md asks of one, so that no place is forgotten."""
    numbers = numbers_of(name)
    loss = Recipe(loss=":".join([name, *(f"{n}={v}" for n, v in numbers.items())])).objective.loss
    assert loss == OTHERS[name]
    assert jax.tree.leaves(loss) == [*numbers.values()], "hyper-parameters are data_fields: a search compiles once"
    assert type(loss).__name__ in public.__all__
    assert type(loss).__name__ in TABLE["loss"].keywords["help"]
    with pytest.raises(InputError, match="class indices must be below 3, the number of classes"):
        loss.check(np.array([0, 3]), 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("hinge", f"loss must be one of {', '.join(losses.LOSSES)}; got hinge"),
        ("rsl:kappa", "loss must be of the form rsl:HYPER_PARAMETER=NUMBER; got rsl:kappa"),
        ("rsl:kappa=x", "got rsl:kappa=x"),
        ("rsl:alpha=0", "alpha must be a finite number > 0"),
        ("rsl:kappa=-1", "kappa must be a finite number > 0"),
        ("rsl:kappa=inf", "kappa must be a finite number > 0"),
        ("ce:kappa=2", "hyper-parameters of ce must be of none; got kappa"),
    ],
)
def test_an_impossible_loss_is_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        losses.make_loss(wrong)


def test_defaults_are_the_papers():
    assert losses.make_loss("rsl") == losses.RescaledSquare(1.0, 15.0)
    assert losses.make_loss("rsl", kappa=5.0) == losses.RescaledSquare(1.0, 5.0)
