"""The kernel and all that follows from it, against dense linear algebra and solving again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from demo import Demo
from dense import flat, least_squares, private_case, ridge
from helpers import MODERN, in_long, private_task
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from experiments.influence.effects import refit
from experiments.shared.datamodeling import datamodeling_score
from tangent_jax.core.checks import InputError
from tangent_jax.linear import gram as gram_of
from tangent_jax.linear.gram import own_gram
from tangent_jax.solver import rows as rows_of_j
from tangent_jax.solver.kernel import make_kernel
from tangent_jax.solver.optimum import solve
from tangent_jax.solver.posterior import SolverPosterior, fitted_beta, make_posterior, probabilities
from tangent_jax.solver.rows import jacobian_rows
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import accuracy
from tangent_jax.train.losses import MeanSquared, SquareLoss
from tangent_jax.train.objective import Objective, make_objective

OBJECTIVE = make_objective("rsl", 0.4, alpha=2.0, kappa=3.0)
CLOSE = 1e-9  # relative, of solutions of systems with a condition number of about 1e4


def close(got, want, tolerance=CLOSE):
    assert np.linalg.norm(np.asarray(got) - want) <= tolerance * np.linalg.norm(want)


def task(kind="blocks", blocks=1, **options):
    predict, dw, x, y = private_task(kind, blocks, **options)
    return predict, dw, x, np.asarray(y)


@pytest.fixture
def fitted(x64):
    """(predictor, inputs, labels, J, f_0, the solution on the first five of six examples), of a head alone."""
    predict, _, x, y, j, f = private_case("head", 1)
    solution = make_kernel(predict, Batches(x, y, rows=np.arange(5)), OBJECTIVE).solve()
    return predict, x, y, j, f, solution


def in_groups(solution, groups):
    return dataclasses.replace(solution, kernel=dataclasses.replace(solution.kernel, groups=groups))


SUBSETS = [("blocks", 1, "token"), ("blocks", 1, "avg")]
SUBSETS += in_long(("blocks", 2, "token"), ("everything", 0, "token"))


@pytest.mark.parametrize(("kind", "blocks", "pool"), SUBSETS)
def test_the_gram_matrix_is_that_of_the_jacobian(x64, monkeypatch, kind, blocks, pool):
    monkeypatch.setattr(gram_of, "CHUNK", 500)  # several chunks
    monkeypatch.setattr(rows_of_j, "BATCH", 4)
    predict, dw, x, _, j, f = private_case(kind, blocks, pool)
    j = j.reshape(-1, j.shape[-1])
    rows = jacobian_rows(predict, x)
    close(rows.outputs, f)
    close(rows.gram(), j @ j.T)
    close(rows.take(slice(1, 3)).gram(rows), j[7:21] @ j.T)
    close(own_gram(rows)[4], j[28:35] @ j[28:35].T)
    u = np.random.default_rng(0).standard_normal(f.shape)
    close(flat(rows.transposed_product(u, dw)), u.ravel() @ j)
    along = np.einsum("nc,ncp->np", u, j.reshape(6, 7, -1))
    close(rows.along(u).gram(), along @ along.T)


@pytest.mark.parametrize("variant", ["attention pool", *in_long("rotary", "class and mean")])
def test_gram_of_modern_vit_is_jacobians(x64, variant):
    predict, _, x, _, j, _ = private_case("blocks", 1, **MODERN[variant])
    j = j.reshape(-1, j.shape[-1])
    close(jacobian_rows(predict, x).gram(), j @ j.T)


def test_solution_is_normal_equations(fitted):
    predict, x, y, j, f, solution = fitted
    expected = ridge(j[:5], f[:5], y[:5], total=5 * 0.4, alpha=2.0, kappa=3.0)
    close(flat(solution.dw()), expected)
    assert solution.residual < 1e-10
    close(solution.outputs(), f[:5] + j[:5] @ expected)
    rows = solution.kernel.rows.take(slice(0, 2))
    close(solution.predict(rows, solution.kernel.k[:14]), f[:2] + j[:2] @ expected)
    solved = solve(predict, Batches(x, y, rows=np.arange(5)), OBJECTIVE, certificate=1e-8, passes=300)
    assert np.linalg.norm(flat(solved.dw) - flat(solution.dw())) <= solved.info.certificate


def test_tangent_weights_are_float64():
    predict, _, x, y = task("head")
    solution = make_kernel(predict, Batches(x, y, rows=np.arange(5)), OBJECTIVE).solve()
    dw = solution.dw()
    assert {leaf.dtype for leaf in jax.tree.leaves(dw)} == {np.dtype(np.float64)}
    close(solution.outputs(), np.asarray(predict(dw, x))[:5], 1e-5)


def test_leaving_out_is_solving_again_without(fitted):
    predict, x, y, j, f, solution = fitted
    rows = jacobian_rows(predict, x)
    cross = rows.gram(solution.kernel.rows)
    for gone in ([0], [3], [1, 4], [0, 2, 3]):
        kept = np.setdiff1d(np.arange(5), gone)
        dw = ridge(j[kept], f[kept], y[kept], total=5 * 0.4, alpha=2.0, kappa=3.0)
        close(solution.without(np.array(gone), rows, cross), f + j @ dw)
        close(refit(solution, kept, rows, cross), f + j @ dw)
        grouped = in_groups(solution, ["S" if i in gone else i for i in range(5)])
        close(grouped.left_out()[gone], (f + j @ dw)[gone])
        if len(gone) == 1:
            close(solution.left_out(), grouped.left_out())
            exact = solution.changes(cross)[:, :, gone[0]]
            close(exact, f + j @ dw - solution.predict(rows, cross), 1e-8)


def test_kernel_knows_the_groups_of_features():
    demo = Demo()
    for field in ("groups", "owners"):
        train = dataclasses.replace(demo.train, **{field: tuple(range(12)) * 2})
        kernel = make_kernel(demo.predict, train, demo.objective)
        close(kernel.solve().left_out(), in_groups(demo.solution, train.whole_groups).left_out(), 1e-12)
        assert kernel.choose([0.1])[1][0]["score"] != demo.kernel.choose([0.1])[1][0]["score"]
    assert make_kernel(demo.predict, demo.train.batches(), demo.objective).groups is None


def test_weights_are_solvers_and_penalty_chosen(fitted):
    predict, x, y, j, f, _ = fitted
    weights = np.array([1, 2, 0.5, 1, 1, 3])
    kernel = make_kernel(predict, Batches(x, y), OBJECTIVE, example_weights=weights)
    close(flat(kernel.solve(0.2).dw()), ridge(j, f, y, total=6 * 0.2, alpha=2.0, kappa=3.0, weights=weights))
    best, rows = kernel.choose([1.0, 0.01, 100.0])
    assert [row["penalty"] for row in rows] == [0.01, 1.0, 100.0]
    scores = {row["penalty"]: row["score"] for row in rows}
    assert best.score() == max(scores.values())
    assert best.score() == np.mean(best.left_out().argmax(-1) == y)
    largest = max(penalty for penalty, value in scores.items() if value == max(scores.values()))
    assert best.total_penalty == pytest.approx(6 * largest)
    worst, _ = kernel.choose([1.0, 0.01, 100.0], lambda outputs, targets: -accuracy(outputs, targets))
    assert worst.score() == min(scores.values())


def test_posterior_is_inverse_hessian(fitted):
    predict, x, y, j, _, solution = fitted
    found = make_posterior(solution)
    truth = np.eye(7)[y[:5]]
    w = (2 / 7 * (1 + truth)).ravel()
    rows = j[:5].reshape(35, -1)
    inverse = np.linalg.inv(rows.T @ (w[:, None] * rows) + 2.0 * np.eye(rows.shape[1]))
    logits, covariance = found(x[4:])
    close(covariance[1], found.scale * j[5] @ inverse @ j[5].T, 1e-8)
    data = Batches(x, y, rows=np.arange(5))
    solved = solve(predict, data, OBJECTIVE, certificate=1e-9, passes=300)
    by_solves = SolverPosterior(predict, data, OBJECTIVE, solved, found.scale, tolerance=1e-9)(x[4:])
    close(by_solves[0], logits, 1e-7)
    close(by_solves[1], covariance, 1e-6)
    for gone, groups in (([3], None), ([1, 3], [0, 1, 2, 1, 4])):
        posterior = make_posterior(in_groups(solution, groups))
        means, spread = posterior.left_out()
        without = np.delete(np.arange(5), gone)
        kept, w_kept = j[without].reshape(-1, rows.shape[1]), w.reshape(5, 7)[without].ravel()
        alone = np.linalg.inv(kept.T @ (w_kept[:, None] * kept) + 2.0 * np.eye(kept.shape[1]))
        close(spread[3], posterior.scale * j[3] @ alone @ j[3].T, 1e-8)
        close(means, in_groups(solution, groups).left_out())


@dataclasses.dataclass(frozen=True)
class Uneven(SquareLoss):
    """A user's own: misses of the first output count five times."""

    def quadratic(self, targets, classes):
        t = jnp.asarray(targets)
        return t, jnp.broadcast_to(jnp.ones(classes).at[0].set(5.0), t.shape)


@pytest.mark.parametrize("loss", [MeanSquared(), Uneven()])
def test_regression_has_a_kernel_and_a_posterior(x64, loss):
    """Whatever the square loss is called, and real numbers for targets."""
    predict, _, x, _, j, f = private_case("blocks", 0)
    targets, weights = np.random.default_rng(1).standard_normal((6, 7)), np.array([1, 2, 1, 0.5, 1, 1])
    data, objective = Batches(x, targets, batch_size=4), Objective(loss, 0.3)
    kernel = make_kernel(predict, data, objective, example_weights=weights)
    solution, (t, p) = kernel.solve(), (np.asarray(part) for part in loss.quadratic(targets, 7))
    dw = least_squares(j, f, t, p * weights[:, None], total=1.8)
    close(flat(solution.dw()), dw)
    solved = solve(predict, data, objective, example_weights=weights, certificate=1e-9, passes=300)
    assert np.linalg.norm(flat(solved.dw) - dw) <= solved.info.certificate + CLOSE
    kept = [0, 1, 2, 4, 5]
    alone = least_squares(j[kept], f[kept], t[kept], (p * weights[:, None])[kept], total=1.8)
    close(solution.left_out()[3], f[3] + j[3] @ alone, 1e-8)
    errors = np.sum((solution.left_out() - targets) ** 2, 1)
    assert kernel.choose([0.3])[1] == [{"penalty": 0.3, "score": pytest.approx(-errors.mean())}]
    rows = j.reshape(42, -1)
    inverse = np.linalg.inv(rows.T @ ((p * weights[:, None]).ravel()[:, None] * rows) + 1.8 * np.eye(rows.shape[1]))
    of_kernel = make_posterior(solution)
    close(of_kernel(x[4:])[1][1], of_kernel.scale * j[5] @ inverse @ j[5].T, 1e-7)
    of_solves = SolverPosterior(predict, data, objective, solved, tolerance=1e-9, example_weights=weights)
    close(of_solves(x[4:])[1][1], j[5] @ inverse @ j[5].T, 1e-6)


def test_tau_maximises_leave_one_out(fitted):
    """Per example instead of per output it is seven times too large."""
    *_, solution = fitted
    for groups in (None, [0, 1, 2, 1, 4]):
        pairs = [
            (r, np.linalg.inv(held) / solution.total_penalty)
            for rows, blocks in solution.held(groups)
            for r, held in zip(solution.residuals(groups)[rows].reshape(len(rows), -1), blocks, strict=True)
        ]

        def negative_log_likelihood(log_tau, pairs=pairs):
            return -sum(multivariate_normal(np.zeros(len(r)), np.exp(log_tau) * own).logpdf(r) for r, own in pairs)

        best = minimize_scalar(negative_log_likelihood, bounds=(-10, 10), method="bounded", options={"xatol": 1e-9})
        assert make_posterior(in_groups(solution, groups)).scale == pytest.approx(np.exp(best.x), rel=1e-6)


def test_probit_is_near_sigmoid_mean():
    """pi/4 instead of pi/8 gives 0.73 for 0.78."""
    for mean, variance in ((2.0, 4.0), (-1.0, 9.0), (3.0, 1.0)):
        z = mean + np.sqrt(2 * variance) * np.polynomial.hermite.hermgauss(80)[0]
        exact = np.sum(np.polynomial.hermite.hermgauss(80)[1] / (1 + np.exp(-z))) / np.sqrt(np.pi)
        got = probabilities(np.array([[mean, 0.0]]), np.diag([variance, 0.0])[None], 1.0)[0, 0]
        assert abs(got - exact) < 0.01


def test_probabilities_soften_with_variance():
    logits, wide = np.array([[3.0, 0.0, -1.0]]), np.eye(3)[None] * 50.0
    plain = probabilities(logits, None, 1.0)
    close(plain, np.exp(logits) / np.exp(logits).sum())
    for samples in (0, 4000):
        unsure, same = probabilities(logits, wide, 1.0, samples), probabilities(logits, 0 * wide, 1.0, samples)
        close(unsure.sum(1), np.ones(1))
        close(same, plain)
        assert unsure[0, 0] < plain[0, 0]
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4000, 3))
    labels = (np.cumsum(probabilities(logits, None, 2.5), 1) < rng.random((4000, 1))).sum(1)
    beta, loss = fitted_beta(logits, None, labels)
    assert abs(beta - 2.5) < 0.2
    close(loss, -np.log(probabilities(logits, None, beta)[np.arange(4000), labels]).mean())


def test_scores_rank_subsets():
    truth = np.random.default_rng(0).standard_normal((20, 3))
    assert datamodeling_score(2 * truth + 1, truth) == pytest.approx(1.0)
    assert datamodeling_score(-truth, truth) == pytest.approx(-1.0)


REFUSED = {
    "examples x outputs must be at most 20000": lambda p, x, y: {
        "data": Batches(np.zeros((3000, *x.shape[1:])), np.zeros(3000, int))
    },
    "the loss must be a square": lambda p, x, y: {"objective": make_objective("ce", 1.0)},
    "outputs must be finite; got 1 rows that are not": lambda p, x, y: {
        "data": Batches(np.where(np.arange(6)[:, None] == 4, np.nan, x), y)
    },
    "targets must be finite; got NaN or infinity": lambda p, x, y: {
        "data": Batches(x, np.full((6, 7), np.nan)),
        "objective": Objective(MeanSquared(), 0.1),
    },
    "example_weights must be > 0": lambda p, x, y: {"example_weights": [1, 1, 1, 1, 1, 0]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_model_without_kernel_is_refused(message):
    predict, _, x, y = task("blocks", 0)
    given = {"predict": predict, "data": Batches(x, y), "objective": OBJECTIVE, **REFUSED[message](predict, x, y)}
    with pytest.raises(InputError, match=message) as caught:
        make_kernel(**given)
    if "at most" in message:
        assert "GB" in str(caught.value)
    kernel = make_kernel(predict, Batches(x, y), make_objective("rsl", 0.0))
    for penalty in (None, -1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="penalty must be > 0 and finite"):
            kernel.solve(penalty)


def test_penalty_below_rounding_is_refused():
    predict, _, x, y = task("blocks", 0)
    kernel = make_kernel(predict, Batches(np.repeat(x, 2, 0), np.repeat(y, 2)), OBJECTIVE)
    assert kernel.solve(1e-6).residual < 1e-6
    with pytest.raises(InputError, match="penalty must be above the rounding of the kernel; got 1e-300"):
        kernel.choose([1e-300, 0.1])
