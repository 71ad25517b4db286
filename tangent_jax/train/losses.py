"""Losses of logits "b c" and integer labels "b", one number per example; convex in the logits."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from tangent_jax.core import finite_number, require

Loss = Callable[[Array, Array], Array]


def rescaled_square(
    logits: Float[Array, "b c"], labels: Int[Array, " b"], alpha: float | Array = 1.0, kappa: float | Array = 15.0
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
HYPER_PARAMETERS = {"rsl": {"alpha": 1.0, "kappa": 15.0}, "ce": {}, "mse": {}}
"""Of each loss, with the paper's values."""


def make_loss(name: str, **hyper_parameters: float) -> Loss:
    """The loss of a name in LOSSES, a pytree: its hyper-parameters are data to jit."""
    require(name in LOSSES, "make_loss", f"a loss in {', '.join(LOSSES)}", name)
    known = HYPER_PARAMETERS[name]
    for field, value in hyper_parameters.items():
        require(field in known, "make_loss", f"hyper-parameters of {name}: {', '.join(known) or 'none'}", field)
        finite_number("make_loss", field, value, 0.0, 1e6)
    return jax.tree_util.Partial(LOSSES[name], **{**known, **hyper_parameters})
