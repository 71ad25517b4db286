"""J of a batch as inputs and signals, for many steps side by side, against the network's own products."""

import jax
import numpy as np
import pytest
from dense import private_case
from helpers import assert_rel_close

from tangent_jax.core import trees
from tangent_jax.solver import formed as formed_of
from tangent_jax.solver.formed import form_all
from tangent_jax.solver.problem import make_problem
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import make_objective


def make(blocks, classes=3, kind="blocks"):
    predict, dw, x, y, *_ = private_case(kind, blocks, classes=classes)
    data = Batches(x, y % classes, batch_size=4)
    return make_problem(predict, data, make_objective("rsl", 0.5), None, dw), dw


@pytest.fixture
def case(x64):
    problem, dw = make(1)
    steps = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(leaf.size), (3, *leaf.shape)), dw)
    return problem, steps


@jax.jit
def products(fresh, jacobian, steps, u):
    """The product of all steps, that of u back, and the steps apart again: of J formed, and of the network."""
    q, zero = jacobian.side_by_side(steps), jax.tree.map(lambda leaf: leaf[0] * 0, steps)
    forward = fresh.at(zero)[1]
    own = jacobian.times(q), jacobian.apart(jax.linear_transpose(jacobian.times, q)(u)[0], steps)
    network = jax.vmap(forward, out_axes=2)(steps), jax.vmap(jax.linear_transpose(forward, zero), 2)(u)[0]
    return own, network, jacobian.apart(q, steps)


def test_products_are_those_of_network(case):
    problem, steps = case
    parts = form_all(problem)
    assert parts is not None
    for i, fresh in enumerate(problem.fresh()):
        part = jax.tree.map(lambda leaf, i=i: leaf[i], parts)
        jacobian = part.jacobian
        np.testing.assert_array_equal(part.targets, fresh.targets)
        u = jax.random.normal(jax.random.key(1), (*fresh.targets.shape[:1], 3, 3))
        own, network, apart = products(fresh.jacobian, jacobian, steps, u)
        for got, expected in zip(own, network, strict=True):
            assert_rel_close(got, expected)
        for path, leaf in trees.leaves(apart).items():
            reached = path in {*jacobian.kernels, *jacobian.paths}
            np.testing.assert_array_equal(leaf, trees.leaves(steps)[path] if reached else 0 * leaf)


def test_formed_where_cheaper_and_fits(case, monkeypatch):
    problem, _ = case
    assert form_all(make(2)[0]) is None  # its first block's kernels read every token
    assert form_all(make(1, classes=7)[0]) is None  # seven outputs have more signals than dw has numbers
    monkeypatch.setattr(formed_of, "room", lambda: 1)
    assert form_all(problem) is None


def kernels_of_the_last_block(path):
    return path.startswith("block_1/mlp") and path.endswith("kernel")


def test_a_subset_of_kernels_alone_has_a_formed_j(x64):
    problem, dw = make(1, kind=kernels_of_the_last_block)
    parts, steps = form_all(problem), jax.tree.map(lambda leaf: leaf[None], dw)
    assert parts is not None
    jacobian = jax.tree.map(lambda leaf: leaf[0], parts.jacobian)
    assert jacobian.paths == ()
    fresh = next(iter(problem.fresh())).jacobian
    assert_rel_close(jacobian.times(jacobian.side_by_side(steps))[..., 0], fresh.at(problem.zero)[1](dw))
