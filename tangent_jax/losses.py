"""Losses of logits "b c" and integer labels "b", one number per example; convex in the logits."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from tangent_jax.checks import require

Loss = Callable[[Array, Array], Array]


def rescaled_square(
    logits: Float[Array, "b c"], labels: Int[Array, " b"], alpha: float = 1.0, kappa: float = 15.0
) -> Float[Array, " b"]:
    """Rescaled square loss (Hui and Belkin 2021; Liu et al. 2024).

        (alpha (f_y - kappa)^2 + sum_{c != y} f_c^2) / C

    Args:       alpha: weight of the true class; kappa: its target.
    Returns:    "b".
    Edge cases: alpha = kappa = 1 is `mean_squared`.
    """
    y = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return jnp.mean((1 + (alpha - 1) * y) * jnp.square(logits - kappa * y), -1)


def mean_squared(logits: Float[Array, "b c"], labels: Int[Array, " b"]) -> Float[Array, " b"]:
    """Mean over classes of (f - one-hot)^2."""
    return rescaled_square(logits, labels, 1.0, 1.0)


def cross_entropy(logits: Float[Array, "b c"], labels: Int[Array, " b"]) -> Float[Array, " b"]:
    """-log softmax(f)_y."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


LOSSES: dict[str, Loss] = {"rsl": rescaled_square, "ce": cross_entropy, "mse": mean_squared}


def make_loss(name: str, alpha: float = 1.0, kappa: float = 15.0) -> Loss:
    """The loss of a name in LOSSES; alpha and kappa are the rescaled square loss's."""
    require(name in LOSSES, "make_loss", f"a loss in {', '.join(LOSSES)}", name)
    require(alpha > 0 and kappa > 0, "make_loss", "alpha > 0 and kappa > 0", (alpha, kappa))
    if name != "rsl":
        return LOSSES[name]
    return lambda logits, labels: rescaled_square(logits, labels, alpha, kappa)
