"""A composed model leaves under timm's names and returns with every bit."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, images, predictor
from safetensors.numpy import load_file

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.exports.folder import export, load_export
from tangent_jax.models.vit.modules import TangentViT

VARIANTS = [
    ({}, "blocks"),
    ({"pool": "avg", "activation": "gelu_tanh"}, "blocks"),
    ({"class_token_at": 1}, "bitfit"),
    ({"pre_norm": True, "eps": 1e-5}, "layernorm"),
    ({"layer_scale": True}, "everything"),
    (MODERN["class and mean"], "bitfit"),
    (MODERN["rotary"], "blocks"),
    (MODERN["attention pool"], "everything"),
]


@pytest.mark.parametrize(("variant", "kind"), VARIANTS)
def test_export_returns_bits_and_outputs(tmp_path, variant, kind):
    predict, dw = predictor(kind, 1, 2, **variant)
    export(tmp_path / "out", predict, dw, {"mean_of": "shards"})
    pretrained, step = load_export(tmp_path / "out")
    assert pretrained.model == predict.model
    assert trees.fingerprint(pretrained.w) == trees.fingerprint(predict.w)
    given = trees.leaves(step)
    for path, leaf in trees.leaves(dw).items():
        assert (np.asarray(given.pop(path)) == np.asarray(leaf)).all(), path
    assert all((np.asarray(leaf) == 0).all() for leaf in given.values())  # the frozen part of a fused qkv
    apply = jax.jit(TangentViT(predict.model.config).apply)
    want, got = (
        apply({"params": w, "tangent": dw}, images()).total for w, dw in ((predict.w, dw), (pretrained.w, step))
    )
    assert jnp.allclose(got, want, rtol=1e-5)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "model.safetensors",
        "tangent.safetensors",
        "provenance.json",
        "README.md",
    }


def test_the_names_are_timms(tmp_path):
    export(tmp_path / "out", *predictor("blocks", 1, 1), {})
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert tensors["blocks.0.attn.qkv.weight"].shape == (36, 12)
    assert tensors["pos_embed"].shape == (1, 5, 12)
    assert tensors["patch_embed.proj.weight"].shape == (12, 3, 4, 4)
    assert {"norm.weight", "head.bias", "blocks.0.mlp.fc1.weight", "cls_token"} <= tensors.keys()
    assert "blocks.0.attn.proj.weight" in load_file(tmp_path / "out/tangent.safetensors")


def test_export_is_whole_or_not_written(tmp_path):
    predict, dw = predictor("blocks", 1, 1)
    with pytest.raises(InputError, match="a part of w"):
        export(tmp_path / "out", predict, {"nobody": predict.w["class_token"]}, {})
    with pytest.raises(TypeError):
        export(tmp_path / "out", predict, dw, {"no": object()})  # fails when two of three files are written
    assert not list(tmp_path.iterdir())
    (tmp_path / "out").mkdir()
    (tmp_path / "out.partial").mkdir()
    with pytest.raises(InputError, match="folder must not exist yet"):
        export(tmp_path / "out", predict, {}, {})
    assert (tmp_path / "out.partial").exists()  # the user's own
    with pytest.raises(InputError, match=r"must hold model.safetensors, .*; model.safetensors is missing"):
        load_export(tmp_path / "out")


@pytest.mark.parametrize("name", ["model", "tangent"])
def test_file_outside_provenance_is_refused(tmp_path, name):
    export(tmp_path / "out", *predictor("blocks", 1, 1), {"mean_of": "shards"})
    path, said = tmp_path / f"out/{name}.safetensors", tmp_path / "out/provenance.json"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # one bit of one number
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}.safetensors must be the file that provenance.json names"):
        load_export(tmp_path / "out")
    said.write_text('{"mean_of": "shards"}')
    with pytest.raises(InputError, match=r"model.safetensors must be the file that provenance.json names"):
        load_export(tmp_path / "out")
    said.unlink()
    with pytest.raises(InputError, match=r"must hold .*provenance.json; provenance.json is missing"):
        load_export(tmp_path / "out")


def test_export_says_classes_and_outputs(tmp_path):
    predict, dw = predictor("blocks", 1, 1, output="tangent")
    names = [f"class {c}" for c in range(7)]
    export(tmp_path / "out", predict, dw, {}, classes=names)
    said = json.loads((tmp_path / "out/provenance.json").read_text())
    assert (said["classes"], said["output"]) == (names, "tangent")
