"""Statistics add to those of all examples; ridge and LDA are solved from them as from the rows themselves."""

import dataclasses
from functools import reduce
from operator import add

import jax
import numpy as np
import pytest
from helpers import assert_rel_close, images, small

from tangent_jax.core import InputError
from tangent_jax.models import mapped
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.features import Features
from tangent_jax.models.heads import relabel
from tangent_jax.models.mapped import map_once, rows_of
from tangent_jax.models.ntk import feature_map
from tangent_jax.solver.statistics import NEVER, Settings, choose_settings, make_statistics, of_rows
from tangent_jax.train.evaluate import accuracy, evaluate

CLASSES = ("ant", "bee", "cat", "dog")
N, SIZES = 60, (5, 7)


@pytest.fixture(scope="module")
def case():
    """(a map that is never called, rows "n k" of two parts, the second 20 times as large, targets of all classes)."""
    built = feature_map(Pretrained(*small(), "test"), width=9)
    rng, targets = np.random.default_rng(3), np.arange(N) % len(CLASSES)
    rows = rng.standard_normal((N, sum(SIZES))) + 0.7 * np.eye(len(CLASSES), sum(SIZES))[targets]
    return Sized(built), rows * np.repeat([1.0, 20.0], SIZES), targets


class Sized:
    """A feature map of the parts of the case."""

    sizes = SIZES

    def __init__(self, built):
        self.identity = built.identity


def test_statistics_of_shards_add_to_those_of_all_examples_in_any_order_and_for_any_classes(case):
    built, rows, targets = case
    whole = of_rows(built, rows, targets, CLASSES)
    for shards in (np.array_split(np.arange(N), 7), [np.flatnonzero(targets == c) for c in range(4)]):
        parts = [of_rows(built, rows[own], targets[own], CLASSES) for own in shards]
        for order in (parts, parts[::-1]):
            total = reduce(add, order)
            assert total.classes == whole.classes == CLASSES
            np.testing.assert_allclose(total.gram, whole.gram, rtol=1e-12, atol=1e-9)
            np.testing.assert_allclose(total.sums, whole.sums, rtol=1e-12, atol=1e-9)
            np.testing.assert_array_equal(total.counts, whole.counts)
        left = [part for i, part in enumerate(parts) if i != 1]
        again = [of_rows(built, rows[own], targets[own], CLASSES) for i, own in enumerate(shards) if i != 1]
        for name in ("gram", "sums", "counts"):  # a removal re-sums: the bits of a sum that never held the shard
            np.testing.assert_array_equal(getattr(sum(left), name), getattr(sum(again), name))


def test_names_decide_a_class_and_not_its_index(case):
    built, rows, targets = case
    one, other = targets == 1, targets == 3
    a = of_rows(built, rows[one], np.zeros(one.sum(), int), ("bee",))
    b = of_rows(built, rows[other], np.ones(other.sum(), int), ("zebra", "dog"))
    both = a + b
    assert both.classes == ("bee", "dog")
    np.testing.assert_allclose(both.sums[1], rows[other].sum(0))
    wide = both.of_classes(CLASSES)
    np.testing.assert_array_equal(wide.counts, [0, one.sum(), 0, other.sum()])
    head = wide.solve()
    assert (np.asarray(head["bias"])[[0, 2]] == np.float32(NEVER)).all()
    assert np.isfinite(np.asarray(head["kernel"])).all()
    with pytest.raises(InputError, match=r"names that hold every class here; got none for \['bee'\]"):
        both.of_classes(("dog",))


def test_ridge_is_that_of_the_rows(case):
    built, rows, targets = case
    settings = Settings("ridge", 0.3, 2.0)
    head = of_rows(built, rows, targets, CLASSES).solve(settings)
    z = rows - rows.mean(0)
    first, second = (np.square(part).sum() for part in np.split(z, [SIZES[0]], 1))
    scale = np.repeat([1.0, 2.0 * (first / second) ** 0.5], SIZES)
    y = np.eye(4)[targets]
    penalty = 0.3 * np.square(z * scale).sum() / sum(SIZES)
    stacked = np.vstack([z * scale, penalty**0.5 * np.eye(sum(SIZES))])  # least squares, by QR
    w = np.linalg.lstsq(stacked, np.vstack([y - y.mean(0), np.zeros((sum(SIZES), 4))]), rcond=None)[0]
    want = (rows - rows.mean(0)) * scale @ w + y.mean(0)
    np.testing.assert_allclose(rows @ np.asarray(head["kernel"]) + np.asarray(head["bias"]), want, atol=2e-5)


def test_lda_is_that_of_the_rows(case):
    """Differences of scores are the log odds of Gaussians with one covariance, (x - m)^T S^-1 (x - m) / 2."""
    built, rows, targets = case
    head = of_rows(built, rows, targets, CLASSES).solve(Settings("lda", 0.1, 1.0))
    means = np.array([rows[targets == c].mean(0) for c in range(4)])
    within = rows - means[targets]
    first, second = (np.square(part).sum() for part in np.split(within, [SIZES[0]], 1))
    scale = np.repeat([1.0, (first / second) ** 0.5], SIZES)
    covariance = np.cov((within * scale).T, bias=True)
    covariance += 0.1 * np.trace(covariance) / sum(SIZES) * np.eye(sum(SIZES))
    apart = (rows[:, None] - means) * scale
    want = -0.5 * np.einsum("nck,kl,ncl->nc", apart, np.linalg.inv(covariance), apart)
    got = rows @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
    np.testing.assert_allclose(got - got[:, :1], want - want[:, :1], atol=1e-4)


def test_the_units_of_a_part_do_not_count(case):
    built, rows, targets = case
    units = np.repeat([1.0, 1e3], SIZES)
    for how in ("ridge", "lda"):
        scores = []
        for own in (rows, rows * units):
            head = of_rows(built, own, targets, CLASSES).solve(Settings(how))
            scores.append(own @ np.asarray(head["kernel"], np.float64) + np.asarray(head["bias"]))
        np.testing.assert_allclose(*scores, atol=1e-3)


def test_settings_are_those_of_the_greatest_held_out_likelihood(case):
    built, rows, targets = case
    held = np.arange(N) % 5 == 0
    train = of_rows(built, rows[~held], targets[~held], CLASSES)
    chosen, tried = choose_settings(train, rows[held], targets[held], ("lda", "ridge"))
    assert tried == 36

    def loss(settings):
        head = train.solve(settings)
        scores = rows[held] @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
        betas = np.geomspace(1e-3, 1e3, 2001)[:, None, None] * scores
        p = jax.nn.log_softmax(betas, -1)[:, np.arange(held.sum()), targets[held]]
        return -float(p.mean(1).max())

    assert loss(chosen) <= 1e-3 + min(loss(Settings(*own)) for own in [("lda", 3.0, 1.0), ("ridge", 0.3, 2.0)])
    assert choose_settings(train, rows[held], targets[held], ("ridge",))[0].how == "ridge"


def refitted(rows, targets, settings, i):
    """The scores of example i by the head of all others, from their rows; penalty and scales as all examples give."""
    how, shrinkage, balance = settings
    means = np.array([rows[targets == c].mean(0) for c in range(4)])
    spread = rows - (means[targets] if how == "lda" else rows.mean(0))
    first, second = (np.square(part).sum() for part in np.split(spread, [SIZES[0]], 1))
    scale = np.repeat([1.0, balance * (first / second) ** 0.5], SIZES)
    penalty = shrinkage * np.square(spread * scale).sum() / sum(SIZES) * np.eye(sum(SIZES))
    z, y, n = np.delete(rows, i, 0) * scale, np.delete(targets, i), len(rows) - 1
    x = rows[i] * scale
    if how == "ridge":
        hot = np.eye(4)[y]
        apart = z - z.mean(0)
        w = np.linalg.solve(apart.T @ apart + penalty, apart.T @ (hot - hot.mean(0)))
        return (x - z.mean(0)) @ w + hot.mean(0)
    means = np.array([z[y == c].mean(0) for c in range(4)])
    within = z - means[y]
    inverse = np.linalg.inv(within.T @ within + penalty)
    return n * (means @ inverse @ x - 0.5 * np.einsum("ck,kl,cl->c", means, inverse, means))


@pytest.mark.parametrize("how", ["ridge", "lda"])
def test_leaving_one_out_in_closed_form_is_solving_without_it(case, how, monkeypatch):
    built, rows, targets = case
    monkeypatch.setattr("tangent_jax.solver.statistics.BLOCK", 25)
    settings = Settings(how, 0.1, 2.0)
    got = of_rows(built, rows, targets, CLASSES).leave_one_out(rows, targets, settings)
    want = np.array([refitted(rows, targets, settings, i) for i in range(N)])
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("how", ["ridge", "lda"])
def test_an_example_that_is_alone_in_its_class_is_never_given_it(case, how):
    built, rows, targets = case
    few = np.flatnonzero((targets != 3) | (np.arange(N) == 3))
    scores = of_rows(built, rows[few], targets[few], CLASSES).leave_one_out(rows[few], targets[few], Settings(how))
    alone = targets[few] == 3
    assert (scores[alone, 3] == NEVER).all()
    assert np.isfinite(scores).all()
    assert (scores[~alone] > NEVER / 2).all()
    with pytest.raises(InputError, match="two examples at least; got one"):
        of_rows(built, rows[:1], targets[:1], CLASSES).leave_one_out(rows[:1], targets[:1], Settings(how))


def test_settings_are_chosen_by_leaving_out_each_example(case):
    built, rows, targets = case
    train = of_rows(built, rows, targets, CLASSES)
    chosen, tried = choose_settings(train, rows, targets, ("lda", "ridge"), left_out=True)
    assert tried == 36

    def loss(settings):
        betas = np.geomspace(1e-3, 1e3, 2001)[:, None, None] * train.leave_one_out(rows, targets, settings)
        return -float(jax.nn.log_softmax(betas, -1)[:, np.arange(N), targets].mean(1).max())

    assert loss(chosen) <= 1e-3 + min(loss(Settings(*own)) for own in [("lda", 3.0, 1.0), ("ridge", 0.3, 2.0)])


def test_a_head_of_statistics_is_evaluated_like_any_predictor():
    model, w = small()
    built = feature_map(Pretrained(model, w, "test"), width=16, directions=2)
    x = np.asarray(jax.jit(model.apply, static_argnums=(2, 3))(w, images(9), 0, built.predict.subset.stage))
    examples = tuple((f"{i:064x}", f"{i}") for i in range(9))
    features = Features(x, np.arange(9, dtype=np.int32) % 3, examples)
    total = make_statistics(built, features, CLASSES[:3])
    rows = rows_of(built, features, batch=4)  # the last batch is padded
    assert_rel_close(np.float32(total.gram), np.float32(rows.T @ rows))
    head = total.solve(Settings(shrinkage=1e-2))
    scores = rows @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
    assert evaluate(built, head, features) == pytest.approx(float(accuracy(scores, features.targets).mean()))


def test_each_row_is_computed_once_whatever_parts_are_taken_and_has_the_bits_that_it_has_alone(monkeypatch):
    model, w = small()
    built = feature_map(Pretrained(model, w, "test"), width=16, directions=2)
    x = np.asarray(jax.jit(model.apply, static_argnums=(2, 3))(w, images(9), 0, built.predict.subset.stage))
    data = Features(x, np.arange(9) % 2, tuple((f"{i:064x}", f"{i}") for i in range(9)))
    passes, compute = [], mapped.compute_rows
    monkeypatch.setattr(
        mapped, "compute_rows", lambda map_, data, *more: passes.append(len(data)) or compute(map_, data, *more)
    )
    once, shard = map_once(built, data), np.array([8, 2, 5])
    np.testing.assert_array_equal(rows_of(built, once.take(shard)), rows_of(built, data.take(shard)))
    np.testing.assert_array_equal(rows_of(built, once), rows_of(built, data))
    kept, held = once.hold_out()
    np.testing.assert_array_equal(rows_of(built, held), rows_of(built, data.hold_out()[1]))
    relabelled = relabel(kept.take(kept.targets == 1), CLASSES[:3], CLASSES[1:2])
    assert len(rows_of(built, relabelled)) == (kept.targets == 1).sum()
    assert (passes, len(held)) == ([3, 3, 6, 9, 1], 1)  # of `once` 3 and the 6 that were left
    other = dataclasses.replace(built, seed=1)
    assert (rows_of(other, once) != rows_of(built, once)).any()  # another map's rows are not those that are kept


def test_without_a_block_the_final_norm_alone_is_sketched():
    model, w = small()
    built = feature_map(Pretrained(model, w, "test"), ("ntk",), width=9, directions=2, blocks=0)
    rows = jax.jit(type(built).rows)(
        built, jax.random.normal(jax.random.key(0), (3, *model.input_shape(built.predict.subset.stage)))
    )
    assert rows.shape == (3, 9)
    assert np.isfinite(rows).all()
    assert (np.abs(rows).max(1) > 0).all()


def test_wrong_statistics_are_refused_in_one_line(case):
    built, rows, targets = case
    whole = of_rows(built, rows, targets, CLASSES)
    other = dataclasses.replace(whole, source="another")
    with pytest.raises(InputError, match=r"statistics of one feature map; got those of two. Make both by one"):
        whole + other
    with pytest.raises(InputError, match="statistics to add; got float"):
        whole + 1.5
    with pytest.raises(InputError, match=r"class indices below 4, the number of classes; got 4"):
        of_rows(built, rows, targets + (targets == 3), CLASSES)
    with pytest.raises(InputError, match=r"targets that are class indices, whole numbers; got dtype float64"):
        of_rows(built, rows, targets * 1.0, CLASSES)
    empty = of_rows(built, rows[:0], targets[:0], CLASSES).of_classes(CLASSES)
    for settings, match, own in (
        (Settings("svm"), "how in lda, ridge; got svm", whole),
        (Settings(shrinkage=0.0), "shrinkage", whole),
        (Settings(balance=np.nan), "balance", whole),
        (Settings(), "an example; got none", empty),
    ):
        with pytest.raises(InputError, match=match):
            own.solve(settings)
