"""The objective over a whole data set, with its gradient and Hessian products, one pass each.

    F(dw) = sum_i v_i loss(f_i + J_i dw, y_i) + Lambda / 2 |dw|^2,    Lambda = n penalty

v_i is an example's weight, by default 1. n counts all examples, whatever their weights, so removing an example by a
weight of 0 does not change Lambda. A pass is one product with J and one with its transpose.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float64

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError, of_shape
from tangent_jax.core.identities import program
from tangent_jax.core.notation import Tree
from tangent_jax.core.promotion import promotes
from tangent_jax.linear.jacobian import Fresh, keep
from tangent_jax.linear.tangent import Tangent, as_tangent, check_factors
from tangent_jax.models.anchor import fingerprints
from tangent_jax.models.ntk import ComponentPredictor
from tangent_jax.solver import passes
from tangent_jax.solver.affine import check_affine, check_square
from tangent_jax.solver.curvature import Curvature
from tangent_jax.solver.passes import Part
from tangent_jax.train.batches import Batches, Data, as_batches
from tangent_jax.train.bound import check_data
from tangent_jax.train.objective import Objective, as_objective, make_objective
from tangent_jax.train.targets import Predict, as_numbers, call

SIGNALS = 1024  # least number of random cotangents, over all examples, of factors that only precondition


@dataclasses.dataclass(frozen=True)
class Problem:
    """A convex objective on data.

    Attributes:
        predict: The predictor of products with J; gradients and certificates take `predict.exact`, in f32 even if it is
            in half precision.
        example_weights: v, "n".
        zero: dw = 0.
        classes, dtype: Those of the outputs.
        is_quadratic: True if the loss's Hessian is constant.
        keeps: True if the inputs of products with J stay on the device between passes, in `held`.
    """

    predict: Tangent
    batches: Batches
    objective: Objective
    example_weights: np.ndarray
    zero: Tree
    classes: int
    dtype: Any
    is_quadratic: bool
    keeps: bool
    held: list[Part] = dataclasses.field(default_factory=list, init=False, repr=False)

    @property
    def total_penalty(self) -> float:
        """Lambda."""
        return float(self.objective.penalty) * len(self.batches)

    @property
    def signals(self) -> int:
        """The number of random cotangents per example, `SIGNALS` in total."""
        return -(-SIGNALS // len(self.batches))

    def fresh(self, predict: Tangent | None = None) -> Iterator[Part]:
        """Yields every batch, padded to one size."""
        order, present = self.batches.in_order()
        v = iter(self.padded_weights())
        for chunk in self.batches.chunks(order, present):
            for i in range(len(chunk.present)):
                if chunk.order is None:
                    inputs, y, rows = passes.take(chunk.inputs, i), passes.take(chunk.targets, i), None
                else:
                    rows = placement.divide(chunk.order[i], 0)
                    inputs, y = chunk.inputs, passes.take(chunk.targets, rows)
                yield Part(Fresh(predict or self.predict, inputs, rows), y, placement.divide(next(v), 0))

    def padded_weights(self) -> np.ndarray:
        """v batch by batch, "k b", 0 where padded."""
        at, present = self.batches.pad(np.arange(len(self.batches)))
        return np.where(present > 0, self.example_weights[at], 0).astype(self.dtype)

    def parts(self) -> Iterator[Part]:
        """Every batch in the form that its products take."""
        if not self.keeps:
            return self.fresh()
        if not self.held:
            self.held.extend(part._replace(jacobian=keep(part.jacobian, self.zero)) for part in self.fresh())
        return iter(self.held)

    def gradient(self, dw: Tree) -> tuple[passes.Summed, float, list[Array]]:
        """grad F(dw), F(dw), and the outputs at dw batch by batch, "b c". One pass."""
        total, losses, outputs = self.ridge(dw), [], []
        exact = self.predict.exact
        kept = self.parts() if self.keeps and exact is self.predict else None
        for fresh in self.fresh(exact):
            part = fresh if kept is None else next(kept)
            total, loss, f = passes.add_gradient(total, part, dw, self.objective)
            total = total._replace(sizes=total.sizes + passes.gradient_size(fresh, dw, self.objective))
            losses.append(loss)
            outputs.append(f)
        value = sum(map(float, losses)) + 0.5 * self.total_penalty * float(trees.norm(dw)) ** 2
        return total, value, outputs

    def ridge(self, dw: Tree) -> passes.Summed:
        """Lambda dw, the first term of a gradient."""
        total = trees.along(self.zero, self.total_penalty, dw)
        norm = trees.norm(total)
        return passes.Summed(total, norm, jnp.copy(norm))  # donated apart

    def product(self, v: Tree, outputs: Sequence[Array | np.ndarray]) -> Tree:
        """The Hessian of F, at a step of these outputs, times v. One pass."""
        total = trees.along(self.zero, self.total_penalty, v)
        for part, f in zip(self.parts(), outputs, strict=True):
            total = passes.add_product(total, part, v, f, self.objective)
        return total

    def line(self, outputs: Sequence[Array | np.ndarray], dw: Tree, v: Tree) -> Any:
        """t -> F(dw + t v), from the outputs at dw; computes one product with J."""
        order, _ = self.batches.in_order()
        part = Part(None, self.batches.targets[order.ravel()], self.padded_weights().ravel())
        changes = [passes.change_of(part.jacobian, v) for part in self.parts()]
        f, change = (np.concatenate([placement.on_host(a) for a in arrays]) for arrays in (outputs, changes))
        norms = jnp.stack([trees.squared_norm(dw), trees.vdot(dw, v), trees.squared_norm(v)])
        return partial(passes.value_along, f, change, part, norms, self.objective, self.total_penalty)

    def curvature(self, outputs: Sequence[Array | np.ndarray], key: Array | None = None) -> Curvature:
        """The Kronecker factors at a step of these outputs; those of a square loss do not depend on the step.

        Args:
            key: None for the signals of all outputs; else random ones, equally many for each example, if fewer suffice.
        """
        key = key if self.signals < self.classes else None
        total, keeping = None, self.keeps and not self.held and self.is_quadratic
        for i, part in enumerate(self.fresh()):
            f = self.no_outputs() if self.is_quadratic else outputs[i]
            given = part, self.zero, f, self.objective, key, i, self.signals
            if keeping:
                jacobian, own = passes.keep_with_curvature(*given)
                self.held.append(part._replace(jacobian=jacobian))
            else:
                own = passes.part_curvature(*given)
            total = own if total is None else passes.add(total, own)
        assert total is not None
        return total

    def outputs_at(self, dw: Tree) -> list[Any]:
        """The outputs at dw batch by batch, "b c", as `curvature` and `product` take them; 0 for a square loss."""
        if self.is_quadratic:
            return [self.no_outputs()] * self.batches.steps
        return [passes.outputs_of(part.jacobian, dw) for part in self.parts()]

    def no_outputs(self) -> np.ndarray:
        """Outputs of 0 for a batch."""
        return np.zeros((self.batches.width, self.classes), self.dtype)

    @jax.default_matmul_precision("highest")
    def identity_inputs(self, dw: Tree) -> list[Any]:
        """The programs of the passes and their numbers, which decide a run besides its examples."""
        of_all = self.batches.inputs, self.batches.targets
        x, y = (np.repeat(a[self.batches.rows[:1]], self.batches.batch_size, 0) for a in of_all)
        part = Part(Fresh(self.predict, x, np.arange(len(y))), y, np.ones(len(y), self.dtype))
        f = np.zeros((len(y), self.classes), self.dtype)
        of_gradient = dataclasses.replace(part.jacobian, predict=self.predict.exact)
        exact = part._replace(jacobian=of_gradient)
        programs = [
            program(passes.add_gradient, self.ridge(dw), exact, dw, self.objective),
            program(passes.gradient_size, exact, dw, self.objective),
            program(passes.add_product, dw, part, dw, f, self.objective),
        ]
        if self.predict.has_factors:
            batch = partial(passes.part_curvature, signals=self.signals)
            programs.append(program(batch, part, dw, f, self.objective, jax.random.key(0), 0))
        numbers = jax.tree.leaves((self.predict, dw, self.objective))
        return [programs, numbers, self.example_weights, self.is_quadratic, self.keeps]


@jax.default_matmul_precision("highest")
def make_problem(
    predict: Predict, data: Batches | Data, objective: Objective, example_weights: Any, like: Tree,
    keep: bool = False,
) -> Problem:  # fmt: skip
    """The problem, after checks of its inputs; keep: True if there will be many passes.

    Raises:
        InputError: A predictor that is not affine in dw, a step of other leaves than it trains, targets that do not fit
            the loss, invalid example weights.
    """
    tangent, like = jax.tree.map(placement.automatic, (as_tangent(predict), like))
    check_leaves(tangent, like)
    batches = as_batches(data)
    zero = jax.tree.map(jnp.zeros_like, like)
    shape = check_data(tangent, like, batches, objective)
    if len(shape) != 1:
        raise InputError(f"outputs must have shape (b, c); got (b, {', '.join(map(str, shape))})")
    x = batches.inputs[batches.rows[:2]]
    dtype = call.eval_shape(tangent, like, x).dtype
    v = as_example_weights(example_weights, len(batches), dtype)
    check_affine(tangent, like, x)
    is_quadratic = check_square(objective.loss, batches.targets[batches.rows[:4]], shape[0])
    if batches is not data:
        batches = as_batches(data, passes.pass_batch(tangent, zero, batches.inputs))
    keeps = keep and passes.kept_bytes(tangent, zero, batches.inputs, batches.width) * batches.steps <= passes.room()
    tangent, zero = placement.place((tangent, zero))
    return Problem(tangent, batches, objective, v, zero, shape[0], dtype, is_quadratic, keeps)


def check_leaves(predict: Tangent, dw: Tree) -> None:
    """Raises InputError for a step of other leaves than the predictor trains, if it names them."""
    zeros = predict.zeros()
    if zeros is None:
        return
    trained = trees.leaves(zeros)
    given = trees.leaves(dw)
    advice = "Start from a step of this predictor"
    missing = sorted(trained.keys() - given.keys())
    if missing:
        raise InputError(f"dw must have every trained leaf; got none at {missing[0]}. {advice}.")
    extra = sorted(given.keys() - trained.keys())
    if extra:
        raise InputError(f"dw must have trained leaves alone; got one at {extra[0]}. {advice}.")
    for path, leaf in given.items():
        of_shape(path, leaf, trained[path].shape, advice)


def as_example_weights(example_weights: Any, count: int, dtype: Any) -> Float64[np.ndarray, "n"]:
    """The weight of each example, "n", in f64; None: 1; dtype: of the outputs, in which it will count."""
    v = np.ones(count) if example_weights is None else as_numbers("example_weights", example_weights)
    if v.shape != (count,) or not np.isfinite(v).all() or v.min() < 0 or v.max() <= 0:
        smallest = v.min() if v.size else None
        raise InputError(
            f"example_weights must be of {count} examples, >= 0, one above;"
            f" got shape {v.shape}, the smallest {smallest}"
        )
    low, high = float(jnp.finfo(dtype).tiny), float(jnp.finfo(dtype).max)
    positive = v[v > 0]
    if positive.min() < low or positive.max() > high:
        raise InputError(
            f"example_weights must be 0 or in {low:.3g}..{high:.3g}, as {dtype} holds them;"
            f" got {positive.min():.3g} to {positive.max():.3g}"
        )
    return v


@jax.default_matmul_precision("highest")
@promotes
def make_curvature(
    predict: ComponentPredictor,
    data: Batches | Data,
    objective: Objective | None = None,
    dw: Tree | None = None,
    *,
    example_weights: Any = None,
    key: Array | None = None,
) -> Curvature:
    """The Kronecker factors of the objective on all of `data`, at a step dw (None: zero): one pass.

    Args:
        data: Features or Batches.
        example_weights: "n", None for 1.
        key: None for the signals of all outputs; else random ones with the same mean, at a fraction of the cost, if
            fewer suffice.

    Returns:
        Curvature, which adds over data sets and names its anchor.

    Raises:
        InputError: As `solve`, and for a model without a closed form.

    >>> factors = tj.solver.make_curvature(demo.predict, demo.train, demo.objective)
    >>> {path: a.shape for path, (a, _) in factors.kernels.items()}
    {'head/kernel': (1, 6, 6), 'second/kernel': (1, 6, 6)}
    """
    objective = as_objective(objective, make_objective)
    check_factors(predict, "Solve without factors, and merge by mean")
    if key is not None:
        trees.check_key(key)
    dw = predict.zeros() if dw is None else dw
    problem = make_problem(predict, data, objective, example_weights, dw)
    total = problem.curvature(problem.outputs_at(dw), key)
    return dataclasses.replace(placement.replicate(total), anchor="".join(fingerprints(predict.w)))
