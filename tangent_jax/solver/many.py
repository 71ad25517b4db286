"""Many ridge problems that differ only in example weights, solved side by side from one optimum.

    dw_k = argmin F_k,    F_k(dw) = sum_i v_ki loss(f_i + J_i dw, y_i) + Lambda / 2 |dw|^2

Each is base + delta_k, where the loss is a square and e_i its slope at the base, in the outputs:

    grad F_k(base + delta) = A_k delta + sum_i (v_ki - 1) J_i^T e_i + grad F(base)
    A_k = sum_i v_ki J_i^T P_i J_i + Lambda

The base's gradient, with v = 1, is computed once. A problem adds only its change, so rounding is relative to delta_k,
not to dw. A pass reads the examples once for all problems of a group: a gradient of each, or a step of their conjugate
gradients (linear/cg.py under vmap), preconditioned by the base's Kronecker factors.
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError, finite_number, whole_number
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.linear import cg
from tangent_jax.linear.tangent import as_tangent
from tangent_jax.solver.curvature import Curvature, Inverse, check_factors, invert
from tangent_jax.solver.optimum import Solved, curvature_of, warn_of
from tangent_jax.solver.passes import ROUNDING, Part, Summed
from tangent_jax.solver.problem import Problem, as_example_weights, check_leaves, make_problem
from tangent_jax.train.batches import Batches, Data
from tangent_jax.train.objective import Objective, as_objective, check_penalty, make_objective
from tangent_jax.train.run import Fitted, Row, Run
from tangent_jax.train.targets import Predict

NEAR = 0.97  # share of the target at which conjugate gradients end, so that the exact gradient meets it


class Base(NamedTuple):
    """The point from which all problems start, with what they share."""

    problem: Problem
    dw: Tree
    curvature: Curvature | None
    inverse: Inverse | None
    gradient: Summed
    outputs: list[Array]


@promotes
def solve_many(
    predict: Predict,
    data: Batches | Data,
    objective: Objective | None = None,
    *,
    example_weights: Iterable[Any],
    start: Fitted | Sequence[Tree | Fitted],
    certificate: float | None = 0.01,
    passes: int = 200,
    at_once: int = 32,
    progress: Progress = silent,
) -> Iterator[Fitted[Solved]]:
    """Yields the optimum of a square loss for each row of example weights, in their order.

    Args:
        predict, data, objective: As `solve`.
        example_weights: "k n", an array or rows that are read one by one, each >= 0 with one above.
        start: The result of `solve`, from which all start, or a list of such results or of steps, one for each row,
            whose first one has the factors.
        certificate: The largest L2 distance of each result from its optimum, None: use all `passes`, the most for each
            problem.
        at_once: The problems of a group, which ends with its last one; their state takes about six dw each.

    Returns:
        An iterator of Fitted in input order, as of `solve`, with the `seconds` of the problem's group.

    Guarantees:
        |dw_k - dw_k*| <= its certificate, from an exact gradient at the end, including the rounding of the base's
        gradient and of the change's. Lambda = n penalty in all.

    Raises:
        InputError: As `solve`, for a loss that is not square, or a penalty of 0; while reading rows, for invalid
            weights and for fewer starts than rows.

    >>> without = np.ones((2, 24)) - np.eye(24)[:2]  # leaves out the first example, then the second
    >>> options = {"example_weights": without, "start": demo.fitted, "at_once": 2}
    >>> solved = tj.solver.solve_many(demo.predict, demo.train, demo.objective, **options)
    >>> [fitted.info.certificate < 0.01 for fitted in solved]
    [True, True]
    """
    whole_number("passes", passes, 2)
    whole_number("at_once", at_once, 1)
    if certificate is not None:
        finite_number("certificate", certificate, 0.0)
    objective = as_objective(objective, make_objective)
    check_penalty(objective)
    starts = [start] if isinstance(start, Fitted) else list(start)
    if not starts:
        raise InputError("start must be at least one; got none. Pass what tj.solve returned.")
    steps = [begun.dw if isinstance(begun, Fitted) else begun for begun in starts]
    for dw in steps[1:]:
        check_leaves(as_tangent(predict), dw)
    problem = make_problem(predict, data, objective, None, steps[0], keep=True)
    if not problem.is_quadratic:
        raise InputError(f"the loss must be a square; got {type(objective.loss).__name__}. Use tj.solve for each row.")
    problem = dataclasses.replace(problem, predict=problem.predict.exact)
    target = (certificate or 0.0) * problem.total_penalty
    rows = _rows(problem, example_weights, None if isinstance(start, Fitted) else steps)

    def solve_groups() -> Iterator[Fitted[Solved]]:
        base = None
        with Run(progress=progress) as run:
            run.show(length_hint(example_weights) or None, "problem")
            while group := [*islice(rows, at_once)]:
                base = make_base(problem, steps[0], curvature_of(starts[0])) if base is None else base
                solved = solve_group(base, group, target, passes, run)
                run.advance(len(group))
                yield from solved

    return solve_groups()


def _rows(problem: Problem, rows: Iterable[Any], steps: list[Tree] | None) -> Iterator[tuple[np.ndarray, Tree | None]]:
    """Yields (example weights "n", the step to start from, None for the base), as the rows are read."""
    for turn, row in enumerate(rows):
        v = as_example_weights(row, len(problem.batches), problem.dtype)
        if steps is not None and turn >= len(steps):
            raise InputError(f"start must be one for each row of example_weights; got {len(steps)}")
        yield v, None if steps is None else steps[turn]


@promotes
@jax.default_matmul_precision("highest")
def make_base(problem: Problem, dw: Tree, curvature: Curvature | None) -> Base:
    """The factors, gradient and outputs at dw; InputError for a gradient that is not finite."""
    dw, inverse = jax.tree.map(jnp.asarray, dw), None
    if curvature is None and problem.predict.has_factors:
        curvature = problem.curvature(problem.outputs_at(dw), jax.random.key(0))
    if curvature is not None:
        check_factors(dw, curvature)
        inverse = placement.place(invert(curvature, problem.total_penalty))
    gradient, _, outputs = problem.gradient(dw)
    norm = float(trees.norm(gradient.total))
    if not np.isfinite(norm):
        raise InputError(f"the gradient must be finite; got norm {norm}. Look for inputs that are not finite.")
    return Base(problem, dw, curvature, inverse, gradient, outputs)


@promotes
@jax.default_matmul_precision("highest")
def solve_group(
    base: Base, group: list[tuple[np.ndarray, Tree | None]], target: float, passes: int, run: Run
) -> list[Fitted[Solved]]:
    """The solutions of a group, side by side; target: the largest |grad F_k|.

    All have an exact gradient in the same passes: first, when the residual of each is small enough, and last.
    """
    problem, penalty, began = base.problem, base.problem.total_penalty, time.perf_counter()
    v = np.stack([weights for weights, _ in group])
    nearly = max(NEAR * target - float(base.gradient.rounding), float(base.gradient.noise))
    state = begin(base.dw, [base.dw if start is None else start for _, start in group])
    histories: list[list[Row]] = [[] for _ in group]
    at_point, is_last, before = True, False, np.full(len(group), np.inf)
    met: dict[int, tuple[Tree, list[Row]]] = {}  # delta and history at the first point within the target
    while not is_last:
        q, total = operands(state, base.gradient, at_point, penalty)
        for part, f, rows in zip(problem.parts(), base.outputs, by_batch(problem, v), strict=True):
            total = add_products(total, part, f, q, rows, at_point, problem.objective)
        state, norms = advance(state, total.total, base.inverse, at_point)
        norms = placement.on_host(norms)
        rounding = placement.on_host(total.rounding + ROUNDING * total.noise) * at_point
        name = "certificate" if at_point else "estimate"
        for history, norm, error in zip(histories, norms.tolist(), rounding.tolist(), strict=True):
            row = {"passes": len(history) + 1, "gradient_norm": norm, "rounding": error, "exact": at_point}
            history.append({**row, name: (norm + error) / penalty})
        left = passes - len(histories[0])
        if at_point:  # ends where all meet the target or rounding allows no more, or at the last pass
            for k in np.flatnonzero(norms + rounding <= target).tolist():
                met.setdefault(k, (jax.tree.map(lambda leaf, k=k: leaf[k], state.x), [*histories[k]]))
            has_ended = np.isin(np.arange(len(group)), [*met]) | ~(norms <= 0.5 * before)
            is_last, at_point, before = bool(has_ended.all()) or left < 2, False, norms
        else:
            at_point = bool(((norms <= nearly) | ~np.isfinite(norms)).all()) or left == 1
        run.check_stop()
    seconds, results = time.perf_counter() - began, []
    for k in range(len(group)):
        delta, history = met.get(k) or (jax.tree.map(lambda leaf, k=k: leaf[k], state.x), histories[k])
        last = history[-1]
        converged = last["gradient_norm"] + last["rounding"] <= target
        info = Solved(last["certificate"], last["gradient_norm"], penalty, converged, base.curvature)
        if not converged:
            warn_of(last, target / penalty, stacklevel=4)
        dw = jax.tree.map(lambda leaf, step: leaf + step, base.dw, delta)
        results.append(Fitted(placement.replicate(dw), history, seconds, last["passes"], None, info))
    return results


def by_batch(problem: Problem, v: np.ndarray) -> Iterator[Any]:
    """The example weights "k n" batch by batch, "k b"; padding has weight 1 here and 0 in the batch itself."""
    at, _ = problem.batches.pad(np.arange(v.shape[1]))
    return (placement.divide(v[:, rows].astype(problem.dtype), 1) for rows in at)


def begin(base: Tree, starts: list[Tree]) -> cg.State:
    """The state of problems at their starts, whose gradients the first pass computes; x is delta."""
    x = jax.tree.map(lambda leaf, *starts: jnp.stack(starts) - leaf, base, *starts)
    r, p = (jax.tree.map(jnp.zeros_like, x) for _ in range(2))
    return cg.State(x, r, p, jnp.zeros(len(starts)))


@jax.jit
def operands(state: cg.State, gradient: Summed, at_point: Any, total_penalty: Any) -> tuple[Tree, Summed]:
    """(q, which the pass multiplies with A: delta at a point, else the direction; the first term of the pass's sum)."""

    def own(x: Tree, p: Tree) -> tuple[Tree, Summed]:
        q = jax.tree.map(partial(jnp.where, at_point), x, p)
        ridge = jax.tree.map(lambda leaf: total_penalty * leaf, q)
        begun = jax.tree.map(lambda leaf, g: leaf + jnp.where(at_point, g, 0), ridge, gradient.total)
        norms, sizes = (jnp.where(at_point, each, 0) for each in (gradient.norms, gradient.sizes))
        return q, Summed(begun, trees.norm(ridge) + norms, sizes)

    return jax.vmap(own)(state.x, state.p)


@partial(jax.jit, donate_argnames="total")
def add_products(
    total: Summed, part: Part, outputs: Array, q: Tree, v: Array, at_point: Any, objective: Objective
) -> Summed:
    """total + sum_i J_i^T (v_ki P_i J_i q_k + (v_ki - 1) e_i); the last term only at a point; "k" in each leaf."""
    first = jax.tree.map(lambda leaf: leaf[0], q)
    times, v = jax.vmap(part.jacobian.at(first).mv, out_axes=2), v.T[:, None]
    slope, bend = jax.linearize(jax.grad(partial(part.loss, objective)), outputs)  # e, P: of weights 1; 0 for padding
    bent = jnp.where(v > 0, v * jax.vmap(bend, 2, 2)(times(q)), 0)
    bent += jnp.where(at_point, (v - 1) * slope[:, :, None], 0)
    return jax.vmap(Summed.plus)(total, jax.linear_transpose(times, q)(bent)[0])


@partial(jax.jit, donate_argnames="state")
def advance(state: cg.State, total: Tree, inverse: Inverse | None, at_point: Any) -> tuple[cg.State, Array]:
    """The state after a pass, and |r|, "k": a restart from the gradient at a point, else a step of each problem."""
    state = jax.vmap(cg.step, (0, 0, None, None))(state, total, inverse, at_point)
    return state, jax.vmap(trees.norm)(state.r)
