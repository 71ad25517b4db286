"""cuDNN's attention against the plain one, where there is a GPU."""

import jax
import jax.numpy as jnp
import pytest
from helpers import TOLERANCE, assert_rel_close

from tangent_jax.rules import multi_head

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")


def operands(shape=(6, 197, 4, 64), dtype=jnp.bfloat16):
    return [jax.random.normal(jax.random.key(seed), shape, dtype) for seed in range(3)]


def of_vmap(q, k, v):
    q, k, v = (a.reshape(2, 3, *a.shape[1:]) for a in (q, k, v))
    o = jax.vmap(multi_head.fused_attention)(q, k, v)
    return o.reshape(6, *o.shape[2:])


def of_gradient(attention):
    return lambda q, k, v: jax.grad(lambda q: attention(q, k, v).astype(jnp.float32).sum())(q)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", [(2, 5, 3, 8), (3, 197, 16, 64), (1, 1, 2, 16), (4, 50, 3, 120), (2, 577, 4, 72)])
def test_fused_attention_is_the_plain_one(dtype, shape):
    q, k, v = operands(shape, dtype)
    assert multi_head.is_fused(q)
    program = jax.jit(multi_head.fused_attention).lower(q, k, v).compile()
    assert "fmha" in program.as_text()
    exact = multi_head.plain(*(a.astype(jnp.float32) for a in (q, k, v)))
    assert_rel_close(program(q, k, v).astype(jnp.float32), exact, TOLERANCE["bfloat16"])


def test_fused_has_vmap_and_derivative():
    q, k, v = operands()
    assert_rel_close(jax.jit(of_vmap)(q, k, v), multi_head.plain(q, k, v))
    got, want = (jax.jit(of_gradient(f))(q, k, v) for f in (multi_head.fused_attention, multi_head.plain))
    assert_rel_close(got, want)


def test_row_alone_has_batch_bits():
    q, k, v = operands()
    attend = jax.jit(multi_head.fused_attention)
    assert (attend(q[:1], k[:1], v[:1]) == attend(q, k, v)[:1]).all()
