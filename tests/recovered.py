"""The noise of a private run, recovered from its released steps, its data and its ledger."""

from collections.abc import Sequence

import jax
import numpy as np

from tangent_jax.audit.audit import before_rounding, private_gradients
from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.train import add_up
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import Objective
from tangent_jax.train.targets import Predict


def recovered_noise(
    predict: Predict, steps: Sequence[Tree], batches: Batches, mechanism: Mechanism, objective: Objective
) -> list[Tree]:
    """The noise of each step of a full-batch run by plain descent, in the units in which it must be N(0, I).

        z_t = (n G_t - S_t) / (sigma C)

    Args:
        steps: dw_0, ..., dw_T.
        batches, mechanism, objective: What the run says it used.
    """
    n, scale = len(batches), float(mechanism.noise_multiplier) * float(mechanism.clip_norm)
    mechanism = before_rounding(mechanism)
    noises = []
    for before, gradient in zip(steps, private_gradients(steps, mechanism, objective), strict=False):
        order = batches.chunks(*batches.in_order())
        total = add_up(trees.as_pytree(predict), before, order, objective, mechanism)
        noises.append(jax.tree.map(lambda g, s: (n * g - np.asarray(s)) / scale, gradient, total.value))
    return noises
