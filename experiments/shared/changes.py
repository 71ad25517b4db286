"""Changes J q of the outputs of many steps q at once."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.tree_util import Partial

import tangent_jax as tj
from tangent_jax.core.notation import Tree
from tangent_jax.solver.formed import form_all
from tangent_jax.solver.passes import Part
from tangent_jax.solver.problem import make_problem
from tangent_jax.train.batches import Data
from tangent_jax.train.evaluate import outputs as outputs_of


def make_changes(predict: tj.Predictor, data: tj.Batches | Data) -> Callable[[Tree], np.ndarray]:
    """The function of steps "k ..." to the changes J q of the outputs, "k n c"; J is formed once if it fits.

    Args:
        data: The inputs of f.
        predict: Affine in dw.
    """
    problem = make_problem(predict, data, tj.make_objective(), None, predict.zeros())
    parts, batches = form_all(problem), problem.batches
    if parts is not None:
        return lambda steps: np.asarray(changes_of(parts, steps))[: len(batches)].transpose(2, 0, 1)
    return partial(changes_afresh, predict, batches.inputs[batches.rows])


@jax.default_matmul_precision("highest")
@jax.jit
def changes_of(parts: Part, steps: Tree) -> Array:
    """J q of every step "k ...", for the examples of all batches, padding included: "n c k"."""
    beside = parts.jacobian.side_by_side(steps)
    changes = jax.lax.map(lambda jacobian: jacobian.times(beside), parts.jacobian)
    return changes.reshape(-1, *changes.shape[2:])


@jax.default_matmul_precision("highest")
def changes_afresh(predict: tj.Predictor, inputs: Any, steps: Tree) -> np.ndarray:
    """J q of every step "k ...", "k n c", as the outputs there minus those at 0."""
    f = outputs_of(predict, predict.zeros(), inputs)
    return (outputs_of(Partial(_outputs, predict), steps, inputs) - f[:, None]).transpose(1, 0, 2)


def _outputs(predict: tj.Predictor, steps: Tree, x: Array) -> Array:
    """The outputs at several steps, "b k c"."""
    return jax.vmap(predict, (0, None), 1)(steps, x)
