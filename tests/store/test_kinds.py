"""Statistics are components: they add to the bits of a store that never held what is gone, and never to tangents."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest
from helpers import FEATURES, assert_rel_close, origin, origin_of_sums, part, sums

import tangent_jax as tj
from tangent_jax.composition.merge import MERGES
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.pretrained.load import load
from tangent_jax.solver.leaves import as_tree, check_leaves, check_lengths, factor_of, with_gram
from tangent_jax.solver.mapped import make_statistics
from tangent_jax.solver.statistics import Settings, Statistics, check_spread, moments
from tangent_jax.store.apart import Shards
from tangent_jax.store.heads import join
from tangent_jax.store.merging import add_all
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import make_provenance
from tangent_jax.store.recipe import StatisticsRecipe
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify, verify_receipt

GRAM, ROOT = 3, 20
"""The numbers of features of which `sums` has G, and R."""


def summed(root, numbers, k=GRAM):
    """A store of `sums` of these numbers, added in this order."""
    store = Store(root)
    for s in numbers:
        store.add(f"shard {s}", sums(s, k), origin_of_sums(s))
    return store


@pytest.mark.parametrize("k", [GRAM, ROOT])
def test_sums_ignore_order_and_history(tmp_path, k):
    never = summed(tmp_path / "never", (0, 2, 3), k)
    store = summed(tmp_path / "store", (3, 1, 0, 2), k)
    assert trees.fingerprint(store.compose()) != trees.fingerprint(never.compose())
    receipt = remove(store, plan_removal(store, names=["shard 1"]))
    assert receipt.composed_after == trees.fingerprint(never.compose()) == trees.fingerprint(store.compose())
    assert verify(store) == verify_receipt(store, receipt.path) == []
    here, there = store.statistics(), never.statistics()
    assert here.classes == there.classes == ("a", "own 0", "own 2", "own 3")
    assert all(np.array_equal(getattr(here, f), getattr(there, f)) for f in ("gram", "sums", "counts"))
    with pytest.raises(InputError, match="examples must not be removed ones; "):
        store.add("back", sums(1, k), origin_of_sums(1))


def test_class_in_two_unicode_forms_is_one(tmp_path):
    store = Store(tmp_path)
    for s, name in enumerate(("caf\u00e9", "cafe\u0301")):
        store.add(f"shard {s}", sums(s), origin_of_sums(s, classes=("a", name)))
    assert store.statistics().classes == ("a", "caf\u00e9")


def test_class_of_one_contributor_is_whole(tmp_path):
    total = summed(tmp_path / "two", (0, 1)).statistics()
    assert total.classes == ("a", "own 0", "own 1")
    np.testing.assert_array_equal(total.counts, [10, 4, 4])
    np.testing.assert_array_equal(total.sums[2], sums(1)["sums"][1])
    np.testing.assert_allclose(total.sums[0], sums(0)["sums"][0] + sums(1)["sums"][0], rtol=1e-15)
    np.testing.assert_array_equal(total.gram[np.triu_indices(3)], sums(0)["gram"] + sums(1)["gram"])
    np.testing.assert_array_equal(total.gram, total.gram.T)
    assert total.source == FEATURES.identity(origin_of_sums(0).anchor)
    alone = Store(tmp_path / "alone")
    alone.add("all", total.tree, origin_of_sums(7, classes=total.classes))
    assert trees.fingerprint(alone.statistics().tree) == trees.fingerprint(total.tree)


def test_sum_with_roots_is_that_of_g(tmp_path):
    """Bit for bit that of R^T R in the order of names, and to rounding that of the rows."""
    kept = {f"shard {s}": sums(s, ROOT) for s in range(5)}
    assert all(sorted(tree) == ["counts", "root", "sums"] for tree in kept.values())
    kept["shard 2"] = with_gram(kept["shard 2"])  # as a store of before has it
    store, want, exact = Store(tmp_path), np.zeros((ROOT, ROOT)), np.zeros((ROOT, ROOT))
    for s in (4, 2, 0, 3, 1):
        store.add(f"shard {s}", kept[f"shard {s}"], origin_of_sums(s))
    for s in range(5):
        root = factor_of(sums(s, ROOT))
        want = want + root.T @ root
        rows = np.random.default_rng(s).standard_normal((9, ROOT))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        exact = exact + rows.T @ rows
        own, few = store.path(f"shard {s}").stat().st_size, sorted(kept[f"shard {s}"]) == ["counts", "root", "sums"]
        assert not few or own < 8 * (9 * ROOT + 2 * ROOT) + 3000  # a row an image, not G
    total = store.statistics()
    assert sorted(store.compose()) == sorted(total.tree) == ["counts", "gram", "sums"]
    np.testing.assert_array_equal(total.gram, want)
    np.testing.assert_array_equal(store.compose()["gram"], want[np.triu_indices(ROOT)])
    assert_rel_close(total.gram, exact)
    other = Store(tmp_path / "other")
    add_all(other, store)
    assert trees.fingerprint(other.sum()) == trees.fingerprint(store.sum())
    both = {name: tj.Component(kept[name], origin_of_sums(int(name[-1]))) for name in ("shard 0", "shard 1")}
    np.testing.assert_array_equal(tj.compose(both)["gram"], tj.statistics(both).tree["gram"])
    lone = tj.statistics({"shard 0": both["shard 0"]})
    assert sorted(lone.tree) == ["counts", "gram", "sums"]


def test_two_kinds_never_add(tmp_path):
    store = summed(tmp_path / "sums", (0,))
    with pytest.raises(InputError, match=r"method must be statistics; got taft"):
        store.add("tangent", part(1), origin(1))
    with pytest.raises(InputError, match=r"must hold at least one component; got none"):
        Store(tmp_path / "empty").statistics()
    for call in (join, *(lambda store, how=how: store.compose(how=how) for how in [*MERGES][1:])):
        with pytest.raises(InputError, match=r"components must be tangent weights; got statistics"):
            call(store)
    assert [*store] == ["shard 0"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"features": dataclasses.replace(FEATURES, seed=1)}, "features must be FeatureSettings"),
        ({"anchor": "0"}, "anchor must be"),
        ({"classes": ("a", "a")}, "names of classes must differ"),
        ({"classes": ("a",)}, r"counts must have shape \(1,\)"),
        ({"features": dataclasses.replace(FEATURES, parts=("relu",))}, "features"),
    ],
)
def test_other_statistics_are_refused_by_field(tmp_path, changes, match):
    store = summed(tmp_path, (0,))
    with pytest.raises(InputError, match=match):
        store.add("other", sums(1), origin_of_sums(1, **changes))
    assert [*store] == ["shard 0"]
    assert verify(store) == []


def in_gram(tree, i, j, more):
    """The leaves with a number added to one of G, of three features."""
    gram = tree["gram"].copy()
    gram[[(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)].index((i, j))] += more
    return {**tree, "gram": gram}


def lone(tree):
    """The leaves of a class of equal images whose G is not that of their features."""
    sums = np.array([[0.0, 0, 0], [50, 0, 0]])
    return {"counts": np.array([0.0, 50.0]), "gram": np.array([25.0, 0, 0, 25, 0, 0]), "sums": sums}


WRONG = {
    "NaN": (lambda t: {**t, "gram": t["gram"] * np.nan}, "gram must be finite; got NaN or infinity"),
    "a triangle of another size": (lambda t: {**t, "gram": t["gram"][:-1]}, r"gram must have shape \(6,\); got \(5,\)"),
    "negative counts": (lambda t: {**t, "counts": -t["counts"]}, "counts must be whole numbers >= 0; got -5"),
    "counts in parts": (lambda t: {**t, "counts": t["counts"] / 2}, "counts must be whole numbers >= 0; got 2.5"),
    "counts beyond f64": (lambda t: {**t, "counts": t["counts"] + 1e300}, "counts must be whole numbers >= 0; got 1e"),
    "a square": (lambda t: {**t, "gram": np.eye(3)}, r"gram must have shape \(6,\); got \(3, 3\)"),
    "f32": (lambda t: jax.tree.map(np.float32, t), "counts must be float64; got float32"),
    "a leaf too few": (lambda t: {"gram": t["gram"], "sums": t["sums"]}, "the leaves must be counts, gram, sums"),
    "sums of no class": (lambda t: {**t, "sums": t["sums"][0]}, "must have shape"),
    "no image": (lambda t: jax.tree.map(np.zeros_like, t), "statistics must be of one image at least; got none"),
    "G negated": (lambda t: {**t, "gram": -t["gram"]}, "G must have a trace of 9, the number of images, in part 1"),
    "G halved": (lambda t: {**t, "gram": t["gram"] / 2}, "G must have a trace of 9, .*; got 4.5"),
    "more counts": (lambda t: {**t, "counts": t["counts"] + 1}, "G must have a trace of 11, .*; got 9"),
    "huge sums": (lambda t: {**t, "sums": t["sums"] * 1e200}, "sums must hold numbers no larger than the counts"),
    "huge G": (lambda t: in_gram(t, 0, 1, 1e200), "gram must hold numbers no larger than the counts; got 1e[+]200"),
    "sums too long": (lambda t: {**t, "sums": np.full((2, 3), 3.9)}, "must be no longer than its count"),
    "sums of an empty class": (
        lambda t: {**t, "counts": np.array([0.0, 9.0])}, "sums must hold numbers no larger than the counts"),
    "G of a negative direction": (lambda t: in_gram(t, 0, 1, 8.0), "positive semi-definite to rounding; got sums"),
    "less spread than means have": (lone, "must be positive semi-definite to rounding; got sums of no images"),
}  # fmt: skip


def packed(rows):
    """The root of rows that are one."""
    return np.concatenate([row[place:] for place, row in enumerate(rows)])


def alone(tree):
    """The leaves of a class of equal images whose root is not that of their features."""
    root = packed(4.5**0.5 * np.eye(2, ROOT))
    return {**tree, "counts": np.array([0.0, 9.0]), "root": root, "sums": 9 * np.eye(2, ROOT)[[1]] * [[0], [1]]}


def beyond(tree):
    """The leaves with sums of images that the root has not: orthogonal to its rows."""
    across = np.linalg.svd(factor_of(tree))[2][-2:]
    return {**tree, "sums": tree["counts"][:, None] * across}


def one_for_all(tree):
    """The leaves with sums of one image of the root, as often as its class has images."""
    row = factor_of(tree)[-1]
    return {**tree, "sums": tree["counts"][:, None] * row / np.linalg.norm(row)}


def of_fewer(tree):
    """The leaves of five images, and a root of nine rows."""
    return {"counts": np.array([3.0, 2.0]), "root": tree["root"] * (5 / 9) ** 0.5, "sums": tree["sums"] / 4}


NO_ROWS = "root must hold n k - n [(]n - 1[)] / 2 numbers, of n < k rows of k = 20 features; got shape"
NO_IMAGES = "must be positive semi-definite to rounding; got sums of no images"
WRONG_ROOTS = {
    name: WRONG[name]
    for name in (
        "negative counts", "counts in parts", "counts beyond f64", "f32", "no image",
        "more counts", "huge sums", "sums of an empty class",
    )
} | {
    "NaN": (lambda t: {**t, "root": t["root"] * np.nan}, "root must be finite; got NaN or infinity"),
    "numbers of no rows": (lambda t: {**t, "root": t["root"][:-1]}, rf"{NO_ROWS} \(143,\)"),
    "rows that are not packed": (lambda t: {**t, "root": factor_of(t)}, rf"{NO_ROWS} \(9, 20\)"),
    "as many rows as features": (lambda t: {**t, "root": with_gram(t)["gram"]}, rf"{NO_ROWS} \(210,\)"),
    "no row": (lambda t: {**t, "root": t["root"][:0]}, "G must have a trace of 9, .*; got 0"),
    "a root and G": (
        lambda t: {**t, **with_gram(t)}, "the leaves must be counts, gram, sums, or root instead of gram; got counts"),
    "sums of no class": (lambda t: {**t, "sums": t["sums"][0]}, "of k = 0 features; got shape"),
    "a root alone": (lambda t: {"root": t["root"]}, "or root instead of gram; got root"),
    "more rows than images": (of_fewer, "root must have a row for each of 5 images at most; got 9 rows"),
    "halved": (lambda t: {**t, "root": t["root"] / 2}, "G must have a trace of 9, .*; got 2.25"),
    "huge": (lambda t: {**t, "root": t["root"] * 1e200}, "root must hold numbers no larger than the counts"),
    "sums too long": (lambda t: {**t, "sums": np.full((2, ROOT), 2.0)}, "must be no longer than its count"),
    "less spread than means have": (alone, NO_IMAGES),
    "sums across the rows": (beyond, NO_IMAGES),
    "sums of one row": (one_for_all, NO_IMAGES),
}  # fmt: skip
CASES = [(GRAM, *WRONG[name]) for name in WRONG] + [(ROOT, *WRONG_ROOTS[name]) for name in WRONG_ROOTS]
NAMES = [*WRONG, *(f"root: {name}" for name in WRONG_ROOTS)]


@pytest.mark.parametrize(("k", "change", "match"), CASES, ids=NAMES)
def test_impossible_statistics_are_refused(tmp_path, k, change, match, monkeypatch):
    wrong = change(sums(1, k))
    store = summed(tmp_path, (0,), k)
    with pytest.raises(InputError, match=match):
        store.add("wrong", wrong, origin_of_sums(1))
    with monkeypatch.context() as patch:  # a store that another program wrote
        for check in ("check_component", "check_beside"):
            patch.setattr(f"tangent_jax.store.store.{check}", lambda *_, **__: None)
        store.add("wrong", wrong, origin_of_sums(1))
    with pytest.raises(InputError, match=f"component wrong: .*{match}"):
        store.statistics().solve()
    other = tj.Store(tmp_path / "other")
    with pytest.raises(InputError, match=match):
        add_all(other, store)
    assert "wrong" not in other


def unit_rows(rows, sizes):
    """Rows whose parts have length 1, in f32, as a feature map gives them."""
    parts = np.split(np.asarray(rows, np.float32), np.cumsum(sizes)[:-1], 1)
    return np.concatenate([part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts], 1)


def check_whole(rows, targets, classes, sizes):
    """Makes all checks of the statistics of rows, and of their G; the statistics."""
    tree = as_tree(*moments(rows, targets, classes))
    assert ("root" in tree) == (len(rows) < sum(sizes) / 2)
    for own in (tree, with_gram(tree)):
        assert check_leaves(own, classes) == sum(sizes)
        check_lengths(own, sizes)
        check_spread(own, sizes)
    return tree


FEW = {  # the numbers of distinct images, of times each, of classes; True: a class has equal images
    "one image": (1, 1, 1, False),
    "an image 100 times": (1, 100, 1, True),
    "an image 100 times in seven classes": (1, 100, 7, False),
    "two equal images of two classes": (1, 2, 2, False),
    "images of one class": (50, 1, 1, False),
    "a class for each image": (50, 1, 50, False),
    "one less than half of the features": (119, 1, 4, False),
    "images three times in their classes": (30, 3, 30, True),
    "images three times, each time in another class": (30, 3, 90, False),
}


@pytest.mark.parametrize("mean", [0, 50])
@pytest.mark.parametrize("kind", ["dense", "equal features", "dead features"])
@pytest.mark.parametrize("case", FEW)
def test_what_few_images_sum_to_passes(case, kind, mean):
    distinct, times, classes, is_sorted = FEW[case]
    sizes = (80, 160)
    rows = np.random.default_rng(0).standard_normal((distinct, 240)) + mean
    if kind != "dense":
        rows[:, :60] = rows[:, :1] if kind == "equal features" else 0
    rows = np.repeat(unit_rows(rows, sizes), times, 0)
    places = np.arange(len(rows))
    targets = places // times if is_sorted else places % classes
    check_whole(rows, targets, classes, sizes)


def test_what_many_images_sum_to_passes():
    rows = unit_rows(np.random.default_rng(0).standard_normal((30, 84)) + 2, (20, 64))[np.arange(100_000) % 30]
    check_whole(rows, np.arange(100_000) % 30 % 4, 4, (20, 64))


MOVED = [("longer", by, passes) for by, passes in ((1e-6, False), (-1e-6, True), (1e-10, False), (1e-15, True))]
MOVED += [("across the rows", by, passes) for by, passes in ((1e-3, False), (1e-5, False), (1e-13, True))]


@pytest.mark.parametrize(("how", "by", "passes"), MOVED)
def test_sums_are_held_within_rounding(how, by, passes):
    """Of equal images, whose sum is as long as can be, and of images that differ."""
    rows = unit_rows(np.random.default_rng(0).standard_normal((60, 240)), (80, 160))
    rows, targets = (rows[np.zeros(60, int)], np.zeros(60, int)) if how == "longer" else (rows, np.arange(60))
    tree = check_whole(rows, targets, targets.max() + 1, (80, 160))
    moved = {
        **tree,
        "sums": tree["sums"] * (1 + by) if how == "longer" else tree["sums"] + by * np.linalg.svd(rows)[2][-1],
    }
    for own in (moved, with_gram(moved)):
        with contextlib.nullcontext() if passes else pytest.raises(InputError, match=NO_IMAGES):
            check_spread(own, (80, 160))


def test_another_root_of_the_same_g_passes():
    """Rows of no image are anywhere in it, not at its end; it is refused if the least squares are not refined."""
    rows = np.random.default_rng(0).standard_normal((30, 240))
    rows[:, :60] = 0
    rows = np.repeat(unit_rows(rows, (80, 160)), 3, 0)
    tree = as_tree(*moments(rows, np.arange(90), 90))
    turned = np.linalg.qr(np.random.default_rng(1).standard_normal((90, 90)))[0] @ rows
    other = {**tree, "root": packed(np.linalg.qr(turned, mode="r"))}
    assert_rel_close(with_gram(other)["gram"], with_gram(tree)["gram"])
    check_spread(other, (80, 160))


def test_swapped_feature_parts_are_refused():
    sizes = (20, 64)
    rows = unit_rows(np.random.default_rng(0).standard_normal((50, 84)), sizes)
    swapped = as_tree(*moments(np.roll(rows, 64, 1), np.arange(50) % 4, 4))
    with pytest.raises(InputError, match="G must have a trace of 50, the number of images, in part 1 of the features"):
        check_lengths(swapped, sizes)


def test_asymmetric_gram_is_refused():
    gram = np.arange(9.0).reshape(3, 3)
    skew = Statistics(gram, np.ones((1, 3)), np.ones(1), ("a",), (3,), "")
    with pytest.raises(InputError, match="G must be symmetric; got another"):
        _ = skew.tree


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(recipe, data set, its map, a cache)."""
    recipe = StatisticsRecipe(features=FeatureSettings(directions=2, width=16))
    data, cache = open_dataset("digits"), tj.Cache(tmp_path_factory.mktemp("cache"))
    return recipe, data, recipe.predictor(data.classes, load("builtin")), cache


@pytest.fixture
def digits(built):
    """(recipe, data set, its map, 60 of its training images as features in a cache, the cache).

    Opened by each test: what is open sees that another test removed an image.
    """
    recipe, data, map_, cache = built
    return recipe, data, map_, tj.extract(map_, data.train.take(np.arange(60)), cache), cache


def fill(root, digits, shards):
    recipe, data, built, train, _ = digits
    store = Store(root)
    tj.store.fill(store, Shards(built, train, recipe, shards, data.classes))
    return store


def weights(store):
    return {name: entry.weights for name, entry in store.state.components.items()}


def test_remade_shard_has_bits_of_survivors(tmp_path, digits):
    shards = {f"s{i}": np.arange(20 * i, 20 * i + 20) for i in range(3)}
    store = fill(tmp_path / "store", digits, shards)
    assert store.provenance("s1").features == FeatureSettings(blocks=4, directions=2, width=16)
    gone = [digits[3].examples[row][0] for row in (20, 27)]
    plan = plan_removal(store, examples=gone)
    assert plan.components["s1"].left == 18
    assert [*plan.components["s1"].impossible] == ["exact"]
    receipt = remove(store, plan, "retrain", cache=digits[4])
    assert [*receipt.retrained] == ["s1"]
    assert receipt.distance_bounds == {}
    assert any(trace.kind == "rows" for trace in receipt.deleted)
    never = fill(tmp_path / "never", digits, {**shards, "s1": np.setdiff1d(shards["s1"], [20, 27])})
    assert weights(store) == weights(never)
    assert receipt.composed_after == trees.fingerprint(never.compose())
    before = store.path("s0").stat().st_mtime_ns
    fill(store.root, digits, shards)  # nothing is made again
    store.reload()
    assert store.path("s0").stat().st_mtime_ns == before
    assert trees.fingerprint(store.compose()) == receipt.composed_after


def test_store_head_exports_its_outputs(tmp_path, digits):
    recipe, data, built, train, _ = digits
    store = fill(tmp_path / "store", digits, {"a": np.arange(25), "b": np.arange(25, 60)})
    total = store.statistics()
    whole = make_statistics(built, train, data.classes)
    assert_rel_close((total + whole).gram, 2 * whole.gram, 1e-6)
    head = total.of_classes(data.classes).solve(Settings("lda", 0.1))
    predict = tj.store.predictor_of(store.provenance("a"), "a")
    assert tj.evaluate(predict, head, train) > 0.9
    tj.export(tmp_path / "out", predict, head, {"of": {}}, classes=data.classes)
    anchor, again = tj.exports.load_export(tmp_path / "out")
    assert trees.fingerprint(again) == trees.fingerprint(head)
    loaded = recipe.features.of(anchor)
    np.testing.assert_array_equal(tj.outputs(loaded, again, train), tj.outputs(predict, head, train))
    card = (tmp_path / "out/README.md").read_text()
    assert "statistics; outputs: total" in card
    assert "FeatureSettings(parts=" in card
    with pytest.raises(InputError, match=r"head must have a center \(112,\), a kernel \(112, c\) and a bias"):
        tj.export(tmp_path / "bad", predict, {"kernel": head["kernel"]}, {})


def test_private_statistics_are_no_component(digits):
    h = tj.models.feature_map(load("builtin"), ("h",))
    on_sphere = tj.privacy.on_sphere(h, None, digits[3])
    with pytest.raises(InputError, match="a feature map as feature_map makes it; got one of private statistics"):
        make_provenance(on_sphere, classes=digits[1].classes)


def test_handmade_map_states_its_features(tmp_path, digits):
    _, data, built, train, _ = digits
    total = make_statistics(built, train, data.classes)
    made = make_provenance(dataclasses.replace(built, outputs=0), classes=total.classes).trained_on(train, 1.0)
    store = Store(tmp_path)
    store.add("mine", total.tree, made)
    assert trees.fingerprint(store.statistics().tree) == trees.fingerprint(total.tree)
    with pytest.raises(InputError, match="no recipe says how"):
        remove(store, plan_removal(store, examples=[train.examples[0][0]]), "retrain")
