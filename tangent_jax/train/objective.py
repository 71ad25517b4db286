"""The objective: a loss, its hyper-parameters and the penalty, as one value.

    F(dw) = mean_b loss(predict(dw, x_b), y_b) + penalty / 2 |dw|^2

Training, many models at once, the distance bound, private training and audits evaluate this one. Its numbers are data
to jit: another value compiles nothing. Convex in dw where `predict` is linear in dw.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from tangent_jax.core import Tree, finite_number, require, trees
from tangent_jax.train.batches import Batches
from tangent_jax.train.losses import Loss, make_loss

Predict = Callable[[Tree, Array], Array]


@partial(jax.tree_util.register_dataclass, data_fields=["loss", "penalty"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss (logits "b c", labels "b") -> "b", and the strength lambda of lambda/2 |dw|^2.

    `loss` is a pytree or a plain function: `make_objective` makes one of a name.

    >>> objective = Objective(lambda logits, labels: (logits[:, 0] - labels) ** 2, penalty=2.0)
    >>> float(objective(lambda dw, x: x * dw, jnp.array(3.0), jnp.ones((1, 1)), jnp.array([1])))
    13.0
    """

    loss: Loss
    penalty: float | Array = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", trees.as_pytree(self.loss))

    def __call__(self, predict: Predict, dw: Tree, x: Array, y: Array, present: Array | None = None) -> Array:
        """F(dw) on a batch; `present`, "b", is 0 where an example is padding."""
        return self.of_logits(predict(dw, x), dw, y, jnp.ones(len(y)) if present is None else present)

    def of_logits(self, logits: Array, dw: Tree, y: Array, present: Array) -> Array:
        """F(dw) where the logits of the batch are known."""
        return jnp.sum(self.loss(logits, y) * present) / present.sum() + self.ridge(dw)

    def ridge(self, dw: Tree) -> Array:
        """penalty / 2 |dw|^2."""
        return 0.5 * self.penalty * trees.squared_norm(dw)


def make_objective(loss: str | Loss = "rsl", penalty: float = 1e-5, **hyper_parameters: float) -> Objective:
    """The objective of a loss: by its name (rsl, ce, mse) with hyper-parameters, or a function of one's own.

    The penalty is the squared norm of the paper's text (the authors' code has 1e-5 |dw|); alpha = 1 and kappa = 15
    are the rescaled square loss's there.

    >>> make_objective("rsl", kappa=5.0).penalty
    1e-05
    """
    if penalty != 0:
        finite_number("make_objective", "penalty, 0 or", penalty, 0.0, 1e9)
    if callable(loss):
        require(not hyper_parameters, "make_objective", "hyper-parameters of a named loss", sorted(hyper_parameters))
        return Objective(loss, penalty)
    return Objective(make_loss(loss, **hyper_parameters), penalty)


def distance_bound(predict: Predict, dw: Tree, batches: Batches, objective: Objective) -> float:
    """How far, in L2 over the tree, dw is at most from the optimum of the objective on all examples of `batches`.

        |dw - dw*| <= |grad F(dw)| / lambda

    Guarantees: holds where F is lambda-strongly convex: a tangent model, any of our losses, lambda = penalty > 0.
    Raises:     InputError for a penalty of 0.
    """
    require(objective.penalty > 0, "distance_bound", "penalty > 0", objective.penalty)
    total, n = jax.grad(objective.ridge)(dw), len(batches)
    for inputs, labels, order, present in batches.chunks(*batches.in_order()):
        part, _, _ = summed_gradient(trees.as_pytree(predict), dw, inputs, labels, order, present, objective)
        total = trees.plus(total, trees.scaled(1 / n, part))
    return float(jnp.sqrt(trees.squared_norm(total))) / float(objective.penalty)


@jax.jit
def summed_gradient(
    predict: Predict, dw: Tree, inputs: Array, labels: Array, order: Array, weights: Array, objective: Objective
) -> tuple[Tree, Array, Array]:
    """The gradient of the weighted sum of losses over the rows of `order`, "k b", without the penalty; that sum; the
    logits, "k b c". What weighs 0 is padding and adds nothing, whatever it holds.
    """

    def add(total: tuple[Tree, Array], batch: tuple[Array, Array]) -> tuple[tuple[Tree, Array], Array]:
        rows, v = batch

        def value(dw: Tree) -> tuple[Array, Array]:
            logits = predict(dw, inputs[rows])
            return jnp.sum(jnp.where(v > 0, objective.loss(logits, labels[rows]) * v, 0)), logits

        (losses, logits), gradient = jax.value_and_grad(value, has_aux=True)(dw)
        return (trees.plus(total[0], gradient), total[1] + losses), logits

    zero = jax.tree.map(jnp.zeros_like, dw), jnp.zeros(())
    (gradient, losses), logits = jax.lax.scan(add, zero, (order, weights))
    return gradient, losses, logits
