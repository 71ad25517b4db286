"""The part `place`: means of tokens over cells, as the next block reads them; images keep it alone and in a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import apply, assert_rel_close, images, normal, small

from tangent_jax.core.checks import InputError
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.ntk import FeatureMap, cell_means, feature_map, place_stage
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.models.resnet.model import ResNet

rows_of = jax.jit(FeatureMap.rows)
VITS = [
    {"depth": 3},
    {"depth": 1},  # whose only block reads one query
    {"depth": 3, "pool": "attention", "class_token": False},
    {"depth": 3, "pool": "avg", "registers": 2, "positions": "rotary"},
    {"depth": 3, "image_size": (16, 8)},
    {"depth": 3, "image_size": 36},  # nine patches along an axis share some at the borders of seven cells
]


def made(parts=("h", "place"), **changes):
    model, w = small(**changes)
    map_ = feature_map(Pretrained(model, w, "test"), parts, width=64, seed=5)
    x = normal(3, (4, *model.input_shape(0)))
    return model, w, map_, x, apply(model, w, x, 0, map_.predict.subset.stage)


@pytest.mark.parametrize("changes", VITS, ids=str)
def test_place_is_sketch_over_cells(x64, changes):
    model, w, map_, x, inputs = made(**changes)
    config, block = model.config, place_stage(model) - 1
    tokens = np.asarray(
        apply(model.replace(pool="plain_avg", classes=0), w, x, 0, block + 1)
    )  # of no special last block
    t = tokens[:, config.prefix :] - tokens[:, config.prefix :].mean(-1, keepdims=True)
    norm = w[f"block_{block}"]["norm1"]
    t = t / np.sqrt((t**2).mean(-1, keepdims=True) + config.eps) * norm["scale"] + norm["bias"]
    (rows, columns), t = config.grid, np.asarray(t).reshape(4, *config.grid, -1)
    (g, k), cells = (min(7, n) for n in config.grid), []
    for i in range(g):
        for j in range(k):
            y, z = slice(i * rows // g, -(-(i + 1) * rows // g)), slice(j * columns // k, -(-(j + 1) * columns // k))
            cells.append(t[:, y, z].mean((1, 2)))
    sketch = np.asarray(map_.sketch_vector(jnp.asarray(np.concatenate(cells, 1)), "place"))
    expected = sketch / np.linalg.norm(sketch, axis=1, keepdims=True)
    assert_rel_close(rows_of(map_, inputs)[:, -64:], jnp.asarray(expected))


@pytest.mark.parametrize("changes", VITS[:3], ids=str)
def test_place_is_alone_as_in_batch(x64, changes):
    *_, map_, _, inputs = made(**changes)
    assert_rel_close(rows_of(map_, inputs[2:3]), rows_of(map_, inputs)[2:3])


def test_a_flip_of_the_grid_flips_its_cells(x64):
    grid = jax.random.normal(jax.random.key(0), (2, 9, 5, 3))
    assert cell_means(grid).shape == (2, 7, 5, 3)
    assert_rel_close(cell_means(grid[:, ::-1, ::-1]), cell_means(grid)[:, ::-1, ::-1])
    assert_rel_close(cell_means(jnp.ones((1, 14, 16, 2))), jnp.ones((1, 7, 7, 2)))


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_place_and_ntk_are_independent(x64, blocks):
    model, w, alone, x, inputs = made(depth=3)
    with_psi = feature_map(Pretrained(model, w, "test"), ("h", "ntk", "place"), blocks=blocks, width=64, seed=5)
    psi = feature_map(Pretrained(model, w, "test"), ("h", "ntk"), blocks=blocks, width=64, seed=5)
    at = [m.predict.subset.stage for m in (with_psi, psi)]
    rows, own = (rows_of(m, apply(model, w, x, 0, stage)) for m, stage in zip((with_psi, psi), at, strict=True))
    assert with_psi.blocks == psi.blocks == blocks
    assert at[0] <= place_stage(model)
    assert_rel_close(rows[:, :-64], own)
    assert_rel_close(rows[:, -64:], rows_of(alone, inputs)[:, -64:])


def test_a_resnet_s_place_is_of_a_middle_stage(x64):
    config = ResNetConfig(blocks=(1, 1, 1), bottleneck=False, width=4, stem="small", image_size=16, classes=3)
    model = ResNet(config)
    w = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), initial_weights(model, jax.random.key(0)))
    map_ = feature_map(Pretrained(model, w, "test"), ("h", "place"), width=64)
    x = apply(model, w, images(4, size=16), 0, 2)
    assert (map_.predict.subset.stage, map_.blocks) == (2, 1)
    sketch = map_.sketch_vector(cell_means(x).reshape(4, -1), "place")
    assert_rel_close(rows_of(map_, x)[:, -64:], sketch / jnp.linalg.norm(sketch, axis=1, keepdims=True))


def test_a_model_without_places_is_refused():
    lora = Pretrained(*small(), "test").with_lora(1, 1, jax.random.key(0))
    with pytest.raises(InputError, match="the part place needs a model with a patch_grid; got a LoRA"):
        feature_map(lora, ("h", "place"))
