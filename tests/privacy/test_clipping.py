"""Clipped sums: two implementations, one guarantee; what noise costs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODERN, TOLERANCE, assert_rel_close, equations, in_long, private_task, products

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.linear.norms import kernel_norm, squared_norms
from tangent_jax.linear.signals import Leaf, Use, layout
from tangent_jax.privacy import norms
from tangent_jax.privacy.clipping import clip_scales, clipped_sum
from tangent_jax.privacy.norms import clipped_gradients, clipped_sum_closed_form, scaled_sum
from tangent_jax.train.losses import as_loss, make_loss

VARIANTS = {
    "token": {},
    "avg": {"pool": "avg"},
    "class token replaced": {"class_token_at": 1},
    "clip, layer scale": {"pre_norm": True, "layer_scale": True, "activation": "quick_gelu"},
}
CE = make_loss("ce")
EPS = {"float64": np.finfo(np.float64).eps, "float32": np.finfo(np.float32).eps}


VMAPPED = jax.jit(clipped_sum, static_argnames="chunk")
CLOSED = jax.jit(clipped_sum_closed_form)


EACH = pytest.mark.parametrize("index", [0, 1], ids=["vmapped", "closed form"])


def clip(index, predict, dw, x, y, present=None, clip_norm=1.0):
    """The clipped sum, vmapped (0) or in closed form (1); the clip norm is data."""
    present = jnp.ones(len(y)) if present is None else present
    if index:
        return CLOSED(predict, dw, x, y, present, loss=CE, clip_norm=jnp.asarray(clip_norm))
    return VMAPPED(predict, dw, x, y, present, loss=CE, clip_norm=jnp.asarray(clip_norm), chunk=4)


def plainly(predict, dw, x, y, clip_norm, loss=CE):
    """Not under jit, where a wrong clip norm is told."""
    return clipped_sum_closed_form(predict, dw, x, y, jnp.ones(len(y)), loss=loss, clip_norm=clip_norm)


def both(*arguments, **options):
    return clip(0, *arguments, **options), clip(1, *arguments, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "kind", "blocks", "method"),
    [("token", "blocks", 2, "taft"), ("class token replaced", "blocks", 1, "taft"), ("avg", "layernorm", 1, "nlft")]
    + [(variant, "blocks", 1, "taft") for variant in ("rotary", "attention pool")]
    + in_long(
        *(("token", *kind, "taft") for kind in (("bitfit", 2), ("layernorm", 1), ("head", 1))),
        *((variant, "blocks", 1, "taft") for variant in ("token", "avg", "clip, layer scale", "class and mean")),
        *((variant, "blocks", 2, "taft") for variant in list(VARIANTS)[1:]),
        ("clip, layer scale", "everything", 0, "taft"),
        *((variant, "blocks", 2, "taft") for variant in MODERN),
        *((variant, "everything", 0, "taft") for variant in MODERN),
        ("token", "blocks", 2, "nlft"),
    ),
)
def test_closed_form_is_the_vmapped_one(x64, variant, kind, blocks, method):
    predict, dw, x, y = private_task(kind, blocks, method=method, **{**VARIANTS, **MODERN}[variant])
    if x.dtype == jnp.uint8:  # images are normalised in f32, which two programs may round otherwise
        x = predict.model.preprocessing.normalize(x).astype(float)
    clip_norm = float(np.median(clip(0, predict, dw, x, y).norms))  # half of the examples are clipped
    reference, closed = both(predict, dw, x, y, clip_norm=clip_norm)
    assert_rel_close(closed.norms, reference.norms)
    assert_rel_close(closed.value, reference.value)
    assert closed.sensitivity == reference.sensitivity == clip_norm


def test_no_clipping_gives_summed_gradient(x64):
    for output in ("total", "tangent"):
        predict, dw, x, y = private_task(output=output)
        want = jax.jit(jax.grad(lambda dw, predict=predict, x=x, y=y: CE(predict(dw, x), y).sum()))(dw)
        for found in both(predict, dw, x, y, clip_norm=1e9):
            assert_rel_close(found.value, want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own
def test_clipped_sums_equal_jax_privacys():
    library = pytest.importorskip("jax_privacy", reason="parity needs jax-privacy: make parity")
    predict, dw, x, y = private_task()

    def loss(dw, x, y):
        return CE(predict(dw, x), y).mean()

    theirs = library.clipped_grad(loss, l2_clip_norm=10.2, batch_argnums=(1, 2))
    for ours in both(predict, dw, x, y, clip_norm=10.2):
        assert_rel_close(ours.value, theirs(dw, x, y))
        assert ours.sensitivity == theirs.sensitivity()


@EACH
@pytest.mark.parametrize("dtype", ["float32", *in_long("float64")])
def test_one_example_moves_sum_by_sensitivity(x64, index, dtype):
    predict, dw, x, y = private_task()
    predict = dataclasses.replace(predict, w=jax.tree.map(lambda leaf: leaf.astype(dtype), predict.w))
    dw, x = jax.tree.map(lambda leaf: leaf.astype(dtype), dw), (100 * x).astype(dtype)
    for clip_norm in (1e-3, 10.0):
        whole = clip(index, predict, dw, x, y, jnp.ones(6, dtype), clip_norm)
        for gone in (0, 3):
            left = clip(index, predict, dw, x, y, jnp.ones(6, dtype).at[gone].set(0), clip_norm)
            moved = jax.tree.map(lambda a, b: a.astype("float64") - b.astype("float64"), whole.value, left.value)
            size = float(jnp.sqrt(trees.squared_norm(whole.value)))
            assert (
                float(jnp.sqrt(trees.squared_norm(moved))) <= clip_norm * (1 + 8 * EPS[dtype]) + 8 * EPS[dtype] * size
            )
        assert whole.sensitivity == clip_norm
    # and some example does move it that much
    alone = clip(index, predict, dw, x, y, jnp.zeros(6, dtype).at[0].set(1), 1e-3)
    assert float(jnp.sqrt(trees.squared_norm(alone.value))) > 0.99e-3


@EACH
def test_non_finite_example_counts_as_zero(x64, index):
    predict, dw, x, y = private_task()
    want = clip(index, predict, dw, x, y, jnp.ones(6).at[2].set(0))
    for bad in (jnp.nan, jnp.inf):
        found = clip(index, predict, dw, x.at[2, 1, 3].set(bad), y)
        assert_rel_close(found.value, want.value)
        assert int(found.non_finite) == 1
        assert int((found + found).non_finite) == 2
        assert float(found.norms[2]) == 0
    assert int(want.non_finite) == 0


@EACH
def test_padding_contributes_nothing(x64, index):
    predict, dw, x, y = private_task()
    whole, first = clip(index, predict, dw, x, y), clip(index, predict, dw, x[:3], y[:3])
    padded = clip(index, predict, dw, x, y, jnp.array([1.0] * 3 + [0.0] * 3))
    assert_rel_close(padded.value, first.value)
    assert not np.any(padded.norms[3:])
    summed = first + clip(index, predict, dw, x[3:], y[3:])
    assert_rel_close(summed.value, whole.value)
    assert summed.sensitivity == whole.sensitivity
    with pytest.raises(InputError, match=r"sums that are added must have one clip norm, 1\.0; got 2\.0"):
        whole + dataclasses.replace(first, sensitivity=2.0)


def test_clipped_gradients_use_closed_form(x64, monkeypatch):
    predict, dw, x, y = private_task("head", 1)
    settings = {"loss": CE, "clip_norm": 0.1}
    want = clip(0, predict, dw, x, y, clip_norm=0.1)
    closed = clipped_gradients(predict, dw, x, y, **settings)
    vmapped = clipped_gradients(lambda dw, x: predict(dw, x), dw, x, y, **settings)
    for found in (closed, vmapped):
        assert_rel_close(found.value, want.value)
        assert_rel_close(found.norms, want.norms)
    none = clipped_gradients(predict, dw, x, y, jnp.zeros(len(y)), **settings)
    assert all(not leaf.any() for leaf in jax.tree.leaves(none.value))
    monkeypatch.setattr(norms, "clipped_sum", None)
    clipped_gradients(predict, dw, x, y, **settings)
    with pytest.raises(TypeError):
        clipped_gradients(lambda dw, x: predict(dw, x), dw, x, y, **settings)


@pytest.mark.parametrize("kind", ["head", *in_long("blocks")])
def test_it_is_the_same_without_jit(kind):
    predict, dw, x, y = private_task(kind)
    assert_rel_close(clip(1, predict, dw, x, y).value, plainly(predict, dw, x, y, 1.0).value)


def test_it_costs_about_one_step():
    predict, dw, x, y = private_task()
    x, y = jnp.tile(x, (6, 1, 1)).astype(jnp.float32), jnp.tile(y, 6)
    present = jnp.ones(len(y))

    def private(predict, dw, x, y):
        return clipped_sum_closed_form(predict, dw, x, y, present, loss=CE, clip_norm=1.0)

    def ordinary(predict, dw, x, y):
        return jax.grad(lambda dw: CE(predict(dw, x), y).sum())(dw)

    compiled = jax.jit(private).lower(predict, dw, x, y).compile()
    plain = jax.jit(ordinary).lower(predict, dw, x, y).compile()
    assert compiled.cost_analysis()["flops"] < 1.5 * plain.cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda t: plainly(*t, 0.0), "clip_norm must be a finite number > 0; got 0.0"),
        (lambda t: plainly(*t, float("inf")), "clip_norm must be a finite number > 0; got inf"),
        (
            lambda t: jax.eval_shape(lambda: plainly(*t, 1.0, lambda z, y: CE(z, y).mean())),
            r"a loss or metric must give one number for each example",
        ),
    ],
)
def test_wrong_uses_are_one_clear_line(call, match):
    with pytest.raises(InputError, match=match):
        call(private_task())


@pytest.mark.parametrize("method", ["taft", *in_long("nlft")])
def test_closed_form_keeps_dtype_and_clip_norm(method):
    predict, dw, x, y = private_task(method=method)
    half = dataclasses.replace(predict, dtype=jnp.bfloat16)
    closed = lambda predict, x: CLOSED(predict, dw, x, y, jnp.ones(6), loss=CE, clip_norm=5.0)  # noqa: E731
    dtypes = products(closed, half, x)
    assert len(dtypes) > 25
    assert all(dtype == {"bfloat16"} for dtype in dtypes)
    assert_rel_close(closed(half, x).norms, closed(predict, x).norms, 2 * TOLERANCE["bfloat16"])
    for i in range(6):
        alone = CLOSED(half, dw, x, y, jnp.zeros(6).at[i].set(1), loss=CE, clip_norm=5.0)
        assert float(jnp.sqrt(trees.squared_norm(alone.value))) <= 5.0 * (1 + 8 * EPS["float32"])


@pytest.mark.parametrize("clipped", [CLOSED, VMAPPED])
def test_coupled_loss_keeps_sensitivity(clipped):
    """One example moved it by 1.24 and 1.39 of C, and the check of four rows at the start let it."""
    predict, dw, x, y = private_task()
    for coupled in (lambda z, y: CE(z + z.mean(0), y), lambda z, y: CE(z, y) * (1 + jnp.square(z).mean())):
        options = {"loss": as_loss(coupled), "clip_norm": 0.1}
        whole, without = (
            clipped(predict, dw, x, y, present, **options) for present in (jnp.ones(6), jnp.ones(6).at[2].set(0))
        )
        moved = trees.plus(whole.value, trees.scale(-1.0, without.value))
        assert 0 < float(jnp.sqrt(trees.squared_norm(moved))) <= 0.1 * (1 + 8 * EPS["float32"])
        alone = clipped(predict, dw, x[2:3], y[2:3], jnp.ones(1), **options)
        assert_rel_close(whole.norms[2:3], alone.norms)


def kernel_of(x, s):
    """A kernel's row of each example, of inputs "b t i" and signals "b t o"."""
    axes = layout(Use("kernel", "btd,df->btf", x))
    return Leaf(axes.rows(x), axes.signals(s)[:, None], axes)


def test_cancelling_tokens_are_clipped_enough():
    """Rounding took the Gram sum of such an example below its norm: it moved the sum by up to 627 C."""
    rng = np.random.default_rng(0)
    for offset in (1e2, 1e3, 1e4, 1e5):
        x = (rng.standard_normal((6, 40, 64)) + offset * rng.standard_normal(64)).astype(np.float32)
        s = rng.standard_normal((6, 40, 32)).astype(np.float32)
        s -= s.mean(1, keepdims=True)  # sum_t s_t = 0: what all tokens share cancels
        exact = np.einsum("btd,btf->bdf", x.astype(np.float64), s.astype(np.float64))
        squared, rounding = kernel_norm(kernel_of(jnp.asarray(x), jnp.asarray(s)), 6)
        scales, _, bad = clip_scales(squared, jnp.ones(6), 0.01, rounding)
        norms = np.sqrt(np.sum(exact**2, (1, 2)))
        assert int(bad) == 0
        assert (np.asarray(scales, np.float64) * norms <= 0.01 * (1 + 1e-5)).all(), offset


def test_cancelling_halves_are_clipped_enough():
    """Reweighted signals are rounded to bf16 again: where tokens cancel, by more than a part of what is left."""
    rng = np.random.default_rng(0)
    for offset, (inputs, outputs) in ((0, (64, 32)), (10, (64, 32)), (300, (64, 32)), (300, (4, 5)), (0, (4, 1))):
        x = jnp.asarray(rng.standard_normal((6, 40, inputs)) + offset * rng.standard_normal(inputs), jnp.bfloat16)
        s = rng.standard_normal((6, 40, outputs))
        s = jnp.asarray(s - s.mean(1, keepdims=True), jnp.bfloat16)
        leaves, dw = {"kernel": kernel_of(x, s)}, {"kernel": jnp.zeros((inputs, outputs))}
        squared, rounding = squared_norms(leaves, 6)
        scales, _, bad = clip_scales(squared, jnp.ones(6), 0.01, rounding)
        assert int(bad) == 0
        for i in range(6):
            alone = scaled_sum(dw, leaves, scales * (np.arange(6) == i))
            assert float(jnp.sqrt(trees.squared_norm(alone))) <= 0.01 * (1 + 8 * EPS["float32"]), (offset, inputs)


@pytest.mark.parametrize("clipped", [clipped_sum, clipped_sum_closed_form])
def test_f32_sums_multiply_in_f32(clipped):
    """A GPU's default is TF32: a sum would move by more than its sensitivity."""
    predict, dw, x, y = private_task()
    run = functools.partial(clipped, loss=CE, clip_norm=1.0)
    with jax.default_matmul_precision("tensorfloat32"):
        sums = [e for e in equations(run, predict, dw, x, y, jnp.ones(6)) if e.primitive.name == "dot_general"]
    highest = [e for e in sums if e.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2]
    assert len(highest) >= 14  # each of seven kernels' own


def linear(dw, x):
    return x @ dw["w"]


DW, X = {"w": jnp.ones((4, 3))}, np.linspace(-1, 1, 28, dtype=np.float32).reshape(7, 4)


def squared_error(outputs, targets):
    return jnp.sum((outputs - targets) ** 2, 1)


@pytest.mark.parametrize("shape", [(6,), (2, 3)], ids=["examples", "owners"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 6, 7, 100])
def test_chunk_size_changes_no_sum(chunk, shape):
    """Of targets with several numbers each, too; an owner that is larger than a chunk is processed whole."""
    y = np.float32(np.arange(18).reshape(6, 3) % 4)
    whole = clipped_sum(linear, DW, X[:6], y, np.ones(shape), loss=squared_error, clip_norm=2.0, chunk=chunk)
    gradients = [
        jax.grad(lambda dw, s=s: squared_error(linear(dw, X[s]), y[s]).sum())(DW)["w"]
        for s in np.split(np.arange(6), shape[0])
    ]
    lengths = [float(jnp.linalg.norm(g)) for g in gradients]
    assert_rel_close(whole.norms, np.float32(lengths))
    assert_rel_close(whole.value["w"], sum(g * min(1, 2.0 / a) for g, a in zip(gradients, lengths, strict=True)))


def test_scales_are_finite_without_padding():
    squared = jnp.array([4.0, np.nan, np.inf, np.nan, -1e-9, 9.0])
    here = jnp.array([1.0, 1, 1, 0, 1, 0])
    for rounding in (0.0, jnp.zeros(6)):
        scales, lengths, bad = clip_scales(squared, here, 1.0, rounding)
        np.testing.assert_allclose(scales, [0.5, 0, 0, 0, 1, 0])
        np.testing.assert_allclose(lengths, [2, 0, 0, 0, 0, 0])
        assert int(bad) == 2


@EACH
@pytest.mark.parametrize("clip_norm", [-1.0, np.nan, 0.0])
def test_bad_traced_clip_norm_clips_to_zero(index, clip_norm):
    total = clip(index, *private_task(), clip_norm=clip_norm).value
    assert not any(leaf.any() for leaf in jax.tree.leaves(total))
    scales, *_ = clip_scales(jnp.array([4.0, 0.0]), jnp.ones(2), clip_norm)
    assert scales.tolist() == [0, 0]
    with pytest.raises(InputError, match="clip_norm must be a finite number > 0"):
        plainly(*private_task(), jnp.float32(clip_norm))


@pytest.mark.parametrize(
    ("y", "present", "match"),
    [
        (np.zeros(6, int), np.ones(7), "y must have one target for each of 7 inputs; got 6"),
        (np.zeros(8, int), np.ones(7), "y must have one target for each of 7 inputs; got 8"),
        (np.zeros(7, int), np.ones(6), r"present must be 1 or 0 for each of 7 inputs, .*; got shape \(6,\)"),
        (np.zeros(7, int), np.ones(8), r"present must be 1 or 0 for each of 7 inputs, .*; got shape \(8,\)"),
        (np.zeros(7, int), np.ones((7, 1, 1)), r"present must be 1 or 0 .*; got shape \(7, 1, 1\)"),
    ],
)
def test_unequal_example_counts_are_refused(untyped, y, present, match):
    for clipped, predict, dw in ((clipped_sum, linear, DW), (clipped_sum_closed_form, *private_task()[:2])):
        x = X if predict is linear else np.zeros((7, 2), np.float32)
        with pytest.raises(InputError, match=match):
            clipped(predict, dw, x, y, present, loss=CE, clip_norm=1.0)


@pytest.mark.parametrize("chunk", [1, 8])
def test_half_gradients_are_summed_in_f32(chunk):
    """A sum of ones in bfloat16 stays at 256."""
    dw, x = jnp.zeros((1, 1), jnp.bfloat16), jnp.ones((1024, 1), jnp.bfloat16)
    clipped = clipped_sum(
        lambda dw, x: x @ dw,
        dw,
        x,
        np.zeros(1024),
        np.ones(1024),
        loss=lambda f, y: f[:, 0],
        clip_norm=2.0,
        chunk=chunk,
    )
    assert clipped.value.dtype == jnp.float32
    assert clipped.value.tolist() == [[1024.0]]
