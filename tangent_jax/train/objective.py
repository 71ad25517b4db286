"""The objective: a loss, its hyper-parameters and the penalty, as one object.

    F(dw) = mean_b loss(predict(dw, x_b), y_b) + penalty / 2 |dw|^2

Training, the distance bound, private training and audits all evaluate this object. Its numbers are data to jit, so a
new value does not recompile. It is convex in dw if `predict` is linear in dw. The loss sees one example at a time under
vmap, so that no loss can make examples depend on each other.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Num, PRNGKeyArray, Shaped

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, finite_number, instance
from tangent_jax.core.notation import Tree
from tangent_jax.linear.norms import squared_norms
from tangent_jax.linear.tangent import Tangent
from tangent_jax.train.losses import LOSSES, FunctionLoss, Loss, Targets, as_loss, make_loss
from tangent_jax.train.targets import Predict, call

ROUNDING = 8  # eps of the sum of gradient sizes: at most 0.7 (linear, made to cancel) and 1.9 (ViTs) against f64
ROWS = 1 << 26  # numbers of the rows of J that are formed at once


@partial(jax.tree_util.register_dataclass, data_fields=["function"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Keyed:
    """A predictor (dw, x, key) -> outputs, or a loss (outputs, targets, key) -> "b", that uses random numbers.

    They may mask, drop or augment. `fit` passes a fresh key at every step, folded from that of its data; the loss of
    each example gets a key of its own.

    >>> drop = tj.losses.Keyed(lambda dw, x, key: demo.predict(dw, x * jax.random.bernoulli(key, 0.9, x.shape)))
    >>> tj.fit(drop, demo.train, start=demo.predict.zeros(), key=jax.random.key(0), epochs=1).steps
    1
    """

    function: Any

    def __post_init__(self) -> None:
        if callable(self.function):  # not a placeholder of JAX's, while a pytree is rebuilt
            object.__setattr__(self, "function", trees.as_pytree(self.function))

    def __call__(self, *arguments: Any) -> Array:
        if len(arguments) != 3:
            raise InputError("a Keyed function must be given a key as its last argument; got none. Only `fit` draws.")
        return self.function(*arguments)


@partial(jax.tree_util.register_dataclass, data_fields=["loss", "penalty"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss (outputs "b c", targets "b ...") -> "b", and the strength lambda of lambda/2 |dw|^2.

    `loss` is a Loss or a function; `make_objective` also takes the name of a loss.

    >>> objective = Objective(lambda outputs, targets: (outputs[:, 0] - targets) ** 2, penalty=2.0)
    >>> float(objective(lambda dw, x: x * dw, jnp.array(3.0), jnp.ones((1, 1)), jnp.array([1])))
    13.0
    """

    loss: Any
    penalty: float | Array = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.loss, Loss) or callable(self.loss):  # not a placeholder of JAX's
            object.__setattr__(self, "loss", as_loss(self.loss))

    def __call__(
        self, predict: Predict, dw: Tree, x: Any, y: Any, present: Array | None = None, key: Array | None = None
    ) -> Array:
        """F(dw) on a batch x, y, "b ..."; `present`, "b", is 0 where an example is padding."""
        outputs, present = outputs_of(predict, dw, x, key), jnp.ones(len(y)) if present is None else present
        return self.of_outputs(outputs, dw, y, present, key)

    def of_outputs(
        self,
        outputs: Float[Array, "b ..."],
        dw: Tree,
        y: Targets,
        present: Shaped[Array | np.ndarray, "b"],
        key: Array | None = None,
    ) -> Float[Array, ""]:
        """F(dw) on a batch with these outputs, "b c"."""
        return jnp.sum(self.losses(outputs, y, key) * present) / present.sum() + self.ridge(dw)

    @property
    def draws(self) -> bool:
        """True where the loss draws random numbers."""
        return isinstance(self.loss, FunctionLoss) and isinstance(self.loss.function, Keyed)

    def losses(self, outputs: Float[Array, "b ..."], targets: Targets, key: Array | None = None) -> Num[Array, "b"]:
        """The loss of each example, "b", each evaluated alone."""
        if self.draws:
            if key is None:
                raise InputError("the loss must not draw, but in `fit`; got a Keyed loss")
            return alone(self.loss, outputs, targets, jax.random.split(key, len(targets)))
        return alone(self.loss, outputs, targets)

    def ridge(self, dw: Tree) -> Float[Array, ""]:
        """penalty / 2 |dw|^2."""
        return 0.5 * self.penalty * trees.squared_norm(dw)

    def gradient_sizes(self, predict: Tangent, dw: Tree, x: Any, y: Any) -> Float[Array, "b"]:
        """The size of each example's gradient, "b", to which the rounding error of a sum of gradients is relative.

            |J_b^T u_b| + |J_b^T (sigma s_b)|,   s_c = |u_c| + sqrt(h_c) sum_k sqrt(h_k) |f_k|

        u is the slope of the loss in the outputs f, h the diagonal of its Hessian, sigma random signs. Outputs are
        known to eps |f|, so the slope to eps s: the Hessian is positive semi-definite. The norms of batches would not
        do: the gradients of a batch may cancel, and their errors do not.
        """
        signs = jax.random.rademacher(jax.random.key(0), call.eval_shape(predict, dw, x).shape)

        def of_part(part: tuple[Any, Any, Array]) -> Array:
            x, y, signs = part
            probed = predict.probe(dw, x)
            f = probed.outputs
            u = jax.grad(lambda f: jnp.sum(self.losses(f, y)))(f)
            h = jnp.sqrt(jnp.maximum(self.loss.hessian_diagonal(f, y), 0))
            s = jnp.abs(u) + h * jnp.sum(h * jnp.abs(f), -1, keepdims=True)
            leaves = probed.rows(jnp.stack([u, signs.astype(f.dtype) * s]))

            def norms(k: int) -> Array:
                of_k = {path: dataclasses.replace(leaf, s=leaf.s[:, k : k + 1]) for path, leaf in leaves.items()}
                return jnp.sqrt(jnp.maximum(squared_norms(of_k, len(f))[0], 0))

            return norms(0) + norms(1)

        if predict.has_factors:
            return of_part((x, y, signs))
        at_once = max(1, ROWS // (2 * sum(leaf.size for leaf in jax.tree.leaves(dw))))  # whose rows of J are formed
        return jax.lax.map(
            lambda part: of_part(jax.tree.map(lambda a: a[None], part))[0], (x, y, signs), batch_size=at_once
        )


def alone(
    function: Callable[..., Array], outputs: Num[Array | np.ndarray, "b ..."], targets: Targets, *keys: Array
) -> Num[Array, "b"]:
    """function(outputs "b c", targets "b ...") of each example on its own, "b".

    Raises:
        InputError: At trace time, unless it gives one number for a batch of one.
    """

    def of_one(output: Any, target: Any, *key: Array) -> Array:
        value = jnp.asarray(function(output[None], target[None], *key))
        if value.shape != (1,):
            raise InputError(
                f"a loss or metric must give one number for each example; for outputs of shape {output[None].shape}"
                f" and targets of shape {target[None].shape} it gave the shape {value.shape}, not (1,)."
                " Do not reduce it."
            )
        return value[0]

    return jax.vmap(of_one)(outputs, targets, *keys)


def as_objective(objective: Any, default: Callable[[], Objective]) -> Objective:
    """The objective, or the default for None; InputError for anything else, such as a loss or its name."""
    objective = default() if objective is None else objective
    do = "Pass tj.make_objective(loss)"
    instance("objective", objective, Objective, do)
    return objective


def outputs_of(predict: Predict, dw: Tree, x: Any, key: PRNGKeyArray | None) -> Num[Array, "b ..."]:
    """predict(dw, x) with the key if it takes one."""
    return predict(dw, x, key) if isinstance(predict, Keyed) else predict(dw, x)


def with_fixed_key(predict: Predict) -> Predict:
    """The predictor as a function of (dw, x), with a fixed key if it takes one; for the shapes of its outputs."""
    return (lambda dw, x: predict(dw, x, jax.random.key(0))) if isinstance(predict, Keyed) else predict


def make_objective(loss: str | Loss | Callable = "rsl", penalty: float = 1e-5, **given: float) -> Objective:
    """Makes the objective of a loss: its name in `tj.losses.LOSSES`, a Loss, or a function.

    Hyper-parameters stand beside the name, or behind it: `kappa=5.0`, "rsl:kappa=5".

    The penalty is on the squared norm, as in the paper's text (the authors' code has 1e-5 |dw|). The paper's rescaled
    square loss has alpha = 1 and kappa = 15.

    >>> make_objective("rsl", kappa=5.0).penalty
    1e-05
    """
    if penalty != 0:
        finite_number("penalty", penalty, 0.0, 1e9)
    if isinstance(loss, str):
        return Objective(make_loss(loss, **given), penalty)
    if not callable(loss):
        raise InputError(f"loss must be one of {', '.join(LOSSES)}, a Loss or a function; got {loss}")
    if given:
        raise InputError(f"hyper-parameters must be of a named loss; got {', '.join(sorted(given))} of a function")
    return Objective(loss, penalty)


def check_targets(targets: Any, shape: tuple[int, ...], objective: Objective) -> None:
    """Raises InputError for targets "n ..." that do not fit the loss; shape: of one output."""
    objective.loss.check(targets, shape[0] if len(shape) == 1 else None)
    z = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    y = jax.ShapeDtypeStruct((1, *targets.shape[1:]), jax.dtypes.canonicalize_dtype(targets.dtype))
    jax.eval_shape(lambda z, y: objective.losses(z, y, jax.random.key(0)), z, y)


def check_penalty(objective: Objective, otherwise: str = "") -> None:
    """Raises InputError for a penalty of 0, with which no optimum is bounded; otherwise: what else to do."""
    if not objective.penalty > 0:
        advice = f"Give the objective a penalty{otherwise}"
        raise InputError(f"penalty must be > 0; got {float(objective.penalty):g}. {advice}.")
