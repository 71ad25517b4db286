"""Recipes: their JSON, the settings that fit each other, and the draws of an anchor."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import tangent_jax as tj
from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.io.records import plain
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.models.subsets import make_subset
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.recipe import Recipe, StatisticsRecipe

NAMES = ("gull", "owl", "wren")
RECIPES = [
    Recipe(),
    Recipe(weights="x.safetensors", architecture="L/16", image_size=(224, 160), dataset="folder:x", order=7, seed=3),
    Recipe(kind="bitfit", blocks=2, new_class_token=True, reset=True, head="named", head_scale=2.0, dtype="bfloat16"),
    Recipe(method="nlft", kind="lora_b", rank=4, head="head.safetensors", learning_rate=0.1, epochs=5, radius=2.0),
    Recipe(kind="adapter", output="tangent", linearization="autodiff", cache_dtype="float16"),
    Recipe(loss="rsl:kappa=5", penalty=0.1, kind="head", solver="optimum", certificate=0.1, passes=9),
    StatisticsRecipe(features=FeatureSettings(("h",), 2, dtype="bfloat16"), dataset="wds:x.tar"),
]


def provenance(recipe):
    """The text of a provenance with this recipe, as JSON has it."""
    fields = plain(tj.store.Provenance("taft", {}, "", "", ("head/bias",)))
    return json.dumps({**fields, "training": {**fields["training"], "recipe": recipe}})


@pytest.mark.parametrize("recipe", RECIPES)
def test_json_of_a_recipe_is_read_as_an_equal_one(recipe):
    read = Provenance.from_json(provenance(plain(recipe))).recipe
    assert (read, hash(read)) == (recipe, hash(recipe))


UNREAD = [
    ({"solver": "optimum"}, {"learning_rate": 0.1, "epochs": 5, "batch_size": 8}),
    ({}, {"certificate": 0.1, "passes": 5, "rank": 4}),
    ({"method": "nlft"}, {"output": "tangent"}),
    ({"head": "clip.safetensors"}, {"head_scale": 2.0}),
    ({"kind": "head"}, {"blocks": 3}),
]


@pytest.mark.parametrize(("settings", "unread"), UNREAD)
def test_settings_that_nothing_reads_make_no_other_recipe(settings, unread):
    recipe = Recipe(**settings)
    assert Recipe(**settings, **unread) == recipe
    assert not {*unread} & {*recipe.settings}
    assert not {*unread} & {*plain(recipe)}


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("ce", "ce"),
        ("rsl:kappa=1.5e1:alpha=1", "rsl"),
        ("rsl:kappa=5.0:alpha=2", "rsl:alpha=2:kappa=5"),
        ("rsl:alpha=0.10", "rsl:alpha=0.1"),
        ("rsl:alpha=1e-5", "rsl:alpha=1e-05"),
        ("rsl:kappa=100000", "rsl:kappa=100000"),
    ],
)
def test_a_loss_in_two_spellings_is_one_recipe(text, spelled):
    """So their components add, and each resumes where the other was stopped."""
    recipe = Recipe(loss=text)
    assert (recipe, recipe.loss) == (Recipe(loss=spelled), spelled)
    assert recipe.objective == tj.make_objective(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": ["taft"]}, "method must be one of taft, nlft; got"),
        ({"kind": {}}, "kind must be one of blocks, .*; got {}"),
        ({"solver": "sgd"}, "solver must be one of adam, optimum; got sgd"),
        ({"radius": 1.0, "solver": "optimum"}, "radius must not be given with solver optimum; got 1.0"),
        ({"reset": True, "kind": "adapter"}, "reset must not be given with kind adapter; got True"),
        ({"new_class_token": True, "kind": "head"}, "new_class_token must not be given with kind head; got True"),
        ({"method": "nlft", "solver": "optimum"}, "method must be taft for solver optimum; got nlft"),
        ({"loss": "hinge"}, "loss must be one of .*; got hinge"),
        ({"penalty": -1.0}, "penalty must be a finite number"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number > 0"),
        ({"head_scale": 0.0}, "head_scale must be a finite number > 0"),
        ({"head": "\x1b[2J"}, "head must have only characters that show"),
        ({"weights": "\x1b[2J"}, "weights must have only characters that show"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, message, untyped):
    with pytest.raises(InputError, match=message):
        Recipe(**settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"momentum": 0.9},
            "recipe of training of a provenance must hold the fields of a Recipe alone; got 'momentum'",
        ),
        ({"epochs": "many"}, "epochs of recipe of .* must be a whole number; got 'many'"),
        ({"loss": 5}, "loss of recipe of .* must be text; got 5"),
        ({"type": "Receipt"}, "recipe of training of a provenance must be an object of type Recipe or"),
    ],
)
def test_json_of_no_recipe_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        Provenance.from_json(provenance(plain(Recipe()) | changes))


def test_settings_of_statistics_are_in_one_dict():
    settings = RECIPES[-1].settings
    assert (settings["weights"], settings["parts"], settings["blocks"]) == ("builtin", ("h",), 2)
    assert "features" not in settings


def anchor_by_hand(seed, leaves, head):
    """The anchor of these settings, by the methods of `Pretrained`, each with its key."""
    pretrained = tj.load("builtin")
    kind, blocks, rank = leaves["kind"], leaves.get("blocks", 1), leaves.get("rank")
    of_head, token, fresh = jax.random.split(jax.random.key(seed), 3)
    pretrained = pretrained.with_head(NAMES if head else 3, of_head)
    if "new_class_token" in leaves:
        pretrained = pretrained.with_class_token(blocks, token)
    if kind == "adapter":
        pretrained = pretrained.with_adapters(rank, blocks, fresh)
    if "reset" in leaves:
        pretrained = pretrained.reset(make_subset(pretrained.model, kind, blocks), fresh)
    if head:
        pretrained = pretrained.with_scaled_head(head["head_scale"])
    return pretrained.with_lora(rank, blocks, fresh) if kind == "lora" else pretrained


@pytest.mark.parametrize("head", [{}, {"head": "named", "head_scale": 2.0}])
@pytest.mark.parametrize(
    "leaves",
    [
        {"kind": "blocks", "blocks": 2, "new_class_token": True, "reset": True},
        {"kind": "bitfit", "reset": True},
        {"kind": "everything"},
        {"kind": "head"},
        {"kind": "head", "reset": True},
        {"kind": "adapter", "blocks": 2, "rank": 4, "new_class_token": True},
        {"kind": "lora", "rank": 4, "new_class_token": True},
    ],
)
def test_anchor_is_drawn_by_seed(leaves, head):
    want = anchor_by_hand(3, leaves, head)
    for method in ("taft", "nlft"):
        predict = Recipe(method=method, seed=3, **leaves, **head).predictor(NAMES)
        assert predict.method == method
        assert predict.model == want.model
        assert trees.fingerprint(predict.w) == trees.fingerprint(want.w)


def test_seeded_draws_keep_their_values():
    w = Recipe(seed=3, reset=True, new_class_token=True).predictor(3).w
    drawn = [w["head"]["kernel"][:2, 0], w["block_5"]["mlp_in"]["kernel"][0, :2]]
    want = [-0.0193123296, -0.0081909709, -0.0066885301, -0.0053872010]
    np.testing.assert_allclose(np.concatenate(drawn), want, rtol=1e-5)


def test_frozen_head_is_above_reset_leaves(tmp_path):
    rows = np.random.default_rng(0).normal(size=(3, 52)).astype(np.float32)
    save_file({"embeddings": rows}, tmp_path / "head.safetensors", {"classes": "\n".join(NAMES)})
    recipe = Recipe(head=str(tmp_path / "head.safetensors"), reset=True, seed=3)
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
    recipe = Recipe(weights="/a/w", head="/a/h", dataset="/a/d")
    moved = recipe.with_places(lambda place: place.removeprefix("/a/"))
    assert moved == dataclasses.replace(recipe, weights="w", head="h", dataset="d")
    assert Recipe().with_places(str.upper) == Recipe(weights="BUILTIN", dataset="DIGITS")


def test_statistics_have_no_factors(untyped):
    with pytest.raises(InputError, match="factors must be of tangent weights; got statistics"):
        StatisticsRecipe().factors(None, None, None)  # pyright: ignore[reportArgumentType]
