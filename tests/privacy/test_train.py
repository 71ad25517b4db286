"""The private trainer: its noise, its ledger, its audit, and what components spent together."""

import dataclasses
import json
import multiprocessing
import os
import signal
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import GaussianDpEvent, pld
from helpers import assert_rel_close, in_long, private_task, programs_of, scale_accepted
from jax.extend.random import threefry_2x32
from scipy import stats

from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Dual
from tangent_jax.io import ledger
from tangent_jax.io.ledger import Ledger
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.privacy import train as module
from tangent_jax.privacy.clipping import ClippedSum, clipped_sum
from tangent_jax.privacy.mechanism import Mechanism, Spent, make_mechanism, spent_together
from tangent_jax.privacy.noise import noise_key, noisy_mean, standard_normal, threefry
from tangent_jax.privacy.train import add_up, clip_all, fit_private
from tangent_jax.privacy.units import micro_batches, sample
from tangent_jax.train.batches import Batches, Chunk
from tangent_jax.train.evaluate import evaluate
from tangent_jax.train.features import Features
from tangent_jax.train.losses import CrossEntropy
from tangent_jax.train.objective import make_objective
from tangent_jax.train.optimizers import momentum

MECHANISM = make_mechanism(3.0, 1e-5, steps=5)
CE = make_objective("ce", penalty=0.0)
N = 100_001


def linear(dw, x):
    """A plain function: logits of three classes."""
    return x @ dw["kernel"]


def points(n=40, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    return (np.eye(3)[labels] + 0.3 * rng.standard_normal((n, 3))).astype(np.float32), labels


START = {"kernel": jnp.zeros((3, 3))}


def train(mechanism=MECHANISM, batch_size=64, **options):
    return fit_private(linear, Batches(*points(), batch_size=batch_size), mechanism=mechanism, start=START, **options)


# The noise


def test_the_bits_are_jaxs_own_threefry():
    key = noise_key(3, 5)
    counters = jnp.concatenate([jnp.arange(1001, dtype=jnp.uint32), jnp.zeros(1001, jnp.uint32)])
    want = threefry_2x32(jax.random.key_data(key), counters)
    np.testing.assert_array_equal(np.concatenate(threefry(key, 1001)), want)


def test_normals_are_normal():
    z = np.asarray(standard_normal(noise_key(1, 0), (N,)))
    assert scale_accepted(z, 1.0)
    assert abs(stats.kurtosis(z)) < 0.1
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.02
    assert not np.array_equal(z[:100], np.asarray(standard_normal(noise_key(1, 1), (N,)))[:100])


def test_normals_reach_as_far_as_forty_bits(monkeypatch):
    bits = jnp.array([0, 0, 1], jnp.uint32), jnp.array([0, 255, 255], jnp.uint32)
    monkeypatch.setattr("tangent_jax.privacy.noise.threefry", lambda key, count: bits)
    radius = [np.sqrt(2 * bits * np.log(2)) for bits in (40, 32, 31)]
    np.testing.assert_allclose(standard_normal(noise_key(0, 0), (3,)), radius, rtol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.1, 7.0])
def test_noise_scale_rejects_wrong_ones(clip_norm):
    value = {"a": jnp.full(N, 3.0), "b": jnp.full((7, 1001), -5.0)}
    clipped = ClippedSum(value, jnp.zeros(4), jnp.zeros((), int), clip_norm)
    found = noisy_mean(clipped, 2.0, 4.0, noise_key(0, 0))
    for name, leaf in value.items():
        noise = found[name] - leaf / 4
        scale = 2.0 * clip_norm / 4
        assert scale_accepted(noise, scale)
        assert not scale_accepted(noise, scale * 3 / 2)
        assert not scale_accepted(noise, scale * 2 / 3)
    assert not np.array_equal(np.asarray(found["a"])[:1001], np.asarray(found["b"])[0])


def test_noise_is_added_once():
    x, y = points()
    sums = []
    for size in (5, 64):
        batches = Batches(x, y, batch_size=size)
        order, present = batches.in_order()
        chunks = [
            Chunk(jnp.asarray(x), jnp.asarray(y), order[i : i + 3], present[i : i + 3]) for i in range(0, len(order), 3)
        ]
        total = add_up(jax.tree_util.Partial(linear), START, iter(chunks), CE, MECHANISM)
        assert float(total.sensitivity) == MECHANISM.clip_norm
        sums.append(noisy_mean(total, 1.0, 40.0, noise_key(0, 0)))
    assert_rel_close(*sums)
    whole = clipped_sum(linear, START, x, y, np.ones(40), loss=CrossEntropy(), clip_norm=1.0)
    assert_rel_close(noisy_mean(whole, 1.0, 40.0, noise_key(0, 0)), sums[0])


# Sampling


def test_poisson_samples_are_independent_coins():
    batches, mechanism = Batches(np.zeros((50, 1)), np.zeros(50, int), batch_size=4), Mechanism(1.0, 1.0, 1, 1e-5, 0.2)
    counts, sizes = np.zeros(50), []
    for step in range(2000):
        chosen = sample(50, mechanism, 7, step)
        ((order, present),) = micro_batches(batches, mechanism, batches.rows[:, None], chosen)
        rows = order[present > 0]
        assert order.shape == present.shape
        assert len(set(rows.tolist())) == len(rows)
        counts[rows] += 1
        sizes.append(len(rows))
    assert stats.kstest(counts, stats.binom(2000, 0.2).cdf).pvalue > 1e-4
    assert abs(np.var(sizes) / (50 * 0.2 * 0.8) - 1) < 0.15  # a fixed size would have none
    assert min(sizes) < 4 < max(sizes)


def test_an_empty_sample_is_noise_alone():
    batches = Batches(*points(), batch_size=64)
    ((order, present),) = micro_batches(batches, MECHANISM, batches.rows[:, None], np.zeros(40, bool))
    assert present.sum() == 0
    x, y = map(jnp.asarray, points())
    total = clip_all(jax.tree_util.Partial(linear), START, Chunk(x, y, order, present), 1, CE, MECHANISM)
    assert not np.any(total.value["kernel"])


# The trainer and its ledger


def test_training_learns_and_says_what_it_spent():
    test = points(500, 1)
    mechanism = make_mechanism(3.0, 1e-5, steps=30)
    fitted = fit_private(linear, Batches(*points(2000)), mechanism=mechanism, start=START, seed=0)
    assert evaluate(linear, fitted.dw, Batches(*test)) > 0.9
    assert fitted.steps == fitted.info.spent.steps_paid == 30
    assert abs(fitted.info.spent.compute_epsilon() - 3) < 1e-9
    assert not fitted.info.spent.private
    assert train().info.spent.private


def test_account_prints_epsilon_rounded_up():
    spent = Spent(make_mechanism(3.0, 1e-5), 50, True)
    assert str(spent) == "epsilon 3.00 at delta 1e-05 for each example, 50 of 50 steps paid"
    for steps in (0, 7, 25):
        paid = spent.pay(steps)
        assert 0 <= float(str(paid).split()[1]) - paid.compute_epsilon() < 0.01
    assert str(Spent(make_mechanism(1.1, 1e-5, unit="owner"), 0, False)).startswith("NOT private, as a fixed seed drew")


@pytest.mark.parametrize("of_features", [False, True])
def test_equal_examples_are_warned_of(of_features):
    x, y = points()
    data = Batches(np.concatenate([x, x[:1]]), np.append(y, 0))
    if of_features:
        pairs = tuple((str(row % 40), f"row {row}") for row in range(41))
        data = Features(data.inputs + np.arange(41)[:, None], data.targets, pairs)  # equal by content identifier
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train()
    with pytest.warns(UserWarning, match="an example has 2 copies: epsilon protects one of them, not all"):
        fit_private(linear, data, mechanism=MECHANISM, start=START)


def test_step_is_noisy_gradient_and_penalty():
    x, y = points()
    mechanism = dataclasses.replace(MECHANISM, clip_norm=0.5, steps=1)
    start = {"kernel": jnp.eye(3)}
    objective = make_objective("ce", penalty=0.25)
    got = fit_private(
        linear, Batches(x, y), objective, mechanism=mechanism, start=start, optimizer=momentum(0.1), seed=3
    ).dw
    total = clipped_sum(linear, start, x, y, np.ones(40), loss=CrossEntropy(), clip_norm=0.5)
    gradient = noisy_mean(total, mechanism.noise_multiplier, 40.0, noise_key(3, 0))
    want = jax.tree.map(lambda dw, g: dw - 0.1 * (g + 0.25 * dw) / 0.5, start, gradient)
    assert_rel_close(got, want)


@pytest.mark.parametrize("count", [None, 100])
def test_sample_is_divided_by_constant(count):
    """A released step of a known sample: of as many examples as its coins chose, over q n."""
    x, y = points()
    mechanism = Mechanism(0.5, 2.0, 1, 1e-5, 0.3, count=count)
    rows = np.flatnonzero(sample(len(y), mechanism, 3, 0))
    assert len(rows) != 12
    got = fit_private(linear, Batches(x, y), mechanism=mechanism, start=START, optimizer=momentum(0.1), seed=3).dw
    total = clipped_sum(linear, START, x[rows], y[rows], np.ones(len(rows)), loss=CrossEntropy(), clip_norm=0.5)
    gradient = noisy_mean(total, 2.0, 0.3 * (count or 40), noise_key(3, 0))
    assert_rel_close(got, jax.tree.map(lambda g: -0.1 * g / 0.5, gradient))


def test_a_seed_repeats_and_none_does_not():
    assert_rel_close(train(seed=3).dw, train(seed=3).dw)
    assert not np.array_equal(train(seed=3).dw["kernel"], train(seed=4).dw["kernel"])
    assert not np.array_equal(train().dw["kernel"], train().dw["kernel"])


def test_settings_share_one_program():
    train(seed=0)
    with programs_of(module.take_step) as steps, programs_of(module.clip_chunk) as sums:
        for epsilon, clip_norm, rate in ((1.0, 1.0, 0.1), (3.0, 0.5, 0.03), (8.0, 2.0, 0.01)):
            train(make_mechanism(epsilon, 1e-5, 5, clip_norm), seed=0, optimizer=momentum(rate))
    assert steps == sums == []


def test_streamed_inputs_give_the_same_sums():
    streamed = Batches(*points(), batch_size=4, resident_bytes=64)
    assert_rel_close(fit_private(linear, streamed, mechanism=MECHANISM, start=START, seed=1).dw, train(seed=1).dw)


def test_finished_run_spends_nothing(tmp_path):
    first = train(ledger=Ledger(tmp_path))
    ledger = (tmp_path / "ledger.json").read_text()
    again = train(ledger=Ledger(tmp_path))
    assert_rel_close(again.dw, first.dw)
    assert (tmp_path / "ledger.json").read_text() == ledger
    assert (again.steps, again.seconds) == (first.steps, first.seconds)
    with pytest.raises(InputError, match="the ledger of this run"):
        train(make_mechanism(8.0, 1e-5, 5), ledger=Ledger(tmp_path))


def test_step_is_paid_before_taken(tmp_path, monkeypatch):
    seen, real = [], module.take_step

    def step(*arguments, **options):
        seen.append(json.loads((tmp_path / "ledger.json").read_text())["spent"]["steps_paid"])
        if len(seen) == 3:
            raise KeyboardInterrupt  # after the third was paid
        return real(*arguments, **options)

    monkeypatch.setattr(module, "take_step", step)
    monkeypatch.setattr(ledger, "SAVE_SECONDS", 0.0)
    options = {
        "ledger": Ledger(tmp_path),
        "on_step": lambda row, dw: {"largest": float(jnp.abs(dw["kernel"]).max())},
    }
    with pytest.raises(KeyboardInterrupt):
        train(**options)
    assert seen == [1, 2, 3]
    rest = train(**options)
    assert seen == [1, 2, 3, 4, 5]
    assert rest.history[-1]["largest"] > 0
    assert (rest.steps, rest.info.spent.steps_paid) == (4, 5)
    assert rest.info.spent.compute_epsilon() <= 3 + 1e-9


NOTHING = Spent(Mechanism(1.0, 1.0, 1_000_000, 1e-5), 0, True)


def test_a_ledger_is_held_by_one_run(tmp_path):
    with Ledger(tmp_path).open("mine", NOTHING) as held:
        with pytest.raises(InputError, match="must not be in use; process"), Ledger(tmp_path).open("mine", NOTHING):
            pass
        held.pay(3)
    with Ledger(tmp_path).open("mine", NOTHING) as again:
        assert again.spent.steps_paid == 3
    (tmp_path / "ledger.json").write_text("{}")
    for _ in range(2):  # and a refused ledger is not held
        with pytest.raises(InputError, match="it was edited"), Ledger(tmp_path).open("mine", NOTHING):
            pass


def pay_and_say(folder, said):
    with Ledger(folder).open("run", NOTHING) as ledger:
        for step in range(ledger.spent.steps_paid, 100_000):
            ledger.pay(step + 1)
            os.write(said, (step + 1).to_bytes(4, "little"))  # the step is taken


@pytest.mark.slow
def test_killed_process_took_no_unpaid_step(tmp_path):
    for least in (1, 4, 9):  # steps that are taken before the process is killed, anywhere in the next ones
        out, said = os.pipe()
        child = multiprocessing.get_context("fork").Process(target=pay_and_say, args=(tmp_path, said))
        child.start()
        os.close(said)
        begun = b"".join(os.read(out, 4) for _ in range(least))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        steps = np.frombuffer(begun + b"".join(iter(lambda out=out: os.read(out, 4096), b"")), "<u4")
        os.close(out)
        taken = int(steps[-1])
        paid = json.loads((tmp_path / "ledger.json").read_text())["spent"]["steps_paid"]
        assert taken <= paid <= taken + 1
    assert taken > 13


# What is spent together


def test_disjoint_components_cost_the_dearest():
    one, three = (Spent(Mechanism(1.0, sigma, 50, 1e-5), 50, True) for sigma in (26.38, 9.833))
    apart = spent_together([(one, frozenset("ab")), (three, frozenset("cd"))])
    assert abs(apart.epsilon - 3) < 1e-3
    assert (apart.delta, apart.neighbouring, apart.private) == (1e-5, "add-or-remove-one", True)
    shared = spent_together([(one, frozenset("ab")), (three, frozenset("bc"))])
    accountant = pld.PLDAccountant().compose(GaussianDpEvent(26.38), 50).compose(GaussianDpEvent(9.833), 50)
    assert abs(shared.epsilon - accountant.get_epsilon(1e-5)) < 1e-6
    assert 3.1 < shared.epsilon < 4  # less than their sum
    looser = dataclasses.replace(three, mechanism=dataclasses.replace(three.mechanism, delta=1e-6))
    assert spent_together([(one, frozenset("a")), (looser, frozenset("b"))]).delta == 1e-5
    seeded = spent_together([(dataclasses.replace(one, private=False), frozenset("a")), (one, frozenset("b"))])
    assert not seeded.private
    with pytest.raises(InputError, match="at least one component"):
        spent_together([])


# Wrong uses


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: momentum(0.0), "learning_rate must be a finite number > 0"),
        (lambda: train(make_mechanism(1.0, 1 / 40)), "delta must be < 1 / examples = 0.025; got 0.025"),
        (
            lambda: fit_private(
                linear, Batches(*points(), rows=np.array([0, 1, 1, 2])), mechanism=MECHANISM, start=START
            ),
            "rows must be of distinct examples; got 1 that repeat",
        ),
        (
            lambda: fit_private(linear, points(), mechanism=MECHANISM, start=START),
            "data must be Features or Batches; got tuple",
        ),
        (
            lambda: fit_private(linear, Batches(*points(1)), mechanism=MECHANISM, start=START),
            "at least 2 examples; got 1",
        ),
        (
            lambda: noisy_mean(ClippedSum(START, jnp.zeros(1), jnp.zeros(()), 1.0), 0.0, 1.0, noise_key(0, 0)),
            "noise_multiplier must be > 0",
        ),
        (
            lambda: noisy_mean(ClippedSum(START, jnp.zeros(1), jnp.zeros(()), 1.0), -1.0, 1.0, noise_key(0, 0)),
            "noise_multiplier must be > 0; got -1.0",
        ),
    ],
)
def test_wrong_uses_are_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call()


@dataclasses.dataclass(frozen=True)
class Coupled(VisionTransformer):
    """A model whose `dual` lets examples see each other, in one of four ways; the last only where dw is not 0."""

    way: str = "mean"

    def dual(self, pairs, x, start=0):
        changed = {"mean": lambda: x - x.mean(0), "roll": lambda: jnp.roll(x, 1, 0), "rank": lambda: jnp.sort(x, 0)}
        if self.way == "square":
            y, dy = super().dual(pairs, x, start)
            return Dual(y, dy * (1 + dy.mean(0)))
        return super().dual(pairs, changed[self.way](), start)


@pytest.mark.parametrize(
    ("way", "output"),
    [
        *(("mean", "total"), ("roll", "tangent"), ("square", "tangent")),
        *in_long(("rank", "total"), ("roll", "total"), ("square", "total"), ("mean", "tangent"), ("rank", "tangent")),
    ],
)
def test_coupled_model_is_refused_early(way, output):
    """A `dual` that takes x - x.mean(0) moved the sum by 4.07 C; at dw = 0 all tangents are 0."""
    predict, _, x, y = private_task("head" if way in ("mean", "roll") else "blocks", output=output)
    coupled = dataclasses.replace(predict, model=Coupled(predict.model.config, way=way))
    data = Batches(x, y, batch_size=6)
    with pytest.raises(InputError, match="examples of the model must not see each other"):
        fit_private(coupled, data, mechanism=make_mechanism(3.0, 1e-5, 1), seed=0)
    fit_private(predict, data, mechanism=make_mechanism(3.0, 1e-5, 1), seed=0)


def test_optimiser_of_loss_is_refused():
    plateau = optax.contrib.reduce_on_plateau()
    with pytest.raises(InputError, match="optimizer must read gradients alone"):
        fit_private(linear, Batches(*points()), mechanism=MECHANISM, start=START, optimizer=plateau)


def test_self_batching_function_is_refused():
    """Under vmap such a function sees the micro-batch: the sum moved by 3.4 C."""

    @jax.custom_batching.custom_vmap
    def centred(z):
        return z

    @centred.def_vmap
    def rule(size, batched, z):
        return z - z.mean(0), True

    def predict(dw, x):
        return centred(linear(dw, x))

    def called(dw, x):
        return jax.pure_callback(lambda z: z, linear(dw, x), linear(dw, x), vmap_method="expand_dims")

    for function, name in ((predict, "custom_vmap_call"), (called, "pure_callback")):
        with pytest.raises(InputError, match=f"predict and the loss must be batched by vmap; got {name}"):
            fit_private(function, Batches(*points()), mechanism=MECHANISM, start=START)
