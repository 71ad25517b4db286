"""A composed model leaves under timm's names and returns with every bit."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import images, small, tree_normal
from safetensors.numpy import load_file

from tangent_jax import trees
from tangent_jax.checks import InputError
from tangent_jax.exports import export, load_export
from tangent_jax.subsets import make_subset
from tangent_jax.tangent_vit import TangentViT
from tangent_jax.weights import Preprocessing, Pretrained

VARIANTS = [
    ({}, "blocks"),
    ({"pool": "avg", "activation": "gelu_tanh"}, "blocks"),
    ({"class_token_at": 1}, "bitfit"),
    ({"pre_norm": True, "epsilon": 1e-5}, "layernorm"),
    ({"layer_scale": True}, "everything"),
]


@pytest.mark.parametrize(("variant", "kind"), VARIANTS)
def test_an_export_returns_with_its_bits_and_its_outputs(tmp_path, variant, kind):
    config, w = small(2, **variant)
    model = Pretrained(config, w, Preprocessing(), "here")
    dw = tree_normal(70, make_subset(config, kind, 1).part(w))
    export(tmp_path / "out", model, dw, {"mean_of": "shards"})
    found, step = load_export(tmp_path / "out")
    assert (found.config, found.preprocessing) == (model.config, model.preprocessing)
    assert trees.fingerprint(found.params) == trees.fingerprint(w)
    given = trees.leaves(step)
    for path, leaf in trees.leaves(dw).items():
        assert (np.asarray(given.pop(path)) == np.asarray(leaf)).all(), path
    assert all((np.asarray(leaf) == 0).all() for leaf in given.values())  # the frozen part of a fused qkv
    want, got = (TangentViT(c).apply({"params": p, "tangent": d}, images()).total for c, p, d in (
        (config, w, dw), (found.config, found.params, step)))  # fmt: skip
    assert jnp.allclose(got, want, rtol=1e-5)


def test_the_names_are_timms(tmp_path):
    config, w = small(1)
    export(tmp_path / "out", Pretrained(config, w, Preprocessing(), "here"), make_subset(config).part(w), {})
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert tensors["blocks.0.attn.qkv.weight"].shape == (36, 12)
    assert tensors["pos_embed"].shape == (1, 5, 12)
    assert tensors["patch_embed.proj.weight"].shape == (12, 3, 4, 4)
    assert {"norm.weight", "head.bias", "blocks.0.mlp.fc1.weight", "cls_token"} <= tensors.keys()
    assert "blocks.0.attn.proj.weight" in load_file(tmp_path / "out/tangent.safetensors")


def test_an_export_is_refused_whole_or_not_written(tmp_path):
    config, w = small(1)
    model = Pretrained(config, w, Preprocessing(), "here")
    with pytest.raises(InputError, match="a part of w"):
        export(tmp_path / "out", model, {"nobody": w["class_token"]}, {})
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="does not exist yet"):
        export(tmp_path / "out", model, {}, {})
    with pytest.raises(InputError, match=r"no .*model.safetensors"):
        load_export(tmp_path / "out")
