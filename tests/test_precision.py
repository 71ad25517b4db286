"""What rests on float32, where a device multiplies it coarsely unless told otherwise: GPUs (TF32), TPUs (bfloat16)."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense import ridge
from helpers import equations, in_long, private_task, tree_normal

import tangent_jax as tj
from experiments.shared import left_out
from tangent_jax.commands.shared import plan
from tangent_jax.core import trees
from tangent_jax.core.identities import identity
from tangent_jax.exports.serving import check_alike
from tangent_jax.io.progress import request_stop, shown
from tangent_jax.solver import affine, passes
from tangent_jax.solver.expansion import expand
from tangent_jax.solver.many import solve_many
from tangent_jax.solver.optimum import solve
from tangent_jax.solver.posterior import SolverPosterior
from tangent_jax.solver.problem import make_curvature, make_problem
from tangent_jax.solver.rows import jacobian_rows
from tangent_jax.train.batches import Batches
from tangent_jax.train.bound import distance_bound
from tangent_jax.train.objective import Objective, make_objective

OBJECTIVE = make_objective("rsl", 0.1)
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
    return np.linalg.norm(np.ravel(dw) - ridge(j, np.zeros((12, 3)), Y, total=12 * 0.1, weights=weights))


def test_without_a_word_the_optimum_is_another():
    rounded = jax.lax.reduce_precision(X, 8, 7)
    solved = solve(linear, Batches(rounded, Y), OBJECTIVE, start=START, certificate=1e-3)
    assert distance(solved.dw, WEIGHTS[0]) > 5e-3


@pytest.mark.parametrize("weights", WEIGHTS)
def test_solution_is_within_certificate(weights, inputs):
    settings = {"start": START, "example_weights": weights, "certificate": 1e-3}
    solved, fine = (solve(predict, DATA, OBJECTIVE, **settings) for predict in (coarse, linear))
    assert solved.info.converged
    assert distance(solved.dw, weights) <= solved.info.certificate
    assert solved.steps == fine.steps


def test_each_of_many_is_within_certificate(inputs):
    start = solve(linear, DATA, OBJECTIVE, start=START, certificate=1e-3)
    settings = {"example_weights": WEIGHTS, "start": start, "certificate": 2e-3}
    many, others = (solve_many(predict, DATA, OBJECTIVE, **settings) for predict in (coarse, linear))
    for solved, fine, weights in zip(many, others, WEIGHTS, strict=True):
        assert solved.info.converged
        assert distance(solved.dw, weights) <= solved.info.certificate
        assert solved.steps == fine.steps


def test_the_bound_of_any_step_holds():
    solved = solve(coarse, DATA, OBJECTIVE, start=START, certificate=1e-3)
    bound = distance_bound(coarse, solved.dw, DATA, OBJECTIVE)
    assert distance(solved.dw, WEIGHTS[0]) <= bound
    assert bound <= 1.1 * solved.info.certificate  # both have a term for rounding, which differs by processor


def test_users_iterator_keeps_precision():
    seen = []

    def rows():
        for row in [*WEIGHTS, *WEIGHTS]:
            seen.append(jax.config.jax_default_matmul_precision)
            yield row

    start = solve(linear, DATA, OBJECTIVE, start=START, certificate=1e-3)
    list(solve_many(linear, DATA, OBJECTIVE, example_weights=rows(), start=start, certificate=2e-3, at_once=2))
    assert seen == ["bfloat16"] * 4


def norms_and_gram():
    predict, dw, x, _ = private_task("blocks", 1)
    J = jax.eval_shape(tj.jacobian, predict, dw, x)
    return {"norms": (lambda J: J.norms(), J), "gram": (lambda J: J.gram(), J)}


def unwhitened():
    predict, *_ = private_task("head", 1)
    white = tj.privacy.whiten(predict)
    return {"unwhiten": (tj.privacy.unwhiten, white, tree_normal(0, white.zeros()))}


def lengths():
    a = {"kernel": X}
    return {"norm": (trees.norm, a), "vdot": (trees.vdot, a, a)}


@pytest.mark.parametrize("make", [norms_and_gram, unwhitened, lengths])
def test_products_are_told(make):
    for name, call in make().items():
        found = [e.params["precision"] for e in equations(*call) if e.primitive.name == "dot_general"]
        assert found, name
        assert {*found} == {(jax.lax.Precision.HIGHEST,) * 2}, name


@pytest.fixture
def asked(monkeypatch):
    """The precision at each call of a function of passes.py, or of another that is given to `watch`."""
    seen = []

    def watch(module, name):
        function = getattr(module, name)

        def watched(*arguments, **options):
            seen.append(jax.config.jax_default_matmul_precision)
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, watched)

    for name in ("add_gradient", "add_product", "change_of", "outputs_of", "part_curvature", "keep_with_curvature"):
        watch(passes, name)
    return SimpleNamespace(seen=seen, watch=watch)


def small_task(**options):
    predict, _, x, y = private_task("head", 1, **options)
    return predict, Batches(x, y % options.get("classes", 7), batch_size=4), make_objective("ce", 0.05)


def resumed(folder):
    """A run that is stopped between two points, and goes on."""

    def stop(row, dw):
        if row["passes"] == 3:
            request_stop()

    given = {"start": START, "certificate": 1e-4, "checkpoints": tj.Checkpoints(folder)}
    with pytest.raises(KeyboardInterrupt):
        solve(linear, DATA, OBJECTIVE, **given, on_step=stop, progress=shown)
    return solve(linear, DATA, OBJECTIVE, **given)


def posterior(folder):
    predict, data, objective = small_task()
    fitted = solve(predict, data, objective, certificate=1e-2)
    return SolverPosterior(predict, data, objective, fitted)(data.inputs[:1])


CALLS = {"resumed": resumed, "posterior": posterior, "factors": lambda folder: make_curvature(*small_task())}


@pytest.mark.parametrize("name", ["resumed", "posterior", *in_long("factors")])
def test_every_pass_asks_for_it(asked, tmp_path, name):
    asked.watch(affine, "_bend")  # else a deep tangent could seem not to be linear
    CALLS[name](tmp_path)
    assert len(asked.seen) > 2
    assert {*asked.seen} == {"highest"}


def test_identity_ignores_unused_default():
    predict, data, objective = small_task()
    problem = make_problem(predict, data, objective, None, predict.zeros())
    here = identity(problem.identity_inputs(predict.zeros()))
    with jax.default_matmul_precision("tensorfloat32"):
        assert identity(problem.identity_inputs(predict.zeros())) == here


def test_a_plan_is_of_the_programs_that_run():
    predict, data, objective = small_task()
    examples = tuple((f"{i:064x}", "") for i in range(6))
    features = tj.Features(np.asarray(data.inputs), np.asarray(data.targets), examples)
    phase = plan.optimum_phase(objective, predict, features.batches(), plan.mesh_of(None))
    for name, lowered in phase.programs.items():
        text = lowered.as_text()
        assert "HIGHEST" in text, name
        assert "DEFAULT" not in text, name


def test_changes_of_outputs_are_those_of_f32(asked):
    predict, data, _ = small_task(classes=3)
    steps = jax.tree.map(lambda leaf: leaf[None], tree_normal(0, predict.zeros()))
    asked.watch(left_out.tj, "outputs")
    left_out.changes_of(predict, data.inputs, steps)
    assert asked.seen == ["highest"]


def test_an_onnx_is_held_against_outputs_of_f32(monkeypatch):
    class Session:
        def __init__(self, *_):
            pass

        def run(self, _, given):
            return [linear(START, given["inputs"])]

    onnxruntime = SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=Session)
    monkeypatch.setitem(sys.modules, "onnxruntime", onnxruntime)
    seen = []

    def want(x):
        seen.append(jax.config.jax_default_matmul_precision)
        return linear(START, x)

    check_alike(b"", want, jax.ShapeDtypeStruct((1, 4), np.float32))
    assert seen == ["highest"]


class Cube(tj.losses.Loss):
    """A convex loss with a root of its Hessian that is computed, not stated."""

    def __call__(self, outputs, targets):
        return jnp.sum(jnp.abs(outputs - targets[:, None]) ** 3, 1)


def test_f64_expansion_ignores_f32_precision():
    predict, data, _ = small_task(classes=3)
    rows = jacobian_rows(predict, data.inputs)
    given = rows, rows.gram(), np.asarray(rows.outputs), np.asarray(data.targets), Objective(Cube(), penalty=0.1)
    fine = expand(*given).roots
    with jax.default_matmul_precision("BF16_BF16_F32"):
        np.testing.assert_array_equal(expand(*given).roots, fine)


def test_f64_rows_ignore_f32_precision():
    predict, _, x, _ = private_task("blocks", 1)
    fine = jacobian_rows(predict, x).gram()
    with jax.default_matmul_precision("BF16_BF16_F32"):
        np.testing.assert_array_equal(jacobian_rows(predict, x).gram(), fine)


def test_function_model_ignores_precision():
    here = tj.model_of([lambda w, x: x @ w["kernel"]], {"kernel": np.ones((4, 3), np.float32)}, X[:1]).model
    settings = here.settings
    with jax.default_matmul_precision("highest"):
        assert here.settings == settings
