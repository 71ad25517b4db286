"""The plain Vision Transformer, in Flax linen, with a trunk/tail split at any block.

    x_0 = [class token, patches] + positions        (pre-norm for CLIP towers)
    x   = x + g1 MHSA(LN1 x);  x = x + g2 MLP(LN2 x)            depth times (g1, g2: LayerScale)
    logits = W LN(pool x) + b,   pool = class token, or mean of the patch tokens

Source: Dosovitskiy et al. 2021, with timm's names for the options. No dropout, no training mode. With
class-token pooling the last block reads one query row only, and so computes only that row; what it needs
of the other tokens is their standardised x^, which `trunk` therefore returns at that split.
"""

import zlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import Array
from jaxtyping import Float

from tangent_jax import trees
from tangent_jax.checks import require
from tangent_jax.config import ViTConfig
from tangent_jax.notation import Dual, Tangent, Tree
from tangent_jax.rules import ACTIVATIONS, probe, softmax, standardize
from tangent_jax.rules import layer_norm as layer_norm_rule


def initial(path: str, key: Array, shape: tuple[int, ...], dtype: jax.typing.DTypeLike = jnp.float32) -> Array:
    """A fresh leaf, by its path: timm's scheme, and the linear-probe head of MoCo and DINO.

    Kernels and positions N(0, 0.02^2) cut at 2 sigma; head kernel N(0, 0.01^2): the smaller it is, the less
    the tangents below it move the logits, and at 0 they vanish; gains 1; LayerScale 1e-5; class tokens
    N(0, (1e-6)^2); biases 0.
    """
    name = path.split("/")[-1]
    if path.endswith("head/kernel"):
        return 0.01 * jax.random.normal(key, shape, dtype)
    if name in ("kernel", "position_embedding"):
        return 0.02 * jax.random.truncated_normal(key, -2, 2, shape, dtype)
    if name.endswith("class_token"):
        return 1e-6 * jax.random.normal(key, shape, dtype)
    if name == "scale":
        return jnp.full(shape, 1e-5 if "layer_scale" in path else 1.0, dtype)
    return jnp.zeros(shape, dtype)


class Affine(nn.Module):
    """The leaves of x W + b, or of g x + b: a kernel over the summed then the kept axes, and a bias."""

    shape: tuple[int, ...]
    summed: int = 1
    dtype: jax.typing.DTypeLike | None = None
    prefix: str = ""

    def setup(self) -> None:
        def leaf(name: str, shape: tuple[int, ...]) -> Array:
            return self.param(name, lambda key, shape: initial(f"{self.prefix}{name}", key, shape), shape)

        self.kernel = leaf("kernel", self.shape)
        self.bias = leaf("bias", self.shape[self.summed :])

    def __call__(self, x: Array) -> Array:
        x, kernel, bias = promote_dtype(x, self.kernel, self.bias, dtype=self.dtype)
        return jnp.tensordot(x, kernel, self.summed) + bias


class LayerNorm(nn.Module):
    """g x^ + beta over the last axis; statistics in f32 or wider."""

    config: ViTConfig
    dtype: jax.typing.DTypeLike | None = None

    def setup(self) -> None:
        def leaf(name: str) -> Array:
            return self.param(name, lambda key, shape: initial(name, key, shape), (self.config.width,))

        self.scale, self.bias = leaf("scale"), leaf("bias")

    def __call__(self, x: Array) -> Array:
        x, scale, bias = promote_dtype(x, self.scale, self.bias, dtype=self.dtype)
        leaf = {"scale": Dual(scale, None), "bias": Dual(bias, None)}
        return layer_norm_rule(x, None, leaf, self.config.epsilon)[0]


class LayerScale(nn.Module):
    """g x with one learned gain per feature (Touvron et al. 2021)."""

    width: int
    dtype: jax.typing.DTypeLike | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = self.param("scale", lambda key, shape: initial("layer_scale/scale", key, shape), (self.width,))
        x, scale = promote_dtype(x, scale, dtype=self.dtype)
        return scale * x


class Attention(nn.Module):
    """Multi-head self-attention; `one_query` computes the class token's row alone, keys never formed."""

    config: ViTConfig
    dtype: jax.typing.DTypeLike | None = None

    def setup(self) -> None:
        d, h = self.config.width, self.config.heads
        e = d // h
        self.query, self.key, self.value = (Affine((d, h, e), dtype=self.dtype) for _ in range(3))
        self.out = Affine((h, e, d), summed=2, dtype=self.dtype)

    def __call__(self, z: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        q, k, v = self.query(z), self.key(z), self.value(z)
        s = jnp.einsum("bnhe,bmhe->bhnm", q * q.shape[-1] ** -0.5, k)
        return self.out(jnp.einsum("bhnm,bmhe->bnhe", softmax(s, None)[0], v))

    def one_query(self, z: Float[Array, "b d"], x_hat: Float[Array, "b m d"], norm: LayerNorm) -> Float[Array, "b d"]:
        """The row of `__call__` of one query token z, in O(m h d + d^2): see rules/class_attention.py."""
        q = self.query(z)
        leaves = (self.key.kernel, self.value.kernel, self.value.bias, norm.scale, norm.bias)
        wk, wv, bv, g, beta = promote_dtype(*leaves, dtype=q.dtype)
        u = jnp.einsum("bhe,dhe->bhd", q * q.shape[-1] ** -0.5, wk)
        a, _ = softmax(jnp.einsum("bmd,bhd->bhm", x_hat, g * u), None)
        m = g * jnp.einsum("bhm,bmd->bhd", a, x_hat) + beta
        return self.out(jnp.einsum("bhd,dhe->bhe", m, wv) + bv)


class Block(nn.Module):
    """A pre-norm transformer block; `class_row` returns the class token's row of the output alone."""

    config: ViTConfig
    dtype: jax.typing.DTypeLike | None = None

    def setup(self) -> None:
        c = self.config
        self.norm1, self.norm2 = LayerNorm(c, self.dtype), LayerNorm(c, self.dtype)
        self.attention = Attention(c, self.dtype)
        self.mlp_in = Affine((c.width, c.mlp_width), dtype=self.dtype)
        self.mlp_out = Affine((c.mlp_width, c.width), dtype=self.dtype)
        if c.layer_scale:
            self.layer_scale1, self.layer_scale2 = LayerScale(c.width, self.dtype), LayerScale(c.width, self.dtype)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        return self._mlp(self._add(1, x, self.attention(self.norm1(x))))

    def class_row(self, x: Float[Array, "b d"], x_hat: Float[Array, "b n d"]) -> Float[Array, "b d"]:
        return self._mlp(self._add(1, x, self.attention.one_query(self.norm1(x), x_hat, self.norm1)))

    def _mlp(self, x: Array) -> Array:
        y, _ = ACTIVATIONS[self.config.activation](self.mlp_in(self.norm2(x)), None)
        return self._add(2, x, self.mlp_out(y))

    def _add(self, branch: int, x: Array, y: Array) -> Array:
        return x + (getattr(self, f"layer_scale{branch}")(y) if self.config.layer_scale else y)


class ViT(nn.Module):
    """The plain Vision Transformer over the collection "params".

    `dtype` is the compute dtype (parameters stay as they are); None computes in the parameters' own.
    `trunk` and `tail` cut the network at the input of block `split`: `tail(trunk(x, s), s) = __call__(x)`;
    at split = depth the cut lies after pooling.
    """

    config: ViTConfig
    dtype: jax.typing.DTypeLike | None = None

    def setup(self) -> None:
        c = self.config
        token = lambda key, shape: initial("class_token", key, shape)  # noqa: E731
        self.patch_embedding = Affine((c.patch_size, c.patch_size, 3, c.width), summed=3, dtype=self.dtype)
        self.class_token = self.param("class_token", token, (c.width,))
        self.position_embedding = self.param(
            "position_embedding", lambda key, shape: initial("position_embedding", key, shape), (c.tokens, c.width)
        )
        if c.pre_norm:
            self.pre_norm = LayerNorm(c, self.dtype)
        if c.class_token_at is not None:
            self.new_class_token = self.param("new_class_token", token, (c.width,))
        for i in range(c.depth):
            setattr(self, f"block_{i}", Block(c, self.dtype))
        self.norm = LayerNorm(c, self.dtype)
        if c.classes:
            self.head = Affine((c.width, c.classes), dtype=self.dtype, prefix="head/")

    def __call__(self, images: Float[Array, "b y x 3"]) -> Float[Array, "b c"]:
        """Logits of images, already normalised with the model's own mean and std."""
        return self.tail(self.trunk(images, 0), 0)

    def trunk(self, images: Float[Array, "b y x 3"], split: int) -> Array:
        """What `tail` starts from: the tokens at the input of block `split`, "b n d".

        Where one query row of that block is all that is read (`reads_one_query`): the class token, then the
        standardised tokens, "b 1+n d". At split = depth: the pooled token, "b d".
        """
        x = self.patch_embedding(patches(self.config, images))
        x, token, position = promote_dtype(x, self.class_token, self.position_embedding, dtype=self.dtype)
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, token.shape[-1])), x], 1) + position
        x = self.pre_norm(x) if self.config.pre_norm else x
        return self.between(one_query_input(self.config, x)[0] if reads_one_query(self.config, 0) else x, 0, split)

    def between(self, x: Array, start: int, split: int) -> Array:
        """From the input of block `start` to that of block `split` (both as in `trunk`)."""
        c = self.config
        require(0 <= start <= split <= c.depth, "ViT.between", f"0 <= start <= split <= {c.depth}", (start, split))
        for i in range(start, split):
            block: Block = getattr(self, f"block_{i}")
            if i == c.class_token_at:
                x, _ = replace_class_token(c, i, x, None, Dual(self.new_class_token.astype(x.dtype), None))
            if reads_one_query(c, i):
                if self.is_initializing():
                    block(x[:, 1:])  # makes the leaves that `class_row` does not call
                return block.class_row(x[:, 0], x[:, 1:])
            x = block(x)
            if reads_one_query(c, i + 1):
                x, _ = one_query_input(c, x)
        return jnp.mean(x[:, 1:], 1) if start < split == c.depth else x

    def tail(self, x: Array, split: int) -> Float[Array, "b c"]:
        """Logits (normalised features, "b d", of a model without a head) from what `trunk` returned."""
        check_tail("ViT.tail", self.config, split, x)
        z = self.norm(self.between(x, split, self.config.depth))
        return self.head(z) if self.config.classes else z


def patches(config: ViTConfig, images: Array) -> Array:
    """Images as rows of patches, "b n p p 3", so that the embedding is one product."""
    g, p = config.grid, config.patch_size
    expected = ("b", config.image_size, config.image_size, 3)
    require(
        images.ndim == 4 and images.shape[1:] == expected[1:],
        "ViT",
        f"images of shape {expected}",
        images.shape,
        "Resize them, or the model with resize_positions",
    )
    rows = images.reshape(-1, g, p, g, p, 3).swapaxes(2, 3)
    return rows.reshape(-1, g * g, p, p, 3)


def reads_one_query(config: ViTConfig, block: int) -> bool:
    """Whether only the class token's row of this block's output is ever read: the last, under token pooling."""
    return config.pool == "token" and block == config.depth - 1


def tail_shape(config: ViTConfig, split: int) -> tuple[int, ...]:
    """The shape of one example of what `trunk(images, split)` returns."""
    return (config.width,) if split == config.depth else (config.tokens + reads_one_query(config, split), config.width)


def check_tail(function: str, config: ViTConfig, split: int, x: Array) -> None:
    require(0 <= split <= config.depth, function, f"0 <= split <= {config.depth}", split)
    shape = ("b", *tail_shape(config, split))
    require(x.ndim == len(shape) and x.shape[1:] == shape[1:], function, f"tail inputs of shape {shape}", x.shape)


def one_query_input(config: ViTConfig, x: Array, dx: Tangent = None) -> tuple[Array, Tangent]:
    """From tokens "b n d" what a block of one query reads, "b 1+n d", and its tangent.

    Row 0 is the class token as it is, for the residual and the query; then all tokens, standardised.
    """
    x_hat, dx_hat = standardize(x, dx, config.epsilon)
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


def shapes(config: ViTConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, by path."""
    images = jax.ShapeDtypeStruct((1, config.image_size, config.image_size, 3), jnp.float32)
    tree = jax.eval_shape(ViT(config).init, jax.random.key(0), images)["params"]
    return {path: leaf.shape for path, leaf in trees.leaves(tree).items()}


def leaf_key(key: Array, path: str) -> Array:
    """The key of one leaf: a leaf's draw depends on its path, never on which others are drawn."""
    return jax.random.fold_in(key, zlib.crc32(path.encode()))


def init(config: ViTConfig, key: Array) -> Tree:
    """Random parameters, f32, leaf by leaf (one program for all would be slow and large at ViT-L)."""
    return trees.nest({path: initial(path, leaf_key(key, path), shape) for path, shape in shapes(config).items()})


def resize_positions(config: ViTConfig, w: Tree, image_size: int) -> tuple[ViTConfig, Tree]:
    """The model at another image size, its position embedding resampled.

    Source: timm's resample_abs_pos_embed: bicubic with antialiasing over the grid of patches; the class
    token's row is kept.
    """
    new = config.replace(image_size=image_size)
    if new.grid == config.grid:
        return new, w
    token, grid = w["position_embedding"][:1], w["position_embedding"][1:]
    grid = jnp.asarray(grid).reshape(config.grid, config.grid, -1)
    grid = jax.image.resize(grid, (new.grid, new.grid, config.width), "bicubic", antialias=True)
    resized = np.concatenate([np.asarray(token), np.asarray(grid).reshape(new.grid**2, -1)])
    return new, {**w, "position_embedding": jnp.asarray(resized)}
