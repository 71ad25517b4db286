"""One pass through the residual network, stage by stage, over pairs (x, dx) and leaves Dual(w, dw).

    stage 0          x = pool(relu(BN(conv x)))
    stages 1..depth  x = relu(shortcut x + BN(conv(relu(BN(conv ... x)))))
    stage depth+1    outputs = W mean x + b

Source: He et al. 2016, v1.5: the stride is in a bottleneck's 3 x 3 convolution. The tangents are the closed forms of
`rules`; if every tangent is None, this is the plain network at plain cost. Batch norm's statistics are fixed leaves, as
in other linearised ResNets (LQF, Achille et al. 2021); only pre-training uses those of the batch.
"""

from functools import partial, reduce
from operator import getitem

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tangent_jax.core.notation import ArrayTangent, Dual, Tree
from tangent_jax.core.preprocessing import sides
from tangent_jax.core.promotion import promotes
from tangent_jax.models.protocol import stages_run
from tangent_jax.models.resnet.config import ResNetConfig
from tangent_jax.rules import batch_norm, conv, dense, max_pool, mean_pool, relu, total

Pair = tuple[Array, ArrayTangent]
Statistics = dict[str, tuple[Float[Array, "_"], Float[Array, "_"]]]


@promotes
def forward(
    config: ResNetConfig,
    p: Tree,
    x: Float[Array, "b ..."],
    start: int = 0,
    stop: int | None = None,
    seen: Statistics | None = None,
) -> Dual:
    """From the input of stage `start` (0: normalised images, "b y x 3") to that of `stop` (None: outputs, "b c").

    A model without a head gives mean features, "b d".

    Args:
        seen: None, or a dict that receives the batch's mean and variance of each norm, which are then used.
    """
    dx: ArrayTangent = None
    for stage in stages_run(config.depth + 1, partial(input_shape, config), x, start, stop):
        if stage == 0:
            x, dx = conv_norm(config, p, "stem_conv", x, dx, 2 if config.stem == "large" else 1, seen)
            x, dx = relu(x, dx, config.slope)
            x, dx = max_pool(x, dx) if config.stem == "large" else (x, dx)
        elif stage <= config.depth:
            x, dx = block(config, p, stage - 1, x, dx, seen)
            x, dx = mean_pool(x, dx) if stage == config.depth else (x, dx)
        elif config.classes:
            x, dx = dense(x, dx, p["head"])
    return Dual(x, dx)


def block(
    config: ResNetConfig,
    p: Tree,
    i: int,
    x: Float[Array, "b y x c"],
    dx: Float[Array, "b y x c"] | None,
    seen: Statistics | None,
) -> Pair:
    """One residual block."""
    sizes, y, dy = config.windows(i), x, dx
    for j, size in enumerate(sizes):
        stride = config.stride(i) if size == 3 and (config.bottleneck or j == 0) else 1
        y, dy = conv_norm(config, p, f"{config.name(i)}/conv{j + 1}", y, dy, stride, seen)
        y, dy = relu(y, dy, config.slope) if j + 1 < len(sizes) else (y, dy)
    if config.has_shortcut(i):
        x, dx = conv_norm(config, p, f"{config.name(i)}/shortcut_conv", x, dx, config.stride(i), seen)
    return relu(x + y, total(dx, dy), config.slope)


def conv_norm(
    config: ResNetConfig,
    p: Tree,
    path: str,
    x: Float[Array, "b y x c"],
    dx: Float[Array, "b y x c"] | None,
    stride: int,
    seen: Statistics | None,
) -> Pair:
    """BN(conv x), "b y x c", and its tangent; `path`: of the convolution, which names its norm."""
    norm = path.replace("conv", "norm")
    x, dx = conv(x, dx, at(p, path)["kernel"], stride)
    leaf = at(p, norm)
    if seen is not None:
        mean, var = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        seen[norm] = mean, var
        leaf = {**leaf, "mean": Dual(mean, None), "var": Dual(var, None)}
    return batch_norm(x, dx, leaf, config.eps)


def at(p: Tree, path: str) -> Tree:
    """The leaves below a path."""
    return reduce(getitem, path.split("/"), p)


def input_shape(config: ResNetConfig, stage: int) -> tuple[int, ...]:
    """The shape of one example of the input of `stage`: images; "y x c"; for the head the mean, "d"."""
    if stage == 0:
        return (*sides(config.image_size), 3)
    if stage == config.depth + 1:
        return (config.channels(config.depth - 1)[2],)
    return (*config.pixels(stage - 1), config.stem_channels if stage == 1 else config.channels(stage - 1)[0])
