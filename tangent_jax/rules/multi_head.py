"""Multi-head softmax attention with every token as a query.

Without tangents, in half precision and on a GPU, cuDNN's fused kernel computes it (`jax.nn.dot_product_attention`), and
the matrix of scores is never formed. JAX asks the machine that traces a program for cuDNN, so a program that is lowered
for CUDA on a machine without a GPU has the plain form.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.rules.activations import softmax
from tangent_jax.rules.products import contract


def attention(
    q: Float[Array, "b n h e"],
    dq: Float[Array, "b n h e"] | None,
    k: Float[Array, "b m h e"],
    dk: Float[Array, "b m h e"] | None,
    v: Float[Array, "b m h e"],
    dv: Float[Array, "b m h e"] | None,
) -> tuple[Float[Array, "b n h e"], Float[Array, "b n h e"] | None]:
    """Scaled dot-product attention and its tangent.

    Source: Liu et al. 2024, the tangent of attention. Their Phi is our a, Psi our ds, Gamma our dv. Misprints there:
    the row sum of Phi * Psi is over the key axis, (Phi * Psi - diag(Psi Phi^T) Phi) V + Phi Gamma,
    and the scale 1/sqrt(e) is left out.

        s = q k^T / sqrt(e)       ds = (dq k^T + q dk^T) / sqrt(e)
        a = softmax(s)            da = a * (ds - sum_m a * ds)
        o = a v                   do = da v + a dv

    Args:
        q: "b n h e".
        dq: The tangent of q.
        k: "b m h e".
        dk: The tangent of k.
        v: "b m h e".
        dv: The tangent of v.

    Returns:
        (o, do), "b n h e".

    Guarantees:
        do is linear in (dq, dk, dv) together.

    Edge cases:
        m = 1 gives o = v, do = dv; with no tangent, in half precision on a GPU, a is never formed.
    """
    if dq is None and dk is None and dv is None and is_fused(q):
        return fused_attention(q, k, v), None
    return plain_attention(q, dq, k, dk, v, dv)


def is_fused(q: Float[Array, "b n h e"]) -> bool:
    """True where cuDNN's kernel computes the attention of these queries.

    Its heads have 8, 16, ... 128 features on every GPU since Ampere. It needs to know the number of examples, so a
    program for any batch size does not use it.
    """
    is_half = q.dtype in (jnp.bfloat16, jnp.float16)
    has_shape = isinstance(q.shape[0], int) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 128
    return is_half and has_shape and jax.default_backend() == "gpu"


def plain_attention(
    q: Float[Array, "b n h e"],
    dq: Float[Array, "b n h e"] | None,
    k: Float[Array, "b m h e"],
    dk: Float[Array, "b m h e"] | None,
    v: Float[Array, "b m h e"],
    dv: Float[Array, "b m h e"] | None,
) -> tuple[Float[Array, "b n h e"], Float[Array, "b n h e"] | None]:
    """`attention` by its equations, a formed."""
    scale = q.shape[-1] ** -0.5
    q, dq = q * scale, None if dq is None else dq * scale
    a, da = softmax(*contract("bnhe,bmhe->bhnm", q, dq, k, dk))
    return contract("bmhe,bhnm->bnhe", v, dv, a, da)  # with a first XLA transposes it on CPUs


def plain(
    q: Float[Array, "b n h e"], k: Float[Array, "b m h e"], v: Float[Array, "b m h e"]
) -> Float[Array, "b n h e"]:
    """The attention alone, "b n h e"."""
    return plain_attention(q, None, k, None, v, None)[0]


@jax.custom_batching.custom_vmap
def by_cudnn(
    q: Float[Array, "b n h e"], k: Float[Array, "b m h e"], v: Float[Array, "b m h e"]
) -> Float[Array, "b n h e"]:
    """The attention alone, by cuDNN's kernel."""
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")


@by_cudnn.def_vmap
def by_cudnn_vmapped(size: int, is_batched: Any, *operands: Array) -> tuple[Array, bool]:
    """A vmapped axis is merged into the examples; JAX's own rule needs it in every operand."""
    pairs = zip(operands, is_batched, strict=True)
    every = [a if has_axis else jnp.broadcast_to(a, (size, *a.shape)) for a, has_axis in pairs]
    o = by_cudnn(*(a.reshape(-1, *a.shape[2:]) for a in every))
    return o.reshape(every[0].shape), True


@jax.custom_jvp
def fused_attention(
    q: Float[Array, "b n h e"], k: Float[Array, "b m h e"], v: Float[Array, "b m h e"]
) -> Float[Array, "b n h e"]:
    """The attention alone, by cuDNN's kernel on CUDA; its derivatives use `plain`, as the kernel has no rule."""
    return jax.lax.platform_dependent(q, k, v, cuda=by_cudnn, default=plain)


fused_attention.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
