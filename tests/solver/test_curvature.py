"""Kronecker factors against dense Gauss-Newton blocks."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense import private_case
from helpers import assert_rel_close, private_task, tree_normal

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError
from tangent_jax.linear.jacobian import Fresh
from tangent_jax.linear.signals import Layout
from tangent_jax.solver import curvature as of_curvature
from tangent_jax.solver import passes
from tangent_jax.solver.curvature import Curvature, invert, outer
from tangent_jax.solver.problem import make_curvature
from tangent_jax.solver.rows import jacobian_rows
from tangent_jax.train.batches import Batches
from tangent_jax.train.losses import CrossEntropy
from tangent_jax.train.objective import make_objective

OBJECTIVES = {
    "rsl": make_objective("rsl", 0.1, alpha=3.0),
    "ce": make_objective("ce", 0.1),
    "another": make_objective(lambda outputs, targets: 2 * CrossEntropy()(0.5 * outputs, targets), 0.1),
}


def product_by_blocks(case, logits, weights, loss, v, head_axes):
    """J^T H J v, each leaf by itself, and where `head_axes` says so each head by itself, from the definition."""
    _, _, _, y, jacobian, _ = case
    hessians = jax.vmap(jax.hessian(lambda z, y: loss(z[None], y[None])[0]))(logits, y) * weights[:, None, None]
    products, at = {}, 0
    for path, leaf in trees.leaves(v).items():
        j, leaf = jacobian[:, :, at : at + leaf.size], np.asarray(leaf)
        heads = np.moveaxis(np.zeros(leaf.shape, int), head_axes.get(path, 0), -1)
        heads[...] = np.arange(heads.shape[-1]) if path in head_axes else 0
        heads = np.moveaxis(heads, -1, head_axes.get(path, 0))
        product = 0
        for h in np.unique(heads):
            here = (heads == h).ravel()
            product += here * np.einsum("ncp,nck,nkq,q->p", j, hessians, j, here * leaf.ravel(), optimize=True)
        products[path], at = jnp.asarray(product.reshape(leaf.shape)), at + leaf.size
    return trees.nest(products)


KERNEL = Layout("b", "", "", "i", "o", ("bi", "io", "bo"))
HEADS = {"block_1/attention/key/kernel": 1, "block_1/attention/value/kernel": 1}


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_factors_of_one_example_are_blocks(x64, loss):
    predict, dw, x, y, *_ = case = private_case("blocks", 1)
    v, objective, weights = tree_normal(60, dw), OBJECTIVES[loss], np.array([0, 0, 2.25, 0, 0, 0])
    found = make_curvature(predict, Batches(x, y), objective, dw, example_weights=weights)
    assert_rel_close(found.times(v), product_by_blocks(case, predict(dw, x), weights, objective.loss, v, HEADS))
    assert float(found.count) == 2.25


def test_gains_and_biases_are_exact(x64, monkeypatch):
    predict, dw, x, y, *_ = case = private_case("blocks", 1)
    v, objective = tree_normal(61, dw), OBJECTIVES["rsl"]
    expected = trees.leaves(product_by_blocks(case, predict(dw, x), np.ones(6), objective.loss, v, {}))
    found = make_curvature(predict, Batches(x, y), objective, dw)
    for path in found.blocks:
        assert_rel_close(trees.leaves(found.times(v))[path], expected[path])
    large = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, 5)))
    assert outer(large).shape == (1, 10, 10)
    monkeypatch.setattr(of_curvature, "LARGEST_BLOCK", 9)
    assert_rel_close(outer(large), jnp.einsum("nhp,nhq->hpq", large, large))


def test_tokens_share_their_kernels_factors(x64):
    predict, dw, x, y, *_ = private_case("blocks", 2)
    found = make_curvature(predict, Batches(x, y), OBJECTIVES["rsl"], dw)
    parts = jacobian_rows(predict, x).leaves
    halves = np.sqrt(2 / 7 * (1 + 2 * np.eye(7)[y]))  # the root of the loss's Hessian, alpha = 3
    for path in ("block_0/mlp_in/kernel", "block_0/attention/key/kernel"):
        rows, s = parts[path].x, parts[path].s * halves[:, :, None, None, None]
        assert rows.shape[1] == 5
        assert_rel_close(found.kernels[path][0], np.einsum("nthi,nthj->hij", rows, rows))
        assert_rel_close(found.kernels[path][1], np.einsum("nctho,ncthp->hop", s, s) / 5)


def test_factors_add_over_examples(x64):
    predict, dw, x, y = private_task("blocks", 1)
    objective = OBJECTIVES["ce"]

    def of(rows, weights=None):
        return make_curvature(predict, Batches(x, y, rows=np.array(rows)), objective, dw, example_weights=weights)

    assert_rel_close(of([0, 1, 2]) + of([3, 4, 5]), of(range(6)))
    assert_rel_close(of([1, 2], [2.0, 0.0]), of([1, 1]))
    with pytest.raises(InputError, match="factors that are added must be of one model and subset"):
        of([0]) + make_curvature(private_task("bitfit", 1)[0], Batches(x, y), objective)


def test_random_signals_have_exact_mean(x64):
    predict, dw, x, y = private_task("blocks", 0)
    many = Batches(np.repeat(x, 400, 0), np.repeat(y, 400), batch_size=600)
    exact, random = (make_curvature(predict, many, OBJECTIVES["rsl"], dw, key=key) for key in (None, jax.random.key(1)))
    for path, (a, g) in exact.kernels.items():
        assert_rel_close(random.kernels[path][0], a)
        error = jnp.linalg.norm(random.kernels[path][1] - g) / jnp.linalg.norm(g)
        assert 1e-3 < error < 0.1
    few = Batches(x, y, batch_size=4)
    assert_rel_close(
        *(make_curvature(predict, few, OBJECTIVES["rsl"], dw, key=key) for key in (None, jax.random.key(1)))
    )


def test_chunked_signals_give_same_factors(x64, monkeypatch):
    """The signals of all 43 classes in two blocks took 1.2 GB for eight images."""
    predict, dw, x, y = private_task("blocks", 2)
    given = passes.Part(Fresh(predict, x, None), y, np.ones(6)), dw, predict(dw, x), OBJECTIVES["ce"], None, 0

    def of(most):
        monkeypatch.setattr(passes, "CACHED", most)
        program = jax.jit(partial(passes.part_curvature.__wrapped__, signals=1)).lower(*given).compile()
        return program(*given), program.memory_analysis().temp_size_in_bytes

    (together, most), (some, less), (one, least) = (of(size) for size in (1 << 40, 200_000, 1))
    assert_rel_close(some, together)
    assert_rel_close(one, together)
    if jax.default_backend() == "cpu":  # elsewhere libraries of kernels take room of their own
        assert least < less < most, (least, less, most)


@pytest.mark.parametrize("damping", [0.3, 1e-6, 1e9])
def test_the_inverse_undoes_the_damped_factors(x64, damping):
    """Of gains and biases the damped product, exactly; of a kernel that of factors which share half the damping."""
    predict, dw, x, y = private_task("blocks", 1)
    found = make_curvature(predict, Batches(x, y), OBJECTIVES["rsl"], dw, key=jax.random.key(0))
    assert found.size == sum(leaf.nbytes for leaf in jax.tree.leaves(found))
    v, whole = tree_normal(62, dw), {}
    solved = trees.leaves(invert(found, damping).times(v))
    for path, leaf in trees.leaves(v).items():
        block = np.asarray(found.as_blocks(path, leaf))
        if path in found.kernels:
            a, g = (np.asarray(m) for m in found.kernels[path])
            g = g / found.count
            pi = np.sqrt(a.trace(axis1=1, axis2=2) / a.shape[1] / (g.trace(axis1=1, axis2=2) / g.shape[1]))
            a, g = shifted(a, pi * np.sqrt(damping / 2)), shifted(g, np.sqrt(damping / 2) / pi)
            want = np.linalg.solve(a, np.linalg.solve(g, block.swapaxes(1, 2)).swapaxes(1, 2))
        elif path in found.blocks:
            want = np.linalg.solve(shifted(np.asarray(found.blocks[path]), damping), block[:, :, None])[:, :, 0]
        else:
            want = block / damping
        whole[path] = jnp.asarray(found.from_blocks(path, want, leaf.shape))
    for path, want in whole.items():
        assert_rel_close(solved[path], want, 1e-6)


def shifted(m, shift):
    """m + shift I, and never less than its own rounding."""
    least = 10 * np.finfo(m.dtype).eps * m.trace(axis1=1, axis2=2)
    return m + np.maximum(shift, least)[:, None, None] * np.eye(m.shape[-1])


def test_rank_one_factors_have_f32_inverse():
    one = np.ones((1, 40, 40), np.float32)
    for a, g in ((0 * one, one), (one, 0 * one), (one, one), (1e8 * one, 1e-8 * one)):
        found = Curvature({"kernel": (a, g)}, {"bias": a}, np.float32(3), (("kernel", KERNEL),))
        for damping in (1e-6, 1.0, 1e6):
            inverse = invert(found, damping).inverses
            for m in jax.tree.leaves(inverse)[:3]:
                assert np.linalg.eigvalsh(np.asarray(m[0], np.float64)).min() > 0
    with pytest.raises(InputError, match="factors must be positive and finite"):
        invert(Curvature({}, {"bias": -one}, np.float32(3), ()), 1e-6)


def test_half_factors_are_f32_sums():
    """G was summed in bf16 over all batches."""
    predict, dw, x, y = private_task("blocks", 1)
    half = dataclasses.replace(predict, dtype=jnp.bfloat16)
    many = Batches(np.repeat(x, 50, 0), np.repeat(y, 50), batch_size=2)
    found = make_curvature(half, many, OBJECTIVES["rsl"], dw)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
    once = make_curvature(half, Batches(x, y, batch_size=2), OBJECTIVES["rsl"], dw)
    assert_rel_close(found, jax.tree.map(lambda leaf: 50 * leaf, once))
    assert_rel_close(found, make_curvature(predict, many, OBJECTIVES["rsl"], dw), 5e-2)
