"""The solver against dense linear algebra, and its certificate against the true distance."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense import flat, private_case, ridge
from helpers import assert_rel_close, private_task

from tangent_jax.core import InputError, request_stop, trees
from tangent_jax.linearization import linearize
from tangent_jax.solver.optimum import solve
from tangent_jax.train.batches import Batches
from tangent_jax.train.checkpoints import Saver
from tangent_jax.train.objective import distance_bound, make_objective

RSL = make_objective("rsl", 0.5)
SAME = 1e-9  # relative, of solutions to a gradient of 1e-10


def task(*arguments, **options):
    predict, dw, x, y = private_task(*arguments, **options)
    return predict, dw, x, y, Batches(x, y, batch_size=4)


LONG = [pytest.param(*case, marks=pytest.mark.long) for case in (("blocks", 2), ("everything", 0))]


@pytest.mark.parametrize(("kind", "blocks"), [("blocks", 1), *LONG])
def test_a_square_loss_is_solved_to_the_normal_equations(x64, kind, blocks):
    predict, _, x, y, j, f = private_case(kind, blocks)
    data = Batches(x, y, batch_size=4)
    solved = solve(predict, data, RSL, certificate=1e-9, passes=300)
    assert solved.converged
    expected = ridge(j, f, y, total=6 * 0.5)
    distance = np.linalg.norm(flat(solved.dw) - expected)
    assert distance <= solved.certificate <= 1e-9
    assert solved.total_penalty == 3.0
    assert solved.passes == len(solved.history) == solved.history[-1]["passes"]
    assert solved.gradient_norm == solved.history[-1]["gradient_norm"]


def test_weights_count_examples_and_leave_the_penalty_as_it_was(x64):
    predict, _, x, y, j, f = private_case("blocks", 1)
    data = Batches(x, y, batch_size=4)
    weights = np.array([1, 2, 0, 1, 0.5, 1])
    objective = make_objective("rsl", 0.5, alpha=2.0, kappa=3.0)
    solved = solve(predict, data, objective, example_weights=weights, certificate=1e-9, passes=300)
    expected = ridge(j, f, y, total=6 * 0.5, alpha=2.0, kappa=3.0, weights=weights)
    assert np.linalg.norm(flat(solved.dw) - expected) <= 1e-9
    assert solved.total_penalty == 3.0


def test_the_certificate_bounds_the_distance_at_every_pass_and_is_the_distance_bound(x64):
    predict, _, _, _, data = task()
    best = solve(predict, data, RSL, certificate=1e-9, passes=300)
    distances = []

    def watch(row, now):
        distances.append((float(jnp.linalg.norm(flat(now) - flat(best.dw))), row["certificate"]))
        return {"distance": distances[-1][0]}

    solved = solve(predict, data, RSL, certificate=1e-3, on_step=watch)
    assert all(distance <= certificate * (1 + 1e-6) for distance, certificate in distances)
    assert solved.history[0]["distance"] == distances[0][0] > 0.1
    assert solved.certificate <= 1e-3 < solved.history[-3]["certificate"]
    assert solved.certificate == pytest.approx(distance_bound(predict, solved.dw, data, RSL), rel=1e-6)


def doubled(logits, labels):
    return cross_entropy(2 * logits, labels)


@pytest.mark.parametrize("loss", ["ce", pytest.param(doubled, marks=pytest.mark.long)])
def test_newton_finds_one_optimum_from_two_starts_with_and_without_factors(x64, loss):
    predict, dw, _, _, data = task("blocks", 1)
    objective = make_objective(loss, 0.02)
    cold = solve(predict, data, objective, certificate=1e-8, passes=2000)
    far = solve(predict, data, objective, start=jax.tree.map(lambda leaf: 30 * leaf, dw), certificate=1e-8, passes=2000)
    f_lin = linearize(lambda w, x: predict.model.apply(w, x, predict.subset.stage), predict.w)
    plain = solve(
        lambda dw, x: f_lin(dw, x).total, data, objective, start=predict.zeros(), certificate=1e-8, passes=2000
    )
    assert cold.converged
    assert far.converged
    assert plain.converged
    assert plain.curvature is None
    assert_rel_close(far.dw, cold.dw, 1e-6)
    assert_rel_close(plain.dw, cold.dw, 1e-6)


def test_a_warm_start_without_an_example_takes_fewer_passes_to_the_same_optimum(x64):
    predict, _, _, _, data = task()
    whole = solve(predict, data, RSL, certificate=1e-6)
    weights = np.array([1, 1, 1, 1, 1, 0.5])
    warm = solve(predict, data, RSL, start=whole, example_weights=weights, certificate=1e-6)
    cold = solve(predict, data, RSL, example_weights=weights, certificate=1e-6)
    assert warm.curvature is whole.curvature
    assert warm.passes < cold.passes
    assert np.linalg.norm(flat(warm.dw) - flat(cold.dw)) <= warm.certificate + cold.certificate
    assert np.linalg.norm(flat(warm.dw) - flat(whole.dw)) > 1e-3


@pytest.mark.parametrize("loss", [pytest.param("rsl", marks=pytest.mark.long), "ce"])
def test_a_stopped_run_goes_on_to_the_same_bits(x64, tmp_path, monkeypatch, loss):
    predict, _, _, _, data = task()
    settings = {"objective": make_objective(loss, 0.05), "certificate": 1e-6, "passes": 100}
    whole = solve(predict, data, **settings)
    calls, is_due = [], Saver.is_due

    def stopping(saver, last):
        calls.append(last)
        if len(calls) in (1, 4, 6):
            request_stop()
        return is_due(saver, last) or len(calls) in (1, 4, 6)

    monkeypatch.setattr(Saver, "is_due", stopping)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            solve(predict, data, folder=tmp_path, **settings)
    resumed = solve(predict, data, folder=tmp_path, **settings)
    assert trees.fingerprint(resumed.dw) == trees.fingerprint(whole.dw)
    assert [without_time(row) for row in resumed.history] == [without_time(row) for row in whole.history]
    assert len(calls) == len(whole.history)
    other = solve(predict, data, folder=tmp_path, **{**settings, "certificate": 1e-3})
    assert other.run != resumed.run


def without_time(row):
    return {name: value for name, value in row.items() if name != "seconds"}


def test_passes_end_a_run_that_has_not_converged(x64):
    predict, _, _, _, data = task()
    solved = solve(predict, data, RSL, certificate=1e-12, passes=5)
    assert solved.passes == 5
    assert not solved.converged
    assert solved.history[-1]["exact"]
    free = solve(predict, data, make_objective("rsl", 0.0), certificate=None, passes=4)
    assert (free.certificate, free.converged, free.passes) == (None, False, 4)
    exact = solve(predict, data, RSL, certificate=1e-30, passes=1000)
    assert exact.passes < 1000  # rounding allows no more
    assert not exact.converged


REFUSED = {
    "a model that is linear in dw; got nlft": lambda p, d: {"predict": dataclasses.replace(p, method="nlft")},
    "a model that is linear in dw; got one that bends": lambda p, d: {
        "predict": lambda dw, x: jnp.tanh(p(dw, x)),
        "start": p.zeros(),
    },
    "a start for a function": lambda p, d: {"predict": lambda dw, x: p(dw, x)},
    "penalty > 0 for a certificate": lambda p, d: {"objective": make_objective("rsl", 0.0)},
    "certificate > 0": lambda p, d: {"certificate": 0.0},
    "labels below 7, the number of classes": lambda p, d: {"data": Batches(d.inputs, np.array([0, 1, 2, 3, 4, 7]))},
    "weights of 6 examples": lambda p, d: {"weights": [1, 2]},
    "weights of 6 examples, >= 0": lambda p, d: {"weights": [1, 1, 1, 1, 1, -1]},
    "a finite gradient": lambda p, d: {"data": Batches(d.inputs.at[0].set(jnp.nan), d.labels)},
    "passes >= 2": lambda p, d: {"passes": 1},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_solved_is_refused_in_one_line(message):
    predict, _, _, _, data = task("blocks", 0)
    given = {"predict": predict, "data": data, "objective": RSL, **REFUSED[message](predict, data)}
    with pytest.raises(InputError, match=f"^solve: expected .*{message}"):
        solve(**given)


def test_streamed_inputs_give_the_solution_of_resident_ones():
    predict, _, x, y, _ = task("blocks", 0)
    whole = solve(predict, Batches(x, y, batch_size=2), RSL, passes=12)
    streamed = solve(predict, Batches(np.asarray(x), y, batch_size=2, resident_bytes=64), RSL, passes=12)
    assert_rel_close(streamed.dw, whole.dw, 1e-4)  # sums of f32 in another order, over 12 passes
    assert streamed.passes == whole.passes


DEVICES = """
import jax, numpy as np, sys
sys.path.insert(0, "tests")
from helpers import private_task
from tangent_jax.solver.optimum import solve
from tangent_jax.solver.problem import spread
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import make_objective
predict, _, x, y = private_task("blocks", 0)
solved = solve(predict, Batches(x, y, batch_size=4), make_objective("rsl", 0.5), passes=12)
held = {len(shard.data[0]) for shard in spread(np.zeros((3, 4))).addressable_shards}
print(len(jax.devices()), held, *np.asarray(solved.dw["head"]["bias"]).tolist())
"""


@pytest.mark.long
def test_two_devices_share_each_batch_and_find_the_same_optimum():
    found = {}
    for count in (1, 2):
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", DEVICES]
        run = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, check=True)
        devices, held, *numbers = run.stdout.split()
        assert (devices, held) == (f"{count}", f"{{{4 // count}}}")
        found[count] = np.array(numbers, float)
    np.testing.assert_allclose(found[2], found[1], rtol=1e-5)
