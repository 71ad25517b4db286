"""The plain ViT: sizes, pools, the trunk/tail cut, transformations, other image sizes."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from helpers import TOLERANCE, apply, assert_rel_close, images, normal, small

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig, vit_config
from tangent_jax.models.vit.forward import one_query_input
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.modules import ViT


@pytest.mark.parametrize(
    ("name", "millions"), [("Ti/16", 5.717), ("S/16", 22.05), ("B/32", 88.22), ("L/16", 304.3), ("H/14", 632.0)]
)
def test_named_sizes_have_published_counts(name, millions):
    count = sum(math.prod(shape) for shape in VisionTransformer(vit_config(name)).shapes().values())
    assert abs(count / 1e6 - millions) < 0.05 * 10 ** (len(str(int(millions))) - 2)


def test_linen_module_is_the_same_tree():
    model, w = small(2, layer_scale=True)
    module = ViT(model.config)
    fresh = module.init(jax.random.key(0), images())["params"]
    assert {path: leaf.shape for path, leaf in trees.leaves(fresh).items()} == model.shapes()
    assert_rel_close(module.apply({"params": w}, images()), model.apply(w, images()))


def test_the_input_of_another_stage_is_refused():
    model, w = small(2)
    with pytest.raises(InputError, match=r"inputs of stage 2 must have shape \('b', 6, 12\); got \(2, 5, 12\)"):
        model.apply(w, normal(4, (2, 5, 12)), 2)
    with pytest.raises(InputError, match=r"stages must satisfy 0 <= start <= stop <= 4; got \(2, 5\)"):
        model.apply(w, normal(4, (2, 6, 12)), 2, 5)


def test_weights_in_bfloat16_compute_in_it():
    model, w = small(2)
    got = model.apply(*trees.cast((w, images()), jnp.bfloat16))
    assert got.dtype == jnp.bfloat16
    assert_rel_close(got.astype(jnp.float32), model.apply(w, images()), TOLERANCE["bfloat16"])


def test_class_token_is_replaced_at_block(x64):
    model, w = small(2)
    moved, w2 = model.replace(class_token_at=1), {**w, "new_class_token": w["class_token"] * 3}
    x = apply(model, w, images(), 0, 2)
    x = x.at[:, :2].set(one_query_input(model.config, w2["new_class_token"][None, None])[0])
    assert_rel_close(apply(moved, w2, images()), apply(model, w, x, 2))


def test_headless_model_returns_features(x64):
    model, w = small(1)
    features = model.with_classes(0).apply({k: v for k, v in w.items() if k != "head"}, images())
    assert_rel_close(features @ w["head"]["kernel"] + w["head"]["bias"], model.apply(w, images()))


def test_positions_resample_but_class_token():
    model, w = small(1)
    new, resized = model.with_image_size(w, 16)
    assert resized["position_embedding"].shape == (17, 12)
    assert (resized["position_embedding"][0] == w["position_embedding"][0]).all()
    assert new.apply(resized, images(size=16)).shape == (2, 7)
    assert model.with_image_size(w, 8)[1] is w
    flat = {**w, "position_embedding": jnp.ones((5, 12))}
    assert_rel_close(model.with_image_size(flat, 16)[1]["position_embedding"], jnp.ones((17, 12)))


@pytest.mark.parametrize("path", ["head/kernel", "class_token"])
def test_a_leaf_is_drawn_with_the_same_bits_by_jit(path):
    draw = partial(VisionTransformer(ViTConfig(12, 2, 3, 20, patch_size=4, image_size=8, classes=50)).initial, path)
    assert (draw(jax.random.key(1)) == jax.jit(draw)(jax.random.key(1))).all()


def test_a_leaf_is_drawn_by_its_path_alone():
    config = ViTConfig(12, 2, 3, 20, patch_size=4, image_size=8, classes=7)
    deeper = initial_weights(VisionTransformer(config.replace(depth=3)), jax.random.key(1))
    assert_rel_close(
        initial_weights(VisionTransformer(config), jax.random.key(1)),
        {k: v for k, v in deeper.items() if k != "block_2"},
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"heads": 5}, "width must be a multiple of heads; got width 12"),
        ({"image_size": 3}, "image_size must be at least one patch of 4 pixels; got 3"),
        ({"pool": "max"}, "pool must be one of token, avg, norm_avg, plain_avg, token_avg, token_register, attention"),
        ({"activation": "relu"}, "activation must be one of gelu"),
        ({"depth": 0}, r"depth must be a whole number in 1\.\."),
        ({"positions": "sine"}, "positions must be one of learned, rotary, none"),
        ({"positions": "rotary", "width": 18}, "rotary positions need a multiple of 4 features per head; got 6"),
        ({"class_token": False}, "pool token needs a class token"),
        ({"image_size": (8, 3)}, r"image_size must be at least one patch of 4 pixels; got \(8, 3\)"),
        ({"image_size": (8, 8, 3)}, "image_size must be a side, or height and width"),
        ({"image_size": (8, 0)}, r"image_size must be a whole number in 1\.\.4096"),
        ({"registers": -1}, r"registers must be a whole number in 0\.\."),
        ({"rope_theta": 1.0}, "rope_theta must be a finite number > 1"),
        ({"class_token_at": 2}, r"class_token_at must be in 0\.\.1"),
        ({"class_token_at": 0, "pool": "avg"}, "pool token"),
    ],
)
def test_an_impossible_configuration_is_refused(change, match, untyped):
    with pytest.raises(InputError, match=match):
        small(2)[0].replace(**change)


@pytest.mark.parametrize("name", ["XL/16", "L", "L/15"])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(InputError, match="a ViT's name must be SIZE/PATCH"):
        vit_config(name)
