"""Rounds of components: each names the moves of its anchor, and a removal repeats them or says what is left."""

import dataclasses
import shutil

import numpy as np
import pytest
from helpers import assert_rel_close

from tangent_jax.core import InputError, trees
from tangent_jax.data.registry import open_dataset
from tangent_jax.models.features import Cache
from tangent_jax.models.load import load
from tangent_jax.solver.problem import make_curvature
from tangent_jax.solver.rounds import fit_rounds
from tangent_jax.store.apart import Shards, fill
from tangent_jax.store.files import write_component
from tangent_jax.store.merge import merge
from tangent_jax.store.plans import plan_removal
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.receipts import read_receipt
from tangent_jax.store.recipe import Recipe
from tangent_jax.store.removal import remove
from tangent_jax.store.retraining import predictor_of
from tangent_jax.store.rounds import fill_rounds, public_move, remove_rounds, round_stores
from tangent_jax.store.store import Store

RECIPE = Recipe(kind="head", solver="optimum", penalty=0.1, passes=4)
SHARDS = {"a": np.arange(0, 30), "b": np.arange(30, 60)}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    cache = Cache(tmp_path_factory.mktemp("cache"))
    predict = RECIPE.predictor(10, load("builtin"))
    features = predict.features(open_dataset("digits").train.take(np.arange(60)), cache)
    return predict, features, cache


@pytest.fixture(scope="module")
def filled(task, tmp_path_factory):
    root = tmp_path_factory.mktemp("rounds") / "mine"
    return root, fill_rounds(root, Shards(*task[:2], RECIPE, SHARDS), 3)


@pytest.fixture
def root(filled, tmp_path):
    """A copy: of stores that are no longer where the moves say, but for reading."""
    shutil.copytree(filled[0], tmp_path / "mine")
    return tmp_path / "mine"


def test_rounds_that_go_on_have_the_bits_of_those_that_never_stopped(task, filled, tmp_path):
    root, rounds = filled
    fill_rounds(tmp_path / "other", Shards(*task[:2], RECIPE, SHARDS), 1)
    on = fill_rounds(tmp_path / "other", Shards(*task[:2], RECIPE, SHARDS), 3)
    again = fill_rounds(root, Shards(*task[:2], RECIPE, SHARDS), 3)
    for others in (on, again):
        assert [trees.fingerprint(r.total) for r in others] == [trees.fingerprint(r.total) for r in rounds]
    assert not any(store.verify() for store in round_stores(root))


def test_a_component_names_the_moves_of_its_anchor_and_all_that_they_saw(task, filled):
    root, rounds = filled
    stores = round_stores(root)
    assert [len(store.provenance("a").moves) for store in stores] == [0, 1, 2]
    origin = stores[2].provenance("a")
    first, second = origin.moves
    assert first.components == {name: trees.fingerprint(stores[0][name]) for name in stores[0]}
    assert {pair for pair in first.examples} == {*task[1].examples}
    assert second.examples == ()  # saw no others
    assert (first.merge, first.penalty, first.size) == ("inputs", 0.1, rounds[0].size)
    assert {*origin.images_seen} == {*task[1].examples}
    assert len(origin.images_seen) == 60
    assert Provenance.from_json(origin.to_json()) == origin
    assert trees.fingerprint(predictor_of(origin, "a").w) == trees.fingerprint(rounds[2].predict.w)


def test_components_of_two_anchors_never_add(filled):
    first, second, _ = round_stores(filled[0])
    with pytest.raises(InputError, match=r"expected (anchor|head) .*Components are summed only at one anchor|head"):
        first.add("c", second["a"], second.provenance("a"))


def test_two_shards_of_the_same_images_are_one(task):
    """A store refuses the same numbers under two names, so they are merged here."""
    predict, features, _ = task
    objective = RECIPE.objective()

    def of_one(here, _):
        return RECIPE.fit(here, features).dw

    def of_two(here, before):
        dw = of_one(here, before)
        factors = make_curvature(here, features, objective, dw)
        return merge({"a": dw, "b": dw}, {"a": factors, "b": factors}, "inputs", RECIPE.penalty)

    one, two = (fit_rounds(predict, features, objective, fit, 3) for fit in (of_one, of_two))
    assert [each.size for each in one] == [each.size for each in two]
    assert_rel_close(two[-1].total, one[-1].total, 1e-4)


def test_a_removal_at_the_last_round_alone_is_refused_or_named_as_incomplete(task, root, filled):
    gone = task[1].examples[3][0]
    last = Store(filled[0] / "round 03")
    plan = plan_removal(last, examples=[gone])
    assert {*plan.components} == {"a", "b"}  # the anchor of both saw it
    assert all("they moved its anchor" in holding.impossible["retrain"] for holding in plan.components.values())
    with pytest.raises(InputError, match="they moved its anchor: repeat the rounds"):
        remove(last, plan, "retrain")
    copy = Store(root / "round 03", trust=True)
    receipt = remove(copy, plan_removal(copy, names=["a"]))
    assert len(receipt.anchors) == 1
    assert "of b: 30 removed images moved it in earlier rounds" in receipt.anchors[0]
    assert read_receipt(receipt.path)[0].anchors == receipt.anchors
    assert not copy.state.forgotten  # the anchor holds them


@pytest.mark.parametrize("how", ["retrain", "exact"])
def test_a_removal_repeats_the_rounds_from_the_first_that_saw_the_images(task, tmp_path, how):
    predict, features, cache = task
    root = tmp_path / "mine"
    recipe = dataclasses.replace(RECIPE, passes=40, certificate=1e-3)
    fill_rounds(root, Shards(predict, features, recipe, SHARDS), 3)
    kept = round_stores(root)[0].state.components["b"]
    gone = features.examples[3][0]
    receipts = remove_rounds(root, examples=[gone], how=how, cache=cache)
    assert [sorted(receipt.removed) for receipt in receipts] == [["a", "b"], ["a", "b"], ["a"]]
    assert not any(receipt.anchors for receipt in receipts)
    assert [*receipts[-1].optima] == ["a"]
    assert not [line for line in receipts[-1].not_reached if "another store" in line]
    stores = round_stores(root)
    assert [[*store] for store in stores] == [["a", "b"]] * 3
    assert stores[0].state.components["b"] == kept
    for store in stores:
        for name in store:
            assert gone not in {identifier for identifier, _ in store.provenance(name).images_seen}
    left = features.take(np.delete(np.arange(60), 3))
    shards = {"a": np.arange(29), "b": np.arange(29, 59)}
    fresh = fill_rounds(tmp_path / "fresh", Shards(predict, left, recipe, shards), 3)
    again = fill_rounds(root, Shards(predict, left, recipe, shards), 3)  # trains nothing: all are there
    assert [store.state.components for store in round_stores(root)] == [store.state.components for store in stores]
    distance = trees.norm(trees.along(again[-1].total, -1.0, fresh[-1].total)) / trees.norm(fresh[-1].total)
    assert distance < 0.05  # Lambda stays what it was in the round that lost an image


def test_a_removal_that_was_killed_is_completed_by_the_next_call(task, tmp_path):
    predict, features, cache = task
    root = tmp_path / "mine"
    fill_rounds(root, Shards(predict, features, RECIPE, SHARDS), 3)
    gone = features.examples[40][0]
    for store in round_stores(root)[:0:-1]:  # as far as a killed call came
        remove(store, plan_removal(store, examples=[gone]), cache=cache)
    receipts = remove_rounds(root, examples=[gone], cache=cache)
    assert [sorted(receipt.removed) for receipt in receipts] == [["b"]]
    assert [[*store] for store in round_stores(root)] == [["a", "b"]] * 3
    shutil.rmtree(root / "round 03")
    assert remove_rounds(root, examples=[gone], cache=cache) == []


def test_an_anchor_of_public_images_takes_a_removal_whole(task, tmp_path):
    _, features, cache = task
    public, own = features.take(np.arange(20)), features.take(np.arange(20, 60))
    network = dataclasses.replace(RECIPE, method="nlft", solver="adam", epochs=2)
    move = public_move(tmp_path / "anchor", network.predictor(10, load("builtin")), public, network)
    assert move.public
    recipe = dataclasses.replace(RECIPE, moves=(move,))
    here = recipe.predictor(10, load("builtin"))
    assert make_provenance(here, recipe).public == public.examples
    store = Store(tmp_path / "store")
    fill(store, Shards(here, own, recipe, {"a": np.arange(20), "b": np.arange(20, 40)}))
    assert store.provenance("a").public == public.examples
    plan = plan_removal(store, examples=[own.examples[3][0]])
    assert [*plan.components] == ["a"]
    receipt = remove(store, plan, "retrain", cache=cache)
    assert [*receipt.retrained] == ["a"]
    assert receipt.anchors == ()
    asked = plan_removal(store, examples=[public.examples[0][0]])
    assert {*asked.components} == {"a", "b"}
    with pytest.raises(InputError, match="public images went into its anchor"):
        remove(store, asked, "retrain")
    first = Shards(recipe.first_predictor(10, load("builtin")), own, recipe, {"a": np.arange(40)})
    rounds = fill_rounds(tmp_path / "rounds", first, 2)
    assert trees.fingerprint(rounds[0].predict.w) == trees.fingerprint(here.w)
    assert [m.public for m in round_stores(tmp_path / "rounds")[1].provenance("a").moves] == [True, False]


def test_an_altered_composition_is_no_step_of_an_anchor(filled, tmp_path):
    origin = round_stores(filled[0])[1].provenance("a")
    (move,) = origin.moves
    other = tmp_path / "other.safetensors"
    write_component(other, round_stores(filled[0])[1]["b"], {})

    def at(file):
        recipe = dataclasses.replace(origin.recipe, moves=(dataclasses.replace(move, file=str(file)),))
        return dataclasses.replace(origin, recipe=recipe)

    with pytest.raises(InputError, match=r"the step of move 1 of the anchor in .*; got another one"):
        predictor_of(at(other), "a")
    with pytest.raises(InputError, match=r"no such file\. Repeat its rounds"):
        predictor_of(at(tmp_path / "none.safetensors"), "a")
    with pytest.raises(InputError, match="which a file names that was not written on this machine"):
        predictor_of(dataclasses.replace(origin, is_own=False), "a")


def test_a_named_head_has_no_rounds(task, tmp_path):
    with pytest.raises(InputError, match="one head for all shards; got a named head"):
        fill_rounds(tmp_path, Shards(*task[:2], dataclasses.replace(RECIPE, head="named"), SHARDS))


def test_a_folder_without_rounds_is_refused(tmp_path):
    with pytest.raises(InputError, match="a folder of rounds"):
        remove_rounds(tmp_path, examples=["x"])
