"""Features of the tangent: the sketch of inputs and signals is that of gradients by autodiff."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import apply, assert_rel_close, images, in_long, small

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.feature_settings import FeatureSettings
from tangent_jax.models.ntk import FeatureMap, feature_map

rows_of = jax.jit(FeatureMap.rows)


def made(blocks=1, parts=("h", "ntk"), **changes):
    model, w = small(**changes.pop("model", {}))
    options = {"blocks": blocks, "directions": 3, "width": 36, "seed": 5} | changes
    built = feature_map(Pretrained(model, w, "test"), parts, **options)
    x = apply(model, w, images(4), 0, built.predict.subset.stage)
    return model, w, built, x


def sketched(built, x):
    """psi of gradients that autodiff forms: R^T (dL/dW) Q for each kernel, signed places for each stage's vectors."""
    predict, count, side = built.predict, built.directions, math.isqrt(built.width)
    zeros = predict.zeros()
    rows = trees.leaves(jax.jit(jax.jacrev(lambda dw: predict(dw, x)[:, -count:]))(zeros))
    leaves = predict.probe(zeros, x, at_zero=True).rows(jnp.zeros((count, len(x), built.predict.model.classes)))
    assert all(np.abs(rows[path]).max() < 1e-12 for path in rows.keys() - leaves.keys())  # a key's bias under a softmax
    psi = np.zeros((len(x), built.width))

    def table(n, heads, name):
        eye = jnp.broadcast_to(jnp.eye(n)[None, :, None], (1, n, heads, n))
        r = np.moveaxis(np.asarray(built.grouped(eye, side, name))[0], 1, 0)  # "h n m"
        assert np.all(np.abs(r).sum(-1) == 1)
        counts = np.abs(r).sum(1)
        assert np.all(counts <= -(-n // side))
        assert np.all(counts >= n // side)
        return r

    vectors = {}
    for path in sorted(leaves):
        gradient, leaf, stage = np.asarray(rows[path]), leaves[path], predict.model.stage_of(path)
        if leaf.layout is None:
            vectors.setdefault(stage, []).append(gradient.reshape(len(x), -1))
            continue
        blocks = np.array([[leaf.layout.blocks(one) for one in example] for example in gradient])  # "b v h i o"
        if leaf.x.shape[2] == 1:  # heads share the input, and are one S
            blocks = blocks.transpose(0, 3, 2, 1, 4).reshape(len(x), 1, leaf.x.shape[3], -1)
        else:
            blocks = blocks.transpose(0, 2, 3, 1, 4).reshape(len(x), leaf.x.shape[2], leaf.x.shape[3], -1)
        r = table(blocks.shape[2], blocks.shape[1], f"{stage} inputs {blocks.shape[2]}")
        q = table(blocks.shape[3], blocks.shape[1], path)
        psi += np.einsum("bhio,hir,hoq->brq", blocks, r, q).reshape(len(x), -1)
    for stage, parts in vectors.items():
        psi += np.asarray(built.sketch_vector(jnp.asarray(np.concatenate(parts, 1)), f"{stage} vectors"))
    return psi


def unit(z):
    """Rows at length 1."""
    return z / np.linalg.norm(z, axis=1, keepdims=True)


@pytest.mark.parametrize("parts", [("h",), ("h", "relu", "ntk")])
def test_no_example_has_all_columns(parts):
    _, _, built, x = made(parts=parts)
    assert rows_of(built, x[:0]).shape == (0, *rows_of(built, x).shape[1:])


@pytest.mark.parametrize(("blocks", "pool"), [(2, "token"), (1, "avg"), *in_long((1, "token"))])
def test_sketch_is_that_of_gradients(x64, blocks, pool):
    _, _, built, x = made(blocks, model={"pool": pool})
    rows = rows_of(built, x)
    assert rows.shape == (4, sum(built.sizes)) == (4, 12 + 36)
    assert_rel_close(rows[:, 12:], jnp.asarray(unit(sketched(built, x))))


def test_parts_have_unit_length_in_half(x64):
    _, _, built, x = made(parts=("h", "relu", "ntk"))
    for dtype in (None, jnp.bfloat16):
        parts = np.split(np.asarray(rows_of(built.in_dtype(dtype), x)), np.cumsum(built.sizes)[:-1], 1)
        for part in parts:
            np.testing.assert_allclose(np.linalg.norm(part, axis=1), 1, atol=1e-6)


def test_one_pass_gives_every_depth(x64):
    model, w, deep, x = made(2)
    depths = jax.jit(FeatureMap.rows_by_depth, static_argnums=2)(deep, x, (0, 1, 2))
    assert_rel_close(depths[2], rows_of(deep, x))
    assert np.abs(depths[0] - depths[2]).max() > 0.1
    for blocks in (0, 1):
        shallow = made(blocks)[2]
        inputs = apply(model, w, x, deep.predict.subset.stage, shallow.predict.subset.stage)
        assert_rel_close(depths[blocks], rows_of(shallow, inputs))


def test_two_thirds_of_the_blocks_are_the_default():
    pretrained = Pretrained(*small(depth=5), "test")
    assert feature_map(pretrained, width=16).features == FeatureSettings(blocks=3, width=16)
    assert feature_map(pretrained, ("h",), width=16).features.blocks == 1  # the cached features of one trained block


def test_head_decides_no_features(x64):
    model, w, built, x = made()
    h = made(parts=("h",))[2].predict(built.predict.zeros(), x)[:, :12]
    assert_rel_close(
        jnp.asarray(h @ w["head"]["kernel"] + w["head"]["bias"]), model.apply(w, x, built.predict.subset.stage)
    )
    rows = rows_of(built, x)
    assert_rel_close(rows[:, :12], jnp.asarray(unit(h)))
    other = Pretrained(model, {**w, "head": jax.tree.map(lambda leaf: 2 * leaf, w["head"])}, "test")
    options = {"blocks": 1, "directions": 3, "width": 36, "seed": 5}
    assert feature_map(other, **options).identity != feature_map(other, **options | {"seed": 6}).identity
    np.testing.assert_array_equal(rows_of(feature_map(other, **options), x), rows)
    assert feature_map(other, **options).identity == built.identity


def test_random_relu_features(x64):
    _, _, built, x = made(parts=("relu",))
    h = rows_of(made(parts=("h",))[2], x)
    assert_rel_close(rows_of(built, x), jnp.asarray(unit(np.maximum(h @ built.projection, 0))))


def test_kernel_is_unbiased(x64):
    """Over 60 sketches the mean of psi psi^T is the gradients' Gram matrix, within four standard errors."""
    _, _, built, x = made()
    rows = jax.jit(jax.jacrev(lambda dw: built.predict(dw, x)[:, -3:]))(built.predict.zeros())
    flat = np.concatenate([np.asarray(leaf).reshape(4, -1) for leaf in jax.tree.leaves(rows)], 1)
    exact = flat @ flat.T
    probed = built.predict.probe(built.predict.zeros(), x, at_zero=True)
    grams = []
    for seed in range(60):
        psi = np.asarray(sum(dataclasses.replace(built, seed=seed).sketch(probed).values()))
        grams.append(psi @ psi.T)
    error = np.std(grams, 0) / len(grams) ** 0.5
    assert np.all(np.abs(np.mean(grams, 0) - exact) < 4 * error)


def test_wrong_maps_are_refused_in_one_line():
    model, w = small()
    pretrained = Pretrained(model, w, "test")
    for match, more in {
        "different ones of h, relu, ntk, place; got h, h": {"parts": ("h", "h")},
        "parts must be different ones of h, relu, ntk, place; got psi": {"parts": ("psi",)},
        "blocks": {"blocks": 3},
        "directions": {"directions": 0},
        "width must be the square of a whole number, such as 1024 or 4096; got 50": {"width": 50},
    }.items():
        with pytest.raises(InputError, match=match):
            feature_map(pretrained, **more)
