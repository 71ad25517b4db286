"""Features of the tangent: the sketch of inputs and signals is that of gradients by autodiff."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, images, in_long, small

from tangent_jax.core import InputError, trees
from tangent_jax.linear.signals import layout
from tangent_jax.models.anchor import Pretrained
from tangent_jax.models.ntk import feature_map


def made(blocks=1, parts=("h", "ntk"), **changes):
    model, w = small(**changes.pop("model", {}))
    options = {"blocks": blocks, "directions": 3, "width": 32, "seed": 5} | changes
    built = feature_map(Pretrained(model, w, "test"), parts, **options)
    x = jax.jit(model.apply, static_argnums=(2, 3))(w, images(4), 0, built.predict.subset.stage)
    return model, w, built, x


def sketched(built, x):
    """psi of gradients that autodiff forms, each number at the place and with the sign that the count sketches say."""
    predict, count = built.predict, built.directions
    zeros = predict.zeros()
    rows = jax.jacrev(lambda dw: predict(dw, x)[:, -count:])(zeros)
    uses = {use.path: use for use in predict.probe(zeros, x, at_zero=True).uses}
    psi = np.zeros((len(x), built.width))

    def sketch(n, name):
        table = np.asarray(built.count_sketch(jnp.eye(n), name))
        places = np.abs(table).argmax(1)
        assert np.all(np.abs(table).sum(1) == 1)
        return places, table[np.arange(n), places]

    for path, rows_of_leaf in trees.leaves(rows).items():
        gradient, use = np.asarray(rows_of_leaf), uses.get(path)  # "b v ..."
        if use is None:  # a key's bias, which the class query's softmax does not read
            assert np.abs(gradient).max() < 1e-12
            continue
        if use.spec is None:
            flat = gradient.reshape(len(x), -1)
            places, signs = sketch(flat.shape[1], path)
            np.add.at(psi.T, places, (flat * signs).T)
            continue
        blocks = np.array([[layout(use).blocks(one) for one in example] for example in gradient])  # "b v h i o"
        for head in range(blocks.shape[2]):
            own = blocks[:, :, head].transpose(0, 2, 1, 3).reshape(len(x), blocks.shape[3], -1)  # "b i (v o)"
            a, s = sketch(own.shape[1], f"{path} in")
            d, t = sketch(own.shape[2], f"{path} out {head}")
            at = (a[:, None] + d) % built.width
            np.add.at(psi.T, at.ravel(), (own * s[:, None] * t).reshape(len(x), -1).T)
    return psi


@pytest.mark.parametrize("parts", [("h",), ("h", "relu", "ntk")])
def test_the_map_of_no_example_has_its_number_of_columns(parts):
    _, _, built, x = made(parts=parts)
    assert built.rows(x[:0]).shape == (0, *built.rows(x).shape[1:])


@pytest.mark.parametrize(("blocks", "pool"), [(2, "token"), (1, "avg"), *in_long((1, "token"))])
def test_the_sketch_of_inputs_and_signals_is_that_of_gradients(x64, blocks, pool):
    _, _, built, x = made(blocks, model={"pool": pool})
    rows = jax.jit(type(built).rows)(built, x)
    assert rows.shape == (4, sum(built.sizes)) == (4, 12 + 32)
    assert_rel_close(rows[:, 12:], jnp.asarray(sketched(built, x)))


def test_features_are_what_the_head_reads_and_no_head_decides_them(x64):
    model, w, built, x = made()
    outputs = model.apply(w, x, built.predict.subset.stage)
    head = {"kernel": w["head"]["kernel"], "bias": w["head"]["bias"]}
    alone = feature_map(Pretrained(model, w, "test"), ("h",))
    assert_rel_close(alone(head, x), outputs)
    other = Pretrained(model, {**w, "head": jax.tree.map(lambda leaf: 2 * leaf, w["head"])}, "test")
    options = {"blocks": 1, "directions": 3, "width": 32, "seed": 5}
    assert feature_map(other, **options).identity != feature_map(other, **options | {"seed": 6}).identity
    np.testing.assert_array_equal(feature_map(other, **options).rows(x), built.rows(x))
    assert feature_map(other, **options).identity == built.identity


def test_random_relu_features(x64):
    _, _, built, x = made(parts=("relu",))
    h = feature_map(Pretrained(*small(), "test"), ("h",)).rows(x)
    assert_rel_close(built.rows(x), jnp.maximum(h @ built.projection, 0))


def test_the_kernel_is_that_of_gradients_in_the_mean(x64):
    """Over 60 sketches the mean of psi psi^T is the gradients' Gram matrix, within four standard errors."""
    _, _, built, x = made()
    rows = jax.jacrev(lambda dw: built.predict(dw, x)[:, -3:])(built.predict.zeros())
    flat = np.concatenate([np.asarray(leaf).reshape(4, -1) for leaf in jax.tree.leaves(rows)], 1)
    exact = flat @ flat.T
    probed = built.predict.probe(built.predict.zeros(), x, at_zero=True)
    grams = []
    for seed in range(60):
        psi = np.asarray(dataclasses.replace(built, seed=seed).sketch(probed))
        grams.append(psi @ psi.T)
    error = np.std(grams, 0) / len(grams) ** 0.5
    assert np.all(np.abs(np.mean(grams, 0) - exact) < 4 * error)


def test_wrong_maps_are_refused_in_one_line():
    model, w = small()
    pretrained = Pretrained(model, w, "test")
    for match, more in {
        "different parts of h, relu, ntk; got h, h": {"parts": ("h", "h")},
        "parts of h, relu, ntk; got psi": {"parts": ("psi",)},
        "blocks": {"blocks": 3},
        "directions": {"directions": 0},
        "width": {"width": 1},
    }.items():
        with pytest.raises(InputError, match=match):
            feature_map(pretrained, **more)
