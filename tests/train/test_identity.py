"""Identities tell runs apart by models, data, functions and what they hold; checkpoints that do not fit are refused."""

import functools
import os
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import predictor

from tangent_jax.core import placement
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity, program
from tangent_jax.core.notation import Dual
from tangent_jax.core.rows import Parts
from tangent_jax.io.checkpoints import Checkpoints
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import Measure, accuracy, evaluate, outputs, squared_error
from tangent_jax.train.fit import fit
from tangent_jax.train.objective import make_objective
from tangent_jax.train.optimizers import adam

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((300, 3)).astype(np.float32), RNG.integers(0, 3, 300)
KEY = jax.random.key(0)
START = jnp.zeros((3, 3))


def model(w):
    return lambda dw, x: x @ (w + dw)


def test_values_are_told_apart_by_their_content():
    a = np.arange(6.0)
    assert identity(a, {"x": 1}) == identity(a.copy(), {"x": 1})
    others = [
        identity(v) for v in (a, a.astype("float32"), a.reshape(2, 3), {"a": a}, [a], a + 1e-12, 1, 1.0, "1", True)
    ]
    assert len({*others}) == len(others)
    keys = [jax.random.key(0), jax.random.key(1), *(jax.random.key(0, impl=impl) for impl in ("rbg", "unsafe_rbg"))]
    assert len({identity(key) for key in keys}) == len(keys)
    assert identity(make_objective("rsl").loss) != identity(make_objective("rsl", kappa=1.0).loss)
    with pytest.raises(InputError, match="must be identified by its content; got a function"):
        identity(lambda x: x)


def test_a_program_is_the_same_in_another_process():
    code = """
import jax, jax.numpy as jnp, numpy as np, optax
from tangent_jax.core.identities import program
from tangent_jax.train.objective import make_objective
objective = make_objective("ce", 0.1)
loss = lambda dw, x, y: objective(lambda dw, x: jax.nn.relu(x @ dw["w"]), dw, x, y)
dw, x = {"w": np.zeros((4, 3), "float32"), "unused": np.zeros(2, "float32")}, np.zeros((8, 4), "float32")
print(program(jax.value_and_grad(loss), dw, x, np.zeros(8, "int32")), program(optax.adamw(0.1).init, dw))
"""
    runs = {subprocess.check_output([sys.executable, "-W", "ignore", "-c", code], text=True) for _ in range(2)}
    assert len(runs) == 1


def test_held_random_key_is_in_program():
    def drawn(seed):
        key = jax.random.key(seed)
        return program(lambda x: x + jax.random.normal(key, x.shape), np.zeros(3, np.float32))

    assert drawn(0) == drawn(0) != drawn(1)


def test_host_callback_is_refused_by_name():
    def f(x):
        return jax.pure_callback(lambda x: x, x, x)

    with pytest.raises(InputError, match="must make no callbacks to the host; got pure_callback"):
        program(f, jnp.zeros(3))
    with pytest.raises(InputError, match="pure_callback"):
        program(lambda x: jax.lax.map(f, x), jnp.zeros(3))


USER = """
import jax

ALPHA = 1.0

def helper(x):
    return 1.0 * x

@jax.custom_vjp
def backward(x):
    return x

backward.defvjp(lambda x: (x, None), lambda _, g: (1.0 * g,))

@jax.custom_jvp
def forward(x):
    return x

@forward.defjvp
def rule(primals, tangents):
    return primals[0], 1.0 * tangents[0]

def predict(dw, x):
    z = x @ dw
    return ALPHA * helper(forward(backward(z)))
"""
CHANGES = {  # each gave the first run's result to the second
    "a constant of the module": ("ALPHA = 1.0", "ALPHA = 2.0"),
    "code that is called": ("return 1.0 * x", "return 2.0 * x"),
    "a custom_vjp's backward rule": ("(1.0 * g,)", "(2.0 * g,)"),
    "a custom_jvp's rule": ("1.0 * tangents[0]", "2.0 * tangents[0]"),
}
NO_CHANGES = {
    "a comment": ("ALPHA = 1.0", "ALPHA = 1.0  # one"),
    "a local variable's name": ("z", "zz"),
    "a function's name": ("helper", "assistant"),
}


SGD = optax.sgd(0.1)  # one object: another would be compiled anew


def user_module(change=("", "")):
    """The user's module after an edit, as a new process would import it."""
    module = types.ModuleType("user")
    exec(USER.replace(*change), module.__dict__)
    return module


def trained(predict, folder):
    options = {"optimizer": SGD, "epochs": 2}
    data = Batches(X[:64], Y[:64], KEY, batch_size=32)
    return fit(predict, data, make_objective("mse"), start=START, checkpoints=folder and Checkpoints(folder), **options)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_user_code_is_fresh_run(tmp_path, change):
    first = trained(user_module().predict, tmp_path)
    second = trained(user_module(CHANGES[change]).predict, tmp_path)
    fresh = trained(user_module(CHANGES[change]).predict, None)
    assert (np.asarray(second.dw) == np.asarray(fresh.dw)).all()
    assert (np.asarray(second.dw) != np.asarray(first.dw)).any()
    assert first.run != second.run


@pytest.mark.parametrize("change", NO_CHANGES)
def test_identity_ignores_what_changes_nothing(tmp_path, change):
    first = trained(user_module().predict, tmp_path)
    assert trained(user_module(NO_CHANGES[change]).predict, tmp_path).run == first.run


def test_changed_global_is_another_run(tmp_path):
    module = user_module()
    first = trained(module.predict, tmp_path)
    module.ALPHA = 2.0
    assert trained(module.predict, tmp_path).run not in (first.run, None)


def test_optimisers_use_of_progress_is_in_program(tmp_path):
    def falling(power):
        def update(gradient, state, dw=None, *, progress=0.0, **_):
            return jax.tree.map(lambda g: -0.1 * (1 - progress) ** power * g, gradient), state

        return optax.GradientTransformationExtraArgs(lambda dw: optax.EmptyState(), update)

    data, options = Batches(X, Y, KEY), {"start": START, "epochs": 2, "checkpoints": Checkpoints(tmp_path)}
    first, second = (fit(predict, data, optimizer=falling(power), **options) for power in (1, 3))
    assert first.run != second.run
    assert (np.asarray(first.dw) != np.asarray(second.dw)).any()


@pytest.mark.long
def test_two_axis_program_is_stable():
    """The repr of a set of axes depends on the hash seed."""
    code = """
import jax, numpy as np
from functools import partial
from jax.sharding import Mesh, PartitionSpec as P
from tangent_jax.core.identities import program
mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), ("alpha", "beta", "gamma"))
f = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("alpha", "beta"), out_specs=P("alpha", "beta"))
print(program(f, np.zeros((4, 4), "float32")))
"""
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "123"]
    runs = {subprocess.check_output([sys.executable, "-W", "ignore", "-c", code], text=True, env=e) for e in seeds}
    assert len(runs) == 1


def measured(test, row, dw):
    return {"test": float(jnp.sum(test @ dw))}


def run(folder, w=1.0, x=X, y=Y, test=X, **changes):
    settings = {"optimizer": adam(1e-2), "objective": make_objective("ce"), "epochs": 2} | changes
    measure = functools.partial(measured, test)
    predict = model(w * np.eye(3, dtype=np.float32))
    kept = Checkpoints(folder)
    return fit(predict, Batches(x, y, KEY), start=START, checkpoints=kept, on_step=measure, **settings)


def test_different_runs_share_no_checkpoint(tmp_path):
    """Version 0.1 sampled 64 rows and no closures: the second call returned the first one's weights."""
    first = run(tmp_path)
    moved, targets = X.copy(), Y.copy()
    moved[151, 0] += 1e-3
    targets[151] = (targets[151] + 1) % 3
    others = [{"w": 2.0}, {"x": moved}, {"y": targets}, {"epochs": 3}, {"optimizer": optax.adam(0.1)}]
    others += [{"optimizer": optax.adam(0.2)}, {"objective": make_objective("mse")}, {"optimizer": adam(2e-2)}]
    runs = [run(tmp_path, **changes) for changes in others]
    assert len({first.run, *(one.run for one in runs)}) == 1 + len(others)
    for one, changes in zip(runs, others, strict=True):
        alone = run(tmp_path / "alone", **changes)
        assert (np.asarray(one.dw) == np.asarray(alone.dw)).all()


def test_measurements_decide_no_step(tmp_path):
    first, other = run(tmp_path), run(tmp_path, test=X + 1)
    assert first.run == other.run
    assert "test" in first.history[0]
    assert "test" not in other.history[0]
    assert [row["seconds"] for row in other.history] == [row["seconds"] for row in first.history]  # read, not trained
    data, options = Batches(X, Y, KEY), {"start": START, "epochs": 2, "checkpoints": Checkpoints(tmp_path / "named")}
    measure = Measure(predict, Batches(X, Y))
    metrics = {"train_accuracy": accuracy}
    histories = [fit(predict, data, on_step=measure, metrics=metrics, **options).history for _ in range(2)]
    assert histories[0] == histories[1]
    assert {"test_accuracy", "train_accuracy"} <= histories[1][0].keys()
    another = fit(predict, data, on_step=Measure(predict, Batches(X + 1, Y)), **options)
    assert "test_accuracy" not in another.history[0]


@pytest.mark.parametrize("place", [lambda x: Batches(x, Y).resident()[0], placement.copied])
def test_copies_see_no_later_writes(place):
    """Not even where a CPU can share an array's memory, which begins at a multiple of 64 bytes then."""
    room = np.empty(4 * X.size + 64, np.uint8)
    start = -room.ctypes.data % 64
    x = room[start : start + 4 * X.size].view(np.float32).reshape(X.shape)
    x[:] = X
    held = place(x)
    x[:] = 0
    assert (np.asarray(held) == X).all()


@pytest.mark.parametrize("fits", [True, False])
def test_measured_inputs_that_fit_are_read_once(monkeypatch, fits):
    class Counted(Parts):
        reads = 0

        def __getitem__(self, index):
            self.reads += 1
            return super().__getitem__(index)

    monkeypatch.setattr(placement, "resident_bytes", lambda: 6000 if fits else 5998)  # of 250 rows of 12 bytes, twice
    inputs = Counted([X])
    rows = np.arange(250)[::-1]
    measure = Measure(
        predict, Batches(inputs, Y, rows=rows), {"test_accuracy": accuracy, "test_zeros": lambda z, y: 0.0 * y}
    )
    steps = [START + RNG.standard_normal((3, 3)) for _ in range(3)]
    for dw in steps:
        want = evaluate(predict, dw, Batches(X, Y, rows=rows))
        assert measure({"epoch": 1}, dw) == {"test_accuracy": want, "test_zeros": 0.0}
    assert inputs.reads == 4 * (1 if fits else 3)  # four batches of 64


@pytest.mark.parametrize("harm", ["state", "another's state", "history", "checkpoint torn", "checkpoint binary"])
def test_a_damaged_checkpoint_is_one_line(tmp_path, harm):
    run(tmp_path)
    (path,) = tmp_path.glob("*/checkpoint.json")
    if harm == "state":
        file = max((p for p in tmp_path.glob("*/*/state/**/*") if p.is_file()), key=lambda p: p.stat().st_size)
        file.write_bytes(file.read_bytes()[:-3])
    elif harm == "another's state":
        run(tmp_path / "other", w=2.0)
        ours, theirs = (next(folder.glob("*/*/state")) for folder in (tmp_path, tmp_path / "other"))
        shutil.rmtree(ours)
        shutil.copytree(theirs, ours)
    elif harm == "history":
        path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 3'))
    else:
        path.write_bytes(path.read_bytes()[:40] if harm == "checkpoint torn" else b"\xff\xfe\x01")
    with pytest.raises(InputError, match="checkpoint") as error:
        run(tmp_path)
    assert "\n" not in str(error.value)


def predict(dw, x):
    return x @ dw


def trains(predict=predict, x=X, y=Y, objective=None, start=START, **options):
    return fit(predict, Batches(x, y, KEY), objective, start=start, epochs=1, **options)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: trains(y=Y.astype(float)), "class indices, whole numbers; got dtype float64"),
        (lambda: Batches(X, Y == 1), "whole numbers or floats; got dtype bool"),
        (lambda: Batches(X, Y.astype(str)), "whole numbers or floats; got dtype <U"),
        (lambda: trains(y=np.eye(3, dtype=int)[Y]), r"shape \(n,\); got shape \(300, 3\)"),
        (lambda: Batches(X, np.where(Y == 0, 2**32, Y)), "whole numbers below 2147483648"),
        (lambda: trains(y=Y - 5), "class indices must be >= 0; got -5"),
        (lambda: trains(y=Y + 1), "class indices must be below 3, the number of classes; got 3"),
        (lambda: Batches(np.array([{}] * 300), Y), "one array of numbers"),
        (lambda: Batches(X, Y, rows=np.array([0, 300])), "rows must be whole numbers in 0..299"),
        (lambda: Batches(X, Y[:9]), "inputs must be as many as the targets, 9; got 300"),
        (lambda: Batches(X, Y[:0]), "data must have at least one example .*; got none"),
        (lambda: evaluate(predict, START + np.nan, Batches(X, Y)), "outputs must be finite; got 300 rows that are not"),
        (
            lambda: evaluate(lambda dw, x: predict(dw, x)[:, None], START, Batches(X, Y)),
            r"outputs must have shape \(n, c\) for accuracy; got \(300, 1, 3\)",
        ),
        (lambda: outputs(predict, START, X[:0]), "inputs must have at least one example"),
        (lambda: trains(lambda dw, x: [x @ dw]), r"predict must return floats of shape \(2, ...\)"),
        (lambda: trains(lambda dw, x: Dual(x @ dw, x @ dw)), r"got Dual. Return f_lin\(dw, x\).total"),
        (lambda: trains(x=X[:, :1]), r"inputs float\d\d \(b, 1\); got TypeError: dot_general .*. Compare shapes"),
        (lambda: trains(start={}), r"a start dw must have leaves; got none. .* part of w\)"),
        (lambda: trains(start=None), "start must be given for a function; got none"),
        (lambda: trains(start=jnp.zeros(3, int)), "got int32. Leave it out .*Variable"),
        (lambda: trains(start=START.astype(jnp.float16)), "float32 or float64; got float16"),
        (lambda: fit(predict, Batches(X, Y), start=START, key=KEY), "got none. Pass the key to Batches, not to fit"),
        (lambda: trains(x=X * np.inf), "the loss must be finite; got nan in epoch 1"),
        (
            lambda: jax.jit(lambda dw: trains(start=dw).dw)(START),
            "of dw must be an array; got a tracer. Call it outside of jax.jit",
        ),
        (lambda: fit(predict, [X], start=START), r"each batch must be a pair \(x, y\); got ndarray"),
        (lambda: trains(on_step=lambda row, dw: "done"), "on_step must return None or {name: number}; got 'done'"),
        (lambda: trains(on_step=lambda row, dw: {"a": X}), "a from on_step must be a number"),
        (
            lambda: trains(y=X[:, 0], objective=make_objective("mse")),
            r"targets must have the outputs' shape \(n, 3\); got shape \(300,\). Pass targets\[:, None\]",
        ),
        (lambda: trains(lambda dw, x: (x @ dw)[:, None]), r"outputs must have shape \(b, c\)"),
        (lambda: evaluate(predict, START, Batches(X, Y), squared_error), r"the outputs' shape \(1, 3\)"),
        (lambda: trains(metrics={"loss": accuracy}), "metrics must have other names than the run's own; got loss"),
        (lambda: adam(float("inf")), "learning_rate must be a finite number > 0 and at most 1e"),
        (lambda: make_objective(penalty=float("nan")), "penalty"),
    ],
)
def test_wrong_uses_are_one_clear_line(call, match):
    with pytest.raises(InputError, match=match) as error:
        call()
    assert "\n" not in str(error.value)


def test_lists_are_taken_as_arrays():
    one = trains(x=X.tolist(), y=Y.tolist())
    assert (np.asarray(one.dw) == np.asarray(trains().dw)).all()


def test_predictor_passes_jit_and_vmap():
    task, dw = predictor("head", depth=1)
    x = jax.random.normal(KEY, (2, *task.model.input_shape(task.subset.stage)))
    want = task(dw, x)
    assert jnp.abs(jax.jit(task)(dw, x) - want).max() < 1e-4
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), dw)
    assert jnp.abs(jax.vmap(task, in_axes=(0, None))(several, x)[0] - want).max() < 1e-4
    assert jnp.abs(jax.jit(lambda task, dw, x: task(dw, x), static_argnums=0)(task, dw, x) - want).max() < 1e-4
