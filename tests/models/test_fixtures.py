"""Our model against another's: answers of PyTorch's models on small weights, which make_fixtures.py wrote.

The two roads of the tangent share one forward pass; that they agree says nothing of it. This does.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import apply
from saved import FIXTURES, MODERN, modern

from tangent_jax.core import trees
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.model import VisionTransformer

VARIANTS = {
    "vit": {"eps": 1e-12},
    "clip": {"eps": 1e-5, "pre_norm": True, "activation": "quick_gelu"},
    "beit": {"eps": 1e-12, "pool": "avg", "layer_scale": True},
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("road", ["plain", "tangent"])
def test_logits_are_those_of_pytorch(x64, name, road):
    config = ViTConfig(24, 2, 3, 20, patch_size=4, image_size=12, classes=5, **VARIANTS[name])
    model, prefix = VisionTransformer(config), f"{name}/"
    w = trees.nest({k.removeprefix(prefix): jnp.asarray(FIXTURES[k], float) for k in FIXTURES if k.startswith(prefix)})
    x = jnp.asarray(FIXTURES["images"], float)
    dual = jax.jit(lambda w, x: model.dual(trees.pair(w, {"head": w["head"]}), x).primal)
    got = apply(model, w, x) if road == "plain" else dual(w, x)
    want = FIXTURES[f"{name} logits"]
    assert np.abs(np.asarray(got) - want).max() < 2e-5 * np.abs(want).max()  # theirs is f32


@pytest.mark.parametrize("name", MODERN)
def test_modern_files_answer_like_pytorch(tmp_path, name):
    """In f32, by both roads; DINOv3's on images of another shape than its own."""
    pretrained, x = modern(name, tmp_path), jnp.asarray(FIXTURES[f"images of {name}"])
    pretrained = pretrained.with_image_size(x.shape[1:3]) if x.shape[1] != x.shape[2] else pretrained
    model, w, want = pretrained.model, pretrained.w, FIXTURES[f"logits of {name}"]
    dual = jax.jit(lambda w, x: model.dual(trees.pair(w, {"norm": w["norm"]}), x).primal)
    for got in (apply(model, w, x), dual(w, x)):
        assert got.shape == want.shape
        assert np.abs(np.asarray(got) - want).max() <= 1e-4


@pytest.mark.parametrize("size", [3, 8])
def test_positions_resample_as_pytorch_does(size):
    grid, want = FIXTURES["grid"], FIXTURES[f"grid {size}"]
    model = VisionTransformer(ViTConfig(4, 1, 1, 4, patch_size=4, image_size=20, classes=2))
    w = {"position_embedding": jnp.concatenate([jnp.zeros((1, 4)), jnp.asarray(grid).reshape(25, 4)])}
    _, resized = model.with_image_size(w, 4 * size)
    got = np.asarray(resized["position_embedding"])[1:].reshape(size, size, 4)
    assert np.abs(got - want).max() < 1e-5
