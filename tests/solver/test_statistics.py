"""Statistics add to those of all examples; ridge and LDA are solved from them as from the rows themselves."""

import dataclasses
from functools import reduce
from operator import add

import jax
import numpy as np
import pytest
from helpers import assert_rel_close, images, small

import tangent_jax as tj
from tangent_jax.core.checks import InputError
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.ntk import FeatureMap, feature_map, score_rows
from tangent_jax.solver import mapped
from tangent_jax.solver.choice import choose_by_folds, choose_settings, make_systems
from tangent_jax.solver.leaves import LENGTHS, check_lengths, root_of
from tangent_jax.solver.mapped import make_statistics, map_once, of_rows, rows_of
from tangent_jax.solver.posterior import fitted_beta
from tangent_jax.solver.statistics import NEVER, Settings, Statistics, check_spread, from_tree, sums_of
from tangent_jax.train.evaluate import accuracy, evaluate
from tangent_jax.train.features import Features

CLASSES = ("ant", "bee", "cat", "dog")
N, SIZES = 60, (5, 7)


@pytest.fixture(scope="module")
def case():
    """(a map that is never called, rows "n k" of two parts, the second 20 times as large, targets of all classes)."""
    built = feature_map(Pretrained(*small(), "test"), width=9)
    rng, targets = np.random.default_rng(3), np.arange(N) % len(CLASSES)
    rows = rng.standard_normal((N, sum(SIZES))) + 0.7 * np.eye(len(CLASSES), sum(SIZES))[targets]
    return Sized(built), rows * np.repeat([1.0, 20.0], SIZES), targets


class Sized(FeatureMap):
    """A feature map of the parts of the case."""

    sizes = SIZES

    def __init__(self, built):
        vars(self).update(vars(built))


def test_shards_add_in_any_order(case):
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


def test_few_rows_keep_root_until_added(case):
    built, rows, targets = case
    few, many = (of_rows(built, rows[:n], targets[:n], CLASSES) for n in (5, 6))
    assert (sorted(few.tree), sorted(many.tree)) == (["counts", "root", "sums"], ["counts", "gram", "sums"])
    assert few.tree["root"].shape == (5 * 12 - 5 * 4 // 2,)
    np.testing.assert_array_equal(few.gram, few.factor.T @ few.factor)
    assert_rel_close(few.gram, rows[:5].T @ rows[:5])
    again = from_tree(few.tree, few.classes, few.sizes, few.source)
    for name in ("factor", "gram", "sums", "counts"):
        np.testing.assert_array_equal(getattr(again, name), getattr(few, name))
    assert "root" in few.of_classes(CLASSES).tree
    for other in (few + few, dataclasses.replace(few, factor=2 * few.gram)):
        assert "gram" in other.tree


@pytest.mark.parametrize("dead", ["no feature", "dead features", "equal features", "an image twice"])
def test_a_root_is_a_function_of_g_alone(dead):
    rng = np.random.default_rng(0)
    z = rng.standard_normal((9, 40))
    z[:, :20] *= dead != "dead features"
    if dead == "equal features":
        z[:, :20] = z[:, :1]
    if dead == "an image twice":
        z[5] = z[3]
    root = root_of(z)
    assert_rel_close(root.T @ root, z.T @ z)
    assert (np.tril(root, -1) == 0).all()
    assert (np.diag(root) >= 0).all()
    if dead != "equal features":  # where rounding turns what G leaves open
        turned = np.linalg.qr(rng.standard_normal((9, 9)))[0] @ z  # rows of the same G
        np.testing.assert_allclose(root_of(turned), root, atol=1e-12)


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
    with pytest.raises(InputError, match="classes must hold every class of the statistics; got none for bee"):
        both.of_classes(("dog",))


def test_unicode_forms_are_one_class(case):
    built, rows, targets = case
    a, b = (of_rows(built, rows[targets == 1], np.zeros((targets == 1).sum(), int), (n,)) for n in ("é", "e\u0301"))
    assert (a + b).classes == ("é",)


def test_ridge_is_that_of_the_rows(case):
    built, rows, targets = case
    settings = Settings("ridge", 0.3, (1.0, 4.0))
    head = of_rows(built, rows, targets, CLASSES).solve(settings)
    z = rows - rows.mean(0)
    first, second = (np.square(part).sum() for part in np.split(z, [SIZES[0]], 1))
    scale = np.repeat([1.0, 2.0 * (first / second) ** 0.5], SIZES)
    y = np.eye(4)[targets]
    penalty = 0.3 * np.square(z * scale).sum() / sum(SIZES)
    stacked = np.vstack([z * scale, penalty**0.5 * np.eye(sum(SIZES))])  # least squares, by QR
    w = np.linalg.lstsq(stacked, np.vstack([y - y.mean(0), np.zeros((sum(SIZES), 4))]), rcond=None)[0]
    want = (rows - rows.mean(0)) * scale @ w + y.mean(0)
    np.testing.assert_allclose(score_rows(head, rows), want, atol=2e-5)


def test_lda_is_that_of_the_rows(case):
    """Differences of scores are the log odds of Gaussians with one covariance, (x - m)^T S^-1 (x - m) / 2."""
    built, rows, targets = case
    head = of_rows(built, rows, targets, CLASSES).solve(Settings("lda", 0.1))
    means = np.array([rows[targets == c].mean(0) for c in range(4)])
    within = rows - means[targets]
    first, second = (np.square(part).sum() for part in np.split(within, [SIZES[0]], 1))
    scale = np.repeat([1.0, (first / second) ** 0.5], SIZES)
    covariance = np.cov((within * scale).T, bias=True)
    covariance += 0.1 * np.trace(covariance) / sum(SIZES) * np.eye(sum(SIZES))
    apart = (rows[:, None] - means) * scale
    want = -0.5 * np.einsum("nck,kl,ncl->nc", apart, np.linalg.inv(covariance), apart)
    got = score_rows(head, rows)
    np.testing.assert_allclose(got - got[:, :1], want - want[:, :1], atol=1e-4)


def test_the_units_of_a_part_do_not_count(case):
    built, rows, targets = case
    units = np.repeat([1.0, 1e3], SIZES)
    for how in ("ridge", "lda"):
        scores = []
        for own in (rows, rows * units):
            head = of_rows(built, own, targets, CLASSES).solve(Settings(how))
            scores.append(score_rows(head, own))
        np.testing.assert_allclose(*scores, atol=1e-3)


def test_settings_maximise_held_out_likelihood(case):
    built, rows, targets = case
    held = np.arange(N) % 5 == 0
    train = of_rows(built, rows[~held], targets[~held], CLASSES)
    chosen, *_, tried = choose_settings(train, rows[held], targets[held], ("lda", "ridge"))
    assert tried >= 2 * 7

    def loss(settings):
        head = train.solve(settings)
        scores = score_rows(head, rows[held])
        betas = np.geomspace(1e-3, 1e3, 2001)[:, None, None] * scores
        p = jax.nn.log_softmax(betas, -1)[:, np.arange(held.sum()), targets[held]]
        return -float(p.mean(1).max())

    assert loss(chosen) <= 1e-3 + min(loss(Settings(*own)) for own in [("lda", 3.0), ("ridge", 0.3, (0.25, 1.0))])
    assert choose_settings(train, rows[held], targets[held], ("ridge",))[0].how == "ridge"


def test_a_part_of_noise_gets_less_weight(case):
    built, *_ = case
    rng, targets = np.random.default_rng(7), np.arange(400) % 4
    rows = rng.standard_normal((400, sum(SIZES))) + 2 * np.eye(4, sum(SIZES))[targets]  # the classes are in part 1
    train = of_rows(built, rows[:200], targets[:200], CLASSES)
    weights = choose_settings(train, rows[200:], targets[200:])[0].weights
    assert weights[1] < weights[0] == 1


def test_a_part_of_weight_0_changes_no_bit(case):
    built, rows, targets = case
    moved = rows + np.repeat([0, 1], SIZES) * np.random.default_rng(7).standard_normal(rows.shape)
    settings = Settings(weights=(1.0, 0.0))
    one, other = (of_rows(built, z, targets, CLASSES).solve(settings) for z in (rows, moved))
    np.testing.assert_array_equal(one["kernel"], other["kernel"])
    assert not np.asarray(one["kernel"])[SIZES[0] :].any()


def test_folds_choose_by_all_but_always_trained(case):
    _, rows, targets = case
    folds = np.arange(N) // 4 % 3
    folds[:8] = -1
    chosen = choose_by_folds(rows, targets, SIZES, folds, ("lda", "ridge"))

    def scores(settings):
        every = np.zeros((N, 4))
        for fold in range(3):
            own = folds != fold
            every[~own] = score_rows(sums_of(rows[own], targets[own], 4, SIZES).solve(settings), rows[~own])
        return every[folds >= 0]

    loss, right = fitted_beta(scores(chosen.settings), None, targets[8:])[1], scores(chosen.settings).argmax(1)
    assert chosen.loss == pytest.approx(loss, rel=1e-4)
    assert chosen.accuracy == np.mean(right == targets[8:])
    for other in (Settings(), Settings("ridge", 1.0), Settings("lda", 0.1, (1.0, 0.0))):
        assert fitted_beta(scores(other), None, targets[8:])[1] >= loss - 1e-6
    for wrong, match in ((folds[1:], "folds must have shape"), (folds / 2, "folds must be whole numbers")):
        with pytest.raises(InputError, match=match):
            choose_by_folds(rows, targets, SIZES, wrong)
    for one_alone in (targets, np.zeros(N, int)):  # each class in one fold
        with pytest.raises(InputError, match="another image that trains; got none"):
            choose_by_folds(rows, one_alone, SIZES, one_alone)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.25, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("how", ["ridge", "lda"])
def test_the_dual_form_scores_as_the_head_does(case, how, few, weights):
    built, rows, targets = case
    at = np.arange(9 if few else N)  # fewer images than features, or more
    train = of_rows(built, rows[at], targets[at], CLASSES)
    settings = Settings(how, 0.1, weights)
    systems = make_systems(train, how)
    got, want = systems.scores(settings, systems.products(rows)), score_rows(train.solve(settings), rows)
    assert_rel_close(got, want.astype(np.float64), 1e-5)


def refitted(rows, targets, settings, i):
    """The scores of example i by the head of all others, from their rows; penalty and scales as all examples give."""
    how, shrinkage, (one, other) = settings
    means = np.array([rows[targets == c].mean(0) for c in range(4)])
    spread = rows - (means[targets] if how == "lda" else rows.mean(0))
    first, second = (np.square(part).sum() for part in np.split(spread, [SIZES[0]], 1))
    scale = np.repeat([one**0.5, (other * first / second) ** 0.5], SIZES)
    penalty = shrinkage * np.square(spread * scale).sum() / (scale > 0).sum() * np.eye(sum(SIZES))
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


def left_out_scores(statistics, rows, targets, settings):
    """The scores of each example by the head of all others, in closed form."""
    systems = make_systems(statistics, settings.how)
    return systems.left_out(settings, systems.blocks(rows), targets)


@pytest.mark.parametrize("weights", [(1.0, 4.0), (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("how", ["ridge", "lda"])
def test_leave_one_out_is_solving_without(case, how, weights, monkeypatch):
    built, rows, targets = case
    monkeypatch.setattr("tangent_jax.solver.choice.BLOCK", 25)
    settings = Settings(how, 0.1, weights)
    got = left_out_scores(of_rows(built, rows, targets, CLASSES), rows, targets, settings)
    want = np.array([refitted(rows, targets, settings, i) for i in range(N)])
    if how == "lda":  # but for a number that all classes of an example share
        got, want = got - got[:, :1], want - want[:, :1]
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shrinkage", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("how", ["ridge", "lda"])
def test_leave_one_out_of_few_images_is_exact(case, how, shrinkage):
    built, rows, targets = case
    few, settings = np.arange(9), Settings(how, shrinkage, (1.0, 1.0))
    got = left_out_scores(of_rows(built, rows[few], targets[few], CLASSES), rows[few], targets[few], settings)
    want = np.array([refitted(rows[few], targets[few], settings, i) for i in few])
    if how == "lda":
        got, want = got - got[:, :1], want - want[:, :1]
    np.testing.assert_allclose(got, want, atol=1e-8 / shrinkage * np.abs(want).max())


@pytest.mark.parametrize("how", ["ridge", "lda"])
def test_dual_form_has_ridge_of_each_part(case, how):
    """Rounding may take a tenth of their spread: `solve` allows for it, and so must the dual form."""
    built, rows, targets = case
    z = unit_rows(1e-5 * rows / np.repeat([1.0, 20.0], SIZES) * np.repeat([1.0, 3.0], SIZES) + 1)
    train = of_rows(built, z, targets, CLASSES)
    spread = train.of_parts(np.diag(train.spread(how, train.of_present())))
    assert np.all((SIZES[0] * train.allowed / spread > 0.005) & (train.allowed / spread < 1))
    systems, settings = make_systems(train, how), Settings(how, 0.01)
    got, want = systems.scores(settings, systems.products(z)), score_rows(train.solve(settings), z)
    assert_rel_close(got, want.astype(np.float64), 1e-5)


@pytest.mark.parametrize("far", [1, 1e3])
def test_dual_form_is_of_image_count(case, far):
    """Also where images are near copies, whose spread is small beside G."""
    built, rows, targets = case
    z = unit_rows(rows[:9] / far + 1)
    systems = make_systems(of_rows(built, z, targets[:9], CLASSES), "lda")
    assert len(systems.dual.root) <= 9


@pytest.mark.parametrize("how", ["ridge", "lda"])
def test_lonely_example_never_gets_its_class(case, how):
    built, rows, targets = case
    few = np.flatnonzero((targets != 3) | (np.arange(N) == 3))
    scores = left_out_scores(of_rows(built, rows[few], targets[few], CLASSES), rows[few], targets[few], Settings(how))
    alone = targets[few] == 3
    assert (scores[alone, 3] == NEVER).all()
    assert np.isfinite(scores).all()
    assert (scores[~alone] > NEVER / 2).all()
    with pytest.raises(InputError, match="another image that trains; got none"):
        choose_settings(of_rows(built, rows[:1], targets[:1], CLASSES), rows[:1], targets[:1], (how,), left_out=True)


def test_settings_leave_each_example_out(case):
    built, rows, targets = case
    train = of_rows(built, rows, targets, CLASSES)
    chosen, *_, tried = choose_settings(train, rows, targets, ("lda", "ridge"), left_out=True)
    assert tried >= 2 * 7

    def loss(settings):
        betas = np.geomspace(1e-3, 1e3, 2001)[:, None, None] * left_out_scores(train, rows, targets, settings)
        return -float(jax.nn.log_softmax(betas, -1)[:, np.arange(N), targets].mean(1).max())

    assert loss(chosen) <= 1e-3 + min(loss(Settings(*own)) for own in [("lda", 3.0), ("ridge", 0.3, (0.25, 1.0))])


@pytest.mark.parametrize("left_out", [True, False])
def test_settings_need_givable_labels(case, left_out):
    """One class has a single image, which is left out, or none but a held-out one."""
    built, rows, targets = case
    kept = (targets != 3) | (np.arange(N) == 3)
    held = np.arange(N) % 5 == 3  # image 3 is the only one of its class
    train = kept if left_out else kept & ~held
    total = of_rows(built, rows[train], targets[train], CLASSES).of_classes(CLASSES)
    scored = train if left_out else held & kept
    others = scored & (targets != 3)
    both = [choose_settings(total, rows[at], targets[at], ("lda", "ridge"), left_out)[0] for at in (scored,)]
    if not left_out:
        both.append(choose_settings(total, rows[others], targets[others], ("lda", "ridge"))[0])
    assert len({*both}) == 1
    assert both[0] != Settings("lda", 1e-2, (1.0, 1.0))  # the first of the grid
    alone = of_rows(built, rows[:3], targets[:3], CLASSES)
    with pytest.raises(InputError, match="chosen on images of classes with another image that trains; got none"):
        choose_settings(alone, rows[:3], targets[:3], left_out=True)


def test_temperature_is_found_at_any_scale(case):
    _, rows, targets = case
    beta, loss = fitted_beta(rows[:, :4], None, targets)
    for scale in (1e-6, 1e6):
        assert fitted_beta(scale * rows[:, :4], None, targets) == pytest.approx((beta / scale, loss), rel=1e-3)


def test_head_is_evaluated_like_predictor():
    model, w = small()
    built = feature_map(Pretrained(model, w, "test"), width=16, directions=2)
    x = np.asarray(jax.jit(model.apply, static_argnums=(2, 3))(w, images(9), 0, built.predict.subset.stage))
    examples = tuple((f"{i:064x}", f"{i}") for i in range(9))
    features = Features(x, np.arange(9, dtype=np.int32) % 3, examples)
    total = make_statistics(built, features, CLASSES[:3])
    rows = rows_of(built, features, batch=4)  # the last batch is padded
    assert_rel_close(np.float32(total.gram), np.float32(rows.T @ rows))
    head = total.solve(Settings(shrinkage=1e-2))
    scores = score_rows(head, rows)
    assert evaluate(built, head, features) == pytest.approx(float(accuracy(scores, features.targets).mean()))


def test_each_row_is_computed_once(monkeypatch):
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
    relabelled = kept.take(kept.targets == 1).relabel(CLASSES[:3], CLASSES[1:2])
    assert len(rows_of(built, relabelled)) == (kept.targets == 1).sum()
    assert (passes, len(held)) == ([3, 3, 6, 9, 1], 1)  # of `once` 3 and the 6 that were left
    other = dataclasses.replace(built, seed=1)
    assert (rows_of(other, once) != rows_of(built, once)).any()  # another map's rows are not those that are kept


def test_no_blocks_sketch_the_norm_alone():
    model, w = small()
    built = feature_map(Pretrained(model, w, "test"), ("ntk",), width=9, directions=2, blocks=0)
    rows = jax.jit(type(built).rows)(
        built, jax.random.normal(jax.random.key(0), (3, *model.input_shape(built.predict.subset.stage)))
    )
    assert rows.shape == (3, 9)
    assert np.isfinite(rows).all()
    assert (np.abs(rows).max(1) > 0).all()


# Heads of any statistics that images give


def unit_rows(rows):
    """Rows of the case whose parts have length 1, in f32, as a feature map gives them."""
    parts = np.split(np.asarray(rows, np.float64), [SIZES[0]], 1)
    return np.concatenate([part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts], 1).astype(np.float32)


def right(head, rows, targets):
    """The share of rows, in f32, whose largest score is their class's."""
    scores = np.asarray(score_rows(jax.tree.map(np.asarray, head), rows.astype(np.float32)))
    assert np.isfinite(scores).all()
    return (scores.argmax(1) == targets).mean()


@pytest.mark.parametrize("how", ["lda", "ridge"])
@pytest.mark.parametrize("copies", [1, 2, 1000])
@pytest.mark.parametrize("alike", ["both parts", "the first part", "the second part"])
def test_classes_without_spread_are_told_apart(case, how, copies, alike):
    """Each class has one distinct image, or one in a part of the features; NaN or an error before."""
    built, rows, _ = case
    targets = np.repeat(np.arange(4), copies)
    rows = unit_rows(rows[np.arange(len(targets)) % N])
    own = {"both parts": slice(None), "the first part": slice(5), "the second part": slice(5, None)}[alike]
    rows[:, own] = rows[targets][:, own]  # as the first image of a class
    total = of_rows(built, rows, targets, CLASSES)
    assert right(total.solve(Settings(how)), rows, targets) == 1
    chosen, *_ = choose_settings(total, rows, targets, (how,))
    assert right(total.solve(chosen), rows, targets) == 1
    if copies > 1 and (how == "lda" or alike == "both parts"):
        scores = left_out_scores(total, rows, targets, Settings(how))
        assert np.isfinite(scores).all()
        assert (scores.argmax(1) == targets).all()


def test_one_image_gives_a_finite_head(case):
    built, rows, _ = case
    rows = unit_rows(rows)[np.zeros(8, int)]
    for how in ("lda", "ridge"):
        head = of_rows(built, rows, np.arange(8) % 4, CLASSES).solve(Settings(how))
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in head.values())


@pytest.mark.parametrize("how", ["lda", "ridge"])
@pytest.mark.parametrize("far", [0, 3e3, 1e4])
def test_f32_scores_survive_a_far_mean(case, how, far):
    """Before, 0.905 of these images were right in f32 at 3,000 spreads, and 0.183 at 10,000; 1.000 in f64."""
    built, _, _ = case
    rng, targets = np.random.default_rng(1), np.arange(400) % 4
    rows = rng.standard_normal((400, sum(SIZES))) + 8 * np.eye(4, sum(SIZES))[targets]
    rows = (rows + far * rng.choice([-1, 1], sum(SIZES))).astype(np.float32)
    head = of_rows(built, rows, targets, CLASSES).solve(Settings(how))
    assert {name: leaf.dtype.name for name, leaf in head.items()} == dict.fromkeys(head, "float32")
    assert right(head, rows, targets) == 1
    center, kernel, bias = (np.asarray(head[name], np.float64) for name in ("center", "kernel", "bias"))
    mean = rows.mean(0, dtype=np.float64)
    apart = np.array([rows[targets == c].mean(0, dtype=np.float64) for c in range(4)]) - mean
    want = 0.25 if how == "ridge" else -0.5 * np.einsum("ck,kc->c", apart, kernel)
    np.testing.assert_allclose((mean - center) @ kernel + bias, want, rtol=1e-5)  # of the center in f32
    exact = of_rows(built, rows - rows.mean(0, dtype=np.float64), targets, CLASSES).solve(Settings(how))
    want = score_rows(exact, rows - rows.mean(0, dtype=np.float64))
    got = np.asarray(score_rows(jax.tree.map(np.asarray, head), rows))
    assert np.abs(got - want).max() < 2e-2 * np.abs(want).max()


@pytest.mark.parametrize("how", ["lda", "ridge"])
def test_empty_class_changes_no_bit(case, how):
    built, rows, targets = case
    total = of_rows(built, rows, targets, CLASSES)
    alone = total.solve(Settings(how))
    more = total.of_classes(("!", "ant", "bee", "cat", "cow", "dog")).solve(Settings(how))
    at = [1, 2, 3, 5]
    np.testing.assert_array_equal(more["kernel"][:, at], alone["kernel"])
    np.testing.assert_array_equal(more["bias"][np.array(at)], alone["bias"])
    np.testing.assert_array_equal(more["center"], alone["center"])
    assert not np.asarray(more["kernel"])[:, [0, 4]].any()
    left_out = left_out_scores(total.of_classes((*CLASSES, "z")), rows, targets, Settings(how))
    np.testing.assert_array_equal(left_out[:, :4], left_out_scores(total, rows, targets, Settings(how)))
    assert (left_out[:, 4] == NEVER).all()


def test_rows_and_targets_must_fit(case):
    built, rows, targets = case
    total, nan = of_rows(built, rows, targets, CLASSES), np.where(np.eye(N, 12) > 0, np.nan, rows)
    wrong = {
        "rows must be finite; got NaN": (nan, targets),
        r"rows must have shape \(60, 12\) .* as many as targets; got shape \(60, 11\)": (rows[:, 1:], targets),
        r"as many as targets; got shape \(59, 12\)": (rows[1:], targets),
        r"as many as targets; got shape \(0, 12\)": (rows[:0], targets[:0]),
        r"as many as targets; got shape \(60,\)": (rows[:, 0], targets),
        "class indices must be >= 0; got -1": (rows, targets - 1),
        "class indices must be below 4, the number of classes; got 4": (rows, targets + 1),
        r"of shape \(n,\); got shape \(60, 1\)": (rows, targets[:, None]),
    }
    for match, pair in wrong.items():
        for left_out in (False, True):
            with pytest.raises(InputError, match=match):
                choose_settings(total, *pair, left_out=left_out)
    with pytest.raises(
        InputError, match="targets must be of the examples of these statistics; got other numbers of examples by class"
    ):
        choose_settings(total, rows[:-1], targets[:-1], left_out=True)
    with pytest.raises(InputError, match="ways must be at least one of lda, ridge; got none"):
        choose_settings(total, rows, targets, ways=())
    with pytest.raises(InputError, match="how must be one of lda, ridge; got svm"):
        choose_settings(total, rows, targets, ways=("svm",))


def test_impossible_statistics_are_refused(case):
    built, rows, targets = case
    total = of_rows(built, rows, targets, CLASSES)
    for gram in (-total.gram, total.gram * np.nan, total.gram - 2 * total.within()):
        for how in ("lda",) if gram.trace() > 0 else ("lda", "ridge"):
            with pytest.raises(InputError, match="positive semi-definite to rounding; got sums of no images"):
                dataclasses.replace(total, factor=gram).solve(Settings(how))
    with pytest.raises(InputError, match=r"a head must be finite in float\d\d; got larger numbers"):
        of_rows(built, rows * 1e-45, targets, CLASSES).solve()


@pytest.fixture(scope="module")
def mapped_case():
    """(a feature map of a small ViT, its features of nine images)."""
    model, w = small()
    built = feature_map(Pretrained(model, w, "test"), width=16, directions=2)
    x = np.asarray(jax.jit(model.apply, static_argnums=(2, 3))(w, images(9), 0, built.predict.subset.stage))
    return built, Features(x, np.arange(9) % 2, tuple((f"{i:064x}", f"{i}.png") for i in range(9)))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_non_finite_features_name_the_image(mapped_case, number):
    built, data = mapped_case
    x = np.array(data.inputs)
    x[[4, 6]] = number
    with pytest.raises(InputError, match=r"must be finite and not all 0; got NaN or infinity, of 4\.png"):
        make_statistics(built, dataclasses.replace(data, inputs=x), CLASSES)


def test_known_rows_are_summed_and_checked(mapped_case):
    built, data = mapped_case
    rows, whole = rows_of(built, data), make_statistics(built, data, CLASSES)
    assert np.array_equal(make_statistics(built, data, CLASSES, rows).gram, whole.gram)
    assert np.array_equal(make_statistics(built, data, CLASSES, rows * 2).gram, whole.gram * 4)
    for wrong in (rows[1:], rows[:, 1:], rows[0]):
        with pytest.raises(InputError, match=r"^rows must have shape \(9, "):
            make_statistics(built, data, CLASSES, wrong)
    rows[4] = np.nan
    with pytest.raises(InputError, match=r"got NaN or infinity, of 4\.png"):
        make_statistics(built, data, CLASSES, rows)
    with pytest.raises(InputError, match="class indices must be below 1, the number of classes"):
        make_statistics(built, data, CLASSES[:1])


@pytest.mark.parametrize("part", [0, 1])
def test_zero_features_name_the_image(mapped_case, part, monkeypatch):
    built, data = mapped_case
    rows, size = rows_of(built, data), built.sizes[0]
    rows[5, part * size : (part + 1) * size if part == 0 else None] = 0
    monkeypatch.setattr("tangent_jax.solver.mapped.rows_of", lambda *_, **options: rows)
    with pytest.raises(InputError, match=r"got all 0 in a part, of 5\.png"):
        make_statistics(built, data, CLASSES)
    with pytest.raises(InputError, match=r"got all 0 in a part, of 5\.png"):
        tj.store.StatisticsRecipe(features=built.features).fit(dataclasses.replace(built, outputs=2), data)


def test_other_models_features_are_refused(mapped_case):
    built, data = mapped_case
    other = dataclasses.replace(data, inputs=np.zeros((9, 3, 5), np.float32))
    for use in (lambda: make_statistics(built, other, CLASSES), lambda: rows_of(built, other)):
        with pytest.raises(InputError, match=r"features of this map's model, of shape \(6, 12\); got \(3, 5\)"):
            use()
    for batch in (-3, 0):
        with pytest.raises(InputError, match="batch must be a whole number >= 1; got"):
            rows_of(built, data, batch)


def test_compute_dtypes_do_not_add(mapped_case):
    built, data = mapped_case
    half = built.in_dtype("bfloat16")
    assert half.features == dataclasses.replace(built.features, dtype="bfloat16")
    whole = make_statistics(built, data, CLASSES)
    with pytest.raises(InputError, match="statistics that are added must be of one feature map; got those of two"):
        whole + make_statistics(half, data, CLASSES)
    assert (rows_of(half, map_once(built, data)) == rows_of(half, data)).all()  # not those of the other dtype
    again = half.features.of(Pretrained(half.model.with_classes(7), small()[1], "test"))
    assert again.features == half.features


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_of_any_dtype_have_unit_length(dtype):
    model, w = small()
    built = feature_map(Pretrained(model, w, "test"), ("h", "relu", "ntk"), width=64, directions=2)
    built = built.in_dtype(dtype)
    x = np.asarray(jax.jit(model.apply, static_argnums=(2, 3))(w, images(40), 0, built.predict.subset.stage))
    data = Features(x, np.arange(40) % 4, tuple((f"{i:064x}", f"{i}") for i in range(40)))
    rows = rows_of(built, data)
    for part in np.split(rows, np.cumsum(built.sizes)[:-1], 1):
        assert np.abs(np.square(part, dtype=np.float64).sum(1) - 1).max() < LENGTHS / 10
    tree = make_statistics(built, data, CLASSES).tree
    check_lengths(tree, built.sizes)
    check_spread(tree, built.sizes)


def test_other_inputs_get_their_own_rows(mapped_case):
    built, data = mapped_case
    once = map_once(built, data)
    rows_of(built, once)
    moved = dataclasses.replace(once, inputs=np.array(data.inputs)[::-1])
    np.testing.assert_array_equal(rows_of(built, moved), rows_of(built, data)[::-1])
    np.testing.assert_array_equal(rows_of(built, moved.take(np.arange(3))), rows_of(built, data)[::-1][:3])


def test_wrong_statistics_are_refused_in_one_line(case):
    built, rows, targets = case
    whole = of_rows(built, rows, targets, CLASSES)
    other = dataclasses.replace(whole, source="another")
    with pytest.raises(InputError, match="statistics that are added must be of one feature map; got those of two"):
        whole + other
    with pytest.raises(InputError, match="class indices must be below 4, the number of classes; got 4"):
        of_rows(built, rows, targets + (targets == 3), CLASSES)
    with pytest.raises(InputError, match=r"targets must be class indices, whole numbers; got dtype float\d\d"):
        of_rows(built, rows, targets * 1.0, CLASSES)
    empty = of_rows(built, rows[:0], targets[:0], CLASSES).of_classes(CLASSES)
    for settings, match, own in (
        (Settings("svm"), "how must be one of lda, ridge; got svm", whole),
        (Settings(shrinkage=0.0), "shrinkage", whole),
        (Settings(weights=(1.0, np.nan)), "weights", whole),
        (Settings(weights=(0.0, 0.0)), "weights must be above 0 for one part at least; got 0 for all", whole),
        (Settings(weights=(1.0,)), "weights must be 2, one for each part; got 1", whole),
        (Settings(), "statistics must be of one example at least; got none", empty),
    ):
        with pytest.raises(InputError, match=match):
            own.solve(settings)


def test_counts_of_other_classes_are_refused():
    with pytest.raises(InputError, match=r"counts must have shape \(2,\); got \(1,\)"):
        Statistics(np.eye(3), np.zeros((2, 3)), np.ones(1), ("a", "b"), (3,), "")
