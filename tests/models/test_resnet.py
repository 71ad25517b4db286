"""The residual network: its statistics, its activations, and its names in the world."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import apply, assert_rel_close, normal, pictures
from models.test_oracle import MODELS
from safetensors.numpy import save_file

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.features.extract import Cache, extract
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.predict import tangent
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.resnet.config import ResNetConfig, resnet_config
from tangent_jax.models.resnet.model import ResNet
from tangent_jax.models.subsets import make_subset
from tangent_jax.pretrained.load import load, save

FIXTURES = np.load(Path(__file__).with_name("fixtures.npz"))


def test_statistics_are_never_trained(x64):
    model, w = MODELS["bottleneck"]()
    for kind, blocks in (("blocks", 2), ("bitfit", 3), ("layernorm", 1), ("everything", 0)):
        assert not [path for path in make_subset(model, kind, blocks).paths if path.endswith(("/mean", "/var"))]
    x = normal(3, (2, *model.input_shape(0)))
    for name in ("mean", "var"):
        moved = {**w, "stem_norm": {**w["stem_norm"], name: w["stem_norm"][name] + 0.5}}
        assert np.abs(apply(model, moved, x) - apply(model, w, x)).max() > 1e-3


def test_training_uses_batch_statistics(x64):
    model, w = MODELS["basic"]()
    x = normal(3, (4, *model.input_shape(0)))
    logits, seen = jax.jit(model.in_training)(w, x)
    flat = trees.leaves(w)
    for norm, (mean, var) in seen.items():
        flat |= {f"{norm}/mean": mean, f"{norm}/var": var}
    assert len(seen) == sum(path.endswith("/mean") for path in flat)
    assert_rel_close(apply(model, trees.nest(flat), x), logits)


def test_both_relus_of_a_block_are_leaky(x64):
    """LQF's network (Achille et al. 2021), written out."""
    model, w = MODELS["basic"]()
    p, config = w["layer1"]["block_1"], model.config
    x = normal(3, (2, *model.input_shape(2)))

    def convolved(x, j):
        kernel, norm = p[f"conv{j}"]["kernel"], p[f"norm{j}"]
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return (x - norm["mean"]) / jnp.sqrt(norm["var"] + config.eps) * norm["scale"] + norm["bias"]

    def leaky(x):
        return jnp.where(x > 0, x, 0.1 * x)

    want = leaky(x + convolved(leaky(convolved(x, 1)), 2))
    assert float(want.min()) < 0
    assert_rel_close(apply(model, w, x, 2, 3), want)


@pytest.mark.parametrize("name", ["resnet", "basic"])
def test_logits_are_those_of_pytorch(x64, tmp_path, name):
    tensors = {key.partition("/")[2]: FIXTURES[key] for key in FIXTURES if key.startswith(f"{name}/")}
    save_file(tensors, tmp_path / "hugging_face.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "resnet", "depths": [2, 1], "hidden_act": "relu"}))
    found = load(tmp_path / "hugging_face.safetensors")
    assert found.model.config == ResNetConfig((2, 1), name == "resnet", 4, classes=5)
    model, w = found.model.replace(image_size=21), trees.cast(found.w, float)
    x = jnp.asarray(FIXTURES["resnet images"], float)
    want = FIXTURES[f"{name} logits"]
    dual = jax.jit(lambda w, x: model.dual(trees.pair(w, {"head": w["head"]}), x).primal)
    for got in (jax.jit(model.apply)(w, x), dual(w, x)):
        assert np.abs(np.asarray(got) - want).max() < 1e-4 * np.abs(want).max()


HUGGING_FACE = {
    "conv1": "resnet.embedder.embedder.convolution",
    "bn1": "resnet.embedder.embedder.normalization",
    "downsample.0": "shortcut.convolution",
    "downsample.1": "shortcut.normalization",
    "fc": "classifier.1",
}


def hugging_face(name):
    """timm's name as Hugging Face's."""
    *module, kind = name.split(".")
    if not module[0].startswith("layer"):
        return f"{HUGGING_FACE[module[0]]}.{kind}"
    part = ".".join(module[2:])
    inner = (
        HUGGING_FACE.get(part) or f"layer.{int(part[-1]) - 1}.{'convolution' if 'conv' in part else 'normalization'}"
    )
    return f"resnet.encoder.stages.{int(module[0][5:]) - 1}.layers.{module[1]}.{inner}.{kind}"


@pytest.mark.parametrize("world", ["timm", "hugging face"])
def test_files_of_the_world_load(tmp_path, world):
    stem = 5 if world == "hugging face" else None  # its embedding_size, which is its own
    model = ResNet(resnet_config("resnet18", width=4, classes=6, stem_width=stem))
    w = initial_weights(model, jax.random.key(1))
    tensors = model.to_world(trees.leaves(w))
    assert tensors["layer2.0.downsample.1.running_var"].shape == (8,)
    counted = {"bn1.num_batches_tracked": np.array(3)} if world == "timm" else {}
    rename = hugging_face if world == "hugging face" else str
    path = tmp_path / "resnet.safetensors"
    save_file({rename(name): np.asarray(value) for name, value in tensors.items()} | counted, path)
    with pytest.raises(InputError, match=r"architecture of the ResNet in .* must be said; it is not. Say which it is"):
        load(path)
    own = {"architecture": "resnet18", "model_args": {"layers": [2, 2, 2, 2]}}
    config = {"model_type": "resnet"} if world == "hugging face" else own
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load(path)
    assert dataclasses.replace(found.model, preprocessing=model.preprocessing) == model
    assert found.model.preprocessing.interpolation == {"timm": "bilinear", "hugging face": "bicubic"}[world]
    assert trees.fingerprint(found.w) == trees.fingerprint(w)
    save(tmp_path / "ours.safetensors", found)
    assert load(tmp_path / "ours.safetensors").model == found.model
    assert trees.fingerprint(load(tmp_path / "ours.safetensors").w) == trees.fingerprint(w)


def test_architectures_are_told_apart(tmp_path):
    path = tmp_path / "resnet.safetensors"
    model = ResNet(resnet_config("resnet18", width=4, classes=6))
    tensors = model.to_world(trees.leaves(initial_weights(model, jax.random.key(1))))
    save_file({name: np.asarray(value) for name, value in tensors.items()}, path)
    with pytest.raises(InputError, match=r"architecture in .* must be one of timm's ResNets; got L/16"):
        load(path, "L/16")
    with pytest.raises(InputError, match="builtin must be resnet50, a ResNet; got a Vision Transformer"):
        load("builtin", "resnet50")
    with pytest.raises(InputError, match=r"must hold the tensors of resnet50; it holds others"):
        load(path, "resnet50")
    for config, match in (
        ({"architecture": "resnetaa50"}, "resnetaa50 does not: another pool in the stem"),
        ({"architecture": "resnet18", "model_args": {"output_stride": 8}}, "no output_stride in model_args"),
        ({"architecture": "resnet18", "model_args": {"act_layer": "gelu"}}, "no act_layer in model_args"),
        (
            {"architecture": "resnet18", "model_args": {"layers": [2]}, "global_pool": "max"},
            "global_pool in .* must be avg; got .*max",
        ),
        ({"architecture": "resnet18", "model_args": {"block_args": {"a": 1}}}, "no block_args in model_args"),
        ({"architecture": "resnet18", "model_args": [1]}, r"model_args of .* must be an object or null; got \[1\]"),
    ):  # each was loaded as a plain ResNet
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=match):
            load(path)
    own = {"architecture": "resnet18", "model_args": {"layers": [2, 2, 2, 2]}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    wrong = {"layer1.0.conv1.weight": np.zeros((4, 3), np.float32)}
    save_file({name: np.asarray(value) for name, value in {**tensors, **wrong}.items()}, path)
    with pytest.raises(InputError, match=r"must have 4 axes, and not be empty; got shape \(4, 3\)"):
        load(path)
    save_file({"layer1.0.extra": np.zeros(3, np.float32)}, path)
    with pytest.raises(
        InputError, match=r"tensors must be of a residual network; got the extra tensor layer1\.0\.extra"
    ):
        load(path)


def test_features_are_cached_at_any_stage(tmp_path):
    model = ResNet(ResNetConfig((1, 1), False, 4, "small", 8, 3))
    found = Pretrained(model, initial_weights(model, jax.random.key(0)), "here")
    whole = tangent(found, kind="everything")
    images = found.model.preprocessing.normalize(extract(whole, pictures(4), Cache(tmp_path)).inputs[:])
    want = apply(found.model, found.w, images)
    for blocks in (2, 1, 0):
        predict = tangent(found, blocks)
        data = extract(predict, pictures(4), Cache(tmp_path))
        assert data.inputs.shape == (4, *predict.model.input_shape(predict.subset.stage))
        assert_rel_close(predict(predict.zeros(), data.inputs[:]), want)
