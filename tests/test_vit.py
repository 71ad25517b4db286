"""The plain ViT: sizes, pools, the trunk/tail cut, transformations, other image sizes."""

import math

import jax
import jax.numpy as jnp
import pytest
from helpers import TOLERANCE, assert_rel_close, images, normal, small

from tangent_jax import trees, vit
from tangent_jax.checks import InputError
from tangent_jax.config import ViTConfig, vit_config


def apply(config, w, x, dtype=None):
    return vit.ViT(config, dtype).apply({"params": w}, x)


@pytest.mark.parametrize(
    ("name", "millions"), [("Ti/16", 5.717), ("S/16", 22.05), ("B/32", 88.22), ("L/16", 304.3), ("H/14", 632.0)]
)
def test_the_named_sizes_have_their_published_parameter_counts(name, millions):
    count = sum(math.prod(shape) for shape in vit.shapes(vit_config(name)).values())
    assert abs(count / 1e6 - millions) < 0.05 * 10 ** (len(str(int(millions))) - 2)


@pytest.mark.parametrize("variant", [{}, {"pre_norm": True}, {"layer_scale": True}])
def test_the_class_row_of_the_last_block_equals_the_full_block(x64, variant):
    config, w = small(2, **variant)
    x = normal(4, (2, 5, 12))
    block = vit.Block(config)
    last = {"params": w["block_1"]}
    joined = vit.one_query_input(config, x)[0]
    assert_rel_close(block.apply(last, joined[:, 0], joined[:, 1:], method="class_row"), block.apply(last, x)[:, 0])


def test_a_tail_input_of_another_split_is_refused():
    config, w = small(2)
    with pytest.raises(InputError, match=r"tail inputs of shape \('b', 6, 12\); got \(2, 5, 12\)"):
        vit.ViT(config).apply({"params": w}, normal(4, (2, 5, 12)), 1, method="tail")


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("split", range(4))
def test_trunk_then_tail_is_the_whole_at_every_block(x64, pool, split):
    config, w = small(3, pool=pool)
    model, variables = vit.ViT(config), {"params": w}
    x = model.apply(variables, images(), split, method="trunk")
    assert x.ndim == (2 if split == 3 else 3)
    assert_rel_close(model.apply(variables, x, split, method="tail"), apply(config, w, images()))
    for further in range(split, 4):
        got = model.apply(variables, x, split, further, method="between")
        assert_rel_close(got, model.apply(variables, images(), further, method="trunk"))


def test_jit_vmap_and_grad_are_clean(x64):
    config, w = small(2)
    want = apply(config, w, images())
    assert_rel_close(jax.jit(lambda w, x: apply(config, w, x))(w, images()), want)
    assert_rel_close(jax.vmap(lambda x: apply(config, w, x[None])[0])(images()), want)
    gradient = jax.grad(lambda w: apply(config, w, images()).sum())(w)
    assert trees.leaves(gradient).keys() == trees.leaves(w).keys()


def test_bfloat16_computes_with_float32_parameters():
    config, w = small(2)
    x = images()
    got = apply(config, w, x, jnp.bfloat16)
    assert got.dtype == jnp.bfloat16
    assert_rel_close(got.astype(jnp.float32), apply(config, w, x), TOLERANCE["bfloat16"])


def test_a_replaced_class_token_is_read_at_its_block(x64):
    config, w = small(2)
    moved, w2 = config.replace(class_token_at=1), {**w, "new_class_token": w["class_token"] * 3}
    model = vit.ViT(config)
    x = model.apply({"params": w}, images(), 1, method="trunk")
    token = vit.one_query_input(config, w2["new_class_token"][None, None])[0]
    x = x.at[:, :2].set(token)
    assert_rel_close(apply(moved, w2, images()), model.apply({"params": w}, x, 1, method="tail"))


def test_a_model_without_a_head_returns_its_normalised_features(x64):
    config, w = small(1)
    features = apply(config.replace(classes=0), {k: v for k, v in w.items() if k != "head"}, images())
    assert_rel_close(features @ w["head"]["kernel"] + w["head"]["bias"], apply(config, w, images()))


def test_positions_resample_to_another_image_size_and_keep_the_class_token():
    config, w = small(1)
    new, resized = vit.resize_positions(config, w, 16)
    assert resized["position_embedding"].shape == (17, 12)
    assert (resized["position_embedding"][0] == w["position_embedding"][0]).all()
    assert apply(new, resized, images(size=16)).shape == (2, 7)
    assert vit.resize_positions(config, w, 8)[1] is w
    flat = {**w, "position_embedding": jnp.ones((5, 12))}
    assert_rel_close(vit.resize_positions(config, flat, 16)[1]["position_embedding"], jnp.ones((17, 12)))


def test_a_leaf_is_drawn_by_its_path_alone():
    config = ViTConfig(12, 2, 3, 20, patch_size=4, image_size=8, classes=7)
    deeper = vit.init(config.replace(depth=3), jax.random.key(1))
    assert_rel_close(vit.init(config, jax.random.key(1)), {k: v for k, v in deeper.items() if k != "block_2"})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"heads": 5}, "width 12 a multiple of heads"),
        ({"image_size": 9}, "image_size a multiple of patch_size 4"),
        ({"pool": "max"}, "pool token or avg"),
        ({"activation": "relu"}, "activation in gelu"),
        ({"depth": 0}, "depth >= 1"),
        ({"class_token_at": 2}, r"class_token_at in 0\.\.1"),
        ({"class_token_at": 0, "pool": "avg"}, "pool token"),
    ],
)
def test_an_impossible_configuration_is_refused(change, match):
    with pytest.raises(InputError, match=match):
        small(2)[0].replace(**change)


@pytest.mark.parametrize("name", ["XL/16", "L", "L/15"])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(InputError, match="vit_config: expected SIZE/PATCH"):
        vit_config(name)
