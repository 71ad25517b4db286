"""Training: convex, deterministic, the same streamed or resident, and the same after a kill."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_rel_close, normal, small

from tangent_jax import subsets, trees, vit
from tangent_jax.checks import InputError
from tangent_jax.fit import Settings, accuracy, distance_bound, fit, logits
from tangent_jax.predict import Predictor

X = np.asarray(jax.random.normal(jax.random.key(1), (70, 6, 12)), np.float32)
Y = np.random.default_rng(1).integers(0, 7, 70)


def task(method="taft", linearization="closed_form", **changes):
    config, w = small(2, **changes)
    subset = subsets.make_subset(config)
    return Predictor(w, config, subset.split, method, linearization), subset.zeros(w)


def train(predict, dw, seed=0, **options):
    settings = Settings(epochs=options.pop("epochs", 6), batch_size=16, learning_rate=1e-2)
    return fit(predict, dw, X, Y, settings, jax.random.key(seed), **options)


@pytest.mark.parametrize("method", ["taft", "nlft"])
def test_training_lowers_the_loss_and_is_deterministic(method):
    first, again = train(*task(method)), train(*task(method))
    assert first.history[-1]["loss"] < 0.9 * first.history[0]["loss"]
    assert trees.fingerprint(first.dw) == trees.fingerprint(again.dw)
    assert trees.fingerprint(train(*task(method), seed=1).dw) != trees.fingerprint(first.dw)
    assert first.steps == 30


def test_the_two_roads_train_to_the_same_step():
    closed, autodiff = (train(*task(linearization=road)).dw for road in ("closed_form", "autodiff"))
    assert_rel_close(closed, autodiff, 1e-3)  # f32 rounding, amplified by 30 Adam steps


def test_streaming_from_disk_gives_the_same_bits(tmp_path):
    predict, dw = task()
    np.save(tmp_path / "x.npy", X)
    settings = Settings(epochs=3, batch_size=16)
    resident = fit(predict, dw, X, Y, settings, jax.random.key(0))
    streamed = fit(
        predict, dw, np.load(tmp_path / "x.npy", mmap_mode="r"), Y, settings, jax.random.key(0), resident_bytes=9000
    )
    assert trees.fingerprint(streamed.dw) == trees.fingerprint(resident.dw)


def test_one_epoch_is_the_adam_steps_written_out(x64):
    """Against a loop in plain optax over the same order: batches, padding, penalty and decay."""
    config, w = small(1)
    subset = subsets.make_subset(config)
    predict, dw = Predictor(w, config, subset.split), subset.zeros(w)
    x, settings, key = (
        normal(1, (21, 6, 12)),
        Settings(loss="ce", epochs=2, batch_size=8, penalty=0.1, decay_at=(0.5,)),
        jax.random.key(3),
    )
    got = fit(predict, dw, np.asarray(x), Y[:21], settings, key).dw

    @jax.jit
    def gradient(dw, x, y):
        def objective(dw):
            losses = optax.softmax_cross_entropy_with_integer_labels(predict(dw, x), y)
            return losses.mean() + 0.05 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(dw))

        return jax.grad(objective)(dw)

    moments = optax.adam(1e-3).init(dw)
    for epoch in range(2):
        optimizer = optax.adam(1e-3 * 0.1**epoch)
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), 21))
        for rows in np.split(order, [8, 16]):
            updates, moments = optimizer.update(gradient(dw, x[rows], Y[rows]), moments)
            dw = optax.apply_updates(dw, updates)
    assert_rel_close(got, dw, 1e-9)  # 6 Adam steps divide rounding by sqrt(v)


def test_a_tail_from_images_trains_everything():
    config, w = small(1)
    subset = subsets.make_subset(config, "everything")
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)
    fitted = fit(
        Predictor(w, config, subset.split), subset.zeros(w), images, Y[:20], Settings(epochs=2), jax.random.key(0)
    )
    assert all(
        float(jnp.abs(leaf).max()) > 0 for path, leaf in trees.leaves(fitted.dw).items() if "key/bias" not in path
    )


def test_any_function_trains():
    fitted = fit(lambda dw, x: x.mean(1) @ dw, jnp.zeros((12, 7)), X, Y, Settings(epochs=3), jax.random.key(0))
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]


def test_logits_of_a_padded_last_batch_are_dropped():
    predict, dw = task()
    assert_rel_close(logits(predict, dw, X, batch_size=32), np.asarray(predict(dw, X)))
    assert accuracy(predict, dw, X, np.asarray(predict(dw, X)).argmax(-1)) == 1.0


def test_the_anchor_is_data_not_a_constant_of_the_program():
    """Two anchors of one shape share one compiled program: nothing recompiles per model."""
    from tangent_jax.fit import scan_steps

    predict, dw = task()
    train(predict, dw, epochs=1)
    before = scan_steps._cache_size()
    moved = Predictor(vit.init(predict.config, jax.random.key(5)), predict.config, predict.split)
    train(moved, dw, epochs=1)
    assert scan_steps._cache_size() == before


SCRIPT = """
import json, sys
import test_fit
from tangent_jax import trees
from tangent_jax import checkpoints; checkpoints.CHECKPOINT_SECONDS = 0.0
fitted = test_fit.train(*test_fit.task(), epochs=40, checkpoints=sys.argv[1], evaluation=(test_fit.X, test_fit.Y))
print(json.dumps([trees.fingerprint(fitted.dw), len(fitted.history)]))
"""


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_with_the_same_bits(tmp_path):
    def start(folder):
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / folder)], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True, env=environment)  # fmt: skip

    whole = json.loads(start("whole").communicate()[0])
    rng, kills = np.random.default_rng(0), 0
    while kills < 4:
        process = start("killed")
        deadline = time.monotonic() + 60
        while not any((tmp_path / "killed").glob("*/*")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert json.loads(start("killed").communicate()[0]) == whole


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = train(*task(), checkpoints=tmp_path)
    again = train(*task(), checkpoints=tmp_path)
    assert again.history == first.history
    assert trees.fingerprint(again.dw) == trees.fingerprint(first.dw)
    # another run's checkpoint is not taken for this one's: seed, method, anchor and data tell them apart
    moved, dw = task()
    moved = dataclasses.replace(moved, w=jax.tree.map(lambda leaf: 1.01 * leaf, moved.w))
    others = [train(*task(), checkpoints=tmp_path, seed=4), train(*task("nlft"), checkpoints=tmp_path)]
    others += [train(moved, dw, checkpoints=tmp_path)]
    others += [fit(*task(), X[::-1], Y, Settings(epochs=6), jax.random.key(0), checkpoints=tmp_path)]
    assert len({trees.fingerprint(fitted.dw) for fitted in [first, *others]}) == 5
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize(("call", "match"), [
    (lambda: Settings(epochs=0), "Settings: expected epochs >= 1; got 0"),
    (lambda: Settings(learning_rate=0.0), "learning_rate > 0"),
    (lambda: Settings(penalty=-1.0), "penalty >= 0"),
    (lambda: Settings(loss="hinge"), "make_loss: expected a loss in"),
    (lambda: task("soup"), "Predictor: expected method in taft, nlft; got soup"),
    (lambda: task(linearization="magic"), "Predictor: expected linearization in closed_form, autodiff"),
    (lambda: fit(*task(), X, Y[:-1], Settings(), jax.random.key(0)), r"fit: expected as many inputs as labels \(69"),
    (lambda: fit(*task(), X, Y - 1, Settings(), jax.random.key(0)), "labels >= 0; got -1"),
])  # fmt: skip
def test_bad_input_is_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_the_distance_bound_holds_and_falls_with_training(x64):
    predict, dw = task()
    inputs, found = np.asarray(X, np.float64), []
    predict = dataclasses.replace(predict, w=jax.tree.map(lambda leaf: leaf.astype(float), predict.w))
    dw = jax.tree.map(lambda leaf: leaf.astype(float), dw)
    settings = Settings(epochs=1, batch_size=70, learning_rate=3e-2, penalty=0.1, decay_at=(0.5, 0.8))
    steps = {
        n: fit(predict, dw, inputs, Y, dataclasses.replace(settings, epochs=n), jax.random.key(0)).dw
        for n in (5, 40, 600)
    }
    bounds = {n: distance_bound(predict, step, inputs, Y, settings) for n, step in steps.items()}
    for n in (5, 40):
        apart = float(jnp.sqrt(trees.squared_norm(jax.tree.map(jnp.subtract, steps[n], steps[600]))))
        assert apart <= bounds[n] + bounds[600]
        found.append(apart)
    assert bounds[5] > bounds[40] > bounds[600]
    assert found[0] > bounds[600]  # so the bound says something
    with pytest.raises(InputError, match="penalty > 0"):
        distance_bound(predict, dw, inputs, Y, dataclasses.replace(settings, penalty=0.0))


def test_the_tangent_alone_is_the_total_less_the_anchors_output():
    predict, dw = task()
    dw = jax.tree.map(lambda leaf: leaf + 0.01, dw)
    for road in ("closed_form", "autodiff"):
        alone = dataclasses.replace(predict, output="tangent", linearization=road)
        assert_rel_close(alone(dw, X), predict(dw, X) - predict.plain(predict.w, X))
    with pytest.raises(InputError, match="the last for taft only; got tangent of nlft"):
        dataclasses.replace(predict, method="nlft", output="tangent")
