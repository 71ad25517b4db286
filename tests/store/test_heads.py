"""Heads of their own on one body: drawn by name, joined over all classes, kept apart; and taken out again."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from demo import Demo
from helpers import components, composed, in_long, normal, tree_normal
from photos import photographs, picture

from tangent_jax.composition.component import Component
from tangent_jax.composition.compose import compose
from tangent_jax.composition.factors import body_factors, widen_factors
from tangent_jax.composition.merge import merge
from tangent_jax.composition.origin import check_same
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.core.trees import body
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.heads import head_of, restrict, widen
from tangent_jax.models.predict import tangent
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load
from tangent_jax.solver.problem import make_curvature
from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.heads import join, union
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import make_provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import remove
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify_receipt
from tangent_jax.train.batches import Batches
from tangent_jax.train.evaluate import outputs

KEY, NAMES = jax.random.key(0), ("heron", "wren", "gull", "owl")
CONFIG = ViTConfig(width=12, depth=1, heads=3, mlp_width=20, patch_size=4, image_size=8, classes=0)


def headless():
    model = VisionTransformer(CONFIG)
    w = {path: normal(i, shape) for i, (path, shape) in enumerate(model.shapes().items())}
    return Pretrained(model, trees.nest(w), "here")


def test_class_is_drawn_by_its_name():
    many, few = headless().with_head(NAMES, KEY), headless().with_head(("owl", "wren"), KEY)
    assert trees.fingerprint(head_of(many.w, NAMES, ("owl", "wren"))) == trees.fingerprint(few.w["head"])
    kernel = np.asarray(many.w["head"]["kernel"])
    assert len({column.tobytes() for column in kernel.T}) == 4
    assert np.std(kernel) == pytest.approx(0.01, rel=0.4)
    other = headless().with_head(NAMES, jax.random.key(1)).w["head"]["kernel"]
    assert not np.any(np.asarray(other) == kernel)


@pytest.mark.parametrize("names", [(), ("owl", "owl"), "owl"])
def test_indistinct_classes_are_refused(names):
    with pytest.raises(InputError, match=r"(classes must be their number|names of classes must differ)"):
        headless().with_head(names, KEY)


@pytest.mark.parametrize("output", ["total", "tangent"])
def test_few_classes_are_part_of_more(output):
    whole = tangent(headless().with_head(NAMES, KEY), output=output)
    own = restrict(whole, NAMES, ("owl", "heron"))
    dw = tree_normal(5, own.zeros())
    wide, x = widen(whole, NAMES, dw, ("owl", "heron")), normal(2, (3, *whole.model.input_shape(whole.subset.stage)))
    assert own.subset.size == sum(leaf.size for leaf in jax.tree.leaves(dw))
    np.testing.assert_allclose(whole(wide, x)[:, [3, 0]], own(dw, x), rtol=1e-5)
    silent = {**wide, **body(whole.zeros())}  # by a head alone the classes it has not seen are 0
    np.testing.assert_allclose(whole(silent, x)[:, [1, 2]], 0, atol=1e-7)
    with pytest.raises(InputError, match=r"classes must be among the 2 given; got 1 others, \['wren'\]"):
        restrict(own, ("owl", "heron"), ("wren",))


# Joined heads


@pytest.mark.parametrize("leaves", [("head/kernel",), ("head/kernel", "head/bias")])
def test_trained_heads_join_to_optimum(x64, leaves):
    """Least squares: each component knows its own classes and images alone, and the joined one is that of all."""
    whole = tangent(headless().with_head(NAMES, KEY), kind="head")
    whole = dataclasses.replace(whole, subset=dataclasses.replace(whole.subset, paths=leaves))
    x, y = np.random.default_rng(0).normal(size=(60, 12)), np.arange(60) % 4
    z = headless().model.apply(jax.tree.map(lambda leaf: leaf.astype(jnp.float64), headless().w), jnp.asarray(x), 2)
    z, parts, factors = np.asarray(z), {}, {}
    z = np.concatenate([z, np.ones((60, 1))], 1) if "head/bias" in leaves else z

    def least_squares(w, z, targets):
        stacked = np.concatenate([np.asarray(w[n], np.float64).reshape(-1, targets.shape[1]) for n in kinds])
        solved = np.linalg.lstsq(z, targets, rcond=None)[0] - stacked
        return {"kernel": solved[:12], "bias": solved[12]} if "head/bias" in leaves else {"kernel": solved}

    kinds = [path.rpartition("/")[2] for path in leaves]
    for own in (NAMES[:2], NAMES[2:]):
        predict, rows = restrict(whole, NAMES, own), np.isin(y, [NAMES.index(name) for name in own])
        labels = np.array([own.index(NAMES[c]) for c in y[rows]])
        own_dw = least_squares(predict.w["head"], z[rows], 15.0 * np.eye(2)[labels])
        dw = {"head": jax.tree.map(jnp.asarray, own_dw)}
        parts[own[0]] = widen(whole, NAMES, dw, own)
        factors[own[0]] = widen_factors(make_curvature(predict, Batches(x[rows], labels)), NAMES, own)
    optimum = least_squares(whole.w["head"], z, 15.0 * np.eye(4)[y])
    for how in ("inputs", "curvature"):
        merged = merge(components(parts, factors), how, 1e-12)["head"]
        # normalised tokens and a bias depend on one another: the outputs are those of the optimum, dw one of several
        got, want = (z @ np.concatenate([np.reshape(dw[n], (-1, 4)) for n in kinds]) for dw in (merged, optimum))
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    expected = widen_factors(make_curvature(whole, Batches(x, y)), NAMES, NAMES)  # the Hessian of the joint objective
    for summed, joint in zip(
        jax.tree.leaves(factors["heron"] + factors["gull"]), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(summed, joint, rtol=1e-6, atol=1e-12)  # blocks of biases are in f32


SETTINGS = {"epochs": 1, "batch_size": 4, "head": "named"}


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    """(a data set of three classes, its recipe, the cache, the features, the predictor of all classes)."""
    root = tmp_path_factory.mktemp("birds")
    recipe = Recipe(**SETTINGS, dataset=f"folder:{photographs(root / 'images', 4, NAMES[:3])}")
    data, cache = open_dataset(recipe.dataset), Cache(root / "cache")
    predict = recipe.predictor(data.classes, load("builtin"))
    return data, recipe, cache, extract(predict, data.train, cache), predict


ROWS = {"a": np.arange(6), "b": np.arange(6, 10), "c": np.arange(10, 12)}


@pytest.fixture(scope="module")
def whole_store(birds, tmp_path_factory):
    """A store of three components: gulls and herons, herons and wrens, wrens."""
    data, recipe, _, features, predict = birds
    assert data.classes == ("gull", "heron", "wren")
    store = Store(tmp_path_factory.mktemp("stores") / "store")
    fill(store, Shards(predict, features, recipe, ROWS, data.classes), factors=True)
    return store


@pytest.fixture
def store(whole_store, tmp_path):
    """A copy of it."""
    return copied(whole_store, tmp_path / "store")


def copied(store, folder):
    return Store(shutil.copytree(store.root, folder))


def test_named_head_has_classes_of_its_images(store, birds):
    data, recipe, _, features, predict = birds
    classes = {name: store.provenance(name).classes for name in store}
    assert classes == {"a": ("gull", "heron"), "b": ("heron", "wren"), "c": ("wren",)}
    assert [store[name].dw["head"]["kernel"].shape[-1] for name in store] == [2, 2, 1]
    before = {name: entry.id for name, entry in store.state.components.items()}
    fill(store, Shards(predict, features, recipe, ROWS, data.classes), factors=True)
    assert {name: entry.id for name, entry in store.state.components.items()} == before
    features.take(np.arange(6)).relabel(data.classes, ("heron", "gull"))
    with pytest.raises(InputError, match="all examples must be of these 1 classes"):
        features.relabel(data.classes, ("heron",))
    with pytest.raises(InputError, match="classes must be names for a head that is named"):
        fill(store, Shards(predict, features, recipe, {"a": np.arange(6)}))


def test_joined_model_ignores_history(store, tmp_path, birds):
    data, _, _, features, predict = birds
    joined = join(store)
    assert joined.classes == union(store.provenance(name).classes for name in store) == ("gull", "heron", "wren")
    for name in store:
        own = store.provenance(name).classes
        alone = restrict(predict, data.classes, own)
        columns = [joined.classes.index(c) for c in own]
        here = outputs(joined.predict, joined.components[name].dw, features.inputs)[:, columns]
        np.testing.assert_allclose(here, outputs(alone, store[name].dw, features.inputs), rtol=1e-4, atol=1e-5)
    other = Store(tmp_path / "other")
    other.add("c", store["c"].dw, store.provenance("c"), store.factors("c"))
    early = join(other)
    other.add("a", store["a"].dw, store.provenance("a"), store.factors("a"))
    assert [*early.components] == ["c"]  # which were checked
    remove(store, plan_removal(store, names=["b"]))
    for how in ("mean", "inputs", "curvature"):
        both = [merge(j.components, how, 1e-4) for j in (join(store), join(other))]
        assert trees.fingerprint(both[0]) == trees.fingerprint(both[1])
    remove(store, plan_removal(store, names=["c"]))
    assert join(store).classes == ("gull", "heron")  # a class of which nobody is left goes
    given = join(store, predict, data.classes)
    assert given.classes == data.classes
    assert given.components["a"].dw["head"]["kernel"].shape[-1] == 3


def test_components_of_own_heads_compose_bodies(store):
    dw = store.compose()
    assert "head" not in dw
    assert trees.fingerprint(dw) == trees.fingerprint(composed({name: body(store[name].dw) for name in store}))
    by_curvature = store.compose(how="curvature", penalty=1e-3)
    factors = {name: body_factors(store.factors(name)) for name in store}
    bodies = {name: body(store[name].dw) for name in store}
    assert trees.fingerprint(by_curvature) == trees.fingerprint(merge(components(bodies, factors), "curvature", 1e-3))
    assert not any(path.startswith("head/") for f in factors.values() for path in (*f.kernels, *f.blocks))
    receipt = remove(store, plan_removal(store, names=["c"]))
    assert verify_receipt(store, receipt.path) == []
    assert receipt.composed_after == trees.fingerprint(composed({name: body(store[name].dw) for name in store}))


def test_classes_in_another_order_are_refused():
    """Their heads have other columns, and are never left out in silence."""
    demo = Demo()
    orders = (["a", "b", "c"], ["c", "a", "b"])
    parts = [Component(demo.dw, make_provenance(demo.predict, classes=order)) for order in orders]
    with pytest.raises(InputError, match=r"must have them in one order; got a, b, c, .* and c, a, b"):
        compose(parts)


@pytest.mark.parametrize("solver", ["adam", *in_long("optimum")])
def test_class_without_images_leaves_head(tmp_path, birds, solver):
    """Retrained, and moved to the optimum: as if the class had never been."""
    data, recipe, _, features, predict = birds
    recipe = Recipe(**SETTINGS, dataset=recipe.dataset, solver=solver, penalty=0.1, certificate=1e-3)
    store, rows = Store(tmp_path / "store"), {"a": np.arange(6)}
    fill(store, Shards(predict, features, recipe, rows, data.classes), factors=True)
    gone = [features.examples[i][0] for i in (4, 5)]
    how = "retrain" if solver == "adam" else "exact"
    remove(store, plan_removal(store, examples=gone), how, cache=Cache(tmp_path / "cache"))  # erases none of birds'
    after = store.provenance("a")
    assert after.classes == ("gull",)
    assert after.config["classes"] == store["a"].dw["head"]["bias"].shape[0] == 1
    if solver == "adam":
        never = Store(tmp_path / "never")
        fill(never, Shards(predict, features, recipe, {"a": np.arange(4)}, data.classes), factors=True)
        assert trees.fingerprint(store["a"].dw) == trees.fingerprint(never["a"].dw)
        assert never.provenance("a").head == after.head
    assert join(store).classes == ("gull",)


# What does not fit


def added(store, birds, name, dataset=None, classes=("gull", "heron"), **changes):
    """Adds a component of other classes, drawn numbers in the place of trained ones."""
    _, recipe, *_ = birds
    recipe = Recipe(**SETTINGS | {"dataset": dataset or recipe.dataset} | changes)
    predict = recipe.predictor(classes, load("builtin"))
    store.add(name, tree_normal(sum(map(ord, name)), predict.zeros()), make_provenance(predict, recipe, classes))
    return store


def test_shared_name_needs_shared_meaning(store, birds):
    store = added(store, birds, "elsewhere", "folder:/crane", ("heron", "crane"))
    message = (
        "each class must have a name of its own; got heron in .* of folder:.*images and in elsewhere of folder:/crane"
    )
    with pytest.raises(InputError, match=message):
        join(store)
    assert join(store, same_classes=("heron",)).classes == ("crane", "gull", "heron", "wren")
    with pytest.raises(InputError, match=r"same_classes must be classes of the components; got herons"):
        join(store, same_classes=("heron", "herons"))


def test_unjoinable_heads_are_refused(store, tmp_path, birds):
    with pytest.raises(InputError, match=r"classes must be among the 2 given; got 1 others, ..wren"):
        join(store, restrict(birds[4], birds[0].classes, ("gull", "heron")), ("gull", "heron"))
    with pytest.raises(InputError, match=r"head must be .*; got"):
        added(store, birds, "other seed", classes=("heron", "wren"), seed=1)  # as the second component has them
    with pytest.raises(InputError, match=r"subset of must be"):
        added(store, birds, "bias", classes=("owl",), kind="bitfit")
    with pytest.raises(InputError, match="the head of drawn must be drawn by the names of its classes; got another"):
        join(added(copied(store, tmp_path / "2"), birds, "drawn", classes=("owl", "gull"), head="drawn"))
    with pytest.raises(InputError, match="the loss of entropy must be a square loss; got ce"):
        join(added(copied(store, tmp_path / "3"), birds, "entropy", classes=("owl",), loss="ce"))
    for other in ("rsl:kappa=5", "rsl:alpha=2", "mse"):  # others say other targets, or weigh them otherwise
        with pytest.raises(InputError, match=f"the loss of target must be rsl, as of the first; got {other}"):
            join(added(copied(store, tmp_path / other), birds, "target", classes=("owl",), loss=other))
    with pytest.raises(InputError, match=r"output must be total; got tangent"):
        added(store, birds, "tangent", classes=("owl",), output="tangent")
    with pytest.raises(InputError, match="output must be total; got tangent"):
        join(store, dataclasses.replace(birds[4], output="tangent"), birds[0].classes)
    with pytest.raises(InputError, match="must hold at least one component; got none"):
        join(Store(tmp_path / "4"))
    with pytest.raises(InputError, match="classes must be names for the head named; got 3"):
        birds[1].predictor(3)
    with pytest.raises(InputError, match="classes must be the names of the 3 outputs, or none; got 2"):
        make_provenance(birds[4], None, ("gull", "heron"))


def test_heads_of_other_classes_differ(tmp_path, birds):
    """Drawn heads of two data sets are the same numbers where their classes are as many."""
    store = Store(tmp_path / "store")
    for name, classes in (("birds", ("gull", "owl")), ("trees", ("ash", "elm"))):
        added(store, birds, name, f"folder:/{name}", classes, head="drawn")
    assert store.provenance("birds").head == store.provenance("trees").head
    assert "head" not in store.compose()


# The data change


def test_other_labels_make_component_stale(tmp_path, birds):
    data, recipe, _, features, predict = birds
    before = make_provenance(predict, recipe, data.classes).trained_on(features, 1.0)
    swapped = dataclasses.replace(features, targets=features.targets[::-1].copy())
    assert before.same_training(make_provenance(predict, recipe, data.classes).trained_on(features, 2.0))
    assert not before.same_training(make_provenance(predict, recipe, data.classes).trained_on(swapped, 1.0))
    assert not before.same_training(make_provenance(predict, recipe, data.classes[::-1]).trained_on(features, 1.0))
    cropped = dataclasses.replace(predict.model, preprocessing=Preprocessing(crop=0.5))
    other = make_provenance(dataclasses.replace(predict, model=cropped))
    assert not before.same_training(other.trained_on(features, 1.0))
    with pytest.raises(InputError, match=r"preprocessing must be"):
        check_same(before, other)


def test_resampling_keeps_no_components_apart(birds):
    _, _, _, _, predict = birds
    other = dataclasses.replace(predict, model=predict.model.replace(position_filter="bicubic_plain"))
    check_same(make_provenance(predict), make_provenance(other))


@pytest.mark.parametrize("head", ["drawn", "named"])
def test_added_class_leaves_retrained_labels(tmp_path, head):
    """The new class comes first by name, so that the class indices of all others move."""
    folder = photographs(tmp_path / "images", 4, ("heron", "wren"))
    recipe = Recipe(dataset=f"folder:{folder}", kind="head", epochs=20, batch_size=4, learning_rate=0.1, head=head)
    data, cache = open_dataset(recipe.dataset), Cache(tmp_path / "cache")
    predict = recipe.predictor(data.classes, load("builtin"))
    features = extract(predict, data.train, cache)
    store = Store(tmp_path / "store")
    fill(store, Shards(predict, features, recipe, {"a": np.arange(8)}, data.classes))
    for split in ("train", "test"):
        shutil.copytree(folder / split / "wren", folder / split / "auk")
        for path in (folder / split / "auk").iterdir():
            path.write_bytes(picture())
    remove(store, plan_removal(store, examples=[features.examples[0][0]]), "retrain", cache=cache)
    never = Store(tmp_path / "never")
    fill(never, Shards(predict, features, recipe, {"a": np.arange(1, 8)}, data.classes))
    for got, want in zip(jax.tree.leaves(store["a"].dw), jax.tree.leaves(never["a"].dw), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)  # a shard trains in the program of its group
