"""Multi-head softmax attention with every token as a query."""

import jax
from jax import Array
from jaxtyping import Float

from tangent_jax.rules import cudnn
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

    Args:       q, dq: "b n h e"; k, dk, v, dv: "b m h e".
    Returns:    (o, do), "b n h e".
    Guarantees: do is linear in (dq, dk, dv) together.
    Edge cases: m = 1 gives o = v, do = dv; with no tangent, in half precision on CUDA, a is never formed (cudnn.py).
    """
    if dq is None and dk is None and dv is None and cudnn.takes(q):
        return fused_attention(q, k, v), None
    return plain_attention(q, dq, k, dk, v, dv)


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
    return contract("bhnm,bmhe->bnhe", a, da, v, dv)


def plain(
    q: Float[Array, "b n h e"], k: Float[Array, "b m h e"], v: Float[Array, "b m h e"]
) -> Float[Array, "b n h e"]:
    """The attention alone, "b n h e"."""
    return plain_attention(q, None, k, None, v, None)[0]


@jax.custom_jvp
def fused_attention(
    q: Float[Array, "b n h e"], k: Float[Array, "b m h e"], v: Float[Array, "b m h e"]
) -> Float[Array, "b n h e"]:
    """The attention alone, by cuDNN's kernel on CUDA; its derivatives use `plain`, as the kernel has no rule."""
    return jax.lax.platform_dependent(q, k, v, cuda=cudnn.attend, default=plain)


fused_attention.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
