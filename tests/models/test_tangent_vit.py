"""The two roads of the ViT: at every depth, in low precision, as a linear map, and what they cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, TOLERANCE, WIDE, apply, assert_rel_close, images, in_long, normal, small, tree_normal
from models.test_oracle import VIT

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.linearization import linearize
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.subsets import make_subset
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.forward import block
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.modules import TangentViT


def plain(model):
    return functools.partial(apply, model)


@functools.partial(jax.jit, static_argnums=0)
def closed(model, w, dw, x):
    return TangentViT(model.config).apply({"params": w, "tangent": dw}, x)


def step(subset, w, key=50):
    return tree_normal(key, subset.part(w))


def every_token_a_query(model):
    """The ViT as everyone writes it: all blocks on all tokens, the class token read at the end."""
    every, last = model.replace(pool="avg", class_token_at=None), model.config.depth

    def f(w, x):
        x = every.apply(w, x, 0, last)
        if model.config.class_token_at == last - 1:
            x = x.at[:, 0].set(w["new_class_token"])
        x, _ = block(model.config, trees.pair(w[f"block_{last - 1}"], {}), x, None)
        return every.apply(w, x[:, 0], last + 1)

    return f


@pytest.mark.parametrize(
    ("variant", "blocks"),
    [
        *(("token", 2), ("class token replaced", 1), ("rotary", 1)),
        *in_long(("token", 1), ("class token replaced", 2), ("rotary", 2), ("clip", 1), ("clip", 2)),
    ],
)
def test_class_query_is_full_block(x64, variant, blocks):
    model, w = small(depth=2, image_size=WIDE, **{**VIT, **MODERN}[variant])
    dw, x = step(make_subset(model, "blocks", blocks), w), images(size=WIDE)
    full = linearize(every_token_a_query(model), w)
    assert_rel_close(closed(model, w, dw, x), full(dw, x))
    u = normal(8, (2, 7))
    gradients = [
        jax.jit(jax.grad(lambda dw, f=f: jnp.sum(u * f(dw).total ** 2)))(dw)
        for f in (lambda dw: closed(model, w, dw, x), lambda dw: full(dw, x))
    ]
    assert_rel_close(*gradients)


DEPTHS = [("token", 1), ("class token replaced", 3)]  # one block; the first, between, the last
DEPTHS += in_long(*(("token", depth) for depth in range(2, 13)))
DEPTHS += in_long(
    *((variant, depth) for variant in ("avg", "class token replaced", *[*MODERN][:4]) for depth in (1, 12))
)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "depth"), DEPTHS)
def test_closed_form_is_autodiff_at_depth(x64, variant, depth):
    replaced = {"class_token_at": depth // 2} if "replaced" in variant else {}
    model, w = small(depth, **{**VIT, **MODERN}[variant] | replaced)
    parts = [("blocks", 0), ("blocks", 1), ("bitfit", depth), ("layernorm", depth), ("everything", 0)]
    for kind, blocks in dict.fromkeys([*parts, ("blocks", depth)]):
        dw = step(make_subset(model, kind, blocks), w)
        assert_rel_close(closed(model, w, dw, images(1)), linearize(plain(model), w)(dw, images(1)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_low_precision_agrees_with_f64(x64, dtype):
    model, w = small(3)
    dw = step(make_subset(model, blocks=2), w)
    got = closed(model, *trees.cast((w, dw, images()), dtype))
    assert got.primal.dtype == got.tangent.dtype == dtype
    want = closed(model, w, dw, images())
    assert_rel_close(jax.tree.map(lambda y: y.astype(jnp.float64), got), want, TOLERANCE[dtype])


def test_the_primal_is_the_plain_model(x64):
    model, w = small(3)
    assert_rel_close(closed(model, w, {}, images()).primal, plain(model)(w, images()))
    assert closed(model, w, {}, images()).tangent is None


def test_the_tangent_is_linear_in_dw(x64):
    model, w = small(2)
    subset = make_subset(model, "everything")
    a, b = step(subset, w, 50), step(subset, w, 5000)
    mixed = closed(model, w, jax.tree.map(lambda a, b: 2 * a - 3 * b, a, b), images()).tangent
    assert_rel_close(mixed, 2 * closed(model, w, a, images()).tangent - 3 * closed(model, w, b, images()).tangent)


@pytest.mark.parametrize("variant", ["token", *in_long("avg")])
def test_the_transpose_is_the_vjp(x64, variant):
    model, w = small(2, **VIT[variant])
    dw, u = step(make_subset(model, "everything"), w), normal(9, (2, 7))
    x = images()
    transposed = jax.jit(jax.linear_transpose(lambda dw: closed(model, w, dw, x).tangent, dw))(u)[0]
    assert_rel_close(transposed, jax.jit(lambda u: jax.vjp(lambda w: plain(model)(w, x), w)[1](u)[0])(u))
    assert_rel_close(jnp.vdot(closed(model, w, dw, x).tangent, u), trees.vdot(dw, transposed))


def test_remainder_falls_fourfold(x64):
    model, w = small(3)
    dw = jax.tree.map(lambda leaf: 1e-3 * leaf, step(make_subset(model, "everything"), w))

    def remainder(s):
        moved = jax.tree.map(lambda leaf: s * leaf, dw)
        return float(
            jnp.linalg.norm(plain(model)(trees.add(w, moved), images()) - closed(model, w, moved, images()).total)
        )

    ratios = [remainder(s) / remainder(s / 2) for s in (1.0, 0.5, 0.25)]
    assert all(3.7 <= ratio <= 4.3 for ratio in ratios), ratios


def test_jit_vmap_and_grad_are_clean(x64):
    model, w = small(2)
    dw = step(make_subset(model), w)
    want = closed(model, w, dw, images())
    assert_rel_close(jax.jit(lambda w, dw, x: closed(model, w, dw, x))(w, dw, images()), want)
    assert_rel_close(jax.vmap(lambda x: jax.tree.map(lambda y: y[0], closed(model, w, dw, x[None])))(images()), want)
    # squared loss of f_lin: the gradient is J^T (f_lin), by both roads
    losses = [
        lambda dw, f=f: jnp.sum(f(dw).total ** 2)
        for f in (lambda dw: closed(model, w, dw, images()), lambda dw: linearize(plain(model), w)(dw, images()))
    ]
    assert_rel_close(*[jax.jit(jax.grad(loss))(dw) for loss in losses])


def flops(function, *args):
    return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]


def test_a_frozen_prefix_costs_nothing():
    """Compiled FLOPs, depth 12: a tangent of the last block adds under 3 %, of the head nothing to speak of."""
    config = ViTConfig(width=48, depth=12, heads=3, mlp_width=192, patch_size=4, image_size=32, classes=7)
    model = VisionTransformer(config)
    w, x = initial_weights(model, jax.random.key(0)), jnp.ones((2, 32, 32, 3))
    base = flops(plain(model), w, x)
    for kind, blocks, most in (("blocks", 1, 1.03), ("head", 1, 1.001)):
        dw = make_subset(model, kind, blocks).zeros(w)
        cost = flops(lambda w, dw, x: closed(model, w, dw, x), w, dw, x)
        assert cost <= most * base, (kind, cost / base)
    full = flops(lambda w, dw, x: closed(model, w, dw, x), w, make_subset(model, blocks=12).zeros(w), x)
    assert full > 1.5 * base  # so the measure can tell


def test_class_query_costs_a_fraction():
    """Compiled FLOPs of a gradient on the last block, 65 tokens: against jax.jvp of every token's query."""
    config = ViTConfig(width=48, depth=1, heads=3, mlp_width=192, patch_size=4, image_size=32, classes=7)
    model = VisionTransformer(config)
    w, x = initial_weights(model, jax.random.key(0)), jnp.ones((2, 32, 32, 3))
    dw = make_subset(model).zeros(w)
    roads = (lambda dw: closed(model, w, dw, x), lambda dw: linearize(every_token_a_query(model), w)(dw, x))
    query, full = (flops(jax.grad(lambda dw, f=f: jnp.sum(f(dw).total ** 2)), dw) for f in roads)
    assert full > 8 * query


def test_a_wrong_tangent_is_refused_by_name(x64):
    model, w = small(1)
    with pytest.raises(InputError, match="dw must be a part of w; w lacks its leaf block_7/norm1/scale"):
        closed(model, w, {"block_7": {"norm1": {"scale": np.zeros(12)}}}, images())
    with pytest.raises(InputError, match=r"head/bias must have shape \(7,\); got \(8,\)"):
        closed(model, w, {"head": {"bias": np.zeros(8)}}, images())
    with pytest.raises(InputError, match=r"inputs of stage 0 must have shape \('b', 8, 8, 3\)"):
        closed(model, w, {}, images(size=12))
