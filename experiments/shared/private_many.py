"""DP-SGD of many models in one program, for models that differ in budget, clip norm, learning rate, head or seed.

It serves searches on public or held-out data, and tables. The noise comes from seeds, so the results are NOT private.
"""

import time
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.privacy.discrete import step_key
from tangent_jax.privacy.mechanism import Mechanism, Spent
from tangent_jax.privacy.train import Private, clip_all, default_objective, private_step
from tangent_jax.privacy.units import as_units, micro_batches
from tangent_jax.train.batches import Chunk
from tangent_jax.train.fit import State
from tangent_jax.train.fit_many import repeat
from tangent_jax.train.objective import Objective
from tangent_jax.train.optimizers import Optimizer, as_data
from tangent_jax.train.run import Fitted, Run
from tangent_jax.train.targets import Predict, start_of


def fit_private_many(
    predicts: Sequence[Predict],
    data: Any,
    objective: Objective | None = None,
    *,
    mechanisms: Sequence[Mechanism],
    optimizers: Sequence[Optimizer],
    seeds: Sequence[int],
    start: Tree | None = None,
    progress: Progress = silent,
) -> list[Fitted[Private]]:
    """Trains one dw per mechanism, on all examples at every step; all mechanisms protect the same unit.

    Args:
        predicts, mechanisms, optimizers, seeds: One per model, equal except for numbers; arrays that all predictors
            share are held once.
        data: Features or Batches, held on the device.
        others: As `fit_private`.

    Returns:
        One Fitted per model, with its privacy account; dw is on the host, `seconds` its share of the time.

    Guarantees:
        Each equals `fit_private` with its seed, up to rounding.

    Raises:
        InputError: Lists of unequal length, Poisson samples, differing steps or units, or data that do not fit on the
            device.
    """
    counts = {len(given) for given in (predicts, mechanisms, optimizers, seeds)}
    if len(counts) != 1 or not len(seeds):
        raise InputError(f"every list must have one entry per model; got {sorted(counts)}")
    steps = {mechanism.steps for mechanism in mechanisms}
    if len(steps) != 1 or {mechanism.sampling_rate for mechanism in mechanisms} != {1.0}:
        raise InputError(f"mechanisms must be full-batch and of one number of steps; got {sorted(steps)}")
    units = sorted({mechanism.unit for mechanism in mechanisms})
    if len(units) != 1:
        raise InputError(f"mechanisms must be of one unit; got {' and '.join(units)}")
    objective, (batches, units) = objective or default_objective(), as_units(data, mechanisms[0])
    dw = start_of(predicts[0], start)
    optimizers = [as_data(optimizer) for optimizer in optimizers]
    runs = [(trees.as_pytree(p), m, o) for p, m, o in zip(predicts, mechanisms, optimizers, strict=True)]
    leaves, axes, structure = trees.stack(runs)
    states = repeat(State(dw, optimizers[0].init(dw)), len(runs))
    leaves, states = placement.place((leaves, states))
    parts = micro_batches(batches, mechanisms[0], units, np.ones(len(units), bool))
    chunks = [Chunk(*batches.resident(), *part).place() for part in parts]
    step_many = partial(_step_many, axes=axes, structure=structure)
    began, rows = time.perf_counter(), []
    with Run(progress=progress) as run:
        run.show(mechanisms[0].steps, "step")
        for step in range(mechanisms[0].steps):
            keys = jnp.stack([step_key(m, seed, step) for m, seed in zip(mechanisms, seeds, strict=True)])
            states = jax.block_until_ready(step_many(leaves, states, keys, chunks, len(units), objective))
            rows.append({"step": step + 1, "seconds": (time.perf_counter() - began) / len(runs)})
            run.advance()
    models = [jax.tree.map(lambda leaf, i=i: placement.on_host(leaf[i]), states.dw) for i in range(len(runs))]
    seconds = rows[-1]["seconds"]
    infos = [Private(Spent(mechanism, mechanism.steps, private=False)) for mechanism in mechanisms]
    return [Fitted(dw, rows, seconds, len(rows), info=info) for dw, info in zip(models, infos, strict=True)]


@partial(jax.jit, static_argnames=("axes", "structure"), donate_argnames="states")
def _step_many(
    leaves: list[Array], states: State, keys: Array, chunks: list[Chunk], count: Any, objective: Objective, *,
    axes: tuple[int | None, ...], structure: Any,
) -> State:  # fmt: skip
    """One private step of every model."""

    def step(leaves: list[Array], state: State, key: Array) -> State:
        predict, mechanism, optimizer = jax.tree.unflatten(structure, leaves)
        parts = [clip_all(predict, state.dw, c, len(c.present), objective, mechanism) for c in chunks]
        total, expected = reduce(add, parts), mechanism.expected_size(count)
        return private_step(state, total, expected, key, objective, mechanism, optimizer)[0]

    return jax.vmap(step, in_axes=([*axes], 0, 0))(leaves, states, keys)
