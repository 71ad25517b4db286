"""The library's computations on a device, for `bench accelerator` to compare with a CPU's."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tangent_jax as tj
from experiments.shared.steps import Step, make_pass, trunk
from tangent_jax.core.notation import Tree
from tangent_jax.io.progress import check_stop


def values(
    predict: tj.Predictor, dw: Tree, images: jax.Array, data: tuple[jax.Array, jax.Array], device: Any = None
) -> dict[str, Any]:
    """Runs each of the library's computations once on the same inputs, and returns the values to compare."""
    objective = tj.make_objective("ce", penalty=1e-2)
    x, y = data
    made = make_pass(predict, tj.Batches(x, y, batch_size=len(y)), objective, signals=0)

    def at(f: Callable[..., Any], predict: tj.Predictor = predict) -> Step:
        return Step(f, (predict, dw, x, y))

    def clipped(f: Callable[..., tj.privacy.ClippedSum]) -> Step:
        present = jnp.ones(len(y))
        options = {"loss": objective.loss, "clip_norm": 0.1}
        return at(lambda predict, dw, x, y: f(predict, dw, x, y, present, **options).value)

    def times(predict: tj.Predictor, dw: Tree, part: Any) -> Tree:
        zero = jax.tree.map(jnp.zeros_like, dw)
        return made.product.run(zero, part, dw, predict(dw, x), objective)

    def of_curvature(*arguments: Any) -> tuple[Any, Any]:
        curvature = made.curvature.run(*arguments)
        return curvature.kernels, curvature.blocks

    programs = {
        "trunk": trunk(predict, images),
        "outputs": at(lambda predict, dw, x, y: predict(dw, x)),
        "outputs by jax.jvp": at(lambda p, dw, x, y: p(dw, x), dataclasses.replace(predict, linearization="autodiff")),
        "gradient": at(lambda predict, dw, x, y: jax.grad(lambda dw: objective(predict, dw, x, y))(dw)),
        "clipped sum": clipped(tj.privacy.clipped_sum_closed_form),
        "clipped sum by vmap": clipped(tj.privacy.clipped_sum),
        "Hessian's product": Step(times, (predict, dw, made.fresh)),
        "factors": Step(of_curvature, (made.fresh, dw, predict(dw, x), *made.curvature.arguments[3:])),
    }
    results = {}
    for name, (run, arguments) in programs.items():
        check_stop()  # a device may compile each for seconds
        results[name] = jax.device_get(jax.jit(run)(*jax.device_put(arguments, device)))
    return results


def relative(got: Tree, want: Tree) -> float:
    """|got - want| / |want|, in L2 over all leaves."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    squares = [(np.sum((np.float64(g) - w) ** 2), np.sum(np.float64(w) ** 2)) for g, w in pairs]
    return float(np.sqrt(np.divide(*np.sum(squares, 0))))
