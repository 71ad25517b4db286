"""Conjugate gradients against systems that are known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close

from tangent_jax.core import trees
from tangent_jax.linear import cg

SIZE = 12
pytestmark = pytest.mark.usefixtures("x64")


def matrix(seed, smallest=1.0):
    """A symmetric matrix with eigenvalues from `smallest` to 100."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((SIZE, SIZE)))
    return (basis * np.geomspace(smallest, 100, SIZE)) @ basis.T


def as_tree(a):
    return {"kernel": a[..., :8].reshape(*a.shape[:-1], 2, 4), "bias": a[..., 8:]}


def flat(tree):
    return jnp.concatenate([tree["kernel"].ravel(), tree["bias"]])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Dense:
    """A matrix that multiplies trees."""

    matrix: np.ndarray

    def times(self, v):
        return as_tree(jnp.asarray(self.matrix) @ flat(v))


A = Dense(matrix(0))
B = np.random.default_rng(1).standard_normal((3, SIZE))


def exact(b):
    return as_tree(jnp.asarray(np.linalg.solve(A.matrix, b)))


def test_n_numbers_take_n_steps():
    b = as_tree(jnp.asarray(B[0]))
    assert_rel_close(cg.solve(A.times, b, tolerance=0.0, steps=SIZE), exact(B[0]), 1e-6)
    near = Dense(np.linalg.inv(A.matrix + 0.01 * matrix(2)))
    assert_rel_close(cg.solve(A.times, b, near, tolerance=0.0, steps=6), exact(B[0]), 1e-6)
    with pytest.raises(AssertionError):
        assert_rel_close(cg.solve(A.times, b, tolerance=0.0, steps=6), exact(B[0]), 1e-2)


@pytest.mark.parametrize("m", [None, Dense(matrix(2)), Dense(np.diag(np.arange(1.0, SIZE + 1)))])
def test_preconditioner_changes_no_solution(m):
    b, calls = as_tree(jnp.asarray(B[0])), []

    def times(p):
        calls.append(p)
        return A.times(p)

    assert_rel_close(cg.solve(times, b, m, tolerance=1e-10, steps=200), exact(B[0]), 1e-8)
    assert len(calls) < 40
    calls.clear()
    rough = cg.solve(times, b, m, tolerance=0.1, steps=200)
    before = cg.solve(A.times, b, m, tolerance=0.0, steps=len(calls) - 1)
    left, more = (trees.norm(trees.along(b, -1.0, A.times(x))) for x in (rough, before))
    assert left <= 0.1 * trees.norm(b) < more


def test_k_right_hand_sides_are_k_alone():
    m, k = Dense(matrix(2)), len(B)
    state = jax.vmap(cg.init, (0, None))(as_tree(-jnp.asarray(B)), m)
    alone = [cg.init(as_tree(-jnp.asarray(b)), m) for b in B]
    for _ in range(5):
        state = jax.vmap(cg.step, (0, 0, None))(state, jax.vmap(A.times)(state.p), m)
        alone = [cg.step(own, A.times(own.p), m) for own in alone]
    for i in range(k):
        assert_rel_close(jax.tree.map(lambda leaf, i=i: leaf[i], state), alone[i])


def test_zero_right_hand_side_gives_zero():
    zero = as_tree(jnp.zeros(SIZE))
    for solved in (cg.solve(A.times, zero, tolerance=0.0, steps=3), cg.step(cg.init(zero), zero).x):
        np.testing.assert_array_equal(flat(solved), 0)


def test_directions_are_conjugate():
    b, directions = as_tree(jnp.asarray(B[0])), []
    state = cg.init(trees.scale(-1.0, b), m := Dense(matrix(2)))
    for _ in range(4):
        directions.append(flat(state.p))
        state = cg.step(state, A.times(state.p), m)
        assert_rel_close(state.r, trees.along(b, -1.0, A.times(state.x)), 1e-10)
    products = np.asarray([[p @ A.matrix @ q for q in directions] for p in directions])
    np.testing.assert_allclose(products - np.diag(np.diag(products)), 0, atol=1e-9 * np.abs(products).max())


def test_restart_goes_on_to_new_solution():
    """Steps by one matrix, gradients of another that is near."""
    m, b = Dense(matrix(2)), as_tree(jnp.asarray(B[0]))
    other = Dense(A.matrix + np.diag(np.linspace(0, 0.1, SIZE)))
    state, expected = cg.init(trees.scale(-1.0, b), m), as_tree(jnp.linalg.solve(jnp.asarray(other.matrix), flat(b)))
    for _ in range(8):
        for _ in range(SIZE):
            state = cg.step(state, A.times(state.p), m)
        before = jax.tree.map(jnp.copy, state.x)
        state = cg.step(state, trees.along(other.times(state.x), -1.0, b), m, True)
        np.testing.assert_array_equal(flat(state.x), flat(before))
        assert_rel_close(state.p, m.times(state.r), 1e-12)
    assert_rel_close(state.x, expected, 1e-8)


def test_step_compiles_once():
    count = cg.step._cache_size()
    state = cg.init(as_tree(-jnp.asarray(B[0])))
    for restart in (True, False, True):
        state = cg.step(state, A.times(state.p), None, jnp.asarray(restart))
    assert cg.step._cache_size() == count + 1


def test_f32_solution_keeps_dtype_under_x64():
    narrow = trees.cast(as_tree(jnp.asarray(B[0])), jnp.float32)
    solved = cg.solve(lambda p: trees.cast(A.times(p), jnp.float32), narrow, tolerance=1e-6, steps=100)
    assert {leaf.dtype for leaf in jax.tree.leaves(solved)} == {jnp.dtype("float32")}
    assert_rel_close(trees.cast(solved, jnp.float64), exact(B[0]), 1e-4)
