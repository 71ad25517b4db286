"""Recipes: their parts, their JSON, the flat settings of flags, and the draws of an anchor."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.records import convert, plain
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.models.subsets import make_subset
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.recipe import FLAT, Recipe, StatisticsRecipe, nested, recipe_of
from tangent_jax.store.trained import Adapters, HeadAlone, HeadFile, LowRank, Network, NewHead, OwnLeaves, Tangent
from tangent_jax.store.trainers import Adam, Optimum

NAMES = ("gull", "owl", "wren")
RECIPES = [
    Recipe(),
    Recipe(tj.store.Anchor("x.safetensors", "L/16", (224, 160)), dataset="folder:x", order=7, seed=3),
    Recipe(trained=Tangent(OwnLeaves(2, "bitfit", True, True), NewHead(True, 2.0), "autodiff", "bfloat16", "tangent")),
    Recipe(trained=Network(LowRank(3, 4, kind="lora_b"), HeadFile("head.safetensors")), trainer=Adam(0.1, 5, 8, 2.0)),
    Recipe(trained=Tangent(Adapters(rank=4)), cache_dtype="float16"),
    Recipe(objective=tj.make_objective("rsl:kappa=5", 0.1), trained=Tangent(HeadAlone()), trainer=Optimum(0.1, 9)),
    StatisticsRecipe(features=FeatureSettings(("h",), 2, dtype="bfloat16"), dataset="wds:x.tar"),
]


def provenance(recipe):
    """The text of a provenance with this recipe, as JSON has it."""
    fields = plain(tj.store.Provenance("taft", {}, "", "", ("head/bias",)))
    return json.dumps({**fields, "training": {**fields["training"], "recipe": recipe}})


@pytest.mark.parametrize("recipe", RECIPES)
def test_json_of_a_recipe_is_read_as_an_equal_one(recipe):
    text = provenance(plain(recipe))
    assert Provenance.from_json(text).recipe == recipe
    assert hash(Provenance.from_json(text).recipe) == hash(recipe)


@pytest.mark.parametrize(
    ("changes", "recipe"),
    [
        ({}, Recipe()),
        ({"method": "fc", "reset": True, "new_class_token": True}, Recipe(trained=Tangent(HeadAlone()))),
        ({"kind": "head", "reset": True}, Recipe(trained=Tangent(HeadAlone(reset=True)))),
        ({"method": "nlft", "output": "tangent", "kind": "adapter", "rank": 4},
         Recipe(trained=Network(Adapters(rank=4)))),
        ({"kind": "lora_b", "blocks": 2}, Recipe(trained=Tangent(LowRank(2, kind="lora_b")))),
        ({"head": "named", "head_scale": 2.0}, Recipe(trained=Tangent(head=NewHead(True, 2.0)))),
        ({"head": "clip.safetensors", "reset": True},
         Recipe(trained=Tangent(OwnLeaves(reset=True), HeadFile("clip.safetensors")))),
        ({"solver": "optimum", "passes": 5, "loss": "ce", "penalty": 0.5},
         Recipe(objective=tj.make_objective("ce", 0.5), trainer=Optimum(passes=5))),
        ({"radius": 2.0, "learning_rate": 1, "image_size": [32, 16]},
         Recipe(tj.store.Anchor(image_size=(32, 16)), trainer=Adam(1.0, radius=2.0))),
    ],
)  # fmt: skip
def test_flat_settings_give_a_recipe_of_parts(changes, recipe):
    assert recipe_of(**changes) == recipe_of(**{**FLAT, **changes}) == recipe


def test_flat_settings_have_part_defaults():
    assert recipe_of() == recipe_of(**FLAT) == Recipe()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 0.9}, "settings must be one of .*; got momentum"),
        ({"epochs": "many"}, "epochs of trainer of the settings must be a whole number; got 'many'"),
        ({"method": ["taft"]}, "method must be one of taft, nlft, fc"),
        ({"kind": {}}, "kind must be one of blocks, .*; got {}"),
        ({"solver": "sgd"}, "solver must be one of adam, optimum; got sgd"),
        ({"radius": 1.0, "solver": "optimum"}, "radius must not be given with solver optimum; got 1.0"),
        ({"reset": True, "kind": "adapter"}, "reset must not be given with kind adapter; got True"),
        ({"new_class_token": True, "kind": "head"}, "new_class_token must not be given with kind head; got True"),
        ({"method": "nlft", "solver": "optimum"}, "method must be taft or fc for solver optimum; got nlft"),
        ({"loss": "hinge"}, "loss must be one of .*; got hinge"),
        ({"penalty": -1.0}, "penalty must be a finite number"),
        ({"head_scale": 0.0}, "head_scale must be a finite number > 0"),
        ({"head": "\x1b[2J"}, "head must have only characters that show"),
    ],
)
def test_wrong_flat_settings_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        recipe_of(**changes)


def replaced(value, path, item):
    """The JSON with one item of a part replaced; path: names of parts, and of the item."""
    first, *rest = path
    return {**value, first: replaced(value[first], rest, item) if rest else item}


@pytest.mark.parametrize(
    ("path", "item", "message"),
    [
        (
            ["trainer", "momentum"],
            0.9,
            "trainer of recipe of training of a provenance must hold the fields of a Adam alone; got",
        ),
        (["trainer", "certificate"], 0.1, "must hold the fields of a Adam alone; got 'certificate'"),
        (["trainer", "type"], "Sgd", "trainer of .* must be an object of type Adam or an object of type Optimum; got"),
        (["trained", "leaves", "type"], "Tangent", "leaves of trained of .* must be an object of type OwnLeaves or"),
        (["trained", "leaves", "kind"], "lora", "kind must be one of blocks, bitfit, layernorm, everything; got lora"),
        (["trained", "head", "file"], "x", "head of trained .* must hold the fields of a NewHead alone; got 'file'"),
        (["objective", "loss"], 5, "loss must be one of"),
        (["type"], "Receipt", "recipe of training of a provenance must be an object of type Recipe or"),
        (["anchor", "weights"], "\x1b[2J", "weights must have only characters that show"),
    ],
)
def test_json_of_no_recipe_is_named(path, item, message, untyped):
    with pytest.raises(InputError, match=message):
        Provenance.from_json(provenance(replaced(plain(Recipe()), path, item)))


def test_a_loss_without_a_name_is_in_no_recipe():
    with pytest.raises(InputError, match=r"loss must be one of rsl, .*; got FunctionLoss"):
        Recipe(objective=tj.Objective(lambda outputs, targets: outputs[:, 0]))


def test_recipe_shows_settings_in_one_dict():
    settings = RECIPES[3].settings
    assert settings == {
        "weights": "builtin", "architecture": None, "image_size": None, "dataset": "digits",
        "cache_dtype": None, "order": 1, "trained": "Network", "leaves": "LowRank", "blocks": 3, "rank": 4,
        "new_class_token": False, "kind": "lora_b", "head": "HeadFile", "file": "head.safetensors",
        "linearization": "closed_form", "dtype": "float32", "loss": "rsl", "penalty": 1e-5, "trainer": "Adam",
        "learning_rate": 0.1, "epochs": 5, "batch_size": 8, "radius": 2.0, "seed": 0,
    }  # fmt: skip


def anchor_by_hand(seed, leaves, head):
    """The anchor of leaves and a head, by the methods of `Pretrained`, each with its key."""
    pretrained = tj.load("builtin")
    of_head, token, fresh = jax.random.split(jax.random.key(seed), 3)
    pretrained = pretrained.with_head(NAMES if head.by_name else 3, of_head)
    if leaves.new_class_token:
        pretrained = pretrained.with_class_token(leaves.blocks, token)
    if isinstance(leaves, Adapters):
        pretrained = pretrained.with_adapters(leaves.rank, leaves.blocks, fresh)
    if leaves.reset:
        pretrained = pretrained.reset(make_subset(pretrained.model, leaves.kind, leaves.blocks), fresh)
    if head.scale != 1:
        pretrained = pretrained.with_scaled_head(head.scale)
    return pretrained.with_lora(leaves.rank, leaves.blocks, fresh) if isinstance(leaves, LowRank) else pretrained


@pytest.mark.parametrize("head", [NewHead(), NewHead(True, 2.0)])
@pytest.mark.parametrize(
    "leaves",
    [OwnLeaves(2, new_class_token=True, reset=True), OwnLeaves(1, "bitfit", reset=True), OwnLeaves(1, "everything"),
     HeadAlone(), HeadAlone(reset=True), Adapters(2, 4, True), LowRank(1, 4, True)],
)  # fmt: skip
def test_anchor_is_drawn_by_seed(leaves, head):
    want = anchor_by_hand(3, leaves, head)
    for trained in (Tangent(leaves, head), Network(leaves, head)):
        predict = Recipe(trained=trained, seed=3).predictor(NAMES)
        assert predict.model == want.model
        assert trees.fingerprint(predict.w) == trees.fingerprint(want.w)


def test_seeded_draws_keep_their_values():
    w = recipe_of(seed=3, reset=True, new_class_token=True).predictor(3).w
    drawn = [w["head"]["kernel"][:2, 0], w["block_5"]["mlp_in"]["kernel"][0, :2]]
    want = [-0.0193123296, -0.0081909709, -0.0066885301, -0.0053872010]
    np.testing.assert_allclose(np.concatenate(drawn), want, rtol=1e-5)


def test_frozen_head_is_above_reset_leaves(tmp_path):
    rows = np.random.default_rng(0).normal(size=(3, 52)).astype(np.float32)
    save_file({"embeddings": rows}, tmp_path / "head.safetensors", {"classes": "\n".join(NAMES)})
    recipe = recipe_of(head=str(tmp_path / "head.safetensors"), reset=True, seed=3)
    fresh = jax.random.split(jax.random.key(3), 3)[2]
    head = tj.pretrained.read_frozen_head(tmp_path / "head.safetensors").of_classes(NAMES[::-1])
    want = tj.load("builtin").with_frozen_head(head)
    want = want.reset(make_subset(want.model, "blocks", 1), fresh)
    assert trees.fingerprint(recipe.predictor(NAMES[::-1]).w) == trees.fingerprint(want.w)
    with pytest.raises(InputError, match=r"classes must be names for the head .*; got 3"):
        recipe.predictor(3)


def test_named_shard_has_its_own_order():
    for recipe in RECIPES:
        assert recipe.for_shard("ann") == recipe.for_shard("ann") != recipe.for_shard("bob")


def test_moved_files_keep_the_recipe():
    recipe = Recipe(tj.store.Anchor("/a/w"), Tangent(head=HeadFile("/a/h")), dataset="/a/d")
    moved = recipe.with_places(lambda place: place.removeprefix("/a/"))
    assert (moved.anchor.weights, moved.trained.head.file, moved.dataset) == ("w", "h", "d")
    assert dataclasses.replace(moved, anchor=recipe.anchor, trained=recipe.trained, dataset="/a/d") == recipe


def test_statistics_have_no_factors(untyped):
    with pytest.raises(InputError, match="factors must be of tangent weights; got statistics"):
        StatisticsRecipe().factors(None, None, None)


def test_nested_gives_json():
    assert convert(Recipe, json.loads(json.dumps(nested({}))), "") == Recipe()
