"""Each attack is its definition, written out example by example; where the ratio is known, no attack beats LiRA."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from tangent_jax.audit import attacks
from tangent_jax.audit.attacks import ATTACKS, Ranking
from tangent_jax.core.checks import InputError


def drawn(rng, k=9, n=7, shift=2.0):
    """(target "n", shadows "k n", held "k n", member "n"): Gaussian signals that membership shifts."""
    held, member, level = rng.random((k, n)) < 0.5, rng.random(n) < 0.5, rng.normal(size=n)
    held[:2], held[2:4] = True, False  # two of each side at least
    return level + shift * member + rng.normal(size=n), level + shift * held + rng.normal(size=(k, n)), held, member


def looped(score, target, shadows, held):
    return [score(target[i], shadows[held[:, i], i], shadows[~held[:, i], i]) for i in range(len(target))]


def test_lira_is_its_definition():
    target, shadows, held, _ = drawn(np.random.default_rng(0))

    def online(s, inside, outside):
        return math.log(
            norm.pdf(s, inside.mean(), inside.std(ddof=1)) / norm.pdf(s, outside.mean(), outside.std(ddof=1))
        )

    np.testing.assert_allclose(ATTACKS["LiRA online"](target, shadows, held), looped(online, target, shadows, held))
    offline = looped(lambda s, _, outside: (s - outside.mean()) / outside.std(ddof=1), target, shadows, held)
    np.testing.assert_allclose(ATTACKS["LiRA offline"](target, shadows, held), offline)


@pytest.mark.parametrize(("name", "a"), [("RMIA", None), ("RMIA offline", 0.3)])
def test_rmia_counts_dominated_population(name, a):
    target, shadows, held, _ = drawn(np.random.default_rng(1))

    def ratio(s, inside, outside):
        p, of_in, of_out = (1 / (1 + np.exp(-np.asarray(side))) for side in (s, inside, outside))
        mean = (of_in.mean() + of_out.mean()) / 2 if a is None else ((1 + a) * of_out.mean() + 1 - a) / 2
        return p / mean

    ratios = np.array(looped(ratio, target, shadows, held))
    expected = [np.mean(ratios[i] / ratios >= 1) for i in range(len(target))]
    np.testing.assert_allclose(ATTACKS[name](target, shadows, held), expected)


def test_students_t_is_predictive_density():
    """p(s) = integral of N(s; mean, variance) over the posterior of mean and variance, on a grid."""
    rng = np.random.default_rng(2)
    target, shadows, held, _ = drawn(rng, k=12, n=40)
    side = attacks.sides(shadows, held)[0]
    got = np.exp(attacks.log_predictive(target, side))
    v, k = side.squares / (side.size - 1), side.size
    level, fourth = v.mean(), np.mean(v**2 * (k - 1) / (k + 1))
    a, m = 2 + level**2 / max(fourth - level**2, 1e-6 * level**2), side.mean.mean()
    kappa = level / (side.mean.var() - np.mean(v / k))
    variance = np.geomspace(1e-2, 1e2, 1500)[:, None]
    mean = np.linspace(-9, 9, 1501)
    measure = np.gradient(variance[:, 0])[:, None] * (mean[1] - mean[0])
    for i in (0, 7, 23):
        own = shadows[held[:, i], i]
        log = -(a + 1) * np.log(variance) - (a - 1) * level / variance
        log = log - (np.log(variance) + kappa * (mean - m) ** 2 / variance) / 2
        log = log - sum((np.log(variance) + (x - mean) ** 2 / variance) / 2 for x in own)
        posterior = np.exp(log - log.max()) * measure
        expected = np.sum(posterior * norm.pdf(target[i], mean, np.sqrt(variance))) / posterior.sum()
        assert got[i] == pytest.approx(expected, rel=1e-3)


def test_students_t_is_lira_for_many_shadows():
    rng, aucs = np.random.default_rng(3), {}
    for k in (6, 4000):
        target, shadows, held, member = drawn(rng, k=k, n=2000)
        scores = {name: ATTACKS[name](target, shadows, held) for name in ("LiRA online", "Student's t")}
        aucs[k] = {name: Ranking(values, member).points(1)["auc"][0] for name, values in scores.items()}
    assert np.corrcoef([*scores.values()])[0, 1] > 0.99
    assert aucs[6]["Student's t"] > aucs[6]["LiRA online"] + 0.02


def test_no_attack_beats_likelihood_ratio():
    """Signals N(0, 1) and N(2, 1), by example shifted: the best AUC is Phi(2 / sqrt 2), at 1 % Phi(z_1 % + 2)."""
    target, shadows, held, member = drawn(np.random.default_rng(4), k=400, n=20000)
    best = {"auc": norm.cdf(2**0.5), "tpr_1%": norm.cdf(norm.ppf(0.01) + 2)}
    points = {name: Ranking(attack(target, shadows, held), member).points(2) for name, attack in ATTACKS.items()}
    for name in points:
        for point, value in best.items():
            assert points[name][point][0] < value + 0.02, name
    for name in ("mean difference", "LiRA online", "LiRA offline", "Student's t"):
        for point, value in best.items():
            assert points[name][point][0] == pytest.approx(value, abs=0.03), name


@pytest.mark.parametrize("name", ATTACKS)
def test_unmoved_signals_are_at_chance(name):
    target, shadows, held, member = drawn(np.random.default_rng(5), k=30, n=4000, shift=0.0)
    assert Ranking(ATTACKS[name](target, shadows, held), member).points(1)["auc"][0] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", ATTACKS)
def test_scores_are_finite_in_corner_cases(name):
    target, shadows, held, _ = drawn(np.random.default_rng(6))
    held[:, 0], held[:, 1] = True, False
    shadows[:, 2] = 1.0
    assert np.isfinite(ATTACKS[name](target, shadows, held)).all()


def test_lira_without_shadows_says_nothing():
    shadows, held = np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([[True, False], [True, True]])
    side, other = attacks.sides(shadows, held)
    assert side.size.tolist() == [2, 1]
    assert other.mean.tolist() == [1.0, 1.0]  # of the first example as inside: of none
    assert attacks.calibrate(np.array([5.0, 5.0]), shadows, held).tolist() == [5.0, 4.0]


def test_rates_use_lowest_valid_threshold():
    """Of 200 others, two may pass at 1 % and none at 0.1 %."""
    others = np.arange(200.0)
    members = np.array([250.0, 198.5, 197.5, 196.5])
    points = Ranking(np.concatenate([members, others]), np.arange(204) < 4).points(50)
    assert points["tpr_0.1%"][0] == 0.25
    assert points["tpr_1%"][0] == 0.75  # 197.5 has 198 and 199 above it
    assert points["auc"][0] == pytest.approx((200 + 199 + 198 + 197) / 800)


def test_interval_covers_clopper_pearson():
    points = Ranking(np.arange(30.0), np.arange(30) >= 26).points(20)
    assert points["auc"] == points["tpr_1%"] == [1.0, pytest.approx(0.025**0.25), 1.0]


@pytest.mark.parametrize(("members", "others", "models"), [(1, 1, 1), (3, 9, 1), (9, 3, 1), (3, 9, 8)])
def test_auc_of_one_has_width_by_smaller_side(members, others, models):
    """An example counts once, however many models score it."""
    examples = np.tile(np.arange(members + others), models)
    points = Ranking(-1.0 * examples, examples < members, examples).points(20)
    assert points["auc"] == [1.0, pytest.approx(0.025 ** (1 / min(members, others))), 1.0]
    assert points["tpr_1%"][1] == pytest.approx(0.025 ** (1 / members))


def test_tie_beyond_rate_counts_for_none():
    scores, member = np.array([1.0] * 10 + [0.0] * 95), np.arange(105) < 5
    points = Ranking(scores, member).points(5)
    assert (points["tpr_1%"][0], points["tpr_0.1%"][0]) == (0.0, 0.0)
    assert points["auc"][0] == pytest.approx(1 - 0.5 * 5 / 100)
    false, true = Ranking(scores, member).curve()
    assert (false.tolist(), true.tolist()) == ([0.0, 0.05, 1.0], [0.0, 1.0, 1.0])


@pytest.mark.parametrize(("members", "others", "shift"), [(60, 60, 1), (10, 10, 3), (10, 200, 2)])
def test_auc_interval_holds_truth(members, others, shift):
    rng, inside = np.random.default_rng(7), 0
    member = np.arange(members + others) < members
    for trial in range(100):
        low, high = Ranking(rng.normal(size=len(member)) + shift * member, member).points(100, trial)["auc"][1:]
        inside += low <= norm.cdf(shift * 0.5**0.5) <= high
    assert inside >= 95


def test_auc_interval_counts_examples_not_pairs():
    rng = np.random.default_rng(7)
    member, level = rng.random((8, 50)) < 0.5, 3 * rng.normal(size=50)
    pairs = (level + member).ravel(), member.ravel()
    apart, together = (Ranking(*pairs, examples).points(200)["auc"] for examples in (None, np.tile(np.arange(50), 8)))
    assert apart[0] == together[0]
    assert together != apart


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_take_lists_in_float64(name, untyped):
    target, shadows, held, _ = drawn(np.random.default_rng(8))
    half, halves = (1000 * target).astype(np.float16), (1000 * shadows).astype(np.float16)
    expected = ATTACKS[name](half.astype(np.float64), halves.astype(np.float64), held)
    for given in ((half, halves, held), (half.tolist(), halves.tolist(), held.tolist())):
        np.testing.assert_array_equal(ATTACKS[name](*given), expected)


def test_wrong_signals_are_one_clear_line(untyped):
    values = np.ones(3)
    with pytest.raises(InputError, match=r"target must have shape \(4,\); got \(3,\)"):
        attacks.calibrate(values, np.ones((2, 4)), np.ones((2, 4), bool))
    with pytest.raises(InputError, match=r"examples must have shape \(3,\); got \(2,\)"):
        Ranking(values, np.arange(3) < 1, np.arange(2))
    with pytest.raises(InputError, match=r"among scores of shape \(3, 2\); got 1 members in shape \(3,\)"):
        Ranking(np.ones((3, 2)), np.arange(3) < 1)
    with pytest.raises(InputError, match="scores must be numbers"):
        Ranking(["a", "b"], [True, False])
    with pytest.raises(InputError, match="held must have the shape of shadows"):
        attacks.lira_online(values, np.ones((0, 3)), np.ones((0, 3), bool))
    with pytest.raises(InputError, match="shadows must hold two models"):
        attacks.student_ratio(values, np.ones((1, 3)), np.ones((1, 3), bool))
    with pytest.raises(InputError, match="scores must be finite"):
        Ranking(np.array([1.0, np.nan]), np.array([True, False]))
    with pytest.raises(InputError, match="member must mark at least one member"):
        Ranking(values, np.ones(3, bool))
