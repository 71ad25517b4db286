"""The leaves of a Vision Transformer: their shapes by path, and how a fresh one is drawn."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from tangent_jax.models.protocol import normal
from tangent_jax.models.vit.config import PAIRS, ViTConfig

Shapes = dict[str, tuple[int, ...]]


def shapes(config: ViTConfig) -> Shapes:
    """The shape of every leaf. Heads are axes of their own: query, key, value "d h e", out "h e d"."""
    c, d, h = config, config.width, config.heads
    e, f, p = d // h, c.mlp_width, c.patch_size

    def norm(path: str) -> Shapes:
        return {f"{path}/scale": (d,), f"{path}/bias": (d,)}

    def layer(path: str, kernel: tuple[int, ...], summed: int = 1) -> Shapes:
        return {f"{path}/kernel": kernel, f"{path}/bias": kernel[summed:]}

    def attention_and_mlp(b: str) -> Shapes:
        inner = layer(f"{b}/attention/out", (h, e, d), 2) | layer(f"{b}/mlp_in", (d, f)) | layer(f"{b}/mlp_out", (f, d))
        for name in ("query", "key", "value"):
            inner |= layer(f"{b}/attention/{name}", (d, h, e))
        return inner

    leaves: Shapes = layer("patch_embedding", (p, p, 3, d), 3)
    leaves |= norm("norm") if c.pool != "plain_avg" else {}
    leaves |= {"class_token": (d,)} if c.class_token else {}
    leaves |= {"registers": (c.registers, d)} if c.registers else {}
    leaves |= {"position_embedding": (c.tokens - c.registers, d)} if c.positions == "learned" else {}
    leaves |= norm("pre_norm") if c.pre_norm else {}
    if c.pool == "attention":
        leaves |= {"pool/query_token": (d,)} | norm("pool/norm") | attention_and_mlp("pool")
    leaves |= layer("head", (d * (1 + (c.pool in PAIRS)), c.classes)) if c.classes else {}
    leaves |= {} if c.class_token_at is None else {"new_class_token": (d,)}
    for i in range(c.depth):
        b = f"block_{i}"
        leaves |= norm(f"{b}/norm1") | norm(f"{b}/norm2") | attention_and_mlp(b)
        leaves |= layer(f"{b}/mlp_gate", (d, f)) if c.gated else {}
        for j in (1, 2) if c.adapter_width and i >= c.adapter_from else ():
            leaves |= layer(f"{b}/adapter{j}/down", (d, c.adapter_width))
            leaves |= layer(f"{b}/adapter{j}/up", (c.adapter_width, d))
        leaves |= {f"{b}/layer_scale{j}/scale": (d,) for j in (1, 2) if c.layer_scale}
    return leaves


def input_norms(config: ViTConfig) -> dict[str, str]:
    """The layer norm whose output each kernel multiplies, by path; kernels that multiply something else are left out.

    In a block of one query, keys multiply the query, and values a mean of tokens (rules/class_query.py). A head above
    `norm_avg`, or above two rows side by side, multiplies means of normalised patches.
    """
    c, of_pool = config, {"token": {"head": "norm"}, "avg": {"head": "norm"}, "attention": {"pool/mlp_in": "pool/norm"}}
    norms = dict(of_pool.get(c.pool, {}))
    for i in range(c.depth):
        is_last = i == c.depth - 1 and c.pool == "token"
        first = [f"attention/{name}" for name in ("query", "key", "value")[: 1 if is_last else 3]]
        second = ["mlp_in", "mlp_gate"][: 1 + c.gated]
        norms |= {f"block_{i}/{name}": f"block_{i}/norm1" for name in first}
        norms |= {f"block_{i}/{name}": f"block_{i}/norm2" for name in second}
    return {f"{module}/kernel": norm for module, norm in norms.items() if module != "head" or c.classes}


def initial(path: str, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """A fresh leaf, f32, by its path: timm's scheme, and the linear-probe head of MoCo and DINO.

    Kernels, positions and a pool's query: N(0, 0.02^2) truncated at 2 sigma; head kernel: N(0, 0.01^2), as a smaller
    one shrinks all tangents below it, and at 0 they vanish; gains: 1; LayerScale: 1e-5; class tokens and registers:
    N(0, (1e-6)^2); biases: 0; an adapter's up-projection: 0, so that the adapter changes nothing.
    """
    name = path.split("/")[-1]
    if path.endswith("head/kernel"):
        return normal(key, shape, 0.01)
    if path.endswith("/up/kernel"):
        return jnp.zeros(shape, jnp.float32)
    if name in ("kernel", "position_embedding", "query_token"):
        return 0.02 * jax.random.truncated_normal(key, -2, 2, shape, jnp.float32)
    if name.endswith("class_token") or name == "registers":
        return normal(key, shape, 1e-6)
    if name == "scale":
        return jnp.full(shape, 1e-5 if "layer_scale" in path else 1.0, jnp.float32)
    return jnp.zeros(shape, jnp.float32)
