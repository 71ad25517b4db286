"""The same quantities by dense linear algebra: what the solvers are held against."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from helpers import private_task
from jax.flatten_util import ravel_pytree


def jacobian(predict, like, x):
    """J, "n c p", and f_0, "n c"."""
    zeros = jax.tree.map(jnp.zeros_like, like)
    flat, unravel = ravel_pytree(zeros)
    f = jax.jit(lambda v: predict(unravel(v), x))
    return np.asarray(jax.jit(jax.jacrev(f))(flat)), np.asarray(f(flat))


def ridge(j, f, labels, total, *, alpha=1.0, kappa=15.0, weights=None):
    """The optimum of the rescaled square loss."""
    n, c, _ = j.shape
    truth = np.eye(c)[np.asarray(labels)]
    precision = 2 / c * (1 + (alpha - 1) * truth) * (np.ones(n) if weights is None else weights)[:, None]
    return least_squares(j, f, kappa * truth, precision, total)


def least_squares(j, f, centers, precision, total):
    """The optimum of sum_ic p_ic / 2 (f_ic - t_ic)^2 + Lambda / 2 |dw|^2, by the normal equations."""
    rows, p = j.reshape(-1, j.shape[-1]), precision.ravel()
    left = rows.T @ (p[:, None] * rows) + total * np.eye(rows.shape[1])
    return np.linalg.solve(left, rows.T @ (p * (centers - f).ravel()))


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


@functools.cache
def private_case(kind, blocks, pool="token", **variant):
    """Predictor, step, inputs and labels of `private_task` in f64, with J and f_0: computed once for all tests."""
    with jax.enable_x64(True):
        predict, dw, x, y = private_task(kind, blocks, pool=pool, **variant)
        x = predict.model.preprocessing.normalize(x).astype(jnp.float64) if x.dtype == jnp.uint8 else x
        return predict, dw, x, np.asarray(y), *jacobian(predict, dw, x)
