"""Rounds (Gauss-Newton): each round linearises at the anchor, solves, and moves the anchor along the solution.

    dw_r = fit(f_{w_r} + J_{w_r} f . dw),    T_r = T_{r-1} + t_r dw_r,    w_{r+1} = w + T_r

t_r is the first of 1, 1/2, 1/4, ... for which the network's mean loss, without a penalty, decreases:
L(w + T_{r-1} + t dw_r) < L(w + T_{r-1}). Each round is a convex problem, so it composes: `fit` may merge components
that contributors solved apart at one anchor. Only trained leaves move, so the trunk's features stay valid in every
round. A non-linear predictor takes its whole step; if `fit` is the mean over contributors, this is federated averaging
(McMahan et al. 2017). This file stores nothing; store/rounds.py keeps each round's components in a store.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tangent_jax.core import Tree, expect, trees, whole_number
from tangent_jax.core.boundary import public
from tangent_jax.models.predict import Predictor
from tangent_jax.train.batches import as_batches
from tangent_jax.train.evaluate import outputs
from tangent_jax.train.objective import Objective

HALVINGS = 6


class Round(NamedTuple):
    """The outcome of one round.

    `predict`: the predictor at the round's anchor; `dw`: the result of `fit` there; `size`: the fraction of dw by which
    the anchor moved; `total`: all moves since the first round; `loss`: the network's mean loss afterwards, without a
    penalty (None for a non-linear predictor).

    >>> tj.solver.Round(demo.predict, demo.dw, 0.5, demo.dw, loss=1.2).size
    0.5
    """

    predict: Predictor
    dw: Tree
    size: float
    total: Tree
    loss: float | None


@public
def fit_rounds(
    predict: Predictor,
    data: Any,
    objective: Objective,
    fit: Callable[[Predictor, list[Round]], Tree],
    rounds: int = 8,
    *,
    start: Tree | None = None,
    on_round: Callable[[Round], object] | None = None,
) -> list[Round]:
    """The rounds of a fit; each starts at the anchor of the last one.

    Args:       predict: at the first anchor: a tangent of output total, or non-linear; data: Features or Batches, whose
                loss decides the size of a step, or a function from `total` to that mean loss, if no process has all of
                them; fit: (the predictor at a round's anchor, the rounds before) -> dw, such as
                `lambda predict, _: tj.solve(predict, data, objective, passes=12, certificate=None).dw`; start: the
                sum of earlier moves (None: nothing); on_round: called after each round.
    Returns:    the rounds, at most `rounds`. If no part of a step decreases the loss, its round has size 0 and is the
                last. `network(predict)(rounds[-1].total, x)` is the network at the last anchor.
    Guarantees: the anchor of a round is w + total, bit for bit, and total the sum of size * dw in f32; one round of
                size 1 is the step of `fit` itself; the loss never increases, except for a non-linear predictor.
    Raises:     InputError for a predictor of the tangent alone: from the second round on f_w holds what was learned.

    >>> solve = lambda predict, _: tj.solve(predict, demo.train, demo.objective).dw
    >>> first, second = tj.solver.fit_rounds(demo.predict, demo.train, demo.objective, solve, rounds=2)
    >>> second.loss < first.loss
    True
    """
    whole_number("rounds", rounds, 1)
    do = "Take output=total"
    expect(predict.output == "total", "a predictor of output total", predict.output, do)
    is_tangent, done = predict.method == "taft", list[Round]()
    total = jax.tree.map(np.asarray, predict.zeros() if start is None else start)
    loss = network_loss(predict, total, data, objective) if is_tangent else None
    while len(done) < rounds and not (done and done[-1].size == 0):
        here = move_anchor(predict, total)
        dw, size = jax.tree.map(np.asarray, fit(here, done)), 1.0
        if loss is not None:
            size, loss = choose_size(predict, total, dw, loss, data, objective)
        total = step_along(total, size, dw)
        done.append(Round(here, dw, size, total, loss))
        if on_round is not None:
            on_round(done[-1])
    return done


def step_along(total: Tree, size: float, dw: Tree) -> Tree:
    """total + size dw, on the host, in f32 or the leaves' own dtype."""
    return jax.tree.map(lambda a, b: a + np.asarray(size, b.dtype) * b, total, dw)


@public
def move_anchor(predict: Predictor, total: Tree) -> Predictor:
    """The predictor of the same leaves at the anchor w + total; at w itself if total is zero.

    >>> moved = tj.solver.move_anchor(demo.predict, demo.dw)
    >>> bool(jnp.allclose(moved.w["head"]["bias"], demo.predict.w["head"]["bias"] + demo.dw["head"]["bias"]))
    True
    """
    trees.check_part("move_anchor", predict.w, total)
    return replace(predict, w=trees.add(predict.w, total))


@public
def network(predict: Predictor) -> Predictor:
    """The network f_{w + dw}(x) itself, with a predictor's leaves: not linearised.

    >>> tj.evaluate(tj.solver.network(demo.predict), demo.dw, demo.test) <= 1.0
    True
    """
    return replace(predict, method="nlft", output="total")


def choose_size(
    predict: Predictor, total: Tree, dw: Tree, loss: float, data: Any, objective: Objective
) -> tuple[float, float]:
    """(size, the loss there): the first of 1, 1/2, 1/4, ... that decreases the network's loss, or 0."""
    for size in (0.5**i for i in range(HALVINGS + 1)):
        after = network_loss(predict, step_along(total, size, dw), data, objective)
        if after < loss:  # False for a loss that is not finite
            return size, after
    return 0.0, loss


def network_loss(predict: Predictor, total: Tree, data: Any, objective: Objective) -> float:
    """The network's mean loss at w + total, without a penalty; NaN or infinity where its outputs are not finite.

    Args: data: Features or Batches, or a function of `total` that gives it.
    """
    if callable(data):
        loss: Any = data
        return float(loss(total))
    batches = as_batches(data)
    values = outputs(network(predict), total, batches)
    losses = objective.losses(jnp.asarray(values), jnp.asarray(batches.targets[batches.rows]))
    return float(np.mean(np.asarray(losses, np.float64)))
