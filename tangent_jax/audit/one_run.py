"""A private run that audits itself: many canaries in one run, each in by a coin, scored by the released steps.

    R_t     = B G_t - q (S_t(images) + 1/2 sum_j c_tj)          a step's gradient minus the attacker's expectation
    score_i = sum_t <R_t, c_ti> / (sigma C |c_i|),    |c_i|^2 = sum_t |c_ti|^2

The private gradient G_t follows from dw_t and dw_(t-1); c_ti is canary i's clipped gradient there. The attacker knows
the images, the canaries, the settings and every step, but not the coins (Nasr et al. 2023; Steinke, Nasr and Jagielski
2023). For a full-batch Gaussian mechanism and orthogonal canaries a score is N(-mu/2, 1) for a canary that is out and
N(mu/2, 1) for one that is in, with mu = |c_i| / (sigma C), at most sqrt(T) / sigma. Canaries that are not orthogonal
widen each other's spread, which weakens the bound. B is the number of images without canaries, so it does not reveal
the coins.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tangent_jax.audit.audit import before_rounding
from tangent_jax.audit.canaries import Audit, Audited, Released, check_canaries, parts_of, secret_coins
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.io.files import expand_path
from tangent_jax.io.ledger import Ledger
from tangent_jax.io.progress import progress_bar, shown
from tangent_jax.privacy.clipping import clip_scales
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.train import add_up, clip, default_objective, fit_private
from tangent_jax.train.batches import Batches, Chunk, as_batches
from tangent_jax.train.objective import Objective, as_objective
from tangent_jax.train.optimizers import Optimizer, as_data, momentum
from tangent_jax.train.run import Fitted, Log, OnStep
from tangent_jax.train.targets import Predict, start_of


@promotes
def fit_audited(
    predict: Predict,
    data: Any,
    canaries: Batches,
    objective: Objective | None = None,
    *,
    mechanism: Mechanism,
    folder: str | os.PathLike,
    start: Tree | None = None,
    optimizer: Optimizer | None = None,
    on_step: OnStep | None = None,
    claimed: Mechanism | None = None,
    log: Log | None = None,
) -> Fitted[Audited]:
    """Trains as `fit_private` on the data and the canaries that their coins chose, and attacks the released steps.

    Args:
        canaries: By `make_canaries`, or Batches of inputs and targets like the data's.
        folder: The folder of the ledger, the coins and every released step (canaries.py).
        claimed: The mechanism that the attacker assumes, None: that of training.

    Returns:
        Fitted, with `info.spent` and `info.audit`.

    Guarantees:
        The privacy of `fit_private`, for images and canaries alike, except for `info.audit`; a killed run resumes with
        the same coins; a score depends on the coins only through the released steps.

    Raises:
        InputError: Fewer than 20 canaries, more of them than examples, another kind than the data, altered coins,
            missing steps, or an optimiser whose steps do not reveal the gradient, such as Adam.

    >>> canaries = tj.audit.make_canaries(demo.train, classes=3, count=20)
    >>> mechanism, folder = tj.make_mechanism(epsilon=8.0, delta=1e-2, steps=5), demo.folder() / "run"
    >>> fitted = tj.audit.fit_audited(demo.predict, demo.train, canaries, mechanism=mechanism, folder=folder)
    >>> bound = tj.audit.one_run_bound(*fitted.info.audit, mechanism)
    >>> bound.epsilon <= 8.0
    True
    """
    if mechanism.unit != "example":
        raise InputError(
            f"mechanism must protect examples (unit=example), as canaries are examples without an owner; got unit="
            f"{mechanism.unit}."
        )
    images = as_batches(data, 64)
    check_canaries(images, canaries)
    dw, root = start_of(predict, start), expand_path(folder)
    objective = as_objective(objective, default_objective)
    optimizer = as_data(momentum() if optimizer is None else optimizer)
    check_affine(optimizer, dw)
    mechanism, claimed = (dataclasses.replace(m, count=len(images)) for m in (mechanism, claimed or mechanism))
    trained_by = optimizer
    if claimed != mechanism:  # the attacker assumes a trainer that divides by the claimed C
        trained_by = optax.chain(optax.scale(mechanism.clip_norm / claimed.clip_norm), optimizer)
    coins = secret_coins(root / "coins.json", len(canaries))
    together, alone, others = parts_of(images, canaries, coins)
    released = Released(root / "steps", on_step)
    settings: Any = {
        "start": dw,
        "optimizer": trained_by,
        "on_step": released,
        "ledger": Ledger(root),
        "log": log,
        "progress": shown,
    }
    fitted = fit_private(predict, together, objective, mechanism=mechanism, **settings)
    steps = itertools.chain([dw], released.steps(dw, fitted.history))
    scores = one_run_scores(predict, steps, alone, others, before_rounding(claimed), objective, optimizer)
    info = Audited(fitted.info.spent, Audit(scores, coins))
    return Fitted(fitted.dw, fitted.history, fitted.seconds, fitted.steps, fitted.run, info)


def one_run_scores(
    predict: Predict,
    steps: Iterable[Tree],
    images: Batches,
    canaries: Batches,
    mechanism: Mechanism,
    objective: Objective,
    optimizer: Optimizer,
) -> np.ndarray:
    """The score of each canary, "m", from the released steps dw_0, dw_1, ... and public settings.

    Args:
        images, canaries: The data without any canary, and all of them.
        mechanism: As claimed, with its `count`.
    """
    predict, optimizer = trees.as_pytree(predict), as_data(optimizer)
    order, present = canaries.in_order()
    chunk = Chunk(*canaries.resident(), order, present)
    state = None
    signal = np.zeros(order.shape)
    size = np.zeros(order.shape)
    with progress_bar(mechanism.steps, "attacking") as bar:
        for before, after in itertools.pairwise(steps):
            state = optimizer.init(before) if state is None else state
            gradient, state = released_gradient(before, after, state, objective, mechanism, optimizer)
            parts = [b.chunks(*b.in_order()) for b in (images, canaries)]
            sums = [add_up(predict, before, part, objective, mechanism).value for part in parts]
            rest = _residual(gradient, *sums, mechanism)
            along, lengths = _signals(predict, before, rest, chunk, objective, mechanism)
            signal, size = signal + np.asarray(along), size + np.square(np.asarray(lengths))
            bar.update()
    scale = float(mechanism.noise_multiplier) * float(mechanism.clip_norm)
    return (signal / (scale * np.sqrt(np.maximum(size, np.finfo(np.float32).tiny))))[present > 0]


@jax.jit
def released_gradient(
    before: Tree, after: Tree, state: Any, objective: Objective, mechanism: Mechanism, optimizer: Optimizer
) -> tuple[Tree, Any]:
    """(G, the optimiser's next state) of a step, for an optimiser whose updates are affine in each number of G."""
    zeros, ones = (jax.tree.map(fill, before) for fill in (jnp.zeros_like, jnp.ones_like))
    rest, unit = (optimizer.update(g, state, before)[0] for g in (zeros, ones))
    scaled = jax.tree.map(lambda a, b, r, u: (b - a - r) / (u - r), before, after, rest, unit)
    ridge = jax.grad(objective.ridge)(before)
    gradient = jax.tree.map(lambda g, r: mechanism.clip_norm * g - r, scaled, ridge)
    return gradient, optimizer.update(scaled, state, before)[1]


def check_affine(optimizer: Optimizer, dw: Tree) -> None:
    """Raises InputError for an optimiser whose steps do not reveal the gradient."""
    state, mechanism = optimizer.init(dw), Mechanism(1.0, 1.0, 1, 1e-5)
    rng = np.random.default_rng(0)
    gradient = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype), dw)
    zero = jax.tree.map(jnp.zeros_like, dw)
    after = optimizer.update(gradient, state, zero)[0]
    back, _ = released_gradient(zero, after, state, default_objective(), mechanism, optimizer)
    worst = max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(*map(jax.tree.leaves, (back, gradient)), strict=True))
    if not worst < 0.001:
        raise InputError(
            "optimizer must make updates that are affine in the gradient; this one does not. Train by momentum()."
        )


@jax.jit
def _residual(gradient: Tree, images: Tree, canaries: Tree, mechanism: Mechanism) -> Tree:
    """R, from the private gradient and the clipped sums of the images and of all canaries."""
    expected, rate = mechanism.expected_size(0), mechanism.sampling_rate
    return jax.tree.map(lambda g, i, c: expected * g - rate * (i + c / 2), gradient, images, canaries)


@jax.jit
def _signals(
    predict: Predict, dw: Tree, rest: Tree, chunk: Chunk, objective: Objective, mechanism: Mechanism
) -> tuple[Array, Array]:
    """(<R, c_i>, |c_i|) of every canary, "k b": one jvp along R for all, clipped by closed-form norms."""

    def part(i: Array) -> tuple[Array, Array]:
        (x, y), present = chunk.at(i), jnp.asarray(chunk.present)[i]
        norms = clip(predict, dw, x, y, present, objective, mechanism).norms
        scales, *_ = clip_scales(jnp.square(norms), present, mechanism.clip_norm)
        along = jax.jvp(lambda dw: objective.losses(predict(dw, x), y), (dw,), (rest,))[1]
        return scales * along, scales * norms

    return jax.lax.map(part, jnp.arange(len(chunk.present)))
