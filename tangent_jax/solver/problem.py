"""The objective over a whole data set, as a sum, with its gradient and its Hessian's products, one pass each.

    F(dw) = sum_i v_i loss(f_i + J_i dw, y_i) + Lambda / 2 |dw|^2,    Lambda = n penalty

v_i is an example's weight, 1 or what the caller says; n counts the examples, whatever their weights: so an example that
leaves by a weight of 0 leaves Lambda as it was. A pass is one product with J and one with its transpose.
"""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import jaxprs_in_params

from tangent_jax.core import Tree, require, trees
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.features import Features
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.curvature import Curvature, Inverse, batch_curvature, invert
from tangent_jax.train.batches import Batches
from tangent_jax.train.objective import Objective, check_data, make_objective, summed_gradient
from tangent_jax.train.targets import Predict, called

SIGNALS = 4  # random cotangents an example, for factors that only precondition


@dataclasses.dataclass(frozen=True)
class Problem:
    """A convex objective on data. `weights`: v, "n"; `like`: a step whose structure dw has; `classes`: logits."""

    predict: Predict
    batches: Batches
    objective: Objective
    weights: np.ndarray
    like: Tree
    classes: int

    @property
    def total_penalty(self) -> float:
        """Lambda."""
        return float(self.objective.penalty) * len(self.batches)

    @property
    def is_quadratic(self) -> bool:
        """Whether the loss's Hessian is the same everywhere."""
        return self.objective.loss.quadratic(self.batches.targets[self.batches.rows[:1]], self.classes) is not None

    def chunks(self) -> Iterator[tuple[Any, Any, Array, Array]]:
        """(inputs, labels, order "k b", weights "k b", 0 where padded) over all rows."""
        order, present = self.batches.in_order()
        weights, _ = self.batches.padded(np.arange(len(self.batches)))
        weights, at = self.weights[weights] * present, 0
        for inputs, labels, rows, here in self.batches.chunks(order, present):
            yield inputs, labels, spread(rows), spread(weights[at : at + len(here)].astype(np.float32))
            at += len(here)

    def gradient(self, dw: Tree) -> tuple[Tree, float, list[Array]]:
        """grad F(dw), F(dw), and the logits at dw chunk by chunk, "k b c". One pass."""
        total, value, logits = trees.scaled(self.total_penalty, dw), 0.0, []
        for inputs, labels, rows, weights in self.chunks():
            part, losses, z = summed_gradient(self.predict, dw, inputs, labels, rows, weights, self.objective)
            total, value = trees.plus(total, part), value + float(losses)
            logits.append(z)
        return total, value + 0.5 * self.total_penalty * float(trees.squared_norm(dw)), logits

    def product(self, v: Tree, logits: list[Array]) -> Tree:
        """The Hessian of F, at a step of these logits, times v. One pass."""
        total = trees.scaled(self.total_penalty, v)
        for (inputs, labels, rows, weights), z in zip(self.chunks(), logits, strict=True):
            part = _product(self.predict, v, inputs, labels, rows, weights, z, self.objective)
            total = trees.plus(total, part)
        return total

    def expanded(self, dw: Tree, known: Curvature | None = None) -> tuple[list[Array], Inverse]:
        """The logits at dw, and the inverse of the factors there, made now or known."""
        logits = [_plain(self.predict, dw, inputs, rows) for inputs, _, rows, _ in self.chunks()]
        return logits, invert(self.curvature(logits, jax.random.key(0)) if known is None else known)

    def outputs(self, v: Tree) -> list[Array]:
        """J v chunk by chunk, "k b c"."""
        return [_outputs(self.predict, v, inputs, rows) for inputs, _, rows, _ in self.chunks()]

    def line(self, logits: list[Array], moved: list[Array], dw: Tree, v: Tree) -> Any:
        """t -> F(dw + t v), of logits and J v that are known: no pass."""
        chunks = [(labels[rows], weights) for _, labels, rows, weights in self.chunks()]
        norms = [trees.squared_norm(dw), trees.vdot(dw, v), trees.squared_norm(v)]
        return partial(_along, logits, moved, chunks, norms, self.objective, self.total_penalty)

    def curvature(self, logits: list[Array], key: Array | None = None) -> Curvature:
        """The Kronecker factors at a step of these logits; key: None for all classes, else `SIGNALS` random ones."""
        predict, total, first = self.predict, None, 0
        assert isinstance(predict, Predictor)
        for (inputs, labels, rows, weights), z in zip(self.chunks(), logits, strict=True):
            keys = None if key is None else jax.vmap(partial(jax.random.fold_in, key))(first + jnp.arange(len(rows)))
            part = _curvature(predict, self.like, inputs, labels, rows, weights, z, self.objective, keys)
            total, first = part if total is None else total + part, first + len(rows)
        assert total is not None
        return total


def make_problem(
    function: str, predict: Predict, data: Batches | Features, objective: Objective, weights: Any, like: Tree
) -> Problem:
    """The problem, its inputs checked.

    Raises: InputError for a predictor that is not affine in dw, labels of no class, weights that are no weights.
    """
    predict = trees.as_pytree(predict)
    batches = data if isinstance(data, Batches) else data.batches(batch_size=pass_batch(predict, like, data.inputs))
    shape = check_data(function, predict, like, batches, objective)
    require(len(shape) == 1, function, "outputs of shape (b, c)", f"(b, {', '.join(map(str, shape))})")
    (classes,) = shape
    v = np.ones(len(batches)) if weights is None else np.asarray(weights, np.float64)
    good = v.shape == (len(batches),) and np.isfinite(v).all() and v.min() >= 0 and v.max() > 0
    lowest = f"shape {v.shape}, the smallest {v.min() if v.size else None}"
    require(good, function, f"weights of {len(batches)} examples, >= 0, one above", lowest)
    check_affine(function, predict, like, batches.inputs[batches.rows[:2]])
    return Problem(predict, batches, objective, v, like, classes)


def curvature(
    predict: Predictor,
    data: Batches | Features,
    objective: Objective | None = None,
    dw: Tree | None = None,
    *,
    weights: Any = None,
    key: Array | None = None,
) -> Curvature:
    """The Kronecker factors of the objective on all of `data`, at a step dw (None: zero): one pass.

    Args:       weights: of each example, None for 1; key: None for the signals of all classes; else a few random ones
                an example, whose mean is the same, at a fraction of the cost.
    Returns:    Curvature, which adds up over data sets, and names its anchor.
    Raises:     InputError as `solve`.
    """
    objective, dw = objective or make_objective(), predict.zeros() if dw is None else dw
    problem = make_problem("curvature", predict, data, objective, weights, dw)
    found = problem.curvature([_plain(predict, dw, x, rows) for x, _, rows, _ in problem.chunks()], key)
    return dataclasses.replace(found, anchor="".join(fingerprints(predict.w)))


def spread(array: np.ndarray) -> Array:
    """Steps of batches, "k b", each batch divided over all devices where it can be: the sums over it follow."""
    devices = jax.devices()
    if len(devices) == 1 or array.shape[1] % len(devices):
        return jnp.asarray(array)
    mesh = jax.sharding.Mesh(np.array(devices), ("examples",))
    return jax.device_put(array, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "examples")))


def pass_batch(predict: Predict, like: Tree, inputs: Any) -> int:
    """A power of two: how many examples a pass works on at once, so that what it keeps of them takes a quarter of the
    device's memory; on a CPU, where larger batches leave its caches and are slower, 64 MiB."""
    stats = jax.devices()[0].memory_stats() or {}
    budget = stats.get("bytes_limit", 1 << 28) // 4 * jax.device_count()
    one, two = (kept_bytes(predict, like, np.asarray(inputs[:1]).repeat(b, 0)) for b in (1, 2))
    most = max(1, budget // max(1, two - one))
    return min(1 << (most.bit_length() - 1), 4096)


def kept_bytes(predict: Predict, dw: Tree, x: Any) -> int:
    """The bytes of all intermediate values of predict(dw, x): no more than this is kept for the way back."""

    def total(jaxpr: Any) -> int:
        own = sum(v.aval.size * v.aval.dtype.itemsize for e in jaxpr.eqns for v in e.outvars if hasattr(v.aval, "size"))
        return own + sum(total(inner) for e in jaxpr.eqns for inner in jaxprs_in_params(e.params))

    return total(jax.make_jaxpr(predict)(dw, x).jaxpr)


def check_affine(function: str, predict: Predict, like: Tree, x: Any) -> None:
    """Raises InputError unless predict(dw, x) is affine in dw: else the objective is not convex."""
    do = 'Use tj.tangent(..., method="taft") or tj.linearize'
    if isinstance(predict, Predictor):
        require(predict.method == "taft", function, "a model that is linear in dw", predict.method, do)
        return
    leaves, structure = jax.tree.flatten(like)
    rng = np.random.default_rng(0)
    v = [0.1 * rng.standard_normal(leaf.shape).astype(leaf.dtype) for leaf in leaves]
    zero, one, two = (called(predict, structure.unflatten([t * leaf for leaf in v]), x) for t in (0, 1, 2))
    finite = bool(jnp.isfinite(two).all())
    require(finite, function, "finite logits", "NaN or infinity", "Look for inputs that are not finite")
    bend = float(jnp.max(jnp.abs(two - 2 * one + zero)))
    size = float(jnp.max(jnp.abs(one - zero)) + 0.01 * jnp.max(jnp.abs(zero)))
    require(bend <= 1e-2 * size, function, "a model that is linear in dw", f"one that bends by {bend / size:.2g}", do)


@jax.jit
def _product(
    predict: Predict, v: Tree, inputs: Array, labels: Array, order: Array, weights: Array, logits: Array,
    objective: Objective,
) -> Tree:  # fmt: skip
    zero = jax.tree.map(jnp.zeros_like, v)

    def add(total: Tree, batch: tuple[Array, Array, Array]) -> tuple[Tree, None]:
        rows, w, z = batch
        _, forward = jax.linearize(lambda dw: predict(dw, inputs[rows]), zero)
        gradient = jax.grad(lambda z: jnp.sum(objective.losses(z, labels[rows]) * w))
        bent = jax.jvp(gradient, (z,), (forward(v),))[1]
        return trees.plus(total, jax.linear_transpose(forward, v)(bent)[0]), None

    return jax.lax.scan(add, zero, (order, weights, logits))[0]


@jax.jit
def _plain(predict: Predict, dw: Tree, inputs: Array, order: Array) -> Array:
    return jax.lax.map(lambda rows: predict(dw, inputs[rows]), order)


@jax.jit
def _outputs(predict: Predict, v: Tree, inputs: Array, order: Array) -> Array:
    zero = jax.tree.map(jnp.zeros_like, v)

    def one(_: None, rows: Array) -> tuple[None, Array]:
        return None, jax.jvp(lambda dw: predict(dw, inputs[rows]), (zero,), (v,))[1]

    return jax.lax.scan(one, None, order)[1]


@jax.jit
def _along(
    logits: list[Array], moved: list[Array], chunks: list[tuple[Array, Array]], norms: list[Array],
    objective: Objective, total_penalty: Any, t: Array,
) -> Array:  # fmt: skip
    classes = logits[0].shape[-1]
    losses = jnp.zeros(())
    for z, q, (labels, weights) in zip(logits, moved, chunks, strict=True):
        each = objective.losses((z + t * q).reshape(-1, classes), labels.reshape(-1, *labels.shape[2:]))
        losses += jnp.sum(each * weights.reshape(-1))
    return losses + 0.5 * total_penalty * (norms[0] + 2 * t * norms[1] + t * t * norms[2])


@jax.jit
def _curvature(
    predict: Predictor, like: Tree, inputs: Array, labels: Array, order: Array, weights: Array, logits: Array,
    objective: Objective, keys: Array | None,
) -> Curvature:  # fmt: skip
    def one(rows: Array, w: Array, z: Array, key: Array | None) -> Curvature:
        return batch_curvature(predict, like, inputs[rows], labels[rows], z, w, objective.loss, key, SIGNALS)

    def add(total: Curvature, batch: tuple[Array, Array, Array, Array | None]) -> tuple[Curvature, None]:
        return total + one(*batch), None

    batches = order, weights, logits, keys
    shapes = jax.eval_shape(one, *jax.tree.map(lambda part: part[0], batches))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zero, batches)[0]
