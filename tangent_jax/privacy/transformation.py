"""The privatizer: an optax transformation from a clipped sum to a noisy mean, for training loops of one's own.

    S -> G = (S + sigma C N(0, I)) / B        S of sensitivity C, as `clipped_gradients` gives it; B = q n, public

    optimizer = optax.chain(privatizer(mechanism, units, key), optax.adam(1e-3))
    clipped = clipped_gradients(predict, dw, x, y, loss=loss, clip_norm=mechanism.clip_norm)
    updates, state = optimizer.update(clipped, state, dw)

`mechanism.dp_event()` is what its steps cost, for accountants of dp-accounting. `fit_private` is such a loop with
sampling, micro-batches, checks, and a ledger that pays for each step before it runs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.core import Tracer
from jaxtyping import Int, Key

from tangent_jax.core.checks import InputError, whole_number
from tangent_jax.core.notation import Tree
from tangent_jax.privacy.clipping import ClippedSum
from tangent_jax.privacy.discrete import discrete_mean
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.noise import noisy_mean

DIRECTLY = "Pass it to the `update` of a chain that begins with the privatizer, without a wrapper such as nnx.Optimizer"


class PrivatizerState(NamedTuple):
    """The number of steps so far, and the secret key from which the noise of each step is drawn."""

    step: Int[Array, ""]
    key: Key[Array, ""]


def privatizer(mechanism: Mechanism, units: int, key: Key[Array, ""]) -> optax.GradientTransformation:
    """An optax transformation that turns a `ClippedSum` into a private gradient; the first one of a chain.

    Args:
        mechanism: The mechanism of Gaussian noise.
        units: The public number n of examples or owners.
        key: Secret and used once, `secret_key()`. A key that others know or guess makes the result NOT private.

    Guarantees:
        The noise of every coordinate is N(0, (sigma C / q n)^2), independent between steps. If every sum is over all
        units, or over a Poisson sample at the mechanism's rate, T updates have the cost of `mechanism.dp_event(T)`, and
        so have all later transformations of the chain.

    Edge cases:
        The sum of an empty sample is noise alone; the caller stops after the mechanism's steps.

    Raises:
        InputError: A mechanism of discrete noise, whose sums are rounded to a grid by `fit_private`; delta >= 1 / n;
            what is not one Threefry key; when a sum is clipped to another norm than the mechanism's.

    >>> mechanism = tj.make_mechanism(epsilon=8.0, delta=1e-2, steps=5)
    >>> private = tj.privacy.privatizer(mechanism, units=24, key=tj.privacy.secret_key())
    >>> settings = {"loss": tj.losses.CrossEntropy(), "clip_norm": mechanism.clip_norm}
    >>> clipped = tj.privacy.clipped_gradients(demo.predict, demo.dw, demo.train.inputs, demo.train.targets, **settings)
    >>> gradient, state = private.update(clipped, private.init(demo.dw))
    >>> int(state.step), gradient["head"]["kernel"].shape
    (1, (6, 3))
    """
    if mechanism.noise != "gaussian":
        raise InputError(f"mechanism must have gaussian noise; got {mechanism.noise}. Use fit_private for it.")
    whole_number("units", units, 1)
    check_delta(mechanism, units)
    check_key(key)
    expected = mechanism.expected_size(units)

    def init(params: Any) -> PrivatizerState:
        return PrivatizerState(jnp.zeros((), jnp.int32), key)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Tree, PrivatizerState]:
        if not isinstance(updates, ClippedSum):
            raise InputError(
                f"updates must be a ClippedSum, of clipped_gradients; got {type(updates).__name__}. {DIRECTLY}."
            )
        check_sensitivity(updates, mechanism)
        gradient = private_mean(updates, mechanism, expected, jax.random.fold_in(state.key, state.step))
        return gradient, PrivatizerState(state.step + 1, state.key)

    return optax.GradientTransformation(init, update)


def private_mean(total: ClippedSum, mechanism: Mechanism, expected: float | Array, key: Array) -> Tree:
    """The private gradient G: the clipped sum with the mechanism's noise, over `expected` = q n units.

    Args:
        key: Secret, and used once: `step_key`.
    """
    if mechanism.noise == "gaussian":
        return noisy_mean(total, mechanism.noise_multiplier, expected, key)
    return discrete_mean(total, mechanism, expected, key)


def check_sensitivity(total: ClippedSum, mechanism: Mechanism) -> None:
    """Raises InputError for a sum clipped to another norm than the mechanism's; traced numbers are not compared."""
    numbers = total.sensitivity, mechanism.clip_norm
    if any(isinstance(number, Tracer) for number in numbers):
        return
    clipped, stated = map(float, numbers)
    if abs(clipped - stated) > 1e-6 * stated:  # an f32 of the same number
        raise InputError(
            f"updates must be clipped to the mechanism's norm {stated:g}; got {clipped:g}."
            " Pass clip_norm=mechanism.clip_norm to clipped_gradients, and put the privatizer first in the chain."
        )


def check_delta(mechanism: Mechanism, units: int) -> None:
    """Raises InputError unless delta < 1 / n: with a larger one, publishing one unit's data would count as private."""
    n = max(mechanism.public_count(units), units)  # an understated public count must not loosen the bound
    if not mechanism.delta < 1 / n:
        raise InputError(f"delta must be < 1 / {mechanism.unit}s = {1 / n:.2g}; got {mechanism.delta}")


def check_key(key: Any) -> None:
    """Raises InputError unless the key is one typed key of Threefry, from whose bits the noise is made (noise.py)."""
    is_key = isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_key or key.shape or jax.random.key_impl(key) != "threefry2x32":
        given = f"{key.dtype} of shape {key.shape}" if isinstance(key, Array) else type(key).__name__
        raise InputError(f"key must be one key of threefry2x32; got {given}. Pass tj.privacy.secret_key().")
