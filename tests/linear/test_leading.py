"""The leading eigenvectors, about, of a matrix that is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tangent_jax.core import trees
from tangent_jax.linear.leading import leading

SIZE, RANK = 60, 8


def matrix(values):
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((SIZE, SIZE)))
    return basis, (basis * values) @ basis.T


def as_tree(a):
    return {"one": a[..., :20].reshape(*a.shape[:-1], 4, 5), "two": a[..., 20:]}


def as_rows(tree):
    return np.concatenate([np.asarray(leaf).reshape(RANK, -1) for leaf in tree.values()], 1)


def found(a, shift):
    def product(q):
        return as_tree(jnp.asarray(as_rows(q) @ a))

    return leading(product, shift, as_tree(jnp.zeros((RANK, SIZE))))


@pytest.mark.usefixtures("x64")
def test_correction_clears_steps_and_eigenvalues():
    values = np.r_[1000, 800, 500, 300, np.linspace(2, 1, SIZE - 4)]
    basis, a = matrix(values)
    top = found(a, 1.0)
    np.testing.assert_allclose(as_rows(top.a), as_rows(top.w) @ a, atol=1e-9)
    r = np.ones(SIZE)
    step, bent = top.correction(as_tree(jnp.asarray(r)))
    left = r - np.concatenate([np.asarray(leaf).ravel() for leaf in bent.values()])
    np.testing.assert_allclose(as_rows(top.w) @ left, 0, atol=1e-8)
    assert np.linalg.norm(basis[:, :4].T @ left) < 0.02 * np.linalg.norm(basis[:, :4].T @ r)
    # what is left is the residual of the corrected solution
    moved = np.concatenate([np.asarray(leaf).ravel() for leaf in step.values()])
    np.testing.assert_allclose(r - a @ moved, left, atol=1e-8)


def test_low_rank_gives_finite_values_in_f32():
    _, a = matrix(np.r_[1e3, 1e3, np.ones(SIZE - 2)])
    top = found(a.astype(np.float32), 1.0)
    r = as_tree(jnp.ones(SIZE))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((top, top.correction(r))))
    assert trees.squared_norm(trees.plus(r, jax.tree.map(jnp.negative, top.correction(r)[1]))) < 60
