"""Every closed form against jax.jvp, a central difference, jit, vmap, and a property of its own."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import DIFFERENCE, TOLERANCE, assert_rel_close, in_long, normal

from tangent_jax import rules
from tangent_jax.core.checks import InputError
from tangent_jax.core.notation import Dual
from tangent_jax.rules import probe

B, N, H, E, D, F = 2, 5, 3, 4, 12, 20


def dense(x, kernel, bias):
    return lambda d: rules.dense(x, d[0], {"kernel": Dual(kernel, d[1]), "bias": Dual(bias, d[2])})


def layer_norm(x, scale, bias):
    return lambda d: rules.layer_norm(x, d[0], {"scale": Dual(scale, d[1]), "bias": Dual(bias, d[2])}, 1e-6)


def class_attention(x, q, scale, bias, wk, bk, wv, bv, first=0):
    def rule(d):
        pairs = [Dual(*pair) for pair in zip((scale, bias, wk, bk, wv, bv), d[2:], strict=True)]
        names = (
            {"scale": pairs[0], "bias": pairs[1]},
            {"kernel": pairs[2], "bias": pairs[3]},
            {"kernel": pairs[4], "bias": pairs[5]},
        )
        return rules.class_attention(x, d[0], Dual(q, d[1]), *names, first=first)

    return rule


TURNS = rules.make_turns(prefix=1, rows=2, columns=3, width=8, theta=100.0)


def turned_class_attention(x, q, scale, bias, wk, bk, wv, bv, first=0):
    def rule(d):
        norm, key, value = (
            dict(zip(names, (Dual(*pair) for pair in pairs), strict=True))
            for names, pairs in (
                (("scale", "bias"), ((scale, d[2]), (bias, d[3]))),
                (("kernel", "bias"), ((wk, d[4]), (bk, d[5]))),
                (("kernel", "bias"), ((wv, d[6]), (bv, d[7]))),
            )
        )
        return rules.class_attention(x, d[0], Dual(q, d[1]), norm, key, value, TURNS, first)

    return rule


def by_angle(x, place):
    """One token's features "... 8" turned by its row and its column, frequency by frequency."""
    row, column = divmod(place, 3)
    angles = [2 * jnp.pi * c * 100.0 ** -(j / 2) for c in ((row - 0.5), (2 * column - 2) / 3) for j in (0, 1)]
    first, second = x[..., :4], x[..., 4:]
    cos, sin = jnp.cos(jnp.array(angles)).astype(x.dtype), jnp.sin(jnp.array(angles)).astype(x.dtype)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def turned(x):
    """Tokens "b n h e": the first stays, six turn."""
    return jnp.stack([x[:, 0], *(by_angle(x[:, 1 + place], place) for place in range(6))], 1)


def full_turned_row(x, q, scale, bias, wk, bk, wv, bv):
    z = x * scale + bias
    k, v = turned(jnp.einsum("bmd,dhe->bmhe", z, wk) + bk), jnp.einsum("bmd,dhe->bmhe", z, wv) + bv
    a = jax.nn.softmax(jnp.einsum("bhe,bmhe->bhm", q, k) / 8**0.5)
    return jnp.einsum("bhm,bmhe->bhe", a, v)


def full_attention_row(x, q, scale, bias, wk, bk, wv, bv):
    """The result that class_attention must equal: keys and values formed for every token."""
    z = x * scale + bias
    k, v = jnp.einsum("bmd,dhe->bmhe", z, wk) + bk, jnp.einsum("bmd,dhe->bmhe", z, wv) + bv
    a = jax.nn.softmax(jnp.einsum("bhe,bmhe->bhm", q, k) / E**0.5)
    return jnp.einsum("bhm,bmhe->bhe", a, v)


def convolution(x, w):
    """By XLA, stride 2, half a window of padding."""
    half = w.shape[0] // 2
    return jax.lax.conv_general_dilated(x, w, (2, 2), [(half, half)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_norm(x, g, beta):
    mean, var = Dual(normal(7, (3,), x.dtype), None), Dual(normal(8, (3,), x.dtype) ** 2 + 0.5, None)
    leaf = {"mean": mean, "var": var}
    return lambda d: rules.batch_norm(x, d[0], leaf | {"scale": Dual(g, d[1]), "bias": Dual(beta, d[2])}, 1e-5)


def fixed_norm(x, g, beta):
    mean, var = normal(7, (3,), x.dtype), normal(8, (3,), x.dtype) ** 2 + 0.5
    return g * (x - mean) / jnp.sqrt(var + 1e-5) + beta


def largest(x):
    """Max pooling, 3 x 3 and stride 2, by slices: a GPU differentiates `reduce_window` in f64 in lower precision."""
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    rows, columns = (2 * ((side - 3) // 2) + 1 for side in x.shape[1:3])
    slices = [x[:, i : i + rows : 2, j : j + columns : 2] for i in range(3) for j in range(3)]
    return jnp.stack(slices).max(0)


PIXELS = (B, 7, 6, 3)
CASES = {  # name: (operand shapes, rule(*operands)(tangents) -> (y, dy), the same function by plain jnp)
    "dense": (((B, N, D), (D, F), (F,)), dense, lambda x, w, b: x @ w + b),
    "layer_norm": (
        ((B, N, D), (D,), (D,)),
        layer_norm,
        lambda x, g, b: g * (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6) + b,
    ),
    "standardize": (
        ((B, N, D),),
        lambda x: lambda d: rules.standardize(x, d[0], 1e-6),
        lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6),
    ),
    "unit_length": (
        ((B, N, D),),
        lambda z: lambda d: rules.unit_length(z, d[0]),
        lambda z: z / jnp.linalg.norm(z, axis=-1, keepdims=True),
    ),
    "gelu": (
        ((B, N, F),),
        lambda x: lambda d: rules.ACTIVATIONS["gelu"](x, d[0]),
        lambda x: jax.nn.gelu(x, approximate=False),
    ),
    "gelu_tanh": (
        ((B, N, F),),
        lambda x: lambda d: rules.ACTIVATIONS["gelu_tanh"](x, d[0]),
        lambda x: jax.nn.gelu(x, approximate=True),
    ),
    "quick_gelu": (
        ((B, N, F),),
        lambda x: lambda d: rules.ACTIVATIONS["quick_gelu"](x, d[0]),
        lambda x: x * jax.nn.sigmoid(1.702 * x),
    ),
    "silu": ((((B, N, F),)), lambda x: lambda d: rules.ACTIVATIONS["silu"](x, d[0]), jax.nn.silu),
    "bilinear": (
        ((B, N, F), (B, N, F)),
        lambda x, y: lambda d: rules.bilinear(jnp.multiply, x, d[0], y, d[1]),
        lambda x, y: x * y,
    ),
    "rotate": (((B, 7, H, 8),), lambda x: lambda d: rules.rotate(x, d[0], TURNS), turned),
    "class_attention, turned": (
        ((B, 7, D), (B, H, 8), (D,), (D,), (D, H, 8), (H, 8), (D, H, 8), (H, 8)),
        turned_class_attention,
        full_turned_row,
    ),
    "class_attention, turned, after two rows": (
        ((B, 9, D), (B, H, 8), (D,), (D,), (D, H, 8), (H, 8), (D, H, 8), (H, 8)),
        functools.partial(turned_class_attention, first=2),
        lambda x, *rest: full_turned_row(x[:, 2:], *rest),
    ),
    "relu": ((PIXELS,), lambda x: lambda d: rules.relu(x, d[0]), jax.nn.relu),
    "leaky relu": ((PIXELS,), lambda x: lambda d: rules.relu(x, d[0], 0.1), lambda x: jax.nn.leaky_relu(x, 0.1)),
    "conv": ((PIXELS, (3, 3, 3, 4)), lambda x, w: lambda d: rules.conv(x, d[0], Dual(w, d[1]), 2), convolution),
    "conv, 1 x 1": ((PIXELS, (1, 1, 3, 4)), lambda x, w: lambda d: rules.conv(x, d[0], Dual(w, d[1]), 2), convolution),
    "batch_norm": ((PIXELS, (3,), (3,)), batch_norm, fixed_norm),
    "max_pool": ((PIXELS,), lambda x: lambda d: rules.max_pool(x, d[0]), largest),
    "mean_pool": ((PIXELS,), lambda x: lambda d: rules.mean_pool(x, d[0]), lambda x: x.mean((1, 2))),
    "softmax": (
        ((B, H, N, N + 1),),
        lambda s: lambda d: rules.softmax(s, d[0]),
        lambda s: jnp.exp(s) / jnp.exp(s).sum(-1, keepdims=True),
    ),
    "softmax, second axis": (
        ((B, N + 1, H),),
        lambda s: lambda d: rules.softmax(s, d[0], axis=1),
        lambda s: jnp.exp(s) / jnp.exp(s).sum(1, keepdims=True),
    ),
    "attention": (
        ((B, N, H, E), (B, N + 1, H, E), (B, N + 1, H, E)),
        lambda q, k, v: lambda d: rules.attention(q, d[0], k, d[1], v, d[2]),
        lambda q, k, v: jnp.einsum("bhnm,bmhe->bnhe", jax.nn.softmax(jnp.einsum("bnhe,bmhe->bhnm", q, k) / E**0.5), v),
    ),
    "class_attention": (
        ((B, N, D), (B, H, E), (D,), (D,), (D, H, E), (H, E), (D, H, E), (H, E)),
        class_attention,
        full_attention_row,
    ),
    "class_attention, after a row": (
        ((B, N + 1, D), (B, H, E), (D,), (D,), (D, H, E), (H, E), (D, H, E), (H, E)),
        functools.partial(class_attention, first=1),
        lambda x, *rest: full_attention_row(x[:, 1:], *rest),
    ),
}


def operands(name, dtype=jnp.float64):
    shapes, rule, plain = CASES[name]
    x = [normal(i, shape, dtype) for i, shape in enumerate(shapes)]
    dx = [normal(100 + i, shape, dtype) for i, shape in enumerate(shapes)]
    return x, dx, rule, plain


@pytest.mark.parametrize("name", CASES)
def test_closed_form_equals_jvp_in_f64(x64, name):
    x, dx, rule, plain = operands(name)
    assert_rel_close(rule(*x)(dx), jax.jvp(plain, x, dx))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["bfloat16", *in_long("float32")])
def test_closed_form_in_low_precision_equals_f64(x64, name, dtype):
    x, dx, rule, plain = operands(name, jnp.dtype(dtype))
    y, dy = rule(*x)(dx)
    assert y.dtype == dy.dtype == dtype
    wide = jax.jvp(plain, *([a.astype(jnp.float64) for a in args] for args in (x, dx)))
    assert_rel_close((y.astype(jnp.float64), dy.astype(jnp.float64)), wide, TOLERANCE[dtype])


@pytest.mark.parametrize("name", CASES)
def test_closed_form_equals_a_central_difference(x64, name):
    x, dx, rule, plain = operands(name)
    step = 1e-5
    ahead, behind = (plain(*(a + s * da for a, da in zip(x, dx, strict=True))) for s in (step, -step))
    assert_rel_close(rule(*x)(dx)[1], (ahead - behind) / (2 * step), DIFFERENCE)


@pytest.mark.parametrize("name", CASES)
def test_closed_form_is_linear_in_its_tangents(x64, name):
    x, dx, rule, _ = operands(name)
    other = [normal(200 + i, a.shape) for i, a in enumerate(x)]
    mixed = rule(*x)([2.5 * a - 0.5 * b for a, b in zip(dx, other, strict=True)])[1]
    assert_rel_close(mixed, 2.5 * rule(*x)(dx)[1] - 0.5 * rule(*x)(other)[1])


@pytest.mark.parametrize("name", CASES)
def test_closed_form_survives_jit_and_vmap(x64, name):
    x, dx, rule, _ = operands(name)
    want = rule(*x)(dx)
    assert_rel_close(jax.jit(lambda x, dx: rule(*x)(dx))(x, dx), want)
    batched = [a.ndim > 1 and a.shape[0] == B for a in x]
    axes = [0 if is_batched else None for is_batched in batched]
    single = jax.vmap(
        lambda x, dx: jax.tree.map(
            lambda y: y[0],
            rule(*(a[None] if b else a for a, b in zip(x, batched, strict=True)))(
                [a[None] if b else a for a, b in zip(dx, batched, strict=True)]
            ),
        ),
        in_axes=(axes, axes),
    )(x, dx)
    assert_rel_close(single, want)


@pytest.mark.parametrize("name", CASES)
def test_a_structural_zero_equals_a_zero_tangent(x64, name):
    x, dx, rule, _ = operands(name)
    assert rule(*x)([None] * len(x))[1] is None
    for kept in range(len(x)):
        sparse = [da if i == kept else None for i, da in enumerate(dx)]
        dense_ = [da if i == kept else jnp.zeros_like(da) for i, da in enumerate(dx)]
        got, want = rule(*x)(sparse)[1], rule(*x)(dense_)[1]
        if got is None:  # the key bias: softmax ignores a common shift
            assert float(jnp.abs(want).max()) == 0
        else:
            assert_rel_close(got, want)


def test_rows_of_the_softmax_tangent_sum_to_zero(x64):
    _, da = rules.softmax(normal(1, (B, N)), normal(2, (B, N)))
    assert float(jnp.abs(da.sum(-1)).max()) < TOLERANCE["float64"]


def test_softmax_over_one_key_is_constant(x64):
    a, da = rules.softmax(normal(1, (B, 1)), normal(2, (B, 1)))
    assert (a == 1).all()
    assert (da == 0).all()


def test_softmax_refuses_other_dtype(x64):
    with pytest.raises(InputError, match="ds must have shape"):
        rules.softmax(normal(1, (B, N)), normal(2, (B, N), jnp.float32))


def test_a_constant_row_standardises_to_zero(x64):
    dx = normal(1, (1, D))
    x_hat, dx_hat = rules.standardize(jnp.ones((1, D)), dx, 1e-6)
    assert (x_hat == 0).all()
    assert_rel_close(dx_hat, (dx - dx.mean()) / 1e-3)


def test_standardised_tangent_sums_to_zero(x64):
    _, dx_hat = rules.standardize(normal(1, (B, D)), normal(2, (B, D)), 1e-6)
    assert float(jnp.abs(dx_hat.sum(-1)).max()) < TOLERANCE["float64"]


def test_frozen_layer_norm_keeps_its_term(x64):
    x, g, beta, dg, dbeta = normal(1, (B, D)), *(normal(i, (D,)) for i in range(2, 6))
    _, dy = rules.layer_norm(x, None, {"scale": Dual(g, dg), "bias": Dual(beta, dbeta)}, 1e-6)
    assert_rel_close(dy, dg * rules.standardize(x, None, 1e-6)[0] + dbeta)


def test_unit_row_tangent_is_orthogonal(x64):
    z_hat, dz_hat = rules.unit_length(normal(1, (B, D)), normal(2, (B, D)))
    assert float(jnp.abs(jnp.sum(z_hat * dz_hat, -1)).max()) < TOLERANCE["float64"]
    z, dz = jnp.zeros((B, D)), normal(2, (B, D))
    assert not any(a.any() for a in rules.unit_length(z, dz))
    assert not jax.jvp(lambda z: rules.unit_length(z, None)[0], (z,), (dz,))[1].any()


def test_gelu_at_zero_has_slope_one_half(x64):
    for name, rule in rules.ACTIVATIONS.items():
        y, dy = rule(jnp.zeros(1), jnp.ones(1))
        assert (float(y[0]), float(dy[0])) == (0.0, 0.5), name


def test_one_key_is_read_whole(x64):
    q, k, v, dv = (normal(i, (B, 1, H, E)) for i in range(4))
    o, do = rules.attention(q, None, k, None, v, dv)
    assert_rel_close((o, do), (v, dv))


def test_convolution_is_that_of_xla(x64, monkeypatch):
    x, dx, rule, _ = operands("conv")
    by_patches = rule(*x)(dx)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, cpu, default: default(*x))
    assert_rel_close(rule(*x)(dx), by_patches)


def test_first_maximum_passes_its_tangent(x64):
    y, dy = rules.max_pool(jnp.zeros((1, 3, 3, 1)), jnp.arange(9.0).reshape(1, 3, 3, 1))
    assert (y == 0).all()
    assert dy[0, :, :, 0].tolist() == [[0.0, 1.0], [3.0, 4.0]]


@pytest.mark.parametrize("spec", ["...td,df->...tf", "btd,btf->bdf"])
def test_half_products_run_at_every_size(spec):
    """XLA's CPU compiler has no inner product, and no vector times a number, by the algorithm of halves."""
    operands = spec.replace("...", "").split("->")[0].split(",")
    axes = sorted(set("".join(operands)))
    for sizes in itertools.product((1, 3), repeat=len(axes)):
        size = dict(zip(axes, sizes, strict=True))
        a, b = (jnp.ones([size[axis] for axis in operand], jnp.bfloat16) for operand in operands)
        product, back = jax.vjp(jax.jit(functools.partial(probe.product, spec)), a, b)
        np.testing.assert_array_equal(product, jnp.einsum(spec, *(x.astype(jnp.float32) for x in (a, b))))
        jax.block_until_ready(jax.jit(back)(product))
