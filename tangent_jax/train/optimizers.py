"""Optimisers with optax's interface whose numbers are data to jit: another learning rate does not recompile.

Any optax transformation works too. Its numbers are constants of its program, so use one object for all runs.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.tree_util import Partial

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, finite_number
from tangent_jax.core.notation import Tree

Optimizer = optax.GradientTransformation
DECAY_AT = (15 / 30, 25 / 30)

_ADAM = optax.scale_by_adam()
_MOMENTUM = optax.trace(0.9)


def adam(learning_rate: float = 1e-3) -> Optimizer:
    """The paper's optimiser: Adam, with a learning rate that falls x0.1 after 1/2 and again after 5/6 of the epochs.

    `fit` tells it how much of the run is done. `fit_private` does not: there the rate is constant.

    >>> fitted = tj.fit(demo.predict, demo.train, key=jax.random.key(0), optimizer=tj.adam(0.3), epochs=5)
    >>> fitted.steps
    5
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


def momentum(learning_rate: float = 0.03) -> Optimizer:
    """The optimiser of private training: v = 0.9 v + gradient, dw = dw - learning_rate v.

    Try rates of 0.03, 0.1 and 0.3, in units of 1 / clip norm. `adam` works, too, with 0.01 or 0.03.

    >>> optimizer, dw = tj.privacy.momentum(0.1), {"w": jnp.ones(1)}
    >>> update, state = optimizer.update({"w": jnp.ones(1)}, optimizer.init(dw), dw)
    >>> update["w"].tolist()
    [-0.1]
    """
    check_rate(learning_rate)
    return optax.GradientTransformationExtraArgs(Partial(_MOMENTUM.init), Partial(_update_momentum, learning_rate))


def _update_momentum(learning_rate: Any, gradient: Tree, state: Any, dw: Any = None, **_: Any) -> tuple[Tree, Any]:
    velocity, state = _MOMENTUM.update(gradient, state)
    return jax.tree.map(lambda leaf: -jnp.asarray(learning_rate, leaf.dtype) * leaf, velocity), state


def project(optimizer: Optimizer, radius: float) -> Optimizer:
    """Projected descent: after each step of the optimiser, dw is scaled back onto the ball |dw| <= radius.

        dw = min(1, R / |dw'|) dw',    dw' = dw + the optimiser's update

    Source: Liu et al. 2024, "TAFT with Projected Gradient Descent", which has no penalty then.

    Args:
        radius: R > 0, L2 over the whole tree.

    Guarantees:
        |dw| <= R after every step from a start inside, with a margin of R / 1e6 for f32's rounding.

    Edge cases:
        Adam rescales the gradient, so on the sphere it may stop at another point than the ball's optimum; plain
        gradient descent stops at the optimum.

    >>> optimizer, dw = tj.project(tj.adam(0.3), radius=0.1), {"w": jnp.zeros(2)}
    >>> update, state = optimizer.update({"w": jnp.array([3.0, 4.0])}, optimizer.init(dw), dw)
    >>> float(jnp.linalg.norm(dw["w"] + update["w"]))
    0.1
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
    """Raises InputError for an invalid learning rate; an array, which jit may trace, is not checked."""
    if not isinstance(learning_rate, Array):
        finite_number("learning_rate", learning_rate, 0.0, 1e6)


def as_data(optimizer: Any) -> Optimizer:
    """The optimiser as a pytree that jit takes as data; `optax.MultiSteps` too.

    Raises:
        InputError: An object that is not an optax transformation.
    """
    transformation = getattr(optimizer, "gradient_transformation", lambda: optimizer)()
    if not isinstance(transformation, optax.GradientTransformation):
        raise InputError(
            f"optimizer must be an optimiser of optax; got {type(optimizer).__name__}. Pass tj.adam(1e-3)."
        )
    return type(transformation)(trees.as_pytree(transformation.init), trees.as_pytree(transformation.update))


def apply(optimizer: Optimizer, gradient: Tree, state: Any, dw: Tree, **extra: Any) -> tuple[Tree, Any]:
    """Returns (dw, optimiser state) after one update; `extra` goes to those optimisers that take it."""
    if not isinstance(optimizer, optax.GradientTransformationExtraArgs):
        extra = {}
    updates, state = optimizer.update(gradient, state, dw, **extra)
    return optax.apply_updates(dw, updates), state  # pyright: ignore[reportArgumentType]
