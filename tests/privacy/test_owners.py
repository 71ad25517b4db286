"""Owners as the unit of protection: the sum of all of one owner's gradients is clipped as one, and accounted as one."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, private_task, programs_of

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.files import fingerprint
from tangent_jax.io.ledger import Ledger
from tangent_jax.io.records import convert
from tangent_jax.privacy import train as module
from tangent_jax.privacy.clipping import clipped_sum
from tangent_jax.privacy.mechanism import Mechanism, Spent, make_mechanism, spent_together
from tangent_jax.privacy.noise import noise_key, noisy_mean
from tangent_jax.privacy.norms import clipped_sum_closed_form
from tangent_jax.privacy.train import fit_private
from tangent_jax.privacy.units import as_units, micro_batches, sample
from tangent_jax.store.provenance import Data, Provenance, Training
from tangent_jax.store.store import Store
from tangent_jax.train.batches import Batches
from tangent_jax.train.features import Features
from tangent_jax.train.losses import make_loss
from tangent_jax.train.optimizers import momentum

CE = make_loss("ce")
OF_TWO = jnp.array([[1.0, 1, 1], [1, 1, 0]])  # owners of three examples and of two, padded
SUMS = {"vmapped": jax.jit(clipped_sum, static_argnames="chunk"), "closed form": jax.jit(clipped_sum_closed_form)}


def as_account(fields):
    return convert(Spent, fields, "an account")


def clip(how, predict, dw, x, y, present=OF_TWO, clip_norm=1.0):
    return SUMS[how](predict, dw, x, y, present, loss=CE, clip_norm=jnp.asarray(clip_norm))


def owners_of_two(*arguments, **options):
    """A predictor, a step, and six rows: three of the first owner, two of the second and one that repeats its first."""
    predict, dw, x, y = private_task(*arguments, **options)
    if x.dtype == jnp.uint8:  # images are normalised in f32, which two programs may round otherwise
        x = predict.model.preprocessing.normalize(x).astype(float)
    return predict, dw, x.at[5].set(x[3]), y.at[5].set(y[3])


def plainly(predict, dw, x, y, clip_norm):
    """The sum of each owner's gradient by itself, clipped by hand."""
    total, norms = jax.tree.map(jnp.zeros_like, dw), []
    gradient = jax.jit(jax.grad(lambda dw, x, y, here: jnp.sum(CE(predict(dw, x), y) * here)))
    for rows, here in zip((slice(0, 3), slice(3, 6)), OF_TWO, strict=True):
        own = gradient(dw, x[rows], y[rows], here)
        norms.append(jnp.sqrt(trees.squared_norm(own)))
        total = trees.plus(total, trees.scale(jnp.minimum(1, clip_norm / norms[-1]), own))
    return total, jnp.stack(norms)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "blocks", "options"),
    [
        ("blocks", 1, {"depth": 1}),
        ("blocks", 1, {"depth": 1, "pool": "avg", "method": "nlft"}),
        pytest.param("blocks", 2, {}, marks=pytest.mark.long),
        pytest.param("layernorm", 1, {"method": "nlft"}, marks=pytest.mark.long),
        pytest.param("bitfit", 2, {}, marks=pytest.mark.long),
        pytest.param("head", 1, {}, marks=pytest.mark.long),
        pytest.param("everything", 0, {}, marks=pytest.mark.long),
        pytest.param("blocks", 1, {"class_token_at": 1}, marks=pytest.mark.long),
    ],
)
def test_owner_gradient_is_clipped_as_one(x64, kind, blocks, options):
    predict, dw, x, y = owners_of_two(kind, blocks, **options)
    clip_norm = float(np.median(plainly(predict, dw, x, y, 1.0)[1]))  # the larger of the two is clipped
    value, norms = plainly(predict, dw, x, y, clip_norm)
    assert norms.max() > clip_norm > norms.min()
    for how in SUMS:
        got = clip(how, predict, dw, x, y, clip_norm=clip_norm)
        assert_rel_close(got.norms, norms)
        assert_rel_close(got.value, value)


@pytest.mark.parametrize("how", SUMS)
def test_one_owner_moves_sum_by_sensitivity(how):
    predict, dw, x, y = owners_of_two(depth=1)
    x, eps = 100 * x, np.finfo(np.float32).eps
    for clip_norm in (1e-3, 10.0):
        whole = clip(how, predict, dw, x, y, clip_norm=clip_norm)
        for gone in (0, 1):
            left = clip(how, predict, dw, x, y, OF_TWO.at[gone].set(0), clip_norm)
            moved = jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), whole.value, left.value)
            size = float(jnp.sqrt(trees.squared_norm(whole.value)))
            assert float(jnp.sqrt(trees.squared_norm(moved))) <= clip_norm * (1 + 8 * eps) + 8 * eps * size
    one_by_one = clip(how, predict, dw, x, y, OF_TWO.at[1].set(0).ravel(), 1e-3)
    assert float(jnp.sqrt(trees.squared_norm(one_by_one.value))) > 1.2e-3  # what an owner moves the sum of examples


@pytest.mark.parametrize("how", SUMS)
def test_non_finite_owner_counts_as_zero(x64, how):
    predict, dw, x, y = owners_of_two(depth=1)
    want = clip(how, predict, dw, x, y, OF_TWO.at[0].set(0))
    got = clip(how, predict, dw, x.at[1].set(jnp.nan), y)
    assert_rel_close(got.value, want.value)
    assert (int(got.non_finite), float(got.norms[0])) == (1, 0)


# The trainer


START = {"kernel": jnp.zeros((3, 3))}
OWNERS = [f"owner {i}" for i in (0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5, 5)]
MECHANISM = make_mechanism(3.0, 1e-3, steps=3, unit="owner")


def linear(dw, x):
    """A plain function: logits of three classes."""
    return x @ dw["kernel"]


def points(owners=OWNERS, **options):
    """Twenty examples of six owners, in an order that divides them."""
    rng = np.random.default_rng(0)
    order, labels = rng.permutation(len(OWNERS)), rng.integers(0, 3, len(OWNERS))
    x = (np.eye(3)[labels] + rng.standard_normal((len(OWNERS), 3))).astype(np.float32)
    whose = None if owners is None else np.asarray(owners)[order]
    return Batches(x[order], labels[order], owners=whose, **options)


def sum_of(data, chosen, clip_norm=1.0):
    """The sum of the clipped gradients of the owners chosen, by their names."""
    total = np.zeros((3, 3))
    for name in chosen:
        rows = np.flatnonzero(data.owners == name)
        own = jax.grad(lambda dw, rows=rows: CE(linear(dw, data.inputs[rows]), data.targets[rows]).sum())(START)
        total += own["kernel"] * min(1, clip_norm / float(np.linalg.norm(own["kernel"])))
    return total


@pytest.mark.parametrize("options", [{"batch_size": 7}, {"batch_size": 20}, {"batch_size": 8, "resident_bytes": 64}])
def test_step_is_of_whole_owners(options):
    mechanism = dataclasses.replace(MECHANISM, steps=1)
    data = points(**options)
    got = fit_private(linear, data, mechanism=mechanism, start=START, optimizer=momentum(0.1), seed=3)
    assert (got.steps, got.info.spent.mechanism.unit) == (1, "owner")
    noise = noisy_mean(
        clipped_sum(linear, START, data.inputs, data.targets, np.zeros(20), loss=CE, clip_norm=1.0),
        mechanism.noise_multiplier,
        6.0,
        noise_key(3, 0),
    )
    want = -0.1 * (sum_of(data, np.unique(data.owners)) / 6 + np.asarray(noise["kernel"]))
    assert_rel_close(np.asarray(got.dw["kernel"]), want.astype(np.float32))


def test_sum_is_divided_by_expected_owners():
    mechanism = Mechanism(0.5, 1e-6, 1, 1e-3, 0.4, "owner")
    data = points()
    for seed in range(4):
        taken = sample(6, mechanism, seed, 0)
        got = fit_private(linear, data, mechanism=mechanism, start=START, optimizer=momentum(1.0), seed=seed)
        want = -sum_of(data, np.unique(data.owners)[taken], 0.5) / (0.4 * 6) / 0.5
        assert np.abs(np.asarray(got.dw["kernel"]) - want).max() < 1e-4
    assert len({int(sample(6, mechanism, seed, 0).sum()) for seed in range(4)}) > 1


def test_poisson_takes_owners_whole():
    data, mechanism = points(batch_size=8), Mechanism(1.0, 1.0, 1, 1e-3, 0.3, "owner")
    _, units = as_units(data, mechanism)
    times = np.zeros(6)
    for step in range(400):
        chosen = sample(len(units), mechanism, 1, step)
        here = np.zeros(20)
        for order, present in micro_batches(data, mechanism, units, chosen):
            assert order.shape[1] <= 8
            rows = order.reshape(present.shape)
            np.add.at(here, order.ravel(), present.ravel())
            for owner, own in zip(rows.reshape(-1, rows.shape[-1]), present.reshape(-1, rows.shape[-1]), strict=True):
                assert len({*data.owners[owner[own > 0]]}) <= 1  # no two owners are clipped as one
                assert not own.any() or {*owner} == {*units[[*np.unique(data.owners)].index(data.owners[owner[0]])]}
        taken = {name for name, is_in in zip(np.unique(data.owners), chosen, strict=True) if is_in}
        assert (here == np.isin(data.owners, [*taken])).all()  # all of an owner's examples once, or none
        times += chosen
    assert abs(times.sum() / 2400 - 0.3) < 5 * (0.3 * 0.7 / 2400) ** 0.5


def test_programs_are_as_many_as_powers_of_two():
    with programs_of(module.clip_chunk) as programs:
        fit_private(linear, points(batch_size=9), mechanism=MECHANISM, start=START, seed=0)
    assert len(programs) == 4  # owners of 1, 2, 3 to 4, and 5 to 8 examples


def test_features_know_their_owners(tmp_path):
    data, count = points(), 70
    inputs, targets = np.tile(data.inputs, (5, 1)), np.tile(data.targets, 5)
    features = Features(inputs, targets, tuple((f"{i}", f"{i}") for i in range(100)), owners=(*range(30), *[7] * count))
    batches, units = as_units(features, MECHANISM)
    assert (batches.batch_size, len(units), max(map(len, units))) == (count + 1, 30, count + 1)
    part = features.take(np.arange(5, 40))
    assert part.owners == features.owners[5:40]
    _, units = as_units(features.batches(rows=np.arange(28, 33)), MECHANISM)
    assert [[*rows] for rows in units] == [[30, 31, 32], [28], [29]]  # of owners 7, 28, 29
    run = fit_private(linear, part, mechanism=MECHANISM, start=START, seed=0, ledger=Ledger(tmp_path))
    moved = dataclasses.replace(part, owners=(6, *part.owners[1:]))  # another division is another run
    with pytest.raises(InputError, match="another data set or setting"):
        fit_private(linear, moved, mechanism=MECHANISM, start=START, seed=0, ledger=Ledger(tmp_path))
    assert run.info.spent.mechanism.unit == "owner"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: fit(points(None)), "the owner of every example; got none"),
        (lambda: fit(points(["one"] * 20)), "at least 2 owners; got 1"),
        (lambda: fit(points(), delta=0.2), "delta must be < 1 / owners = 0.17; got 0.2"),
        (lambda: fit(points(batch_size=6)), "owners must have at most 6 examples, a micro-batch; got 7 of owner 5"),
        (lambda: points([*OWNERS[:-1], ""]), "the owner of each of 20 examples, .*; got one without a name"),
        (
            lambda: Batches(np.zeros((3, 1)), np.zeros(3, int), owners=["a"]),
            r"owners must be the owner of each of 3 examples, a name or a number; got <U1 of shape \(1,\)",
        ),
    ],
)
def test_wrong_owners_are_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call()


def fit(data, **changes):
    return fit_private(linear, data, mechanism=dataclasses.replace(MECHANISM, **changes), start=START)


# Accounts


def test_accounts_of_two_units_do_not_add():
    spent = Spent(make_mechanism(3.0, 1e-5, unit="owner"), 50, True)
    assert as_account(json.loads(json.dumps(dataclasses.asdict(spent)))) == spent
    old = dataclasses.asdict(spent)
    del old["mechanism"]["unit"]  # as versions before owners wrote it
    example = as_account(old)
    assert example.mechanism.unit == "example"
    assert spent_together([(example, frozenset("a"))]).neighbouring == "add-or-remove-one"
    assert spent_together([(spent, frozenset("a"))]).neighbouring == "add-or-remove-one-owner"
    with pytest.raises(InputError, match="accounts must be of one unit; got example and owner"):
        spent_together([(spent, frozenset("a")), (example, frozenset("b"))])


def component(owners, unit="owner", known=True):
    """The provenance of a private component that saw an image of each owner."""
    examples = tuple((fingerprint(f"{owner}, {len(owners)}".encode()), f"{owner}.jpg") for owner in owners)
    spent = Spent(make_mechanism(3.0, 1e-5, unit=unit), 50, True)
    said = {f"{owner}.jpg": owner for owner in owners} if known else {}
    data, training = Data(examples, said), Training(privacy=spent)
    return Provenance("taft", {}, "h", "a", ("kernel",), data=data, training=training)


def test_store_composes_over_owners(tmp_path):
    store = Store(tmp_path / "store")
    store.add("a and b", {"kernel": np.ones(2, np.float32)}, component("ab"))
    store.add("c", {"kernel": np.full(2, 2, np.float32)}, component("c"))
    assert abs(store.spent().epsilon - 3) < 1e-6  # no owner is in both
    with pytest.raises(InputError, match="accounts must be of the unit owner; got example"):
        store.add("images", {"kernel": np.zeros(2, np.float32)}, component("d", "example"))
    with pytest.raises(InputError, match="the owner of every example of an owners' account; got none of"):
        store.add("unknown", {"kernel": np.zeros(2, np.float32)}, component("d", known=False))
    store.add("b again", {"kernel": np.full(2, 3, np.float32)}, component("bef"))  # by other images
    assert 4 < store.spent().epsilon < 6
    assert store.spent().neighbouring == "add-or-remove-one-owner"
    store.compose()
    store.discard(["a and b"])
    assert 4 < store.spent().epsilon < 6  # what left cannot be called back
