"""What is linear in dw passes, what is not is refused, wherever the bend hides."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import predictor, private_task

from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Dual
from tangent_jax.linearization import linearize
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.solver.affine import check_affine

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
W = jnp.asarray(np.random.default_rng(1).standard_normal((3, 4)), jnp.float32)


@jax.custom_jvp
def square(x):
    return x**2


square.defjvp(lambda primals, tangents: (primals[0] ** 2, 2 * primals[0] * tangents[0]))


def scanned(w, x):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w[:, :3]), None), x, None, length=3)[0]


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(nn.gelu(nn.LayerNorm()(nn.Dense(5)(x))))


def tangent(f, w=W):
    f_lin = linearize(f, w)
    return lambda dw, x: f_lin(dw, x).total


LINEAR = {
    "a product": lambda dw, x: x @ dw + 1,
    "a tangent": tangent(lambda w, x: jnp.tanh(x @ w) ** 2),
    "a linen module": lambda dw, x: tangent(Net().apply, NET)(dw, x),
    "a scan": tangent(scanned),
    "a loop": tangent(lambda w, x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ w[:, :3]), x)),
    "remat of a tangent": jax.checkpoint(tangent(lambda w, x: jnp.tanh(x @ w))),
    "a tangent of remat": tangent(jax.checkpoint(lambda w, x: jnp.tanh(x @ w) ** 2)),
    "a rule of its own": tangent(lambda w, x: square(x @ w)),
    "jit within jit": jax.jit(tangent(jax.jit(lambda w, x: jax.nn.softmax(x @ w)))),
    "a branch of the input's": tangent(lambda w, x: jax.lax.cond(x.sum() > 0, lambda: jnp.tanh(x @ w), lambda: x @ w)),
    "relu at the anchor": tangent(lambda w, x: jax.nn.relu(x @ w)),
    "half precision": tangent(lambda w, x: jnp.tanh(x.astype("bfloat16") @ w.astype("bfloat16")).astype("float32")),
    "vmap": lambda dw, x: jax.vmap(lambda x: x @ dw)(x),
}
BENT = {
    "abs": lambda dw, x: jnp.abs(x @ dw),
    "hardly": lambda dw, x: x @ dw + 1e-6 * (x @ dw) ** 2,
    "relu": lambda dw, x: jax.nn.relu(x @ dw),
    "tanh": lambda dw, x: jnp.tanh(x @ dw),
    "a square": lambda dw, x: x @ dw**2,
    "round": lambda dw, x: jnp.round(x @ dw),
    "sign": lambda dw, x: x @ dw + jnp.sign(x @ dw),
    "where": lambda dw, x: x @ dw + jnp.where(x @ dw > 0, 1.0, 0.0),
    "stop_gradient": lambda dw, x: x @ dw + 0.1 * jax.lax.stop_gradient(x @ dw),
    "a scan": scanned,
    "remat": jax.checkpoint(lambda dw, x: jnp.tanh(x @ dw)),
    "a rule of its own": lambda dw, x: square(x @ dw),
    "a branch of dw's": lambda dw, x: jax.lax.cond(dw.sum() > 0, lambda: x @ dw, lambda: 2 * x @ dw),
    "the largest": lambda dw, x: jnp.max(x @ dw, -1, keepdims=True),
}
NET = Net().init(jax.random.key(0), X)


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_in_dw_passes(name):
    check_affine(jax.tree_util.Partial(LINEAR[name]), NET if "linen" in name else W, X)


@pytest.mark.parametrize("name", BENT)
def test_what_bends_is_refused(name):
    with pytest.raises(InputError, match="predict must be linear in dw; got one"):
        check_affine(jax.tree_util.Partial(BENT[name]), W, X)


@pytest.mark.parametrize(("kind", "road"), [("blocks", "closed_form"), ("bitfit", "autodiff"), ("head", "closed_form")])
def test_a_predictor_of_ours_passes(kind, road):
    predict, dw, x, _ = private_task(kind, 1, linearization=road)
    check_affine(predict, dw, x[:2])


@dataclasses.dataclass(frozen=True)
class Curved(VisionTransformer):
    """A user's model whose closed form is none."""

    def dual(self, pairs, x, start=0):
        y, dy = super().dual(pairs, x, start)
        return Dual(y, dy * jnp.tanh(dy))


def test_users_closed_form_is_checked():
    """A Predictor was never asked: it got a certificate of 0."""
    predict, dw = predictor(blocks=0)
    curved = dataclasses.replace(predict, model=Curved(predict.model.config))
    x = np.zeros((2, *predict.model.input_shape(predict.subset.stage)), np.float32)
    with pytest.raises(InputError, match="one whose derivative depends on dw"):
        check_affine(curved, dw, x)
