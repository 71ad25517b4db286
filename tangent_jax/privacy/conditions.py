"""Conditions of private training that a trace can verify: for predictor and loss, for the optimiser, for each step.

Example-level privacy needs examples that vmap separates, and an optimiser that reads the private gradient alone.
"""

import jax
import numpy as np

from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import CALLBACKS, primitives
from tangent_jax.core.notation import Tree
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import Objective
from tangent_jax.train.optimizers import Optimizer, apply
from tangent_jax.train.targets import Predict

BATCHED_BY_HAND = ("custom_vmap_call", *CALLBACKS)


def check_no_batching(predict: Predict, dw: Tree, batches: Batches, objective: Objective) -> None:
    """Raises InputError for a predictor or loss that says itself how it is batched: then vmap does not separate
    examples."""
    x, y = batches.inputs[batches.rows[:1]], batches.targets[batches.rows[:1]]
    used = primitives(lambda dw, x, y: objective.loss(predict(dw, x), y), dw, x, y) & {*BATCHED_BY_HAND}
    if used:
        raise InputError(
            f"predict and the loss must be batched by vmap; got {', '.join(sorted(used))}."
            " Compute it in JAX, without custom_vmap."
        )


def check_optimizer(optimizer: Optimizer, dw: Tree) -> None:
    """Raises InputError for an optimiser that reads more than the private gradient, such as the loss."""
    try:
        jax.eval_shape(lambda o, dw: apply(o, dw, o.init(dw), dw), optimizer, dw)
    except TypeError as error:
        raise InputError(
            f"optimizer must read gradients alone; got {str(error).splitlines()[0]}. Take one that needs no loss."
        ) from error


def check_finite(norm: float, step: int) -> None:
    """Raises InputError for a step with a norm that is not finite: later steps would only cost privacy."""
    if not np.isfinite(norm):
        raise InputError(
            f"the step must be finite; got a norm of {norm} after step {step + 1}."
            " Lower the learning rate; what was paid stays paid."
        )
