"""A model that computes in bf16: what is summed over examples is summed in f32."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_rel_close, normal, predictor, sums_of_examples

from tangent_jax.linear.jacobian import Fresh
from tangent_jax.privacy.norms import clipped_sum_closed_form
from tangent_jax.solver import passes
from tangent_jax.train.losses import CrossEntropy
from tangent_jax.train.objective import make_objective

COUNT = 11  # examples: no other axis of the small model has this size
CE = make_objective("ce", 0.1)
SUBSETS = [("blocks", 2), ("everything", 0), ("bitfit", 1)]


def half_case(kind, blocks, count=COUNT, **variant):
    predict, dw = predictor(kind, blocks, **variant)
    x = normal(3, (count, *predict.model.input_shape(predict.subset.stage)))
    return dataclasses.replace(predict, dtype=jnp.bfloat16), dw, x, np.arange(count) % 7


def gradient(predict, x, y, dw, present=None):
    return jax.grad(lambda dw: CE(predict, dw, x, y, present))(dw)


def product(predict, x, y, dw):
    part = passes.Part(Fresh(predict, x, np.arange(len(y))), y, np.ones(len(y), np.float32))
    return passes.add_product(dw, part, dw, jnp.zeros((len(y), 7)), CE)


def factors(predict, x, y, dw):
    part = passes.Part(Fresh(predict, x, np.arange(len(y))), y, np.ones(len(y), np.float32))
    return passes.part_curvature(part, dw, jnp.zeros((len(y), 7)), CE, None, 0, 3)


def clipped(predict, x, y, dw):
    return clipped_sum_closed_form(predict, dw, x, y, jnp.ones(len(y)), loss=CrossEntropy(), clip_norm=1.0)


@pytest.mark.parametrize("summed", [gradient, product, factors, clipped])
@pytest.mark.parametrize("subset", SUBSETS)
def test_every_sum_over_examples_is_in_f32(summed, subset):
    predict, dw, x, y = half_case(*subset, class_token_at=0 if subset[0] == "blocks" else None)
    dtypes = sums_of_examples(partial(summed, predict, x, y), COUNT, dw)
    assert len(dtypes) >= 3
    assert {*dtypes} <= {"float32", "int32"}


def test_mean_gradient_of_copies_is_its_own():
    predict, dw, x, y = half_case("blocks", 1, 512)  # a power of two, by which signals divide without rounding
    x, y = x[:1].repeat(512, 0), y[:1].repeat(512)
    of_all, of_one = (jax.jit(gradient)(predict, x, y, dw, present) for present in (np.ones(512), np.arange(512) == 0))
    assert_rel_close(of_all, of_one)


def test_activations_and_signals_are_in_bf16():
    """Else nothing would be gained: signals and activations of examples stay halves."""
    predict, dw, x, y = half_case("blocks", 2)
    jaxpr = str(jax.make_jaxpr(partial(gradient, predict, x, y))(dw))
    assert jaxpr.count(f"bf16[{COUNT},5,20]") > 10


def test_a_solver_keeps_activations_in_half():
    """A product summed in f32 wants its input in f32, for a moment: no copy of it is held from pass to pass."""
    predict, dw, x, _ = half_case("blocks", 2)
    in_half, whole = (
        passes.kept_bytes(p, dw, x.astype(p.dtype or x.dtype), COUNT)
        for p in (predict, dataclasses.replace(predict, dtype=None))
    )
    assert in_half < 0.85 * whole, (in_half, whole)
