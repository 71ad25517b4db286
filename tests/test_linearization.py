"""linearize takes any function of a pytree: plain, linen, NNX."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from helpers import assert_rel_close, normal, tree_normal

from tangent_jax import InputError, linearize
from tangent_jax.core.notation import Dual


def test_plain_function_takes_tuple_parameters(x64):
    w = (normal(1, (3, 4)), [normal(2, (4,))])
    dw = (normal(3, (3, 4)), [normal(4, (4,))])
    x = normal(5, (2, 3))
    got = linearize(lambda w, x: jnp.tanh(x @ w[0] + w[1][0]), w)(dw, x)
    y = jnp.tanh(x @ w[0] + w[1][0])
    assert_rel_close(got, Dual(y, (1 - y**2) * (x @ dw[0] + dw[1][0])))


def test_linen_model_takes_part_of_parameters(x64):
    model, x = nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(2)]), normal(1, (4, 3))
    w = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), model.init(jax.random.key(0), x))
    dw = {"params": {"layers_2": tree_normal(2, w["params"]["layers_2"])}}
    zero = jax.tree.map(jnp.zeros_like, w)
    zero["params"]["layers_2"] = dw["params"]["layers_2"]
    assert_rel_close(linearize(model.apply, w)(dw, x), Dual(*jax.jvp(lambda w: model.apply(w, x), (w,), (zero,))))


def test_an_nnx_model_after_split():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.one, self.two = nnx.Linear(3, 5, rngs=rngs), nnx.Linear(5, 2, rngs=rngs)

        def __call__(self, x):
            return self.two(jnp.tanh(self.one(x)))

    graph, w, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
    x = jnp.ones((4, 3))
    f = lambda w, x: nnx.merge(graph, w, rest)(x)  # noqa: E731
    dw = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), w)
    last = nnx.filter_state(dw, lambda path, _: path[0] == "two")
    zero = nnx.filter_state(jax.tree.map(jnp.zeros_like, w), lambda path, _: path[0] == "one")
    assert_rel_close(linearize(f, w)(dw, x), Dual(*jax.jvp(lambda w: f(w, x), (w,), (dw,))))
    assert_rel_close(linearize(f, w)(last, x), Dual(*jax.jvp(lambda w: f(w, x), (w,), (nnx.merge_state(last, zero),))))


def test_nnx_tied_weights_are_refused():
    rngs = nnx.Rngs(0)
    one, drop = nnx.Linear(3, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs, deterministic=True)
    linearize(lambda m, x: m(x), nnx.Sequential(one, drop, nnx.Linear(3, 3, rngs=rngs), drop))
    with pytest.raises(InputError, match="w must have each weight once; got an NNX module with shared weights"):
        linearize(lambda m, x: m(x), nnx.Sequential(one, one))


@pytest.mark.parametrize(
    "layer", [nnx.Dropout(0.5, rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0))], ids=["dropout", "norm"]
)
def test_nnx_in_training_is_refused(layer):
    graph, w, rest = nnx.split(nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), layer), nnx.Param, ...)
    dw, x = jax.tree.map(jnp.zeros_like, w), jnp.ones((2, 3))
    f = lambda w, x: nnx.merge(graph, w, rest)(x)  # noqa: E731
    refused = "f must change no state; got Cannot mutate .* trace level. Before nnx.split .*eval()"
    with pytest.raises(InputError, match=refused):
        linearize(f, w)(dw, x)
    module = nnx.merge(graph, w, rest)
    module.eval()
    graph, w, rest = nnx.split(module, nnx.Param, ...)
    assert linearize(lambda w, x: nnx.merge(graph, w, rest)(x), w)(dw, x).total.shape == (2, 3)


def test_a_step_that_trains_nothing_is_refused():
    """A mistyped path leaves an empty NNX state, and the result was the untouched network."""
    graph, w = nnx.split(nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(0))))
    empty = nnx.filter_state(w, lambda path, _: path[0] == "layer")
    for dw in (empty, {}):
        with pytest.raises(InputError, match=r"dw must have a leaf; got none. It trains nothing"):
            linearize(lambda w, x: nnx.merge(graph, w)(x), w)(dw, jnp.ones((1, 3)))


def test_leaf_without_tangent_is_refused():
    w = {"kernel": 2.0, "bias": 1.0, "table": jnp.arange(3)}
    f_lin = linearize(lambda w, x: w["kernel"] * x, w)
    refused = "dw must be a part of w; w lacks its leaf kernl, and has kernel. Build dw by jax.tree"
    with pytest.raises(InputError, match=refused):
        f_lin({"kernl": 1.0}, 3.0)
    with pytest.raises(
        InputError, match=r"leaves of dw must be floats; got int32 at table. Leave it out of dw; .* nnx.Variable"
    ):
        f_lin({"table": jnp.zeros(3, int)}, 3.0)
