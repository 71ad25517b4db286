"""What tells runs apart: models, data, functions and what they hold; checkpoints that do not fit are refused."""

import dataclasses
import functools
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from helpers import predictor

from tangent_jax.core import InputError, identity
from tangent_jax.train.batches import Batches
from tangent_jax.train.fit import accuracy, fit, logits
from tangent_jax.train.fit_many import fit_many
from tangent_jax.train.objective import make_objective
from tangent_jax.train.optimizers import adam, momentum

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((300, 3)).astype(np.float32), RNG.integers(0, 3, 300)
KEY = jax.random.key(0)
START = jnp.zeros((3, 3))


def model(w):
    return lambda dw, x: x @ (w + dw)


def test_functions_are_told_apart_by_what_they_hold():
    w = np.eye(3, dtype=np.float32)
    assert identity(model(w)) == identity(model(w.copy()))
    assert identity(model(w)) != identity(model(2 * w))
    assert identity(jax.jit(model(w))) != identity(jax.jit(model(2 * w)))
    assert identity(functools.partial(model, w)) != identity(functools.partial(model, 2 * w))
    assert identity(lambda x: x + 1) != identity(lambda x: x + 2)
    assert identity(lambda x: jnp.sin(x)) != identity(lambda x: jnp.cos(x))
    assert identity(optax.adam(0.1)) == identity(optax.adam(0.1)) != identity(optax.adam(0.2))
    assert identity(adam(0.1)) != identity(adam(0.2)) != identity(momentum(0.2))
    assert (
        identity(make_objective("ce")) != identity(make_objective("rsl")) != identity(make_objective("rsl", kappa=1.0))
    )
    predict, _ = predictor(depth=1)
    other, _ = predictor(depth=1, method="nlft")
    assert identity(predict) != identity(other)


def make_class(factor):
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        bias: float = 0.0

        def __call__(self, dw, x):
            return factor * (x @ dw) + self.bias

    return Scaled


def make_module(factor):
    class Net(nn.Module):
        width: int = 3

        @nn.compact
        def __call__(self, x):
            return factor * nn.Dense(self.width)(x)

    return Net()


def test_classes_of_the_users_are_told_apart_by_their_methods():
    assert identity(make_class(1.0)()) == identity(make_class(1.0)())
    assert identity(make_class(1.0)()) != identity(make_class(2.0)())
    assert identity(make_class(1.0)(0.5)) != identity(make_class(1.0)())
    nets = [make_module(1.0), make_module(1.0), make_module(2.0)]
    first, second, third = (identity(lambda w, x, net=net: net.apply(w, x)) for net in nets)
    assert first == second != third


FACTOR = 2.0


def test_globals_that_a_function_reads_count(monkeypatch):
    def f(x):
        return FACTOR * x

    before = identity(f)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert identity(f) != before


def test_an_identity_is_the_same_in_another_process():
    code = """
import numpy as np, optax, tangent_jax as tj
from tangent_jax.core import identity
print(identity(tj.adam(0.1), optax.adam(0.2), {"a": np.arange(5.0)}, tj.make_objective(), tj.Recipe()))
"""
    runs = {subprocess.check_output([sys.executable, "-W", "ignore", "-c", code], text=True) for _ in range(2)}
    assert len(runs) == 1


class Opaque:
    pass


def test_what_cannot_be_told_apart_is_refused_with_the_way_out(tmp_path):
    thing = Opaque()
    with pytest.raises(InputError, match=r"a Opaque. Pass functions as jax.tree_util.Partial\(f, w\)"):
        identity(lambda x: thing)
    with pytest.raises(InputError, match="Partial"):
        fit(lambda dw, x: x @ dw + (thing is None), START, Batches(X, Y, KEY), epochs=1, checkpoints=tmp_path)
    fit(lambda dw, x: x @ dw + (thing is None), START, Batches(X, Y, KEY), epochs=1)  # without checkpoints: as it likes


def run(folder, w=1.0, x=X, y=Y, test=X, **changes):
    settings = {"optimizer": adam(1e-2), "objective": make_objective("ce"), "epochs": 2} | changes
    measure = functools.partial(measured, test)
    predict = model(w * np.eye(3, dtype=np.float32))
    return fit(predict, START, Batches(x, y, KEY), checkpoints=folder, on_epoch=measure, **settings)


def measured(test, row, dw):
    return {"test": float(jnp.sum(test @ dw))}


def test_two_models_two_data_sets_two_tests_never_share_a_checkpoint(tmp_path):
    """Version 0.1 sampled 64 rows and no closures: the second call returned the first one's weights."""
    first = run(tmp_path)
    moved, labels = X.copy(), Y.copy()
    moved[151, 0] += 1e-3
    labels[151] = (labels[151] + 1) % 3
    others = [{"w": 2.0}, {"x": moved}, {"y": labels}, {"test": X + 1}, {"epochs": 3}, {"optimizer": optax.adam(0.1)}]
    others += [{"optimizer": optax.adam(0.2)}, {"objective": make_objective("mse")}]
    runs = [run(tmp_path, **changes) for changes in others]
    assert len({first.run, *(one.run for one in runs)}) == 1 + len(others)
    for one, changes in zip(runs, others, strict=True):
        alone = run(tmp_path / "alone", **changes)
        assert (np.asarray(one.dw) == np.asarray(alone.dw)).all()
    again = run(tmp_path)
    assert again.history == first.history  # read, not trained: its seconds are the same


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


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Batches(X, Y.astype(float), KEY), "whole numbers; got dtype float64"),
        (lambda: Batches(X, Y == 1, KEY), "whole numbers; got dtype bool"),
        (lambda: Batches(X, Y.astype(str), KEY), "whole numbers; got dtype <U"),
        (lambda: Batches(X, np.eye(3, dtype=int)[Y], KEY), r"shape \(n,\); got shape \(300, 3\)"),
        (lambda: Batches(X, np.where(Y == 0, 2**32, Y), KEY), "labels below 2147483648"),
        (lambda: Batches(X, Y - 5, KEY), "labels >= 0; got -5"),
        (lambda: Batches(X, Y, 0), "a key such as jax.random.key"),
        (lambda: Batches(np.array([{}] * 300), Y, KEY), "one array of numbers"),
        (lambda: Batches(X, Y, KEY, batch_size=2.5), "batch_size >= 1, a whole number; got 2.5"),
        (lambda: Batches(X, Y, KEY, rows=np.array([0, 300])), r"rows in 0\.\.299"),
        (lambda: fit(predict, START, Batches(X, Y + 1, KEY)), "labels below 3, the number of classes; got 3"),
        (lambda: fit_many(predict, START, [Batches(X, Y + 1, KEY)]), "labels below 3"),
        (lambda: accuracy(predict, START, X, Y + 1), "labels below 3"),
        (lambda: accuracy(predict, START, X, Y[:9]), r"as many labels as inputs \(300\); got 9"),
        (lambda: accuracy(predict, START + np.nan, X, Y), "finite logits; got 300 rows"),
        (lambda: logits(predict, START, X[:0]), "at least one input"),
        (lambda: fit(lambda dw, x: [x @ dw], START, Batches(X, Y, KEY)), "logits of shape .* from predict"),
        (lambda: fit(lambda dw, x: (x @ dw).sum(-1), START, Batches(X, Y, KEY)), "logits of shape"),
        (lambda: fit(predict, {}, Batches(X, Y, KEY)), "a step dw with leaves"),
        (lambda: fit(predict, START.astype(jnp.float16), Batches(X, Y, KEY)), "float32 or float64; got float16"),
        (lambda: fit(predict, START, Batches(X, Y, KEY), epochs=1.5), "epochs >= 1, a whole number; got 1.5"),
        (lambda: fit(predict, START, Batches(X, Y, KEY), epochs=True), "whole number; got True"),
        (lambda: fit(predict, START, 7), "Batches, or an iterable of batches"),
        (lambda: fit(predict, START, Batches(X * np.inf, Y, KEY), epochs=2), "a finite loss; got nan in epoch 1"),
        (lambda: fit_many(predict, START, [Batches(X * np.inf, Y, KEY)], epochs=2), "a finite loss"),
        (lambda: adam(float("inf")), "learning_rate > 0, at most 1e"),
        (lambda: make_objective("rsl", kappa=float("inf")), "kappa > 0, at most"),
        (lambda: make_objective(penalty=float("nan")), "penalty"),
    ],
)
def test_wrong_uses_are_one_clear_line(call, match):
    with pytest.raises(InputError, match=match) as error:
        call()
    assert "\n" not in str(error.value)


def test_lists_are_taken_as_arrays():
    one = fit(predict, START, Batches(X.tolist(), Y.tolist(), KEY), epochs=1)
    assert (np.asarray(one.dw) == np.asarray(fit(predict, START, Batches(X, Y, KEY), epochs=1).dw)).all()


def test_a_predictor_goes_through_jit_and_vmap_as_users_write_them():
    task, dw = predictor("head", depth=1)
    x = jax.random.normal(KEY, (2, *task.model.input_shape(task.subset.stage)))
    want = task(dw, x)
    assert jnp.abs(jax.jit(task)(dw, x) - want).max() < 1e-4
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), dw)
    assert jnp.abs(jax.vmap(task, in_axes=(0, None))(several, x)[0] - want).max() < 1e-4
    assert jnp.abs(jax.jit(lambda task, dw, x: task(dw, x), static_argnums=0)(task, dw, x) - want).max() < 1e-4
