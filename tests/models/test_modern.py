"""DINOv2, DINOv3, SigLIP and CLIP: timm's names, the JSON beside the weights, what is refused, and one whole use."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, WIDE, assert_rel_close, composed, images, small, tree_normal
from models.layouts import timm
from safetensors.numpy import save_file
from saved import FIXTURES, modern

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import IMAGENET, Preprocessing
from tangent_jax.data.sources import Examples
from tangent_jax.exports.folder import export, load_export
from tangent_jax.features.extract import Cache, extract
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.pretrained.load import load, save
from tangent_jax.privacy.mechanism import Mechanism
from tangent_jax.privacy.train import fit_private
from tangent_jax.solver.optimum import solve
from tangent_jax.store.provenance import Provenance, make_provenance
from tangent_jax.store.recipe import Recipe
from tangent_jax.train.evaluate import evaluate
from tangent_jax.train.fit import fit
from tangent_jax.train.objective import make_objective
from tangent_jax.train.optimizers import adam

FIELDS = {
    "dinov2": {"registers": 2, "layer_scale": True, "gated": True, "activation": "silu", "classes": 0},
    "dinov3": {"registers": 2, "layer_scale": True, "positions": "rotary", "eps": 1e-5, "classes": 0},
    "siglip": {"class_token": False, "pool": "attention", "activation": "gelu_tanh", "classes": 0},
}


def of_timm(name):
    """A random model of 2 blocks, and its tensors as timm names and fuses them."""
    model = VisionTransformer(ViTConfig(128, 2, 2, 24, patch_size=4, image_size=8).replace(**FIELDS[name]))
    w = initial_weights(model, jax.random.key(0))
    w = jax.tree.map(lambda leaf: np.array(leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape)), w)
    if name == "dinov2":  # its class token has no position of its own
        w["position_embedding"][0] = 0
    if name == "dinov3":
        for i in range(2):
            w[f"block_{i}"]["attention"]["key"]["bias"][:] = 0
    return model, w, timm(model.config, w)


ARCHITECTURES = {"dinov2": "vit_small_patch14_reg4_dinov2", "dinov3": "vit_small_patch16_dinov3"}
ARCHITECTURES |= {"siglip": "vit_base_patch16_siglip_224"}


@pytest.mark.parametrize("name", FIELDS)
def test_timm_s_names_give_our_tree(tmp_path, name):
    model, w, tensors = of_timm(name)
    save_file(tensors, tmp_path / "model.safetensors")
    cfg = {"mean": [0.1] * 3, "std": [0.2] * 3, "crop_mode": "squash", "input_size": [3, 8, 8]}
    config = model.config
    args = {"img_size": 8, "embed_dim": 128, "num_heads": config.heads, "act_layer": config.activation}
    args |= (
        {"global_pool": {"token": "token", "attention": "map", "avg": "avg"}[config.pool]} if name != "dinov3" else {}
    )
    args |= {"global_pool": "token"} if name == "dinov3" else {}
    beside = {"architecture": ARCHITECTURES[name], "pretrained_cfg": cfg, "model_args": args}
    (tmp_path / "config.json").write_text(json.dumps(beside))
    pretrained = load(tmp_path)
    assert pretrained.model.config == model.config
    assert pretrained.model.preprocessing == Preprocessing((0.1,) * 3, (0.2,) * 3, 0.875, resize="exact")
    assert_rel_close(pretrained.w, trees.cast(w, jnp.float32))


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        ("dinov3", {"rope_theta": None}, "config.json must state rope_theta, of rotary positions; got None"),
        (
            "dinov2",
            {"rope_theta": 100.0},
            "config.json must not state rope_theta, of rotary positions; got 100.0 beside",
        ),
        ("dinov2", {"hidden_size": 32}, "hidden_size of .* must be 32, as config.json says; got 24"),
        ("dinov2 registers", {"num_register_tokens": 4}, "num_register_tokens of .* must be 4, .*; got 2"),
        ("dinov2 registers", {"use_swiglu_ffn": False}, "use_swiglu_ffn of .* must be False, .*; got True"),
        ("siglip", {"image_size": 24}, "image_size must be 24, as config.json says; got positions for 12"),
        ("siglip", {"image_size": "x"}, "image_size of config.json"),
        ("siglip", {"image_size": [12, 0]}, r"image_size must be a whole number in 1\.\.4096"),
        ("clip", {"vision_config": 7}, "vision_config of .* must be an object or null"),
        ("clip", {"vision_config": {}}, "model_type in .* must be one of siglip, siglip2, clip; got clip_vision_model"),
    ],
)
def test_contradicting_config_is_refused(tmp_path, name, fields, match):
    modern(name, tmp_path)
    config = json.loads(FIXTURES[f"config of {name}"].tobytes()) | fields
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    with pytest.raises(InputError, match=match) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["vit_pe_core_base_patch16_224", "vit_base_patch16_rope_reg1_gap_256", "eva02_base_patch14_224"]
)
def test_other_rotary_models_are_refused(tmp_path, name):
    save_file(of_timm("siglip")[2], tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name}))
    with pytest.raises(InputError, match=f"architecture in config.json .* must have parts .*; {name} does not: "):
        load(tmp_path)


def test_rotary_weights_are_not_plain(tmp_path):
    """By --architecture, in a model, and as a component of the other."""
    for name, expected, positions in (("dinov3", "S/16", "rotary"), ("dinov2", "dinov3-S/16", "learned")):
        modern(name, tmp_path)
        with pytest.raises(InputError, match=f"positions of .* must be .*, as {expected} has; got {positions}"):
            load(tmp_path, expected)
    model, w = small(**MODERN["rotary"])
    with pytest.raises(InputError, match=r"position_embedding of w must have shape \(5, 24\); got none"):
        Pretrained(model.replace(positions="learned"), w, "here")
    components = [make_provenance(tangent(Pretrained(m, v, "")), Recipe()) for m, v in ((model, w), small(width=24))]
    assert components[0].config["positions"] == "rotary"
    assert "positions" not in components[1].config
    assert Provenance.from_json(components[0].to_json()).config == components[0].config


def pictures(count):
    """Images of 24 x 36 pixels in three classes, each of one bright channel."""
    rng, labels = np.random.default_rng(0), np.arange(count, dtype=np.int32) % 3
    bright = 150 * np.eye(3)[labels][:, None, None]
    made = np.clip(rng.normal(50 + bright, 30, (count, 24, 36, 3)), 0, 255).astype(np.uint8)
    return Examples(tuple(f"image {i}" for i in range(count)), labels, lambda i: made[i])


@pytest.mark.long
def test_dinov2_registers_train_on_rectangles(tmp_path):
    """Hugging Face's folder to features, fit, compose, private, optimum and export."""
    modern("dinov2 registers", tmp_path)
    pretrained = load(tmp_path).with_image_size((8, 12)).with_head(3, jax.random.key(0))
    assert pretrained.model.preprocessing.mean == IMAGENET[0]
    assert pretrained.model.input_shape(0) == (8, 12, 3)
    predict = tangent(pretrained)
    data = extract(predict, pictures(24), Cache(tmp_path / "cache"))
    assert data.inputs.shape == (24, 1 + 2 + 6, 24)
    fitted = [
        fit(predict, data.take(rows), key=jax.random.key(1), optimizer=adam(1e-2), epochs=8).dw
        for rows in (np.arange(12), np.arange(12, 24))
    ]
    assert evaluate(predict, composed(dict(zip("ab", fitted, strict=True))), data) > 0.9
    solved = solve(predict, data, make_objective("rsl", penalty=0.1))
    assert evaluate(predict, solved.dw, data) > 0.9
    private = fit_private(predict, data, mechanism=Mechanism(1.0, 1.0, 2, 1e-3))
    assert jax.tree.structure(private.dw) == jax.tree.structure(solved.dw)
    export(tmp_path / "out", predict, solved.dw, {})
    again, dw = load_export(tmp_path / "out")
    assert again.model == pretrained.model
    assert_rel_close(tangent(again)(dw, data.inputs[:4]), predict(solved.dw, data.inputs[:4]))


@pytest.mark.parametrize("variant", ["rotary", "class and mean"])
def test_our_file_keeps_rectangular_shape(tmp_path, variant):
    model, w = small(image_size=WIDE, **MODERN[variant])
    save(tmp_path / "m.safetensors", Pretrained(model, trees.cast(w, jnp.float32), "here"))
    pretrained = load(tmp_path / "m.safetensors")
    assert pretrained.model == model
    assert json.loads(json.dumps(model.settings)) == model.settings
    assert pretrained.with_image_size(8).model.apply(pretrained.with_image_size(8).w, images(size=8)).shape == (2, 7)


def test_positions_are_resampled_by_row():
    model, w = small(1)
    rows = jnp.repeat(jnp.arange(2.0), 2)[:, None] * jnp.ones(12)  # 0 in the first row of patches, 1 in the second
    w = {**w, "position_embedding": jnp.concatenate([jnp.full((1, 12), 9.0), rows])}
    new, resized = model.with_image_size(w, (8, 16))
    assert new.config.grid == (2, 4)
    want = jnp.concatenate([jnp.full((1, 12), 9.0), jnp.repeat(jnp.arange(2.0), 4)[:, None] * jnp.ones(12)])
    assert_rel_close(resized["position_embedding"], want)
    assert_rel_close(tree_normal(3, w)["norm"], tree_normal(3, resized)["norm"])
