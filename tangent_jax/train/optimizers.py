"""Optimisers of optax's interface whose numbers are data to jit: another learning rate compiles nothing.

Any optax transformation serves as well. Its numbers are constants of its program, so use one object for all runs.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.tree_util import Partial

from tangent_jax.core import Tree, expect, finite_number, trees
from tangent_jax.core.boundary import public

Optimizer = optax.GradientTransformation
DECAY_AT = (15 / 30, 25 / 30)

_ADAM = optax.scale_by_adam()
_MOMENTUM = optax.trace(0.9)


@public
def adam(learning_rate: float = 1e-3) -> Optimizer:
    """The paper's optimiser: Adam, its learning rate x0.1 after 15 and after 25 of 30 epochs, or as much of others.

    `update` takes `progress`, the finished fraction of the epochs, as `fit` gives it; without it nothing decays.
    """
    check_rate(learning_rate)
    return optax.GradientTransformationExtraArgs(Partial(_ADAM.init), Partial(_update_adam, learning_rate))


def _update_adam(
    learning_rate: Any, gradient: Tree, state: Any, dw: Any = None, *, progress: Any = 0.0, **_: Any
) -> tuple[Tree, Any]:
    updates, state = _ADAM.update(gradient, state)
    drops = sum((jnp.asarray(progress >= at - 1e-6, jnp.int32) for at in DECAY_AT), jnp.zeros((), jnp.int32))
    rate = learning_rate * 0.1**drops
    return jax.tree.map(lambda leaf: -jnp.asarray(rate, leaf.dtype) * leaf, updates), state


@public
def momentum(learning_rate: float = 0.03) -> Optimizer:
    """The optimiser of private training, v = 0.9 v + gradient, dw = dw - learning_rate v.

    Adam would divide by its second moment, which is here the noise's.
    """
    check_rate(learning_rate)
    return optax.GradientTransformationExtraArgs(Partial(_MOMENTUM.init), Partial(_update_momentum, learning_rate))


def _update_momentum(learning_rate: Any, gradient: Tree, state: Any, dw: Any = None, **_: Any) -> tuple[Tree, Any]:
    velocity, state = _MOMENTUM.update(gradient, state)
    return jax.tree.map(lambda leaf: -jnp.asarray(learning_rate, leaf.dtype) * leaf, velocity), state


@public
def project(optimizer: Optimizer, radius: float) -> Optimizer:
    """Projected descent: after each of the optimiser's steps dw is scaled back onto the ball |dw| <= radius.

        dw = min(1, R / |dw'|) dw',    dw' = dw + the optimiser's update

    Source: Liu et al. 2024, "TAFT with Projected Gradient Descent", which has no penalty then.
    Args:       radius: R > 0, L2 over the whole tree.
    Guarantees: |dw| <= R after every step from a start inside; f32's rounding is left a millionth of R.
    Edge cases: Adam rescales the gradient, so that on the sphere it stops elsewhere than at the ball's best point;
                plain gradient descent stops there.
    """
    finite_number("radius", radius, 0.0, 1e12)
    update = Partial(_update_projected, as_data(optimizer), radius)
    return optax.GradientTransformationExtraArgs(trees.as_pytree(optimizer.init), update)


def _update_projected(
    optimizer: Optimizer, radius: Any, gradient: Tree, state: Any, dw: Any = None, **extra: Any
) -> tuple[Tree, Any]:
    moved, state = apply(optimizer, gradient, state, dw, **extra)
    inside = optax.projections.projection_l2_ball(moved, radius * (1 - 1e-6))
    return jax.tree.map(jnp.subtract, inside, dw), state


def check_rate(learning_rate: float | Array) -> None:
    """Raises InputError for a number that is no learning rate; an array, which jit may trace, is not checked."""
    if not isinstance(learning_rate, Array):
        finite_number("learning_rate", learning_rate, 0.0, 1e6)


def as_data(optimizer: Any) -> Optimizer:
    """The optimiser as a pytree that jit takes as data; `optax.MultiSteps` too.

    Raises: InputError for an object that is no optimiser of optax's.
    """
    whole = getattr(optimizer, "gradient_transformation", lambda: optimizer)()
    got, do = type(optimizer).__name__, "Pass tj.adam(1e-3), or an optimiser of optax"
    expect(isinstance(whole, optax.GradientTransformation), "an optimiser of optax", got, do)
    return type(whole)(trees.as_pytree(whole.init), trees.as_pytree(whole.update))


def apply(optimizer: Optimizer, gradient: Tree, state: Any, dw: Tree, **extra: Any) -> tuple[Tree, Any]:
    """Returns (dw, optimiser state) after one update; `extra` goes to those optimisers that take it."""
    if not isinstance(optimizer, optax.GradientTransformationExtraArgs):
        extra = {}
    updates, state = optimizer.update(gradient, state, dw, **extra)
    return optax.apply_updates(dw, updates), state  # pyright: ignore[reportArgumentType]
