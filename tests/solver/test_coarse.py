"""Certificates on a device that multiplies float32 coarsely unless told otherwise: GPUs (TF32) and TPUs (bfloat16)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense import ridge

from tangent_jax.core import trees
from tangent_jax.solver import passes
from tangent_jax.solver.many import solve_many
from tangent_jax.solver.optimum import solve
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import distance_bound, make_objective

OBJECTIVE = make_objective("rsl", 0.01)
RNG = np.random.default_rng(0)
X, Y = np.float32(RNG.standard_normal((12, 4))), RNG.integers(0, 3, 12)
WEIGHTS = np.array([np.ones(12), [0, 2, *np.ones(10)]])
DATA = Batches(X, Y, batch_size=5)
START = np.zeros((4, 3), np.float32)


def coarse(dw, x):
    """x dw as such a device gives it, with seven bits of x."""
    is_told = jax.config.jax_default_matmul_precision == "highest"
    return jnp.matmul(x if is_told else jax.lax.reduce_precision(x, 8, 7), dw)


def linear(dw, x):
    return x @ dw


@pytest.fixture(autouse=True)
def as_a_tpu():
    with jax.default_matmul_precision("bfloat16"):
        yield


@pytest.fixture(params=["kept", "fresh"])
def inputs(request, monkeypatch):
    """Whether what products with J read is kept from the first pass, or computed by each."""
    if request.param == "fresh":
        monkeypatch.setattr(passes, "room", lambda: 0)


def distance(dw, weights):
    """|dw - dw*|, by dense linear algebra in f64."""
    j = np.einsum("ni,cd->ncid", X.astype(np.float64), np.eye(3)).reshape(12, 3, -1)
    return np.linalg.norm(np.ravel(dw) - ridge(j, np.zeros((12, 3)), Y, total=12 * 0.01, weights=weights))


def test_without_a_word_the_optimum_is_another():
    rounded = jax.lax.reduce_precision(X, 8, 7)
    solved = solve(linear, Batches(rounded, Y), OBJECTIVE, start=START, certificate=1e-3)
    assert distance(solved.dw, WEIGHTS[0]) > 5e-3


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_solution_is_within_its_certificate_after_as_many_passes(weights, inputs):
    settings = {"start": START, "example_weights": weights, "certificate": 1e-3}
    solved, fine = (solve(predict, DATA, OBJECTIVE, **settings) for predict in (coarse, linear))
    assert solved.info.converged
    assert distance(solved.dw, weights) <= solved.info.certificate
    assert solved.steps == fine.steps


def test_each_of_many_is_within_its_certificate_after_as_many_passes(inputs):
    start = solve(linear, DATA, OBJECTIVE, start=START, certificate=1e-3)
    settings = {"example_weights": WEIGHTS, "start": start, "certificate": 2e-3}
    many, others = (solve_many(predict, DATA, OBJECTIVE, **settings) for predict in (coarse, linear))
    for solved, fine, weights in zip(many, others, WEIGHTS, strict=True):
        assert solved.info.converged
        assert distance(solved.dw, weights) <= solved.info.certificate
        assert solved.steps == fine.steps


def test_the_bound_of_any_step_holds():
    solved = solve(coarse, DATA, OBJECTIVE, start=START, certificate=1e-3)
    assert distance_bound(coarse, solved.dw, DATA, OBJECTIVE) <= solved.info.certificate


def test_lengths_and_inner_products_are_told():
    a = {"kernel": X}
    for program in (jax.make_jaxpr(trees.norm)(a), jax.make_jaxpr(trees.vdot)(a, a)):
        assert "precision=(Precision.HIGHEST, Precision.HIGHEST)" in "".join(str(program).split("\n"))
