"""Rounds: an anchor that moves by steps that were solved at it, whose size the network's loss decides."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, private_task

from tangent_jax.core import InputError, trees
from tangent_jax.solver.optimum import solve
from tangent_jax.solver.rounds import HALVINGS, fit_rounds, move_anchor, network, network_loss, step_along
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import make_objective

OBJECTIVE = make_objective("rsl", 0.1)


def task(**options):
    predict, dw, x, y = private_task(**options)
    return predict, dw, Batches(np.asarray(x), np.asarray(y))


def solved(predict, data):
    return solve(predict, data, OBJECTIVE, passes=6, certificate=None).dw


def test_one_round_is_the_solution_at_the_anchor():
    predict, _, data = task()
    (only,) = fit_rounds(predict, data, OBJECTIVE, lambda here, _: solved(here, data), 1)
    assert trees.fingerprint(only.dw) == trees.fingerprint(solved(predict, data))
    assert only.size == 1
    assert trees.fingerprint(only.total) == trees.fingerprint(only.dw)


def test_the_anchor_of_a_round_is_w_and_the_sum_of_the_steps_bit_for_bit():
    predict, _, data = task()
    seen = []
    rounds = fit_rounds(predict, data, OBJECTIVE, lambda here, _: solved(here, data), 3, on_round=seen.append)
    assert seen == rounds
    total = jax.tree.map(np.asarray, predict.zeros())
    for each in rounds:
        assert trees.fingerprint(each.predict.w) == trees.fingerprint(trees.add(predict.w, total))
        total = jax.tree.map(lambda a, b, t=each.size: a + np.float32(t) * np.asarray(b), total, each.dw)
        assert trees.fingerprint(each.total) == trees.fingerprint(total)
    losses = [network_loss(predict, jax.tree.map(np.asarray, predict.zeros()), data, OBJECTIVE)]
    losses += [each.loss for each in rounds]
    assert losses == sorted(losses, reverse=True)
    x = jnp.asarray(data.inputs)
    at_anchor = move_anchor(predict, rounds[-1].total)
    assert_rel_close(at_anchor(predict.zeros(), x), network(predict)(rounds[-1].total, x))
    again = fit_rounds(predict, data, OBJECTIVE, lambda here, _: solved(here, data), 1, start=rounds[1].total)
    assert trees.fingerprint(again[0].total) == trees.fingerprint(rounds[2].total)


def test_a_step_that_raises_the_networks_loss_is_halved_until_it_falls():
    """Eight times a good step overshoots; the eighth of that is the good step itself."""
    predict, _, data = task()
    good = jax.tree.map(np.asarray, solved(predict, data))
    zero = jax.tree.map(np.zeros_like, good)
    before = network_loss(predict, zero, data, OBJECTIVE)
    far = jax.tree.map(lambda leaf: 64 * leaf, good)
    falls = [network_loss(predict, step_along(zero, 0.5**i, far), data, OBJECTIVE) < before for i in range(7)]
    assert not falls[0]
    assert any(falls)
    (only,) = fit_rounds(predict, data, OBJECTIVE, lambda *_: far, 1)
    assert only.size == 0.5 ** falls.index(True)
    assert trees.fingerprint(only.total) == trees.fingerprint(step_along(zero, only.size, far))
    assert only.loss < before


def test_the_loss_may_be_a_function_where_no_process_has_all_data():
    """As in a federation: the mean over contributors' means, by how many examples each has."""
    predict, _, data = task()
    parts = [data.rows[:3], data.rows[3:]]
    halves = [Batches(data.inputs, data.targets, rows=rows) for rows in parts]

    def loss(total):
        return sum(network_loss(predict, total, half, OBJECTIVE) * len(half) for half in halves) / len(data)

    far = jax.tree.map(lambda leaf: 64 * np.asarray(leaf), solved(predict, data))
    (one,), (alone,) = (fit_rounds(predict, by, OBJECTIVE, lambda *_: far, 1) for by in (loss, data))
    assert one.size == alone.size < 1
    assert trees.fingerprint(one.total) == trees.fingerprint(alone.total)
    np.testing.assert_allclose(one.loss, alone.loss, rtol=1e-6)


def test_rounds_end_where_no_part_of_a_step_helps():
    predict, _, data = task()
    uphill = jax.tree.map(lambda leaf: -100 * np.asarray(leaf), solved(predict, data))
    rounds = fit_rounds(predict, data, OBJECTIVE, lambda *_: uphill, 5)
    assert [each.size for each in rounds] == [0]
    assert not any(leaf.any() for leaf in jax.tree.leaves(rounds[0].total))
    broken = jax.tree.map(lambda leaf: leaf * np.nan, uphill)
    assert [each.size for each in fit_rounds(predict, data, OBJECTIVE, lambda *_: broken, 5)] == [0]
    assert HALVINGS == 6


def test_a_networks_step_is_taken_whole_as_federated_averaging_takes_it():
    predict, dw, data = task(method="nlft")
    uphill = jax.tree.map(lambda leaf: 100 * np.asarray(leaf), dw)
    rounds = fit_rounds(predict, data, OBJECTIVE, lambda *_: uphill, 2)
    assert [each.size for each in rounds] == [1, 1]
    assert [each.loss for each in rounds] == [None, None]


def test_rounds_of_the_tangent_alone_are_refused():
    predict, _, data = task()
    with pytest.raises(InputError, match="a predictor of output total; got tangent"):
        fit_rounds(dataclasses.replace(predict, output="tangent"), data, OBJECTIVE, lambda *_: None)
