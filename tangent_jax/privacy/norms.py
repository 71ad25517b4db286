"""The clipped sum of a model with a closed form, from the inputs and signals of its leaves.

One backward pass gives the signals and forms no gradient. linear/norms.py has each example's gradient norm; the clipped
sum is then outer products of inputs and reweighted signals. The cost is about one training step.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Num

from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.linear.norms import squared_norms
from tangent_jax.linear.signals import Leaf
from tangent_jax.linear.tangent import Tangent, as_tangent, check_factors
from tangent_jax.privacy.clipping import ClippedSum, as_examples, as_summed_loss, clip_scales, clipped_sum, of_units
from tangent_jax.privacy.mechanism import check_clip_norm
from tangent_jax.rules.probe import product, widen
from tangent_jax.train.losses import Loss


def clipped_sum_closed_form(
    predict: Tangent,
    dw: Tree,
    x: Num[Array | np.ndarray, "n ..."],
    y: Num[Array | np.ndarray, "n ..."],
    present: Num[Array | np.ndarray, "o *e"],
    *,
    loss: Loss | Callable[..., Array],
    clip_norm: float | Array,
) -> ClippedSum:
    """`clipped_sum` for a model with a closed form, at the cost of about one ordinary step.

    Arguments, result, guarantees and edge cases are those of `clipped_sum`.

    Raises:
        InputError: As `clipped_sum`, and for a model without a closed form.

    >>> x, y = demo.train.inputs[:2], demo.train.targets[:2]
    >>> settings = {"loss": tj.losses.CrossEntropy(), "clip_norm": 0.1}
    >>> total = lambda dw: tj.privacy.clipped_sum_closed_form(demo.predict, dw, x, y, np.ones(2), **settings)
    >>> jax.jit(total)(demo.dw).norms.shape
    (2,)
    """
    check_clip_norm(clip_norm)
    check_factors(predict, "Call clipped_sum")
    objective = as_summed_loss(loss)
    x, y, present = as_examples(x, y, present)
    probed = predict.probe(dw, x)
    losses, units = objective.losses, len(present)
    slope = jax.grad(lambda outputs: jnp.sum(losses(outputs, y) * present.ravel()))(probed.outputs)
    leaves = probed.rows(slope[None])
    with jax.default_matmul_precision("highest"):  # no bound here covers TF32, a GPU's default
        squared, rounding = squared_norms(leaves, units)
        scales, norms, bad = clip_scales(squared, of_units(present), clip_norm, rounding)
        value = scaled_sum(dw, leaves, jnp.repeat(scales, len(y) // units))
    return ClippedSum(value, norms, bad, clip_norm)


def clipped_gradients(
    predict: Callable[[Tree, Array], Array],
    dw: Tree,
    x: Num[Array | np.ndarray, "n ..."],
    y: Num[Array | np.ndarray, "n ..."],
    present: Num[Array | np.ndarray, "o *e"] | None = None,
    *,
    loss: Loss | Callable[..., Array],
    clip_norm: float | Array,
) -> ClippedSum:
    """The sum of per-example gradients, each clipped, by the fastest way: the closed form if there is one, else vmap.

    Args:
        predict: (dw, x "b ...") -> outputs "b c".
        x, y: The examples "b ...", and their targets.
        present: 1 for an example that counts, 0 for one outside the sample, "b" (None: every example counts), or "o e"
            for owners with e consecutive examples each, whose sums are clipped.
        loss: (outputs, targets) -> one number for each example, "b".
        clip_norm: C > 0, L2 over the whole tree.

    Returns:
        ClippedSum: its `value` is like dw; its `norms` are those before clipping, and not private.

    Guarantees, edge cases and errors are those of `clipped_sum`.

    >>> x, y = demo.train.inputs[:4], demo.train.targets[:4]
    >>> settings = {"loss": tj.losses.CrossEntropy(), "clip_norm": 0.1}
    >>> clipped = tj.privacy.clipped_gradients(demo.predict, demo.dw, x, y, **settings)
    >>> clipped.norms.shape, clipped.sensitivity
    ((4,), 0.1)
    """
    present = jnp.ones(np.shape(x)[:1]) if present is None else present
    tangent = as_tangent(predict)
    if tangent.has_factors:
        return clipped_sum_closed_form(tangent, dw, x, y, present, loss=loss, clip_norm=clip_norm)
    return clipped_sum(predict, dw, x, y, present, loss=loss, clip_norm=clip_norm)


def scaled_sum(dw: Tree, leaves: dict[str, Leaf], scales: Float[Array, "b"]) -> Tree:
    """sum_b scale_b g_b: outer products of inputs and reweighted signals."""
    total = {path: jnp.zeros_like(widen(leaf)) for path, leaf in trees.leaves(dw).items()}

    def zeroed(a: Array) -> Array:
        return jnp.where(scales.reshape(-1, *[1] * (a.ndim - 1)) > 0, a, 0)

    def scaled(a: Array) -> Array:
        return zeroed(widen(a) * scales.reshape(-1, *[1] * (a.ndim - 1)))

    for path, leaf in leaves.items():
        like = total[path]
        if leaf.layout is None:
            value = jnp.sum(scaled(leaf.s), (0, 1)).reshape(like.shape)
        else:
            blocks = product("bthi,btho->hio", zeroed(leaf.x), scaled(leaf.s[:, 0]).astype(leaf.s.dtype))
            value = leaf.layout.kernel(blocks, like.shape)
        total[path] = value.astype(like.dtype)
    return jax.tree.unflatten(jax.tree.structure(dw), list(total.values()))
