"""Training: convex, deterministic, the same streamed or resident, and the same after a kill."""

import dataclasses
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import run_binary
from helpers import TOLERANCE, assert_rel_close, normal, predictor, products, programs_of

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.checkpoints import Checkpoints, Saver
from tangent_jax.models.protocol import initial_weights
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.train import clip_chunk
from tangent_jax.train import fit as module
from tangent_jax.train.batches import Batches
from tangent_jax.train.bound import distance_bound
from tangent_jax.train.evaluate import accuracy, compile_outputs, evaluate, outputs, squared_error
from tangent_jax.train.fit import compile_fit, fit, step_keys
from tangent_jax.train.fit_many import repeat, train_epoch_many
from tangent_jax.train.losses import LOSSES, CrossEntropy
from tangent_jax.train.objective import Keyed, Objective, make_objective
from tangent_jax.train.optimizers import adam, momentum, project
from tangent_jax.train.targets import call

X = np.asarray(jax.random.normal(jax.random.key(1), (70, 6, 12)), np.float32)
Y = np.random.default_rng(1).integers(0, 7, 70)


def task(method="taft", linearization="closed_form", **variant):
    predict, _ = predictor(method=method, linearization=linearization, **variant)
    return predict, predict.zeros()


def batches(seed=0, inputs=X, targets=Y, **options):
    return Batches(inputs, targets[: len(inputs)], jax.random.key(seed), **{"batch_size": 16, **options})


def train(predict, dw, seed=0, epochs=6, **options):
    return fit(predict, batches(seed), start=dw, optimizer=adam(1e-2), epochs=epochs, **options)


@pytest.mark.parametrize("method", ["taft", "nlft"])
def test_training_is_deterministic(method):
    first, again = train(*task(method)), train(*task(method))
    assert first.history[-1]["loss"] < 0.9 * first.history[0]["loss"]
    assert trees.fingerprint(first.dw) == trees.fingerprint(again.dw)
    assert trees.fingerprint(train(*task(method), seed=1).dw) != trees.fingerprint(first.dw)
    assert first.steps == 30


def test_the_two_roads_train_to_the_same_step():
    closed, autodiff = (train(*task(linearization=road)).dw for road in ("closed_form", "autodiff"))
    assert_rel_close(closed, autodiff, 1e-3)  # f32 rounding, amplified by 30 Adam steps


def test_streaming_from_disk_gives_the_same_bits(tmp_path):
    np.save(tmp_path / "x.npy", X)
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    resident, streamed = (
        fit(task()[0], batches(inputs=x, resident_bytes=size), epochs=3) for x, size in ((X, 1 << 30), (on_disk, 9000))
    )
    assert trees.fingerprint(streamed.dw) == trees.fingerprint(resident.dw)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_steps_key_does_not_depend_on_its_chunk(impl):
    data = Batches(X, Y, jax.random.key(0, impl=impl))
    whole, parts = step_keys(data, 0, 0, 3), [step_keys(data, 0, first, count) for first, count in ((0, 1), (1, 2))]
    assert np.array_equal(*map(jax.random.key_data, (whole, jnp.concatenate(parts))))


def test_one_epoch_is_the_adam_steps_written_out(x64):
    """Against a loop in plain optax over the same order: batches, padding, penalty and decay."""
    predict, _ = predictor(depth=1)
    dw, x, key = predict.zeros(), normal(1, (21, 6, 12)), jax.random.key(3)
    data = Batches(np.asarray(x), Y[:21], key, batch_size=8)
    got = fit(predict, data, make_objective("ce", 0.1), start=dw, optimizer=adam(), epochs=2).dw

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


def linear(dw, x):
    """A plain function: logits of seven classes."""
    return x.mean(1) @ dw


START = jnp.zeros((12, 7))


def test_the_papers_decay_is_the_default():
    """The learning rate falls to a tenth after epochs 15 and 25 of 30: seen in the steps of a constant gradient."""
    optimizer, gradient = adam(1.0), jnp.ones(())
    rates = []
    for epoch in range(30):
        update, _ = optimizer.update(gradient, optimizer.init(gradient), progress=epoch / 30)
        rates.append(-float(update))
    assert np.allclose(rates, [1.0] * 15 + [0.1] * 10 + [0.01] * 5, rtol=1e-4)


@pytest.mark.parametrize("optimizer", [
    optax.sgd(0.1), optax.adamw(1e-2), optax.chain(optax.clip(1.0), optax.sgd(0.1)), optax.lbfgs(),
    optax.MultiSteps(optax.sgd(0.1), 2), optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()),
])  # fmt: skip
def test_optax_trains_any_function(optimizer):
    fitted = fit(linear, batches(), make_objective("ce"), start=START, optimizer=optimizer, epochs=3)
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]


def test_projected_descent_stays_in_ball(x64):
    """min |dw - target|^2 / 2 over |dw| <= R: the target, scaled back onto the ball."""
    target = {"a": jnp.array([3.0, 4.0]), "b": jnp.array(12.0)}  # |target| = 13

    def loss(logits, labels):
        return logits[:, 0]

    def predict(dw, x):
        away = trees.squared_norm(trees.plus(dw, trees.scale(-1.0, target)))
        return jnp.broadcast_to(away / 2, (len(x), 1))

    data, norms = Batches(np.zeros((4, 1)), np.zeros(4, int), jax.random.key(0), batch_size=4), []

    def note(_, dw):
        norms.append(float(trees.squared_norm(dw)) ** 0.5)

    for radius, want in ((6.5, 0.5), (26.0, 1.0)):
        start = jax.tree.map(jnp.zeros_like, target)
        options = {"optimizer": project(optax.sgd(0.5), radius), "epochs": 40, "on_step": note}
        found = fit(predict, data, Objective(loss), start=start, **options).dw
        assert max(norms) <= radius
        assert_rel_close(found, trees.scale(want, target), 1e-5)


def test_f32_descent_never_leaves_ball():
    dw, optimizer = {"w": jnp.zeros(50_000)}, project(adam(0.1), 1.0)
    state = optimizer.init(dw)
    for key in range(5):
        updates, state = optimizer.update({"w": normal(key, (50_000,))}, state, dw)
        dw = optax.apply_updates(dw, updates)
        assert 0.999 < np.linalg.norm(np.asarray(dw["w"], np.float64)) <= 1.0


def test_plain_sgd_is_gradient_descent(x64):
    x, objective = np.asarray(X, np.float64), make_objective("mse", 0.3)
    got = fit(
        linear,
        batches(inputs=x, batch_size=70),
        objective,
        start=jnp.zeros((12, 7)),
        optimizer=optax.sgd(0.1),
        epochs=4,
    ).dw
    dw = jnp.zeros((12, 7))
    for _ in range(4):
        dw -= 0.1 * jax.grad(lambda dw: objective(linear, dw, x, Y))(dw)
    assert_rel_close(got, dw)


def test_a_loss_of_the_users_own_trains():
    def hinge(logits, labels):
        margin = logits - jnp.take_along_axis(logits, labels[:, None], 1)
        return jnp.maximum(0, 1 + margin).sum(-1)

    fitted = fit(linear, batches(), make_objective(hinge, penalty=0.1), start=START, epochs=3)
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]
    assert isinstance(fit(linear, batches(), Objective(hinge), start=START, epochs=1).dw, jax.Array)


def test_a_coupled_loss_trains_on_no_padding():
    """A last batch is padded with copies of row 0: a loss over the batch would see them."""

    def centred(logits, labels):
        return CrossEntropy()(logits - logits.mean(0), labels)

    def padded(size):  # one batch of 5 examples, alone or beside padding
        x = jnp.asarray(np.concatenate([X[:5].mean(1), np.full((size - 5, 12), 1e6, np.float32)]))
        present = (jnp.arange(size) < 5).astype(jnp.float32)
        y = jnp.asarray(np.concatenate([Y[:5], np.zeros(size - 5, int)]))
        dw = jnp.asarray(normal(3, (12, 7)))
        return jax.grad(lambda dw: Objective(centred)(lambda dw, x: x @ dw, dw, x, y, present))(dw)

    assert_rel_close(padded(8), padded(5))


def test_unread_fields_are_no_padding():
    """Row 0 holds NaN and is left out; it was the padding, and 0 * NaN is NaN."""
    x = X.mean(1)
    x[0] = np.nan
    data = Batches(x, Y, jax.random.key(0), rows=np.arange(1, 20), batch_size=8)
    fitted = fit(lambda dw, x: x @ dw, data, start=START, epochs=1)
    assert np.isfinite(np.asarray(fitted.dw)).all()
    assert np.isfinite(distance_bound(lambda dw, x: x @ dw, fitted.dw, data, make_objective(penalty=0.1)))

    def unit_length(dw, x):
        return (x / jnp.linalg.norm(x, axis=-1, keepdims=True)) @ dw

    unit = fit(unit_length, [(x[1:9], Y[1:9]), (x[9:12], Y[9:12])], start=START, epochs=1)
    assert np.isfinite(np.asarray(unit.dw)).all()


def test_regression_trains_on_any_shape():
    target = np.random.default_rng(2).standard_normal((70, 7)).astype(np.float32)
    data = batches(targets=target)
    metrics = {"error": squared_error, "largest": lambda outputs, targets: jnp.abs(outputs - targets).max(-1)}
    fitted = fit(
        linear, data, make_objective("mse"), start=START, optimizer=optax.adam(0.1), epochs=20, metrics=metrics
    )
    first, last = fitted.history[0], fitted.history[-1]
    assert "accuracy" not in first
    assert last["error"] < first["error"]
    assert last["error"] == pytest.approx(7 * last["loss"], rel=1e-3)  # sum and mean over outputs
    assert evaluate(linear, fitted.dw, data, squared_error) <= last["error"]


def test_keyed_predictor_resumes_its_draws(tmp_path):
    def dropped(dw, x, key):
        return linear(dw, x) * jax.random.bernoulli(key, 0.5, (len(x), 1))

    options = {"start": START, "optimizer": optax.sgd(0.1), "epochs": 3}
    one, again = (fit(Keyed(dropped), batches(), **options, checkpoints=Checkpoints(tmp_path / f)) for f in "ab")
    assert (np.asarray(one.dw) == np.asarray(again.dw)).all()
    assert (np.asarray(one.dw) != np.asarray(fit(Keyed(dropped), batches(1), **options).dw)).any()
    keys = (
        jax.random.key_data(step_keys(batches(), 0, 0, 5)).tolist()
        + jax.random.key_data(step_keys(batches(), 1, 0, 5)).tolist()
    )
    assert len({tuple(key) for key in keys}) == 10

    def masked(outputs, targets, key):
        return CrossEntropy()(outputs, targets) * jax.random.bernoulli(key, 0.5)

    assert fit(linear, batches(), Objective(Keyed(masked)), **options).history[-1]["loss"] > 0
    with pytest.raises(InputError, match="a Keyed function must be given a key as its last argument"):
        outputs(Keyed(dropped), START, X)
    with pytest.raises(InputError, match=r"data must be a Batches; got list\. The predictor or the loss draws"):
        fit(Keyed(dropped), [(X[:4], Y[:4])], **options)


def test_generators_train_as_arrays():
    order = [batches().order(epoch) for epoch in range(3)]

    def generator(epoch):
        for rows, present in zip(*order[epoch], strict=True):
            kept = rows[present > 0]
            yield X[kept], Y[kept]

    arrays, generated = (fit(linear, source, start=START, epochs=3) for source in (batches(), generator))
    assert_rel_close(generated.dw, arrays.dw)
    assert [row["examples"] for row in generated.history] == [70] * 3
    listed = fit(linear, [*generator(0)], start=START, epochs=2)
    assert listed.steps == 10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Grain's own
def test_grains_loader_trains():
    grain = pytest.importorskip("grain")
    pairs = [(x, y) for x, y in zip(X, Y, strict=True)]
    loader = grain.MapDataset.source(pairs).shuffle(seed=0).to_iter_dataset().batch(16)
    fitted = fit(linear, loader, start=START, epochs=2)
    assert (fitted.steps, fitted.history[-1]["examples"]) == (10, 70)


def test_caller_adds_to_every_epoch():
    seen = []

    def on_step(row, dw):
        seen.append((row["epoch"], float(jnp.abs(dw).max())))
        return {"test_accuracy": evaluate(linear, dw, Batches(X, Y))}

    fitted = fit(linear, batches(), start=START, epochs=3, on_step=on_step)
    assert [epoch for epoch, _ in seen] == [1, 2, 3]
    assert fitted.history[-1]["test_accuracy"] == evaluate(linear, fitted.dw, Batches(X, Y))


def test_images_train_every_leaf():
    predict, _ = predictor("everything", depth=1)
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)
    fitted = fit(predict, batches(inputs=images), epochs=2)
    moved = {path: float(jnp.abs(leaf).max()) > 0 for path, leaf in trees.leaves(fitted.dw).items()}
    assert all(moved[path] for path in moved if "key/bias" not in path)


def test_padded_logits_are_dropped():
    predict, dw = task()
    assert_rel_close(outputs(predict, dw, X, batch_size=32), np.asarray(predict(dw, X)))
    assert evaluate(predict, dw, Batches(X, np.asarray(predict(dw, X)).argmax(-1))) == 1.0


@pytest.mark.parametrize("loss", [name for name, own in LOSSES.items() if dataclasses.fields(own)])
def test_search_compiles_once(loss):
    """Learning rate, penalty, hyper-parameters, momentum's rate and the anchor: one program for each optimiser."""
    predict, dw = task()
    moved = dataclasses.replace(predict, w=initial_weights(predict.model, jax.random.key(5)))

    def run(predict, optimizer, **numbers):
        fit(predict, batches(batch_size=17), make_objective(loss, **numbers), start=dw, optimizer=optimizer, epochs=1)

    with programs_of(module.train_epoch) as programs:
        for rate in (1e-2, 1e-3, 1e-4):
            run(predict, adam(rate))
        run(predict, adam(1e-3), penalty=0.1, **{field.name: 2.0 for field in dataclasses.fields(LOSSES[loss])})
        run(moved, adam(1e-3), penalty=0.0)
        assert len(programs) == 1
        for rate in (1e-2, 1e-3, 1e-4):
            run(predict, momentum(rate))
        assert len(programs) == 2


def test_what_is_compiled_ahead_is_what_runs(tmp_path):
    predict, dw = task()
    shapes = np.broadcast_to(np.zeros((), X.dtype), X.shape)
    settings = {"optimizer": adam(1e-2), "metrics": {"accuracy": accuracy}}
    compile_fit(predict, batches(inputs=shapes, batch_size=1), **settings, has_checkpoints=True)  # chunks of 64 and 6
    compile_outputs(predict, dw, shapes)
    with programs_of(module.train_epoch) as trained, programs_of(call) as evaluated:
        fit(predict, batches(batch_size=1), **settings, epochs=2, checkpoints=Checkpoints(tmp_path))
        outputs(predict, dw, X)
    assert (trained, evaluated) == ([], [])


@pytest.mark.slow
def test_killed_run_keeps_its_bits(tmp_path):
    def start(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return run_binary.start("job", tmp_path / name, "--saved")

    whole, rng = start("whole"), np.random.default_rng(0)
    whole.join()
    for _ in range(min(4, int(os.environ.get("TANGENT_JAX_KILLS", "1")))):
        process = start("killed")
        run_binary.wait_until(process, lambda: any((tmp_path / "killed/saved").glob("*/*")))
        time.sleep(rng.uniform(0, 1.0))
        process.kill()
        process.join()
    start("killed").join()
    expected, given = (np.load(tmp_path / f"{name}/results.npz") for name in ("whole", "killed"))
    for name in ("saved", "saved losses"):
        np.testing.assert_array_equal(given[name], expected[name])


@pytest.mark.parametrize("leaf", [np.float32(0.5), np.bool_(True), 3, 0.5, True, None, jnp.zeros(0), np.zeros((2, 0))])
def test_optimiser_state_resumes(tmp_path, monkeypatch, leaf):
    def update(gradient, state, dw=None):
        velocity, own = state
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
        return jax.tree.map(lambda v: -0.1 * v, velocity), (velocity, own)

    def end(row, dw):
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    optimizer = optax.GradientTransformation(lambda dw: (jax.tree.map(jnp.zeros_like, dw), leaf), update)
    options = {"start": START, "optimizer": optimizer, "epochs": 4}
    monkeypatch.setattr(Saver, "is_due", lambda self, last: True)
    with pytest.raises(KeyboardInterrupt):
        fit(linear, batches(), **options, checkpoints=Checkpoints(tmp_path), on_step=end)
    resumed = fit(linear, batches(), **options, checkpoints=Checkpoints(tmp_path))
    assert trees.fingerprint(resumed.dw) == trees.fingerprint(fit(linear, batches(), **options).dw)


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = train(*task(), checkpoints=Checkpoints(tmp_path))
    again = train(*task(), checkpoints=Checkpoints(tmp_path))
    assert again.history == first.history
    assert trees.fingerprint(again.dw) == trees.fingerprint(first.dw)
    # nor is another run's checkpoint taken for this one's: seed and method (test_identity.py has the other settings)
    other_seed = train(*task(), checkpoints=Checkpoints(tmp_path), seed=4)
    other_method = train(*task("nlft"), checkpoints=Checkpoints(tmp_path))
    assert len({trees.fingerprint(fitted.dw) for fitted in (first, other_seed, other_method)}) == 3
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(("call", "match"), [
    (lambda: train(*task(), epochs=0), "epochs must be a whole number >= 1; got 0"),
    (lambda: adam(0.0), "learning_rate must be a finite number > 0"),
    (lambda: project(adam(), 0), r"radius must be a finite number > 0 and at most 1e\+12; got 0"),
    (lambda: make_objective(penalty=-1.0), "penalty must be a finite number > 0"),
    (lambda: make_objective(linear, kappa=3.0), "hyper-parameters must be of a named loss"),
    (lambda: task("soup"), "method must be one of taft, nlft; got soup"),
    (lambda: task(linearization="magic"), "linearization must be one of closed_form, autodiff"),
    (lambda: Batches(X, Y, batch_size=0), "batch_size must be a whole number >= 1; got 0"),
    (lambda: Batches(X, Y, 1), "key must be one key, as jax.random.key.0. gives; got 1. Pass jax.random.key.seed."),
    (lambda: Batches(X, Y, jax.random.split(jax.random.key(0))), "key must be one key, .* of shape .2,."),
    (lambda: fit(linear, Batches(X, Y), start=START), "batches must have a key, which decides their order; got none"),
    (lambda: fit(linear, iter([(X, Y)]), start=START, epochs=2), "a batch in every epoch; got none in epoch 2"),
    (lambda: fit(linear, [(X[:4], Y[:4]), (X, Y)], start=START), "none above the first's 4"),
    (lambda: fit(linear, (X, Y), start=START), "an iterable of batches .x, y.; got tuple. Pass features.batches"),
    (lambda: fit(linear, [(X, Y)], start=START, checkpoints=Checkpoints("x")), "must be Batches if checkpoints"),
])  # fmt: skip
def test_bad_input_is_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_distance_bound_holds_and_falls(x64):
    predict, _ = predictor(depth=1)
    x, objective = np.asarray(X, np.float64), make_objective("rsl", 0.1)
    data = Batches(x, Y, jax.random.key(0), batch_size=70)
    steps = {}
    for n in (5, 40, 600):
        steps[n] = fit(predict, data, objective, optimizer=adam(3e-2), epochs=n).dw
    small_batches = Batches(x, Y, batch_size=16)
    bounds = {n: distance_bound(predict, step, small_batches, objective) for n, step in steps.items()}
    gradient = jax.jit(jax.grad(lambda dw: objective(predict, dw, jnp.asarray(X, float), jnp.asarray(Y))))(steps[5])
    assert bounds[5] == pytest.approx(float(jnp.sqrt(trees.squared_norm(gradient))) / 0.1, rel=1e-9)
    apart = {}
    for n in (5, 40):
        apart[n] = float(jnp.sqrt(trees.squared_norm(jax.tree.map(jnp.subtract, steps[n], steps[600]))))
        assert apart[n] <= bounds[n] + bounds[600]
    assert bounds[5] > bounds[40] > bounds[600]
    assert apart[5] > bounds[600]  # so the bound says something
    with pytest.raises(InputError, match="penalty must be > 0"):
        distance_bound(predict, steps[5], small_batches, make_objective(penalty=0.0))


def test_tangent_is_total_less_anchor():
    predict, dw = predictor()
    for road in ("closed_form", "autodiff"):
        alone = dataclasses.replace(predict, output="tangent", linearization=road)
        assert_rel_close(
            alone(dw, X), predict(dw, X) - predict.model.apply(predict.w, jnp.asarray(X), predict.subset.stage)
        )
    with pytest.raises(InputError, match="output must be total for method nlft; got tangent"):
        dataclasses.replace(predict, method="nlft", output="tangent")


@pytest.mark.parametrize("method", ["taft", "nlft"])
@pytest.mark.parametrize("road", ["closed_form", "autodiff"])
def test_predictor_computes_in_asked_dtype(method, road):
    predict, dw = predictor(method=method, linearization=road)
    half = dataclasses.replace(predict, dtype=jnp.bfloat16)
    assert half(dw, X).dtype == jnp.float32
    assert_rel_close(half(dw, X), predict(dw, X), TOLERANCE["bfloat16"])
    dtypes = products(half, dw, X)
    assert dtypes
    assert all(dtype == {"bfloat16"} for dtype in dtypes)


@pytest.mark.parametrize("method", ["taft", "nlft"])
@pytest.mark.parametrize("road", ["closed_form", "autodiff"])
def test_form_for_a_loop_has_the_same_bits(method, road):
    predict, dw = predictor(method=method, linearization=road)
    half = dataclasses.replace(predict, dtype=jnp.bfloat16)
    np.testing.assert_array_equal(half.for_loop()(dw, X), half(dw, X))
    np.testing.assert_array_equal(predict.for_loop()(dw, X), predict(dw, X))


def traced_loops():
    """The compiled loops over batches, each with the arguments of a call, of a tangent that computes in bfloat16."""
    predict, dw = task()
    half = dataclasses.replace(predict, dtype=jnp.bfloat16)
    data = batches()
    training = module.make_training(half, None, adam(1e-2), {})
    state, chunk = training.start(dw), jax.tree.map(jnp.asarray, next(data.chunks(*data.order(0))))
    mechanism = Mechanism(1.0, 1.0, 1, 1e-5)
    states, order = repeat(state, 2), jnp.repeat(chunk.order[:, None], 2, 1)
    present = jnp.repeat(chunk.present[:, None], 2, 1)
    return {
        "fit": (module.train_epoch, (training, state, chunk, None, 0.0)),
        "fit_many": (train_epoch_many, (training, states, (chunk.inputs, chunk.targets), (order, present, None), 0.0)),
        "fit_private": (clip_chunk, (half, dw, chunk, 2, make_objective("ce", penalty=0.0), mechanism)),
    }


@pytest.mark.parametrize("name", ["fit", "fit_many", "fit_private"])
def test_loops_cast_no_frozen_weight(name):
    program, arguments = traced_loops()[name]
    loops = [e for e in program.trace(*arguments).jaxpr.eqns if e.primitive.name in ("scan", "while")]
    kernels = {leaf.shape for leaf in jax.tree.leaves(task()[0].w) if leaf.ndim > 1}
    (loop,) = loops
    before = loop.params.get("cond_nconsts", 0)
    count = loop.params["num_consts" if loop.primitive.name == "scan" else "body_nconsts"]
    constants = [v.aval for v in loop.invars[before : before + count]]
    halves = {a.shape for a in constants if a.dtype == jnp.bfloat16}
    assert halves & kernels
    if name != "fit_private":  # whose dw is a constant, too
        assert {a.dtype for a in constants if a.shape in kernels} == {jnp.dtype(jnp.bfloat16)}


def test_key_beside_keyed_batches_is_refused():
    with pytest.raises(InputError, match="key must be left out beside Batches that have a key; got both"):
        fit(task()[0], batches(), key=jax.random.key(0), epochs=1)
