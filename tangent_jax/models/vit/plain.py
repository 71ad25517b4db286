"""The plain Vision Transformer, in Flax linen, cut into stages.

    stage 0          x = [class token, patches] + positions        (pre-norm for CLIP towers)
    stages 1..depth  x = x + g1 MHSA(LN1 x);  x = x + g2 MLP(LN2 x)            (g1, g2: LayerScale)
    stage depth+1    logits = W LN(pool x) + b,   pool = class token, or mean of the patch tokens

Source: Dosovitskiy et al. 2021, with timm's names for the options. No dropout, no training mode. With
class-token pooling the last block reads one query row only, and so computes only that row; what it needs
of the other tokens is their standardised x^, which is therefore the input of that stage.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core.checks import require
from tangent_jax.core.notation import Dual, Tangent
from tangent_jax.models.vit.config import ViTConfig
from tangent_jax.rules import ACTIVATIONS, probe, softmax, standardize
from tangent_jax.rules import layer_norm as layer_norm_rule


def initial(path: str, key: Array, shape: tuple[int, ...]) -> Array:
    """A fresh leaf, f32, by its path: timm's scheme, and the linear-probe head of MoCo and DINO.

    Kernels and positions N(0, 0.02^2) cut at 2 sigma; head kernel N(0, 0.01^2): the smaller it is, the less
    the tangents below it move the logits, and at 0 they vanish; gains 1; LayerScale 1e-5; class tokens
    N(0, (1e-6)^2); biases 0.
    """
    name = path.split("/")[-1]
    if path.endswith("head/kernel"):
        return 0.01 * jax.random.normal(key, shape, jnp.float32)
    if name in ("kernel", "position_embedding"):
        return 0.02 * jax.random.truncated_normal(key, -2, 2, shape, jnp.float32)
    if name.endswith("class_token"):
        return 1e-6 * jax.random.normal(key, shape, jnp.float32)
    if name == "scale":
        return jnp.full(shape, 1e-5 if "layer_scale" in path else 1.0, jnp.float32)
    return jnp.zeros(shape, jnp.float32)


def declare(module: nn.Module, name: str, shape: tuple[int, ...], prefix: str = "") -> Array:
    """A parameter of the module, drawn by `initial`."""
    return module.param(name, lambda key: initial(prefix + name, key, shape))


class Affine(nn.Module):
    """x W + b: a kernel over the `summed` last axes of x, then the kept ones, and a bias."""

    shape: tuple[int, ...]
    summed: int = 1
    prefix: str = ""

    def setup(self) -> None:
        self.kernel = declare(self, "kernel", self.shape, self.prefix)
        self.bias = declare(self, "bias", self.shape[self.summed :])

    def __call__(self, x: Array) -> Array:
        return jnp.tensordot(x, self.kernel, self.summed) + self.bias


class LayerNorm(nn.Module):
    """g x^ + beta over the last axis; statistics in f32 or wider."""

    config: ViTConfig

    def setup(self) -> None:
        self.scale = declare(self, "scale", (self.config.width,))
        self.bias = declare(self, "bias", (self.config.width,))

    def __call__(self, x: Array) -> Array:
        leaf = {"scale": Dual(self.scale, None), "bias": Dual(self.bias, None)}
        return layer_norm_rule(x, None, leaf, self.config.eps)[0]


class LayerScale(nn.Module):
    """g x with one learned gain per feature (Touvron et al. 2021)."""

    width: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return declare(self, "scale", (self.width,), "layer_scale/") * x


class Attention(nn.Module):
    """Multi-head self-attention; `one_query` computes the class token's row alone, keys never formed."""

    config: ViTConfig

    def setup(self) -> None:
        d, h = self.config.width, self.config.heads
        e = d // h
        self.query, self.key, self.value = (Affine((d, h, e)) for _ in range(3))
        self.out = Affine((h, e, d), summed=2)

    def __call__(self, z: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        q, k, v = self.query(z), self.key(z), self.value(z)
        s = jnp.einsum("bnhe,bmhe->bhnm", q * q.shape[-1] ** -0.5, k)
        return self.out(jnp.einsum("bhnm,bmhe->bnhe", softmax(s, None)[0], v))

    def one_query(self, z: Float[Array, "b d"], x_hat: Float[Array, "b m d"], norm: LayerNorm) -> Float[Array, "b d"]:
        """The row of `__call__` of one query token z, in O(m h d + d^2): see rules/class_attention.py."""
        q, g, beta = self.query(z), norm.scale, norm.bias
        u = jnp.einsum("bhe,dhe->bhd", q * q.shape[-1] ** -0.5, self.key.kernel)
        a, _ = softmax(jnp.einsum("bmd,bhd->bhm", x_hat, g * u), None)
        m = g * jnp.einsum("bhm,bmd->bhd", a, x_hat) + beta
        return self.out(jnp.einsum("bhd,dhe->bhe", m, self.value.kernel) + self.value.bias)


class Block(nn.Module):
    """A pre-norm transformer block; `class_row` returns the class token's row of the output alone."""

    config: ViTConfig

    def setup(self) -> None:
        c = self.config
        self.norm1, self.norm2, self.attention = LayerNorm(c), LayerNorm(c), Attention(c)
        self.mlp_in, self.mlp_out = Affine((c.width, c.mlp_width)), Affine((c.mlp_width, c.width))
        if c.layer_scale:
            self.layer_scale1, self.layer_scale2 = LayerScale(c.width), LayerScale(c.width)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        return self._mlp(self._add(1, x, self.attention(self.norm1(x))))

    def class_row(self, x: Float[Array, "b d"], x_hat: Float[Array, "b n d"]) -> Float[Array, "b d"]:
        if self.is_initializing():
            self(x_hat)  # makes the leaves that one query does not call
        return self._mlp(self._add(1, x, self.attention.one_query(self.norm1(x), x_hat, self.norm1)))

    def _mlp(self, x: Array) -> Array:
        y, _ = ACTIVATIONS[self.config.activation](self.mlp_in(self.norm2(x)), None)
        return self._add(2, x, self.mlp_out(y))

    def _add(self, branch: int, x: Array, y: Array) -> Array:
        return x + (getattr(self, f"layer_scale{branch}")(y) if self.config.layer_scale else y)


class ViT(nn.Module):
    """The plain Vision Transformer over the collection "params", computed in the dtype of parameters and input.

    `apply(variables, x, start, stop)` runs the stages start, ..., stop - 1; what it gives is the input of `stop`.
    """

    config: ViTConfig

    def setup(self) -> None:
        c = self.config
        self.patch_embedding = Affine((c.patch_size, c.patch_size, 3, c.width), summed=3)
        self.class_token = declare(self, "class_token", (c.width,))
        self.position_embedding = declare(self, "position_embedding", (c.tokens, c.width))
        if c.pre_norm:
            self.pre_norm = LayerNorm(c)
        if c.class_token_at is not None:
            self.new_class_token = declare(self, "new_class_token", (c.width,))
        for i in range(c.depth):
            setattr(self, f"block_{i}", Block(c))
        self.norm = LayerNorm(c)
        if c.classes:
            self.head = Affine((c.width, c.classes), prefix="head/")

    def __call__(self, x: Array, start: int = 0, stop: int | None = None) -> Array:
        """From the input of stage `start` (0: normalised images, "b y x 3") to that of `stop` (None: logits, "b c").

        A model without a head gives normalised features, "b d".
        """
        stop = self.config.depth + 2 if stop is None else stop
        check_input("ViT", self.config, start, stop, x)
        for stage in range(start, stop):
            if stage == 0:
                x = self._embed(x)
            elif stage <= self.config.depth:
                x = self._block(stage - 1, x)
            else:
                x = self.head(self.norm(x)) if self.config.classes else self.norm(x)
        return x

    def _embed(self, images: Float[Array, "b y x 3"]) -> Array:
        x = self.patch_embedding(patches(self.config, images))
        token = jnp.broadcast_to(self.class_token, (len(x), 1, self.config.width)).astype(x.dtype)
        x = jnp.concatenate([token, x], 1) + self.position_embedding
        x = self.pre_norm(x) if self.config.pre_norm else x
        return one_query_input(self.config, x)[0] if reads_one_query(self.config, 0) else x

    def _block(self, i: int, x: Array) -> Array:
        c, block = self.config, getattr(self, f"block_{i}")
        if i == c.class_token_at:
            x, _ = replace_class_token(c, i, x, None, Dual(self.new_class_token.astype(x.dtype), None))
        if reads_one_query(c, i):
            return block.class_row(x[:, 0], x[:, 1:])
        x = block(x)
        if reads_one_query(c, i + 1):
            return one_query_input(c, x)[0]
        return jnp.mean(x[:, 1:], 1) if i == c.depth - 1 else x


def patches(config: ViTConfig, images: Array) -> Array:
    """Images as rows of patches, "b n p p 3", so that the embedding is one product."""
    g, p = config.grid, config.patch_size
    rows = images.reshape(-1, g, p, g, p, 3).swapaxes(2, 3)
    return rows.reshape(-1, g * g, p, p, 3)


def reads_one_query(config: ViTConfig, block: int) -> bool:
    """Whether only the class token's row of this block's output is ever read: the last, under token pooling."""
    return config.pool == "token" and block == config.depth - 1


def input_shape(config: ViTConfig, stage: int) -> tuple[int, ...]:
    """The shape of one example of the input of `stage`.

    Images; tokens, "n d"; where the block reads one query, the class token and the standardised tokens, "1+n d";
    for the head the pooled token, "d".
    """
    if stage == 0:
        return (config.image_size, config.image_size, 3)
    if stage == config.depth + 1:
        return (config.width,)
    return (config.tokens + reads_one_query(config, stage - 1), config.width)


def check_input(function: str, config: ViTConfig, start: int, stop: int, x: Array) -> None:
    last = config.depth + 1
    require(0 <= start <= stop <= last + 1, function, f"stages 0 <= start <= stop <= {last + 1}", (start, stop))
    if start <= last:
        shape = ("b", *input_shape(config, start))
        do = "Resize images, or the model with resized" if start == 0 else "Compute it with features of this stage"
        good = x.ndim == len(shape) and x.shape[1:] == shape[1:]
        require(good, function, f"the input of stage {start}, of shape {shape}", x.shape, do)


def one_query_input(config: ViTConfig, x: Array, dx: Tangent = None) -> tuple[Array, Tangent]:
    """From tokens "b n d" what a block of one query reads, "b 1+n d", and its tangent.

    Row 0 is the class token as it is, for the residual and the query; then all tokens, standardised.
    """
    x_hat, dx_hat = standardize(x, dx, config.eps)
    joined = None if dx is None or dx_hat is None else jnp.concatenate([dx[:, :1], dx_hat], 1)
    return jnp.concatenate([x[:, :1], x_hat], 1), joined


def replace_class_token(config: ViTConfig, block: int, x: Array, dx: Tangent, token: Dual) -> tuple[Array, Tangent]:
    """CLS=T: the class token in the input of `block` becomes the new one, which carries a tangent of its own."""
    row, width = token.primal[None, None], x.shape[-1]
    drow = None if token.tangent is None else probe.broadcast(token.tangent, (len(x), 1, width))
    if reads_one_query(config, block):
        row, drow = one_query_input(config, row, drow)
    new = (slice(None), slice(0, row.shape[1]))
    if dx is not None or drow is not None:
        dx = jnp.zeros_like(x) if dx is None else dx
        dx = dx.at[new].set(0 if drow is None else drow)
    return x.at[new].set(row), dx
