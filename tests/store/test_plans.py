"""A removal's plan and the one call that carries it out: what goes, what it costs, what is refused; whose images."""

import shutil

import jax
import numpy as np
import pytest
from helpers import composed, filled, origin, part
from photos import write

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.data.registry import open_dataset
from tangent_jax.features.extract import Cache, extract
from tangent_jax.models.session import FirstSession
from tangent_jax.pretrained.load import load
from tangent_jax.privacy.mechanism import Mechanism, Spent
from tangent_jax.store import erasure, removal
from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import remove
from tangent_jax.store.retraining import Retrained
from tangent_jax.store.store import Store
from tangent_jax.store.verification import verify

TWINS = (("0" * 64, "a.jpg"), ("1" * 64, "b.jpg"), ("0" * 64, "a copy.jpg"))
WHOSE = {f"photo {i}.jpg": "ann" for i in range(9)}
PRIVATE = Spent(Mechanism(1.0, 9.833, 50, 1e-5), 50, True)
SOLVED = Recipe(solver="optimum", penalty=0.1)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Twelve photographs, of which the last is a twin of the first, and a test set."""
    root = tmp_path_factory.mktemp("photographs")
    write(root, *(f"train/{c}/{i}.png" for c in "ab" for i in range(6)), "test/a/x.png", "test/b/y.png")
    shutil.copy(root / "train/a/0.png", root / "train/b/5.png")
    return root


@pytest.fixture
def trained(photographs, tmp_path):
    """(a store of two shards trained on the photographs, their features, the cache)."""
    recipe = Recipe(dataset=f"folder:{photographs}", kind="head", epochs=1, output="tangent")
    cache = tmp_path / "cache"
    predict = recipe.predictor(2, load("builtin"))
    features = extract(predict, open_dataset(recipe.dataset).train, Cache(cache))
    store, rows = Store(tmp_path / "store"), np.arange(12)
    owners = {name: "ann" if name < "train/a/3" else "bob" for _, name in features.examples}
    fill(store, Shards(predict, features, recipe, {"even": rows[::2], "odd": rows[1::2]}), owners=owners)
    return store, features, Cache(cache)


# What a plan says


def test_plan_counts_twins_with_image(tmp_path):
    store = Store(tmp_path)
    store.add("twins", part(0), origin(0, examples=TWINS))
    plan = plan_removal(store, examples=["a.jpg"])
    holding = plan.components["twins"]
    assert (holding.rows, holding.left) == ((TWINS[0], TWINS[2]), 1)
    assert holding.seconds["retrain"] == pytest.approx(1.5 / 3)
    assert plan.identifiers == ("0" * 64,)


def test_example_is_found_by_name_and_content(tmp_path):
    store, identifier = filled(tmp_path), origin(1).data.examples[0][0]
    store.add("shard 9", part(9), origin(9, examples=((identifier, "a copy.jpg"),)))
    for asked in (identifier, "photo 3.jpg", "a copy.jpg"):
        plan = plan_removal(store, examples=[asked, "f" * 64])
        assert {name: holding.left for name, holding in plan.components.items()} == {"shard 1": 2, "shard 9": 0}
        assert (plan.identifiers, plan.unseen) == ((identifier, "f" * 64), ("f" * 64,))
        rows = [pair for holding in plan.components.values() for pair in holding.rows]
        assert rows == [(identifier, "photo 3.jpg"), (identifier, "a copy.jpg")]


def test_named_component_takes_its_own(tmp_path):
    store = filled(tmp_path)
    store.add("shard 9", part(9), origin(9, examples=origin(1).data.examples[:2]))
    plan = plan_removal(store, names=["shard 1"])
    assert plan.identifiers == (origin(1).data.examples[2][0],)
    assert plan.components["shard 1"].left == 0
    remove(store, plan)
    store.add("again", part(5), origin(5, examples=origin(1).data.examples[:2]))
    with pytest.raises(InputError, match=r"1 were removed from this store, such as photo 5.jpg"):
        store.add("whole", part(6), origin(1))


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, {"exact": "only a component that was solved to its optimum"}),
        ({"recipe": None}, {"retrain": "no recipe says", "exact": "no recipe says"}),
        ({"privacy": PRIVATE}, {"retrain": "without privacy", "exact": "without privacy"}),
        ({"recipe": SOLVED, "total_penalty": 0.3}, {}),
        ({"recipe": SOLVED, "total_penalty": 0.0}, {"exact": "with a penalty above 0"}),
    ],
)
def test_each_way_is_possible_or_says_why_not(tmp_path, changes, reasons):
    store = filled(tmp_path, 2, **changes)
    plan = plan_removal(store, examples=["photo 4.jpg"])
    holding = plan.components["shard 1"]
    assert holding.seconds.keys() == {"drop", "retrain", "exact"} - reasons.keys()
    assert holding.impossible.keys() == reasons.keys()
    for how, reason in reasons.items():
        with pytest.raises(InputError, match=f"shard 1 does not allow how={how}: .*{reason}"):
            remove(store, plan, how)
    assert [*Store(tmp_path)] == ["shard 0", "shard 1"]
    every = plan_removal(store, examples=[name for _, name in origin(1).data.examples])
    assert every.components["shard 1"].impossible == {}  # nothing is left: it is dropped, whatever the way
    remove(store, every, "retrain")
    assert [*Store(tmp_path)] == ["shard 0"]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: plan_removal(s), "exactly one of examples, names and owner must be given; got 0"),
        (lambda s: plan_removal(s, examples=["a"], names=["shard 0"]), "must be given; got 2"),
        (lambda s: plan_removal(s, examples="photo 1.jpg"), "must be lists; got one text"),
        (lambda s: plan_removal(s, names=["nobody"]), "names must be of components; got nobody"),
        (
            lambda s: plan_removal(s, owner="ann"),
            "owner of photo 0.jpg in shard 0 must be known; it recorded none. Ask",
        ),
        (lambda s: remove(s, plan_removal(s, names=["shard 0"]), "burn"), "how must be one of drop, retrain"),
        (lambda s: remove(s, plan_removal(s, names=["shard 0"]), "retrain"), "asked for by its name"),
        (
            lambda s: plan_removal(s, examples=["photo 11.jpg"]),
            "examples must be as components recorded them; got photo 11.jpg, and near it are photo 1.jpg",
        ),
        (
            lambda s: plan_removal(filled(s.root.parent / "b", owners=WHOSE), owner="Anna"),
            "owner must be as components recorded them; got anna, and near it are ann",
        ),
    ],
)
def test_wrong_plan_changes_nothing(tmp_path, call, match):
    store = filled(tmp_path / "a", 2)
    with pytest.raises(InputError, match=match) as error:
        call(store)
    assert "\n" not in str(error.value)
    assert [*Store(tmp_path / "a")] == ["shard 0", "shard 1"]


# What takes its place


def test_retrained_must_not_have_seen_removed(tmp_path, monkeypatch):
    store, erased = filled(tmp_path), []
    monkeypatch.setattr(erasure, "erase_cached", lambda *given: erased.append(given) or erasure.Traces((), ()))
    plan = plan_removal(store, examples=["photo 3.jpg"])
    left = origin(1, examples=origin(1).data.examples[1:])
    bad = Retrained(jax.tree.map(lambda leaf: leaf * np.nan, part(7)), left, 0.5)
    seen = Retrained(part(7), origin(1), 0.5)
    for new, match in ((seen, "must be retrained without what is removed"), (bad, "finite; got NaN")):
        monkeypatch.setattr(removal, "retrain", lambda *_, new=new: new)
        with pytest.raises(InputError, match=match):
            remove(store, plan, "retrain")
    assert erased == []  # nothing outside the store is touched before all is known to be well
    monkeypatch.setattr(removal, "retrain", lambda *_: Retrained(part(7), left, 0.4321))
    receipt = remove(store, plan, "retrain")
    assert len(erased) == 1
    want = composed({"shard 0": part(0), "shard 1": part(7), "shard 2": part(2)})
    assert receipt.composed_after == trees.fingerprint(want)
    assert receipt.distance_bounds == {"shard 1": 0.5}  # rounded up
    assert store.provenance("shard 1").data.examples == left.data.examples
    unbounded = Retrained(part(8), origin(1, examples=left.data.examples[1:]), None)
    monkeypatch.setattr(removal, "retrain", lambda *_: unbounded)
    assert remove(store, plan_removal(store, examples=left.data.examples[0][:1]), "retrain").distance_bounds == {}
    assert verify(store) == []


def test_lost_images_stop_the_removal(trained, photographs):
    store, features, cache = trained
    (photographs / "train/a/2.png").rename(photographs / "train/a/2.away")
    try:
        with pytest.raises(InputError, match="must hold the 5 remaining examples of even; it holds 4 of them"):
            remove(store, plan_removal(store, examples=["train/a/0.png"]), "retrain", cache=cache)
    finally:
        (photographs / "train/a/2.away").rename(photographs / "train/a/2.png")
    assert len(store.provenance("even").data.examples) == 6
    assert np.asarray(features.inputs[0]).any()  # its cached row is there


# By contributor


def test_owner_leaves_every_component(trained, tmp_path):
    store, features, cache = trained  # ann's are a/0, a/1, a/2; a/0 has a twin of bob's
    plan = plan_removal(store, owner="ann")
    assert {name: holding.left for name, holding in plan.components.items()} == {"even": 4, "odd": 4}
    assert (plan.owner, plan.removed) == ("ann", {})
    assert plan.asked == plan.identifiers == tuple(sorted(features.examples[i][0] for i in range(3)))
    receipt = remove(store, plan, "retrain", cache=cache)
    assert receipt.owner == store.key.hide("ann")
    for name, holding in plan.components.items():
        left = store.provenance(name)
        assert len(left.data.examples) == holding.left
        assert left.data.owners.keys() == {image for _, image in left.data.examples}
        assert Provenance.from_json(left.to_json()) == left
    assert {image for name in store for _, image in store.provenance(name).data.examples} == {
        f"train/{c}/{i}.png" for c in "ab" for i in range(6)
    } - {"train/a/0.png", "train/a/1.png", "train/a/2.png", "train/b/5.png"}
    again = plan_removal(store, owner="ann")
    assert (again.components, [*again.removed]) == ({}, ["ann"])
    assert "ann" not in "".join(store.provenance(name).to_json() for name in store)
    assert {*plan_removal(store, owner="bob").components} == {"even", "odd"}


# Images in the anchor


SESSION = FirstSession("0" * 64, "birds", ("gull",), tuple((f"{i:064x}", f"owl/{i}.png") for i in range(90, 93)))


def test_image_in_anchor_alone_is_found(tmp_path):
    store = filled(tmp_path, session=SESSION)
    plan = plan_removal(store, examples=["owl/91.png"])
    assert (plan.components, plan.unseen) == ({}, (f"{91:064x}",))
    (line,) = plan.anchors
    assert line.startswith("1 of the removed images is in the anchor builtin, which was fine-tuned on it: the anchor")
    receipt = remove(store, plan)
    assert receipt.anchors == plan.anchors
    assert len(store) == 3
    assert plan_removal(Store(tmp_path), examples=["photo 0.jpg"]).anchors == ()


def test_account_covers_no_anchor_image(tmp_path):
    examples = ((f"{91:064x}", "copy.jpg"), ("a" * 64, "b.jpg"))
    store = filled(tmp_path, count=1, session=SESSION)
    with pytest.raises(InputError, match="which its account does not cover; 1 are"):
        store.add("private", part(7), origin(0, session=SESSION, privacy=PRIVATE, examples=examples))
    store.add("private", part(7), origin(0, session=SESSION, privacy=PRIVATE, examples=examples[1:]))
