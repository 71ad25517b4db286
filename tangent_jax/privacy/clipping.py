"""The sum of per-example gradients, each clipped to an L2 norm over the whole tree.

    g_b = grad_dw loss(predict(dw, x_b), y_b)
    S   = sum_b min(1, C / |g_b|) g_b

Adding or removing one example changes S by at most C, its sensitivity; replacing one changes it by up to 2 C. Source:
Abadi et al. 2016 (DP-SGD). This file computes vmapped per-example gradients, for any function and loss: the reference.
`norms.py` computes the same sum for the tangent model without forming any g_b. For user-level privacy (the unit is an
owner), g_b is the sum over all of one owner's examples, clipped as one (McMahan et al. 2018): then adding or removing
an owner with all examples changes S by at most C.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Int, Num

from tangent_jax.core.checks import InputError, array_of_examples
from tangent_jax.core.notation import Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.linear.tangent import as_tangent, check_alone
from tangent_jax.privacy.mechanism import check_clip_norm
from tangent_jax.rules.probe import widen
from tangent_jax.train.losses import Loss
from tangent_jax.train.objective import Objective, check_targets
from tangent_jax.train.targets import as_targets, output_shape


@partial(jax.tree_util.register_dataclass, data_fields=["value", "norms", "non_finite", "sensitivity"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class ClippedSum:
    """A clipped sum with its sensitivity.

    Attributes:
        value: The tree S.
        sensitivity: The largest change of S, in L2, when one unit is added or removed.
        norms: |g_b| before clipping, "b" (0 where padded or not finite), not private.
        non_finite: The number of units whose gradient was not finite and counted as zero.

    >>> a = tj.privacy.ClippedSum({"w": jnp.ones(2)}, norms=jnp.array([0.3]), non_finite=0, sensitivity=1.0)
    >>> (a + a).value["w"].tolist(), (a + a).sensitivity
    ([2.0, 2.0], 1.0)
    """

    value: Tree
    norms: Any
    non_finite: Any
    sensitivity: float | Array

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """The sum over two micro-batches of different units; each unit is in one, so the sensitivity stays."""
        if not isinstance(self.sensitivity, Tracer):
            first, second = float(self.sensitivity), float(other.sensitivity)
            if first != second:
                raise InputError(f"sums that are added must have one clip norm, {first}; got {second}")
        value = jax.tree.map(jnp.add, self.value, other.value)
        norms = jnp.concatenate([self.norms, other.norms])
        return ClippedSum(value, norms, self.non_finite + other.non_finite, self.sensitivity)


def clip_scales(
    squared_norms: Float[Array, "b"],
    present: Num[Array, "b"],
    clip_norm: float | Array,
    rounding: float | Float[Array, "b"] = 0.0,
) -> tuple[Float[Array, "b"], Float[Array, "b"], Int[Array, ""]]:
    """(min(1, C / |g_b|) or 0 where padded or not finite, norms, the number not finite), "b" each.

    A traced C that is negative or NaN counts as 0.

    Args:
        rounding: The largest error of the squared norms by rounding, "b"; it is added before clipping.
    """
    finite = jnp.isfinite(squared_norms + rounding)
    squared = jnp.where(finite, jnp.maximum(squared_norms, 0), 0)
    norms = jnp.sqrt(squared) * present
    most = jnp.sqrt(squared + jnp.where(finite, rounding, 0))
    limit = jnp.where(clip_norm > 0, clip_norm, 0)
    scales = jnp.minimum(1, limit / jnp.maximum(most, jnp.finfo(norms.dtype).tiny))
    return scales * finite * present, norms, jnp.sum(~finite & (present > 0))


def of_units(present: Num[Array, "o *e"]) -> Num[Array, "o"]:
    """1 for each unit with a present example, 0 for padding, "o", from examples, "o" or "o e"."""
    return present if present.ndim == 1 else present.max(1)


def as_examples(x: Any, y: Any, present: Any) -> tuple[Array, Array, Array]:
    """The inputs "n ...", targets "n ..." and presences "n" or "o e" as arrays.

    Raises:
        InputError: Unless each is one array, with an entry for each example.
    """
    x, y, present = (jnp.asarray(array_of_examples(*pair)) for pair in (("x", x), ("y", y), ("present", present)))
    if len(y) != len(x):
        raise InputError(f"y must have one target for each of {len(x)} inputs; got {len(y)}")
    if present.ndim > 2 or present.size != len(x):
        raise InputError(
            f'present must be 1 or 0 for each of {len(x)} inputs, "b", or "o e" for owners; got shape {present.shape}'
        )
    return x, y, present


def as_summed_loss(loss: Any) -> Objective:
    """The loss without a penalty, whose gradients are clipped; InputError for a name, an objective or a class."""
    if isinstance(loss, (Objective, type)) or not callable(loss):
        given = repr(loss) if isinstance(loss, (str, type)) else type(loss).__name__
        advice = ". Pass its `loss`" if isinstance(loss, Objective) else ""
        raise InputError(
            "loss must be one of tj.losses, such as tj.losses.CrossEntropy(), or a function (outputs, targets) that"
            f" gives one number for each example; got {given}{advice}"
        )
    return Objective(loss)


@promotes
def clipped_sum(
    predict: Callable[[Tree, Array], Array],
    dw: Tree,
    x: Num[Array | np.ndarray, "n ..."],
    y: Num[Array | np.ndarray, "n ..."],
    present: Num[Array | np.ndarray, "o *e"],
    *,
    loss: Loss | Callable[..., Array],
    clip_norm: float | Array,
    chunk: int = 8,
) -> ClippedSum:
    """The clipped sum by per-example gradients, `chunk` examples at a time, or by per-owner gradients.

    Args:
        predict: (dw, x "b ...") -> outputs "b c", called with one example at a time.
        y: Targets "b ...".
        present: 1, or 0 for padding: "b" of examples, or "o e" of owners with e consecutive examples each in x and y,
            padded by repeats of their own.
        loss: (outputs, targets) -> "b", called like predict.
        clip_norm: C > 0, L2 over the whole tree.

    Returns:
        ClippedSum.

    Guarantees:
        |S(D) - S(D')| <= C for D, D' that differ by one example, or by one owner, up to rounding.

    Edge cases:
        An example or owner whose gradient is not finite counts as zero; padding adds nothing; no example gives zero; a
        traced clip_norm that is negative or NaN clips every example to zero.

    Raises:
        InputError: clip_norm <= 0, x, y or present of different lengths, what is no loss, or a function that sums over
            the examples.

    >>> linear, dw = lambda dw, x: x @ dw["w"], {"w": np.zeros((2, 3), np.float32)}
    >>> x, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    >>> settings = {"loss": tj.losses.CrossEntropy(), "clip_norm": 0.1}
    >>> clipped = jax.jit(lambda dw: tj.privacy.clipped_sum(linear, dw, x, y, np.ones(2), **settings))(dw)
    >>> clipped.norms.tolist(), clipped.sensitivity.item()
    ([0.816, 0.816], 0.1)
    """
    check_clip_norm(clip_norm)
    objective = as_summed_loss(loss)
    targets = y
    x, y, present = as_examples(x, y, present)
    check_alone(as_tangent(predict), dw, x)
    if not isinstance(targets, Tracer):
        check_targets(as_targets(targets), output_shape(predict, dw, x), objective)
    units, each = len(present), len(y) // len(present)
    x, y, present = (a.reshape(units, each, *a.shape[n:]) for a, n in ((x, 1), (y, 1), (present, present.ndim)))
    at_once = min(max(1, chunk // each), units)

    def chunks(a: Array) -> Array:
        a = jnp.concatenate([a, jnp.zeros((-units % at_once, *a.shape[1:]), a.dtype)])
        return a.reshape(-1, at_once, *a.shape[1:])

    def add(total: Tree, batch: tuple[Array, Array, Array]) -> tuple[Tree, tuple[Array, Array]]:
        part, norms, bad = clip_units(predict, dw, batch, objective, clip_norm)
        return jax.tree.map(jnp.add, total, part), (norms, bad)

    zeros = jax.tree.map(lambda leaf: jnp.zeros_like(widen(leaf)), dw)
    value, (norms, bad) = jax.lax.scan(add, zeros, (chunks(x), chunks(y), chunks(present)))
    return ClippedSum(value, norms.reshape(-1)[:units], bad.sum(), clip_norm)


def clip_units(
    predict: Callable,
    dw: Tree,
    batch: tuple[Num[Array, "o e ..."], Num[Array, "o e ..."], Num[Array, "o *e"]],
    objective: Objective,
    clip_norm: float | Array,
) -> tuple[Tree, Float[Array, "o"], Int[Array, ""]]:
    """(The sum of clipped gradients, their norms "o", the number not finite) of units that are computed at once.

    Args:
        batch: Inputs "o e ...", targets "o e ...", and 1 for an example, 0 for padding, "o e".
    """
    x, y, here = batch

    def gradient_of_one(x: Array, y: Array, here: Array) -> Tree:
        def of_unit(dw: Tree) -> Array:
            losses = jax.vmap(lambda x, y: objective.losses(predict(dw, x[None]), y[None])[0])(x, y)
            return jnp.sum(losses * here.astype(losses.dtype))

        return jax.grad(of_unit)(dw)

    gradients = jax.tree.map(widen, jax.vmap(gradient_of_one)(x, y, here))
    squared = sum(jnp.sum(jnp.square(g), range(1, g.ndim)) for g in jax.tree.leaves(gradients))
    scales, norms, bad = clip_scales(jnp.asarray(squared), of_units(here), clip_norm)

    def scaled_sum(g: Array) -> Array:
        finite = jnp.where(scales.reshape(-1, *[1] * (g.ndim - 1)) > 0, g, 0)
        return jnp.tensordot(scales.astype(g.dtype), finite, 1, precision="highest")  # TF32 could exceed the norm

    return jax.tree.map(scaled_sum, gradients), norms, bad
