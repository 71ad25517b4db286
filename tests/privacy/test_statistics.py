"""Private statistics: one step's sensitivity, noise, units and account, and the head that is solved for."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import images, small
from scipy import stats

from tangent_jax.audit.bounds import one_run_bound
from tangent_jax.audit.canaries import make_canaries
from tangent_jax.audit.one_run import fit_audited
from tangent_jax.core.checks import InputError
from tangent_jax.io.ledger import Ledger
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.ntk import feature_map
from tangent_jax.privacy.mechanism import Mechanism, make_mechanism
from tangent_jax.privacy.public import DAMPING
from tangent_jax.privacy.statistics import (
    ADDED,
    OBJECTIVE,
    Contribution,
    contributions,
    denoise,
    on_sphere,
    release_statistics,
    triangle,
)
from tangent_jax.privacy.train import add_up, fit_private
from tangent_jax.solver.mapped import of_rows, rows_of
from tangent_jax.solver.statistics import Settings, Statistics
from tangent_jax.train.batches import Batches
from tangent_jax.train.features import Features

RARE = 1e-6
CLASSES, K = ("dog", "ant", "cat"), 12
FULL = (0.5, 0.8, 0.25)  # of G, B and the counts
N, SHARE = 48, np.array(FULL) / np.linalg.norm(FULL)
LITTLE = Mechanism(1.0, 1e-6, 1, 1e-5)  # noise that nobody sees


@pytest.fixture(scope="module")
def case():
    """(a map of h on the sphere, features of 48 images of three classes)."""
    model, w = small()
    built = feature_map(Pretrained(model, w, "test"), ("h",))
    x = np.asarray(jax.jit(model.apply, static_argnums=(2, 3))(w, images(N), 0, built.predict.subset.stage))
    examples = tuple((f"{i:064x}", f"{i}") for i in range(N))
    data = Features(x, np.arange(N, dtype=np.int32) % 3, examples)
    return on_sphere(built, whiten=False), data


def summed(rows, targets, mechanism=LITTLE):
    """The clipped sum of contributions, flat."""
    step, data = Contribution(len(CLASSES), K, FULL), Batches(rows, targets, batch_size=16)
    chunks = data.chunks(*data.pad(data.rows))
    total = add_up(step, step.zeros(), chunks, OBJECTIVE, mechanism)
    return {name: np.asarray(leaf, np.float64) for name, leaf in total.value.items()}


def flat(tree):
    return np.concatenate([np.ravel(tree[name]) for name in sorted(tree)])


def test_one_image_moves_sum_by_sensitivity(case):
    map_, data = case
    rows, targets = rows_of(map_, data), data.targets
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
    whole = flat(summed(rows, targets))
    for i in range(6):
        apart = whole - flat(summed(np.delete(rows, i, 0), np.delete(targets, i)))
        assert np.linalg.norm(apart) == pytest.approx(1.0, rel=1e-5)  # of G's triangle, B and the counts together
    far = np.concatenate([rows, 1e3 * rows[:1]])  # a row that is not on the sphere, as a canary is
    moved = flat(summed(far, np.append(targets, 0))) - whole
    assert np.linalg.norm(moved) <= 1 + 1e-5


def test_a_nan_image_counts_as_none(case):
    map_, data = case
    x = np.array(data.inputs)
    x[5] = np.nan
    rows = rows_of(map_, dataclasses.replace(data, inputs=x))
    assert np.isnan(rows[5]).all()
    np.testing.assert_allclose(
        flat(summed(rows, data.targets)),
        flat(summed(np.delete(rows, 5, 0), np.delete(data.targets, 5))),
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_release_is_statistics_and_noise(case, noise):
    map_, data = case
    rows = rows_of(map_, data)
    exact = of_rows(map_, rows, data.targets, CLASSES)
    mechanism = make_mechanism(1.0, 1e-5, 1, noise=noise)
    sigma, left = mechanism.noise_multiplier, []
    for seed in range(40):
        noised, fitted = release_statistics(map_, data, CLASSES, mechanism=mechanism, shares=FULL, seed=seed)
        assert noised.classes == exact.classes == ("ant", "cat", "dog")
        assert not fitted.info.spent.private
        np.testing.assert_array_equal(noised.gram, noised.gram.T)
        i, j, scale = triangle(K)
        differences = (noised.gram - exact.gram)[i, j] * scale, noised.sums - exact.sums, noised.counts - exact.counts
        left.append(np.concatenate([share * np.ravel(d) for share, d in zip(SHARE, differences, strict=True)]) / sigma)
    left = np.concatenate(left)
    for scale, passes in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        p = stats.kstest(left / scale, "norm").pvalue
        assert (p > RARE) == passes, (scale, p)


def test_release_is_paid_and_made_once(case, tmp_path):
    map_, data = case
    mechanism = make_mechanism(3.0, 1e-5, 1)
    noised, fitted = release_statistics(map_, data, CLASSES, mechanism=mechanism, ledger=Ledger(tmp_path))
    assert fitted.info.spent.private
    assert fitted.info.spent.compute_epsilon() == pytest.approx(3.0, abs=1e-9)
    again, _ = release_statistics(map_, data, CLASSES, mechanism=mechanism, ledger=Ledger(tmp_path))
    np.testing.assert_array_equal(again.gram, noised.gram)  # read, and not drawn again
    with pytest.raises(InputError, match="must be the ledger of this run"):
        release_statistics(map_, data, CLASSES, mechanism=make_mechanism(8.0, 1e-5, 1), ledger=Ledger(tmp_path))


def test_whole_owner_moves_sum_by_clip_norm(case):
    map_, data = case
    owners = tuple(f"owner {i // 5}" for i in range(N))
    data = dataclasses.replace(data, owners=owners)
    mechanism = Mechanism(2.0, 1e-6, 1, 1e-5, unit="owner")

    def total(rows):
        step, own, settings = contributions(map_, data.take(rows), CLASSES, mechanism, FULL)
        fitted = fit_private(step, own, mechanism=mechanism, seed=0, **settings)
        return flat(fitted.dw) * 2.0 * len({*own.owners})

    everyone, without = total(np.arange(N)), total(np.arange(5, N))
    assert np.linalg.norm(everyone - without) == pytest.approx(2.0, rel=1e-4)  # five images: clipped
    noised, _ = release_statistics(map_, data, CLASSES, mechanism=mechanism, shares=FULL, seed=0)
    assert noised.counts.sum() < N  # of owners that are clipped


def test_what_has_no_share_is_not_released(case):
    map_, data = case
    noised, fitted = release_statistics(map_, data, CLASSES, mechanism=LITTLE, shares=(0.0, 1.0, 0.0), seed=0)
    assert [*fitted.dw] == ["sums"]
    np.testing.assert_array_equal(noised.counts, N / 3)
    exact = of_rows(map_, rows_of(map_, data), data.targets, CLASSES)
    np.testing.assert_allclose(noised.sums, exact.sums, atol=1e-3)
    mean = noised.sums.sum(0) / N
    np.testing.assert_allclose(noised.gram - N * np.outer(mean, mean), N / K * np.eye(K), atol=1e-9)
    with pytest.raises(InputError, match="shares must be of G, B and the counts, 0 or more, that of B above 0"):
        Contribution(3, K, (1.0, 0.0, 0.0))


def test_shares_may_be_list_or_array(untyped):
    shares = (0.2, 0.98, 0.0)
    given = (shares, [*shares], np.array(shares))
    assert {Contribution(3, 6, values) for values in given} == {Contribution(3, 6, shares)}


@pytest.mark.parametrize("shares", [(0.0, 1.0, np.inf), (0.0, np.nan, 0.0), (np.nan, 1.0, 0.0), (-1, 1, 0)])
def test_impossible_shares_are_refused_unpaid(case, tmp_path, shares):
    map_, data = case
    with pytest.raises(
        InputError, match=r"shares must be of G, B and the counts, 0 or more, that of B above 0; got \("
    ):
        release_statistics(map_, data, CLASSES, mechanism=LITTLE, shares=shares, ledger=Ledger(tmp_path))
    assert not [*tmp_path.iterdir()]  # no ledger
    for wrong in ((-1, K), (3, -1), (0, K)):
        with pytest.raises(InputError, match=r"(classes|size) must be a whole number >= 1; got"):
            Contribution(*wrong)


def test_non_finite_public_images_are_refused(case):
    map_, data = case
    built, x = dataclasses.replace(map_, center=None, root=None), np.array(data.inputs)
    x[7] = np.nan
    public = dataclasses.replace(data, inputs=x, examples=tuple((f"{i + 1000:064x}", f"{i}.png") for i in range(N)))
    with pytest.raises(InputError, match=r"must be finite and not all 0; got NaN or infinity, of 7\.png"):
        on_sphere(built, public, data)
    exact = of_rows(map_, rows_of(map_, data), data.targets, CLASSES)
    for name in ("factor", "sums", "counts"):
        with pytest.raises(InputError, match="statistics must be finite; got NaN or infinity"):
            denoise(dataclasses.replace(exact, **{name: getattr(exact, name) * np.nan}), 1.0)


def test_a_head_is_solved_for_whatever_the_noise(case):
    map_, data = case
    rows = rows_of(map_, data)
    exact = of_rows(map_, rows, data.targets, CLASSES).of_classes(CLASSES)
    same, settings = denoise(exact, 0.0), Settings("lda", 0.3)
    np.testing.assert_allclose(same.sums, exact.sums, atol=1e-9)
    np.testing.assert_array_equal(same.counts, exact.counts)
    means, mean = exact.sums / exact.counts[:, None], exact.sums.sum(0) / N
    around = exact.gram - N * np.outer(mean, mean)  # of all images around one mean, as noise of G allows
    np.testing.assert_allclose(same.gram - same.sums.T @ means, around, atol=1e-9)
    for seed in range(3):
        noised, _ = release_statistics(
            map_, data, CLASSES, mechanism=make_mechanism(0.1, 1e-5, 1), shares=FULL, seed=seed
        )
        assert np.linalg.eigvalsh(noised.gram).min() < 0
        assert np.isfinite(np.asarray(denoise(noised, 1.0).solve(settings)["kernel"])).all()


def test_class_means_shrink_as_james_stein():
    """The shrunken means are nearer to the truth in the mean, by what the noise's variance says."""
    rng, k, classes = np.random.default_rng(0), 60, tuple("abcdefgh")
    truth, deviation, counts = 0.2 * rng.standard_normal((8, k)), 9.0, np.full(8, 20.0)
    truth -= truth.mean(0)
    plain, shrunk = [], []
    for _ in range(50):
        sums = counts[:, None] * truth + deviation * rng.standard_normal((8, k))
        noised = Statistics(np.eye(k), sums, counts, classes, (k,), "")
        for errors, own in ((plain, noised), (shrunk, denoise(noised, deviation))):
            apart = own.sums / counts[:, None] - own.sums.sum(0) / counts.sum()
            errors.append(np.square(apart - truth).sum(1).mean())
    signal, noise = np.square(truth).sum(1).mean(), k * (deviation / 20) ** 2 * 7 / 8
    assert np.mean(plain) == pytest.approx(noise, rel=0.1)
    assert np.mean(shrunk) == pytest.approx(noise * signal / (noise + signal), rel=0.1)


def test_public_images_whiten_and_stay_public(case):
    map_, data = case
    built = dataclasses.replace(map_, center=None, root=None)
    public = dataclasses.replace(data, examples=tuple((f"{i + 1000:064x}", f"{i}") for i in range(N)))
    white = on_sphere(built, public, data)
    assert white.identity != map_.identity != built.identity
    rows = rows_of(built, public)
    z = (rows - rows.mean(0)) @ np.asarray(white.root)
    np.testing.assert_allclose(rows_of(white, data), z / np.linalg.norm(z, axis=1, keepdims=True), atol=1e-4)
    mean = np.trace(np.cov(rows.T, bias=True)) / K  # the scale is of no account on the sphere
    variances = np.linalg.eigvalsh(np.cov(z.T, bias=True)) / mean
    assert variances.max() < 1.01  # near the identity in the directions that the images have
    assert variances.max() > 0.9
    with pytest.raises(InputError, match="public images must not be private"):
        on_sphere(built, data, data)
    with pytest.raises(InputError, match="rows of map_ must not be whitened"):
        on_sphere(white)
    with pytest.raises(InputError, match="private must be the features of the training images, beside public"):
        on_sphere(built, public)
    with pytest.raises(InputError, match="a map of on_sphere"):
        release_statistics(built, data, CLASSES, mechanism=LITTLE)
    with pytest.raises(InputError, match="steps of the mechanism must be 1; got 2"):
        release_statistics(map_, data, CLASSES, mechanism=dataclasses.replace(LITTLE, steps=2))
    with pytest.raises(InputError, match="class indices must be below 2, the number of classes"):
        release_statistics(map_, data, CLASSES[:2], mechanism=LITTLE)


def test_last_norm_whitens_h_alone(case):
    map_, data = case
    built = dataclasses.replace(map_, center=None, root=None)
    norm, h = map_.w["norm"], rows_of(built, data)
    s, b = (np.asarray(norm[name], np.float64) for name in ("scale", "bias"))
    m = (np.diag(s**2) + np.outer(b, b)) / np.mean(s**2 + b**2) + DAMPING * np.eye(K)
    u = np.linalg.solve(np.linalg.cholesky(m), h.T).T
    norms = np.linalg.norm(u, axis=1, keepdims=True)
    white = on_sphere(built)
    np.testing.assert_allclose(rows_of(white, data), u / norms, atol=1e-5)
    assert white.identity != map_.identity
    both = feature_map(Pretrained(map_.predict.model, map_.w, "test"), ("relu", "h"), width=16)
    root = np.asarray(on_sphere(both).root)
    np.testing.assert_array_equal(root[:16], np.eye(16, 16 + K))
    np.testing.assert_array_equal(root[16:, 16:], np.asarray(white.root))
    model, w = small(pool="plain_avg")
    np.testing.assert_array_equal(on_sphere(feature_map(Pretrained(model, w, "test"), ("h",))).root, np.eye(K))


@pytest.mark.parametrize(
    ("factor", "shares", "kept"),
    [(1.0, FULL, True), (1.0, (0.0, 1.0, 0.0), True), (0.25, FULL, False), (0.25, (0.0, 1.0, 0.0), False)],
)
def test_one_run_audits_the_release(tmp_path, factor, shares, kept):
    rng, claimed = np.random.default_rng(0), make_mechanism(3.0, 1e-5, 1)
    step, rows = Contribution(3, 200, shares), rng.standard_normal((300, 200)).astype(np.float32)
    data = Batches(rows / np.linalg.norm(rows, axis=1, keepdims=True), rng.integers(0, 3, 300), batch_size=64)
    trained = dataclasses.replace(claimed, noise_multiplier=factor * claimed.noise_multiplier)
    options = {"mechanism": trained, "claimed": claimed, "optimizer": ADDED, "folder": tmp_path}
    audited = fit_audited(step, data, make_canaries(data, 3, 300), OBJECTIVE, **options)
    bound = one_run_bound(audited.info.audit.scores, audited.info.audit.coins, claimed, 1 - 2 * RARE)
    assert (bound.gaussian_epsilon <= claimed.compute_epsilon()) == kept
    scores, coins = audited.info.audit.scores, audited.info.audit.coins
    assert scores[coins].mean() - scores[~coins].mean() > 0.1  # the attack sees canaries
