"""Two small image networks from attribution benchmarks (dattri, Deng et al. 2024), with closed forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import tangent_jax as tj
from tangent_jax.core.notation import Dual, Tree
from tangent_jax.rules import dense, relu

WIDTHS = {"logistic": (), "mlp": (128, 64)}
"""The widths of the hidden layers; without any it is logistic regression on pixels."""


def network(name: str, side: int, classes: int, seed: int) -> tj.Pretrained:
    """A network of WIDTHS on the grey pixels of square images; its kernels N(0, 2/inputs), logistic's at zero."""
    sizes = (side * side, *WIDTHS[name], classes)
    rng = np.random.default_rng(seed)
    hidden = len(WIDTHS[name])
    names = [*(f"layer_{i}" for i in range(hidden)), "head"]

    def layer(d: int, f: int) -> Tree:
        kernel = rng.normal(0, (2 / d) ** 0.5 if hidden else 0.0, (d, f))
        return {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.zeros(f)}

    w = {name: layer(*pair) for name, *pair in zip(names, sizes[:-1], sizes[1:], strict=True)}
    stages = [grey, *(partial(hidden_layer, name) for name in names[:-1])]
    images = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    scale = tj.models.Preprocessing(crop=1.0, mean=(0.1307,) * 3, std=(0.3081,) * 3)  # MNIST's values, as in dattri
    return tj.model_of(stages, w, images, head=head, preprocessing=scale, dual=partial(dual, names[:-1]))


def grey(w: Tree, x: jax.Array) -> jax.Array:
    """The pixels' mean over colours, "b p"."""
    return x.mean(-1).reshape(len(x), -1)


def hidden_layer(name: str, w: Tree, x: jax.Array) -> jax.Array:
    """A dense layer with ReLU."""
    return jax.nn.relu(x @ w[name]["kernel"] + w[name]["bias"])


def head(w: Tree, x: jax.Array) -> jax.Array:
    """The last dense layer."""
    return x @ w["head"]["kernel"] + w["head"]["bias"]


def dual(names: list[str], pairs: Tree, x: jax.Array, start: int = 0) -> Dual:
    """The outputs and their tangent from a stage on."""
    x, dx = (grey({}, x) if start == 0 else x), None
    for name in names[max(0, start - 1) :]:
        x, dx = relu(*dense(x, dx, pairs[name]))
    return Dual(*dense(x, dx, pairs["head"]))
