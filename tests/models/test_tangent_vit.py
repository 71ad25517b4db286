"""The two roads agree: closed forms over the ViT against jax.jvp, at every depth and subset."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, TOLERANCE, WIDE, assert_rel_close, images, in_long, normal, small, tree_normal

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.linearization import linearize
from tangent_jax.models.protocol import initial_weights
from tangent_jax.models.subsets import KINDS, MADE, make_subset
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.models.vit.forward import block
from tangent_jax.models.vit.model import VisionTransformer
from tangent_jax.models.vit.modules import TangentViT

VARIANTS = {
    "token": {},
    "avg": {"pool": "avg"},
    "class token replaced": {"class_token_at": 1},
    "clip": {"pre_norm": True, "activation": "quick_gelu", "eps": 1e-5},
    "layer scale, avg": {"layer_scale": True, "pool": "avg", "activation": "gelu_tanh"},
}
SUBSETS = [
    ("blocks", 0),
    ("blocks", 1),
    ("blocks", 2),
    ("bitfit", 1),
    ("bitfit", 2),
    ("layernorm", 2),
    ("head", 1),
    ("everything", 1),
]

FROM_A_BLOCK = [
    subset for subset in SUBSETS if subset not in (("bitfit", 2), ("everything", 1))
]  # the others: from images


def test_every_kind_of_the_weights_themselves_is_held_against_autodiff():
    assert {kind for kind, _ in SUBSETS} == {*KINDS} - {*MADE}


def plain(model):
    return lambda w, x: model.apply(w, x)


def closed(model, w, dw, x, start=0):
    return TangentViT(model.config).apply({"params": w, "tangent": dw}, x, start)


def step(subset, w, key=50):
    return tree_normal(key, subset.part(w))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("kind", "blocks"), SUBSETS)
def test_closed_form_equals_autodiff_for_every_subset(x64, variant, kind, blocks):
    model, w = small(depth=2, **VARIANTS[variant])
    dw = step(make_subset(model, kind, blocks), w)
    assert_rel_close(closed(model, w, dw, images()), linearize(plain(model), w)(dw, images()))


DIFFERENT = [("blocks", 1), ("everything", 1)]  # from the features of a block, and from images with every leaf


@pytest.mark.parametrize("subsets", [DIFFERENT, *in_long(([s for s in SUBSETS if s not in DIFFERENT],))])
@pytest.mark.parametrize("variant", MODERN)
def test_the_closed_form_of_a_modern_vit_equals_autodiff_for_every_subset(x64, variant, subsets):
    """On images that are no square."""
    model, w = small(depth=2, image_size=WIDE, **MODERN[variant])
    x = images(size=WIDE)
    for kind, blocks in subsets:
        dw = step(make_subset(model, kind, blocks), w)
        assert_rel_close(closed(model, w, dw, x), linearize(plain(model), w)(dw, x))


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
def test_the_class_query_equals_the_full_block_in_values_tangents_and_gradients(x64, variant, blocks):
    model, w = small(depth=2, image_size=WIDE, **{**VARIANTS, **MODERN}[variant])
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
DEPTHS += in_long(*(("avg", depth) for depth in (1, 4, 12)), *(("class token replaced", depth) for depth in (1, 4, 12)))
DEPTHS += in_long(*((variant, depth) for variant in [*MODERN][:4] for depth in (1, 12)))


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "depth"), DEPTHS)
def test_closed_form_equals_autodiff_at_every_depth(x64, variant, depth):
    model, w = small(
        depth, **{**VARIANTS, **MODERN}[variant] | ({"class_token_at": depth // 2} if "replaced" in variant else {})
    )
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


@pytest.mark.parametrize(("kind", "blocks"), FROM_A_BLOCK)
def test_the_tail_from_the_trunk_equals_the_whole(x64, kind, blocks):
    model, w = small(2)
    subset = make_subset(model, kind, blocks)
    dw = step(subset, w)
    x = model.apply(w, images(), 0, subset.stage)
    assert_rel_close(closed(model, w, dw, x, subset.stage), closed(model, w, dw, images()))


def test_the_tangent_is_linear_in_dw(x64):
    model, w = small(2)
    subset = make_subset(model, "everything")
    a, b = step(subset, w, 50), step(subset, w, 5000)
    mixed = closed(model, w, jax.tree.map(lambda a, b: 2 * a - 3 * b, a, b), images()).tangent
    assert_rel_close(mixed, 2 * closed(model, w, a, images()).tangent - 3 * closed(model, w, b, images()).tangent)


@pytest.mark.parametrize("variant", ["token", *in_long("avg")])
def test_the_transpose_is_the_vjp(x64, variant):
    model, w = small(2, **VARIANTS[variant])
    dw, u = step(make_subset(model, "everything"), w), normal(9, (2, 7))
    x = images()
    transposed = jax.jit(jax.linear_transpose(lambda dw: closed(model, w, dw, x).tangent, dw))(u)[0]
    assert_rel_close(transposed, jax.jit(lambda u: jax.vjp(lambda w: plain(model)(w, x), w)[1](u)[0])(u))
    assert_rel_close(jnp.vdot(closed(model, w, dw, x).tangent, u), trees_dot(dw, transposed))


def trees_dot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_taylor_remainder_falls_fourfold_per_halved_step(x64):
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


def test_the_class_query_costs_a_fraction_of_the_full_block():
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
    with pytest.raises(InputError, match=r"expected the input of stage 0, of shape \('b', 8, 8, 3\)"):
        closed(model, w, {}, images(size=12))
