"""A private run audited by its own canaries: the bounds, the attack on the trainer itself, and what must not leak.

A detector must pass the sound trainer and catch a broken one; bounds of random draws fail once in a million or less.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_rel_close, private_task
from scipy import stats

from experiments.shared.breaks import BREAKS, break_mechanism
from tangent_jax.audit import one_run
from tangent_jax.audit.bounds import PARTS, epsilon_of_guesses, gaussian_epsilon, one_run_bound
from tangent_jax.audit.canaries import make_canaries, secret_coins
from tangent_jax.audit.one_run import check_affine, fit_audited, released_gradient
from tangent_jax.core.checks import InputError
from tangent_jax.privacy.clipping import clipped_sum
from tangent_jax.privacy.mechanism import Mechanism, make_mechanism
from tangent_jax.privacy.train import fit_private
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import make_objective
from tangent_jax.train.optimizers import adam, as_data, momentum

RARE = 1e-6
COUNT, WIDTH, STEPS = 400, 1000, 3
CLAIMED = make_mechanism(3.0, 1e-5, STEPS, 0.05)  # little, so that every canary is clipped
MU = STEPS**0.5 / CLAIMED.noise_multiplier
START = jnp.zeros((WIDTH, 3))
RNG = np.random.default_rng(0)
DATA = Batches(RNG.standard_normal((COUNT, WIDTH)).astype(np.float32), RNG.integers(0, 3, COUNT), batch_size=64)
CANARIES = make_canaries(DATA, 3, COUNT)


def linear(dw, x):
    return x @ dw


def audited(folder, trained=CLAIMED, **options):
    options = {"claimed": CLAIMED, "start": START, **options}
    return fit_audited(linear, DATA, CANARIES, mechanism=trained, folder=folder, **options)


def signed(run):
    """The scores, those of canaries that are out negated: N(mu / 2, 1) of a sound run."""
    return np.where(run.info.audit.coins, run.info.audit.scores, -run.info.audit.scores)


# The bounds


def test_guesses_prove_what_the_paper_prints():
    """Steinke et al. 2023, Appendix D and Section 7, which cut digits off."""
    assert epsilon_of_guesses(75, 100, 1000, 1e-4, 0.05) == pytest.approx(0.673, abs=1e-3)
    assert epsilon_of_guesses(1439, 1510, 100_000, 1e-5, 0.05) == pytest.approx(2.675, abs=1e-3)
    assert epsilon_of_guesses(50, 100, 1000, 0.0, 0.05) == 0


def test_randomized_response_bound_has_its_level():
    right = np.random.default_rng(0).binomial(200, 1 / (1 + np.exp(-1.0)), 2000)
    proved = {v: epsilon_of_guesses(v, 200, 200, 0.0, 0.05) for v in {*right.tolist()}}
    wrong = sum(proved[v] > 1.0 for v in right.tolist())
    assert stats.binom.sf(wrong - 1, 2000, 0.05) > RARE
    assert wrong > 20  # and is no looser than it must be


def test_gaussian_bound_has_its_level():
    rng, coins = np.random.default_rng(1), np.arange(200) % 2 == 0
    mu = 1 / 1.4
    truth = Mechanism(1.0, 1 / mu, 1, 1e-5).compute_epsilon()
    scale, shift = rng.uniform(0.1, 10, (2, 400, 1))  # unknown to the bound
    scores = scale * (shift + mu * coins + rng.standard_normal((400, 200)))
    proved = np.array([gaussian_epsilon(row, coins, 1e-5, 0.05) for row in scores])
    wrong = int(np.sum(proved > truth))
    assert stats.binom.sf(wrong - 1, 400, 0.05) > RARE
    assert stats.binom.cdf(wrong, 400, 0.05) > RARE
    assert 0.5 * truth < proved.mean() < truth


def test_bounds_share_the_error():
    rng = np.random.default_rng(2)
    coins = rng.random(400) < 0.5
    scores = np.where(coins, 1.0, -1.0) + rng.standard_normal(400)
    bound = one_run_bound(scores, coins, CLAIMED, 0.9)
    assert bound.gaussian_epsilon == gaussian_epsilon(scores, coins, 1e-5, 0.05)
    order, proved = np.argsort(scores), {}
    for part in PARTS:
        k = 200 // part
        right = int((~coins[order[:k]]).sum() + coins[order[-k:]].sum())
        proved[2 * k, right] = epsilon_of_guesses(right, 2 * k, 400, 1e-5, 0.05 / 4)
    assert bound.epsilon == max(proved.values()) == proved[bound.guesses, bound.right] > 1


def test_scores_that_know_nothing_prove_nothing():
    rng = np.random.default_rng(3)
    bound = one_run_bound(rng.standard_normal(400), rng.random(400) < 0.5, CLAIMED, 1 - RARE)
    assert bound.epsilon == bound.gaussian_epsilon == 0


@pytest.mark.parametrize("is_in_first", [False, True])
def test_equal_scores_prove_nothing(is_in_first):
    rng, coins = np.random.default_rng(4), (np.arange(200) < 100) == is_in_first
    assert one_run_bound(np.zeros(200), coins, CLAIMED).epsilon == 0
    draws = [(rng.random(200) < share).astype(float) for share in (0.1, 0.5) for _ in range(100)]  # right or wrong
    proved = [one_run_bound(scores, coins, CLAIMED).epsilon for scores in draws]
    assert np.mean(np.array(proved) > 0) <= 0.05


def test_guesses_take_lists_and_halves(untyped):
    """In float16 their squares overflow."""
    rng, coins = np.random.default_rng(5), np.arange(100) % 2 == 0
    scores = (np.where(coins, 300, -300) + 100 * rng.standard_normal(100)).astype(np.float16)
    expected = one_run_bound(scores.astype(np.float64), coins, CLAIMED)
    assert expected.gaussian_epsilon > 1
    assert one_run_bound(scores, coins, CLAIMED) == expected
    assert one_run_bound(scores.tolist(), coins.tolist(), CLAIMED) == expected


# The attack


def test_sound_run_has_normal_scores(tmp_path):
    run = audited(tmp_path)
    assert stats.kstest(signed(run) - MU / 2, "norm").pvalue > RARE
    assert abs(signed(run).mean() - MU / 2) < 5 / COUNT**0.5
    bound = one_run_bound(run.info.audit.scores, run.info.audit.coins, CLAIMED, 0.9999)
    assert max(bound.epsilon, bound.gaussian_epsilon) <= 3
    assert run.info.spent.private
    assert run.info.spent.mechanism.count == COUNT  # the divisor does not tell how many canaries are in


@pytest.mark.parametrize("broken", BREAKS[1:])
def test_a_broken_trainer_is_caught_by_one_run(tmp_path, broken):
    run = audited(tmp_path, break_mechanism(CLAIMED, broken, COUNT))
    assert one_run_bound(run.info.audit.scores, run.info.audit.coins, CLAIMED).gaussian_epsilon > 3


def test_unseen_canaries_give_blind_scores(tmp_path, monkeypatch):
    def without(predict, batches, objective, **options):
        return fit_private(predict, DATA, objective, **options)

    monkeypatch.setattr(one_run, "fit_private", without)
    run = audited(tmp_path)
    among = np.abs(
        run.info.audit.scores[run.info.audit.coins].mean() - run.info.audit.scores[~run.info.audit.coins].mean()
    )
    assert among < 5 * run.info.audit.scores.std() * (4 / COUNT) ** 0.5


def test_steps_reveal_private_gradients():
    objective, optimizer, steps = make_objective("ce", penalty=0.5), momentum(0.1), [START + 1]
    mechanism = Mechanism(0.05, 1e-6, 3, 1e-5)
    options = {"start": steps[0], "optimizer": optimizer, "on_step": lambda _, dw: steps.append(np.array(dw))}
    fit_private(linear, DATA, objective, mechanism=mechanism, **options)
    state = optimizer.init(steps[0])
    for before, after in itertools.pairwise(steps):
        gradient, state = released_gradient(before, after, state, objective, mechanism, optimizer)
        x, y, present = DATA.inputs, DATA.targets, np.ones(COUNT)
        total = clipped_sum(linear, jnp.asarray(before), x, y, present, loss=objective.loss, clip_norm=0.05)
        assert_rel_close(gradient, total.value / COUNT, 1e-2)  # a difference of steps in float32


def test_vit_canaries_are_scored_by_gradients(tmp_path):
    """By single gradients of `jax.grad`, clipped by hand, for norms and products that come of closed forms."""
    predict, dw, x, y = private_task("layernorm", depth=1, output="tangent")
    data = Batches(np.tile(np.asarray(x), (4, *[1] * (x.ndim - 1))), np.tile(np.asarray(y), 4))
    canaries = make_canaries(data, 7, 20)
    mechanism, objective = Mechanism(0.05, 1.0, 1, 1e-5, count=24), make_objective("ce", penalty=0.0)
    after = jax.tree.map(lambda leaf: leaf + 0.01, dw)
    scores = one_run.one_run_scores(predict, [dw, after], data, canaries, mechanism, objective, optax.sgd(1.0))

    @jax.jit
    @jax.vmap
    def gradients(x, y):
        g = jax.grad(lambda dw: objective.loss(predict(dw, x[None]), y[None])[0])(dw)
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(g)])

    def clipped(batches):
        g = np.asarray(gradients(jnp.asarray(batches.inputs), jnp.asarray(batches.targets)))
        return g * np.minimum(1, 0.05 / np.linalg.norm(g, axis=1, keepdims=True))

    c, others = clipped(canaries), clipped(data)
    rest = 24 * 0.05 * -0.01 - others.sum(0) - c.sum(0) / 2
    want = c @ rest / (0.05 * np.linalg.norm(c, axis=1))
    np.testing.assert_allclose(scores, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


# Runs that are stopped, and what is wrong


def test_killed_audit_goes_on_with_its_coins(tmp_path):
    def stop(row, dw):
        if row["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audited(tmp_path, on_step=stop)
    coins = secret_coins(tmp_path / "coins.json", COUNT)
    run = audited(tmp_path)
    assert run.steps == STEPS - 2  # two were paid, and lost
    np.testing.assert_array_equal(run.info.audit.coins, coins)
    assert stats.kstest(signed(run) - MU / 2 / STEPS**0.5, "norm").pvalue > RARE
    np.testing.assert_array_equal(audited(tmp_path).info.audit.scores, run.info.audit.scores)  # read, not trained


def test_coins_are_fair_and_new_in_every_run(tmp_path):
    first, second = (secret_coins(tmp_path / name, 400) for name in "ab")
    for coins in (first, second, first ^ second, first[1:] ^ first[:-1]):
        assert abs(coins.mean() - 0.5) < 2.5 / len(coins) ** 0.5


def test_canaries_are_orthogonal_in_all_classes():
    assert np.bincount(CANARIES.targets).tolist() == [134, 133, 133]
    np.testing.assert_array_equal(make_canaries(DATA, 3, COUNT).inputs, CANARIES.inputs)
    x = CANARIES.inputs / np.linalg.norm(CANARIES.inputs, axis=1, keepdims=True)
    assert np.abs(x @ x.T - np.eye(COUNT)).max() < 6 / WIDTH**0.5


def test_poisson_samples_need_guesses(tmp_path):
    mechanism = Mechanism(0.05, 0.3, STEPS, 1e-5, 0.5)
    run = audited(tmp_path, mechanism, claimed=None)
    bound = one_run_bound(run.info.audit.scores, run.info.audit.coins, mechanism)
    assert 0.3 < bound.epsilon <= mechanism.compute_epsilon()
    assert bound.gaussian_epsilon is None


def spoil(folder):
    audited(folder)
    (folder / "steps/2.dw").unlink()
    audited(folder)


def edit(folder):
    secret_coins(folder / "coins.json", COUNT)
    content = json.loads((folder / "coins.json").read_text())
    (folder / "coins.json").write_text(json.dumps({**content, "coins": "1" * COUNT}))
    audited(folder)


X, Y = CANARIES.inputs, CANARIES.targets
MORE = make_canaries(DATA, 3, 401)
BYTES = Batches(np.zeros((30, 4), np.uint8), np.zeros(30, int))
OPTIONS = {"mechanism": CLAIMED, "start": START}


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda _: make_canaries(DATA, 3, 19), "count must be a whole number >= 20"),
        (lambda _: make_canaries(BYTES, 3, 20), "inputs must be floats"),
        (lambda folder: fit_audited(linear, DATA, MORE, folder=folder, **OPTIONS), "canaries must be 20 to 400"),
        (
            lambda folder: fit_audited(linear, DATA, Batches(X[:, 1:], Y), folder=folder, **OPTIONS),
            "canaries must have .* float32",
        ),
        (lambda folder: audited(folder, optimizer=adam()), "affine in the gradient"),
        (lambda folder: secret_coins(folder / "c", 30) + secret_coins(folder / "c", 31), "must hold 31 coins; got 30"),
        (edit, "must be unaltered"),
        (spoil, "the released step"),
    ],
)
def test_wrong_uses_are_one_clear_line(tmp_path, call, match):
    with pytest.raises(InputError, match=match) as error:
        call(tmp_path)
    assert "\n" not in str(error.value)


def test_audit_takes_optimisers_of_gradients():
    for optimizer in (momentum(), optax.sgd(0.1), optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, 0.5))):
        check_affine(as_data(optimizer), START)


def test_bound_refuses_other_coins():
    scores, coins = np.arange(40.0), np.arange(40) % 2 == 0
    square = scores.reshape(8, 5), coins.reshape(8, 5)
    for given in ((scores, coins.astype(int)), (scores[:39], coins), (scores * np.nan, coins), square):
        with pytest.raises(InputError, match="scores must be finite, with one coin"):
            one_run_bound(*given, CLAIMED)
