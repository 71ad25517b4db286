"""The programs that the benchmarks time: forward passes, training steps, private steps, solver passes.

Each function returns {name: a function that compiles it}, so that one failure does not affect the others. Weights are
random: speed does not depend on them, except that some processors are faster with zeros.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

import tangent_jax as tj
from experiments.shared import steps, timing
from experiments.shared.timing import Operation, compiled, compiled_step
from tangent_jax.core import trees
from tangent_jax.core.notation import Tree
from tangent_jax.models import initial_weights
from tangent_jax.models.trunk import in_dtype

CLASSES, MECHANISM = 200, tj.privacy.Mechanism(1.0, 10.0, 50, 1e-5)
Operations = dict[str, Callable[[], Operation]]


def named(size: str) -> str:
    """The architecture of an entry of --size."""
    return size if "/" in size else f"{size}/16"


def random_vit(config: tj.models.ViTConfig) -> tj.Pretrained:
    """A ViT of random weights."""
    model = tj.models.VisionTransformer(config)
    return tj.Pretrained(model, jax.block_until_ready(initial_weights(model, jax.random.key(0))), "random")


def inputs_of(predict: tj.Predictor, batch: int, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array]:
    """Random inputs, "b ...", of the predictor's first stage, and labels "b"."""
    shape = predict.model.input_shape(predict.subset.stage)
    return jax.random.normal(jax.random.key(2), (batch, *shape), dtype), jnp.arange(batch) % predict.model.classes


def plain_and_tangent(
    pretrained: tj.Pretrained, batch: int, blocks: list[int], dtype: Any, loop: int = 1
) -> Operations:
    """Forward passes from images and training steps from features, plain, tangent and non-linear.

    Args:
        loop: The steps of one call, as `fit` runs them.
    """
    model: Any = pretrained.model
    config = model.config
    w = in_dtype(pretrained.w, dtype)
    shape = (batch, *model.input_shape(0))
    images = jax.random.normal(jax.random.key(1), shape, dtype)

    def dual(w: Tree, dw: Tree, x: jax.Array) -> Any:
        return model.dual(trees.pair(w, trees.cast(dw, dtype)), x)

    full = partial(timing.standard, config, start=0)
    makes: Operations = {
        "plain forward, full last block": lambda: compiled("plain forward, full last block", full, w, images),
        "plain forward": lambda: compiled("plain forward", model.apply, w, images),
    }
    for n in [n for n in blocks if n <= config.depth]:
        taft = tj.tangent(pretrained, n, dtype=dtype)
        nlft = tj.nonlinear(pretrained, n, dtype=dtype)
        autodiff = tj.tangent(pretrained, n, dtype=dtype, linearization="autodiff")
        zeros, (x, labels) = taft.zeros(), inputs_of(taft, batch, dtype)
        makes[f"TAFT-{n} forward"] = partial(compiled, f"TAFT-{n} forward", dual, w, zeros, images)
        for name, predict in {"NLFT-{} step": nlft, "TAFT-{} step": taft, "TAFT-{} step, autodiff": autodiff}.items():
            makes[name.format(n)] = partial(step, name.format(n), predict, zeros, x, labels, loop)
    return makes


def full_block(pretrained: tj.Pretrained, batch: int, dtype: Any) -> Operation:
    """A step of the last block by jax.jvp of its standard form: the baseline of the class query."""
    model: Any = pretrained.model
    config = model.config

    def predict(w: Tree, dw: Tree, x: jax.Array) -> jax.Array:
        w, dw = trees.cast(w, x.dtype), trees.cast(dw, x.dtype)
        f_lin = tj.linearize(lambda w, x: timing.standard(config, w, x, config.depth), w)
        return f_lin(dw, x).total.astype(jnp.float32)

    x = jax.random.normal(jax.random.key(2), (batch, config.tokens, config.width), dtype)
    zeros = tj.tangent(pretrained, 1).zeros()
    labels = jnp.arange(batch) % config.classes
    return step("TAFT-1 step, full block by jvp", Partial(predict, pretrained.w), zeros, x, labels)


def step(name: str, predict: Callable, dw: Tree, x: jax.Array, labels: jax.Array, loop: int = 1) -> Operation:
    """Compiles `fit_step`."""
    return compile_step(name, fit_step(predict, dw, x, labels, loop))._replace(steps=loop)


def fit_step(predict: Callable, dw: Tree, x: jax.Array, labels: jax.Array, loop: int = 1) -> steps.Step:
    """A loop of training steps on one batch of cached features, optimiser included."""
    data = tj.Batches(x, labels, batch_size=len(labels), rows=np.tile(np.arange(len(labels)), loop))
    return steps.fit_step(predict, data, tj.make_objective(), tj.adam(1e-5), start=dw)


def compile_step(name: str, step: steps.Step, models: int = 1) -> Operation:
    """Compiles a trainer's step for `models` models, called one after another."""
    state, *others = step.arguments
    return compiled_step(name, lambda *arguments: step.run(*arguments)[0], [state] * models, *others)


def many(pretrained: tj.Pretrained, batch: int, dtype: Any, models: int, at_once: int, name: str) -> Operation:
    """Compiles one TAFT-1 step of each of `models` models that share the anchor, `at_once` of them in one program."""
    predict = tj.tangent(pretrained, 1, dtype=dtype)
    x, labels = inputs_of(predict, batch, dtype)
    data = tj.Batches(x, labels, batch_size=batch)
    many_step = steps.fit_many_step(predict, data, at_once, tj.make_objective(), tj.adam(1e-5))
    return compile_step(name, many_step, models // at_once)


def private_step_of(
    name: str, summed: Callable[..., tj.privacy.ClippedSum] | None, predict: Any, dw: Tree, x: jax.Array, y: jax.Array,
    mechanism: tj.privacy.Mechanism = MECHANISM,
) -> Operation:  # fmt: skip
    """Compiles `private_step`."""
    return compile_step(name, private_step(summed, predict, dw, x, y, mechanism))


def private_step(
    summed: Callable[..., tj.privacy.ClippedSum] | None, predict: Any, dw: Tree, x: jax.Array, y: jax.Array,
    mechanism: tj.privacy.Mechanism = MECHANISM,
) -> steps.Step:  # fmt: skip
    """One private step on the clipped sum `summed`(predict, dw, x, y); None: the library's own."""
    objective = tj.make_objective("ce", penalty=0.0)
    optimizer = tj.privacy.momentum(1e-6)
    data = tj.Batches(x, y, batch_size=len(y))
    return steps.private_step(predict, data, mechanism, objective, optimizer, start=dw, summed=summed)


def ordinary_step(name: str, predict: Any, dw: Tree, x: jax.Array, y: jax.Array) -> Operation:
    """Compiles one step of the same optimiser on the gradient of all examples."""
    objective = tj.make_objective("ce", penalty=0.0)
    optimizer = tj.privacy.momentum(1e-6)

    def run(state: tuple[Tree, Any], predict: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
        gradient = jax.grad(lambda dw: objective(predict, dw, x, y))(state[0])
        updates, after = optimizer.update(gradient, state[1], state[0])
        return optax.apply_updates(state[0], updates), after

    return compiled_step(name, run, [(dw, optimizer.init(dw))], predict, x, y)


def private_steps(pretrained: tj.Pretrained, batch: int, blocks: int = 1) -> Operations:
    """Steps: ordinary; private by norms in closed form, by vmapped gradients, with discrete noise."""
    predict = tj.tangent(pretrained, blocks, output="tangent")
    given = (predict, predict.zeros(), *inputs_of(predict, batch))
    present = jnp.ones(batch)
    options: Any = {"loss": tj.losses.CrossEntropy(), "clip_norm": MECHANISM.clip_norm}

    def vmapped(p: tj.Predictor, dw: Tree, x: Any, y: Any) -> tj.privacy.ClippedSum:
        return tj.privacy.clipped_sum(p, dw, x, y, present, **options)

    names = "private step, norms in closed form", "private step, our vmapped gradients", "private step, discrete noise"
    discrete = dataclasses.replace(MECHANISM, noise="discrete")
    return {
        "ordinary step": partial(ordinary_step, "ordinary step", *given),
        names[0]: partial(private_step_of, names[0], None, *given),
        names[1]: partial(private_step_of, names[1], vmapped, *given),
        names[2]: partial(private_step_of, names[2], None, *given, discrete),
    }


def feature_passes(pretrained: tj.Pretrained, batch: int, dtype: Any) -> Operations:
    """The features of `place` from images, and of `exact` from the trunk's, beside the plain network on images."""
    model: Any = pretrained.model

    def rows(name: str, parts: tuple[str, ...]) -> Operation:
        run, arguments = steps.rows(tj.models.feature_map(pretrained, parts).in_dtype(dtype), batch)
        return compiled(name, run, *arguments)

    images = jnp.zeros((batch, *model.input_shape(0)), dtype)
    parts = {"features of `place`": ("h", "place"), "features of `exact`": ("h", "ntk", "place")}
    return {
        "plain forward": lambda: compiled("plain forward", model.apply, in_dtype(pretrained.w, dtype), images),
        **{name: partial(rows, name, of) for name, of in parts.items()},
    }


def solver_passes(pretrained: tj.Pretrained, batch: int, dtype: Any) -> Operations:
    """The computations of a pass of `solve` on one batch: gradient, Hessian's product with kept values, factors."""
    predict = tj.tangent(pretrained, dtype=dtype)
    x, y = inputs_of(predict, batch, dtype)
    data = tj.Batches(x, y, batch_size=batch)
    made = steps.make_pass(predict, data, tj.make_objective("rsl", penalty=0.1), signals=4)
    total, _, *others = made.gradient.arguments
    computations = {
        "gradient": made.gradient._replace(arguments=(total, made.fresh, *others)),  # linearised again
        "product with kept values": made.product,
        "factors, 4 signals an example": made.curvature,
    }
    return {name: partial(compiled, name, step.run, *step.arguments) for name, step in computations.items()}


def trunk(pretrained: tj.Pretrained, batch: int, dtype: Any) -> Operation:
    """The trunk below the last block, from uint8 images."""
    predict = tj.tangent(pretrained, 1, dtype=dtype)
    images = jnp.full((batch, *predict.model.input_shape(0)), 100, jnp.uint8)
    run, arguments = steps.trunk(predict, images)
    return compiled("trunk", run, *arguments)


def trunk_flops(config: tj.models.ViTConfig) -> float:
    """FLOPs of the trunk's products for one image, counted by hand, as XLA does not count custom calls."""
    n = config.tokens
    d = config.width
    f = config.mlp_width
    block = 2 * n * (4 * d * d + 2 * d * f) + 4 * n * n * d
    return 2.0 * (n - 1) * 3 * config.patch_size**2 * d + (config.depth - 1) * block


def peaks(dtype: Any, small: bool = False) -> dict[str, float]:
    """FLOP/s of a large matrix product and bytes/s (read and written) of a large copy, the best of five."""
    n, count = (3072, 1 << 26) if jax.devices()[0].platform == "cpu" else (8192, 1 << 29)
    n, count = (256, 1 << 16) if small else (n, count)
    a = jax.random.normal(jax.random.key(0), (n, n), dtype)
    long = jnp.ones(count, jnp.float32)

    def best(f: Callable, *args: Any) -> float:
        jax.block_until_ready(f(*args))
        times = []
        for _ in range(5):
            started = time.perf_counter()
            jax.block_until_ready(f(*args))
            times.append(time.perf_counter() - started)
        return min(times)

    matmul = best(jax.jit(jnp.matmul), a, a)
    copy = best(jax.jit(lambda x: x + 1), long)
    return {"flops_per_second": 2 * n**3 / matmul, "bytes_per_second": 2 * long.nbytes / copy}
