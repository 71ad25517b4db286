"""Many ridge problems that differ only in example weights, solved together from one optimum.

    dw_k = argmin F_k,    F_k(dw) = sum_i v_ki loss(f_i + J_i dw, y_i) + Lambda / 2 |dw|^2

Each is base + delta_k, where the loss is a square and e_i its slope at the base, in the outputs:

    grad F_k(base + delta) = A_k delta + sum_i (v_ki - 1) J_i^T e_i + grad F(base)
    A_k = sum_i v_ki J_i^T P_i J_i + Lambda

The base's gradient, with v = 1, is computed once. A problem adds only its change, so rounding is relative to delta_k,
not to dw. For a problem that starts at the base, the first gradient needs only the examples with a weight other than 1.
The base's Kronecker factors precondition all problems, and a pass reads the examples once for all of them. Their
conjugate gradients advance together; a finished problem gives its slot to the next. The residual's norm bounds the
distance, and the largest eigenvalues of A dominate it. So a problem ends when the residual would be small enough with
these directions corrected (linear/leading.py); then it is corrected, and its exact gradient computed.
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
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
from tangent_jax.linear.jacobian import Fresh
from tangent_jax.linear.leading import leading
from tangent_jax.linear.tangent import as_tangent
from tangent_jax.solver import passes as passes_of
from tangent_jax.solver import states
from tangent_jax.solver.curvature import Curvature, Inverse, check_factors, invert
from tangent_jax.solver.formed import add_products, form_all
from tangent_jax.solver.optimum import Solved, curvature_of, warn_of
from tangent_jax.solver.passes import ROUNDING, Part, Summed
from tangent_jax.solver.problem import Problem, as_example_weights, check_leaves, make_problem
from tangent_jax.train.batches import Batches, Data
from tangent_jax.train.objective import Objective, as_objective, check_penalty, make_objective
from tangent_jax.train.run import Fitted, Row, Run
from tangent_jax.train.targets import Predict

NEAR = 0.97  # share of the target: an estimate that ends a problem
SHARE = 0.2  # damps gains and biases: leaf by leaf, factors count twice what kernels do too


class Asked(NamedTuple):
    """One problem: its number, example weights "n", and the start, None for the base."""

    turn: int
    example_weights: np.ndarray
    start: Tree | None


@dataclasses.dataclass
class Place:
    """A slot for one of the concurrent problems: its problem, None if empty, and that problem's passes.

    Attributes:
        at_point: True if the next pass is a gradient at its delta, False if it is a step of conjugate gradients.
    """

    asked: Asked | None = None
    at_point: bool = True
    history: list[Row] = dataclasses.field(default_factory=list)
    began: float = 0.0


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
        at_once: Concurrent problems, whose state takes about eight dw each.

    Returns:
        An iterator of Fitted, as of `solve`; `seconds`: while other problems were solved beside it.

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
    first = curvature_of(starts[0])
    solver = Many(dataclasses.replace(problem, predict=problem.predict.exact), steps[0], first, certificate, passes)
    rows = _problems(problem, example_weights, None if isinstance(start, Fitted) else steps)
    return solver.run(rows, at_once, length_hint(example_weights) or None, progress)


def _problems(problem: Problem, rows: Iterable[Any], steps: list[Tree] | None) -> Iterator[Asked]:
    """Yields the problems as their rows of example weights are read."""
    for turn, row in enumerate(rows):
        v = as_example_weights(row, len(problem.batches), problem.dtype)
        if steps is not None and turn >= len(steps):
            raise InputError(f"start must be one for each row of example_weights; got {len(steps)}")
        yield Asked(turn, v, None if steps is None else steps[turn])


class Many:
    """One run of `solve_many`: the data that all problems share, and their passes."""

    def __init__(
        self, problem: Problem, base: Tree, curvature: Curvature | None, certificate: float | None, passes: int
    ) -> None:
        self.problem, self.base, self.passes = problem, jax.tree.map(jnp.asarray, base), passes
        self.target, self.curvature = (certificate or 0.0) * problem.total_penalty, curvature  # of |grad F_k|
        self.inverse: Inverse | None = None
        self.gradient, self.outputs = problem.ridge(self.base), []
        self.formed: Part | None = None

    @promotes
    @jax.default_matmul_precision("highest")
    def prepare(self, count: int) -> None:
        """Computes the base's factors, gradient and outputs, and one leading eigenvector per concurrent problem."""
        problem = self.problem
        if self.curvature is None and problem.predict.has_factors:
            self.curvature = problem.curvature(problem.outputs_at(self.base), jax.random.key(0))
        if self.curvature is not None:
            check_factors(self.base, self.curvature)
            self.inverse = placement.place(invert(self.curvature, problem.total_penalty, SHARE))
        self.formed = form_all(problem)
        if self.formed is not None:  # later passes read nothing else
            self.problem = problem = dataclasses.replace(problem, keeps=False)
        self.gradient, _, self.outputs = problem.gradient(self.base)
        norm = float(trees.norm(self.gradient.total))
        if not np.isfinite(norm):
            raise InputError(f"the gradient must be finite; got norm {norm}. Look for inputs that are not finite.")
        v, nowhere, penalty = np.ones((count, len(problem.batches))), jnp.zeros(count, bool), problem.total_penalty

        def hessian(q: Tree) -> Tree:
            start = Summed(jax.tree.map(lambda leaf: penalty * leaf, q), *jnp.zeros((2, count)))
            return self.add_products(start, q, v, nowhere).total

        self.leading = leading(hessian, penalty, states.empty(self.base, count).x)

    def run(
        self, asked: Iterator[Asked], at_once: int, count: int | None, progress: Progress
    ) -> Iterator[Fitted[Solved]]:
        """Yields the solutions in the order of the problems, each once all before it have ended."""
        first = list(islice(asked, at_once))
        if not first:
            return
        self.prepare(len(first))
        places, asked = [Place() for _ in first], chain(first, asked)
        state, ended, turn = states.empty(self.base, len(first)), {}, 0
        with Run(progress=progress) as run:
            run.show(count, "problem")
            while True:
                state = self.fill(state, places, asked)
                if all(place.asked is None for place in places):
                    return
                state, norms, rounding = self.advance(state, places)
                before = len(ended)
                for k, place in enumerate(places):
                    if place.asked is not None and self.is_done(place, float(norms[k]), float(rounding[k])):
                        ended[place.asked.turn] = self.result(place, state.x, k)
                        places[k] = Place()
                run.advance(len(ended) - before)
                while turn in ended:
                    yield ended.pop(turn)
                    turn += 1

    @promotes
    def fill(self, state: cg.State, places: list[Place], asked: Iterator[Asked]) -> cg.State:
        """The state with the next problems in the empty slots."""
        for k, place in enumerate(places):
            if place.asked is not None or (new := next(asked, None)) is None:
                continue
            places[k] = Place(new, began=time.perf_counter())
            state, places[k].at_point = self.begin(state, k, new)
        return state

    @promotes
    @jax.default_matmul_precision("highest")
    def begin(self, state: cg.State, k: int, asked: Asked) -> tuple[cg.State, bool]:
        """(the state with a problem in slot k, True if its next pass is a gradient)."""
        changed = np.flatnonzero(asked.example_weights != 1)
        if asked.start is None and len(changed) <= self.problem.batches.width:  # its gradient needs no pass
            gradient = self.gradient_at_base(changed, asked.example_weights)
            state, norm = states.begin_at_base(state, k, gradient, self.inverse)
            return state, not self.nearly < float(norm) < np.inf
        return states.begin(state, k, self.base, self.base if asked.start is None else asked.start), True

    def gradient_at_base(self, changed: np.ndarray, v: np.ndarray) -> Tree:
        """grad F_k(base), "1 ..."; only the examples `changed`, whose weight is not 1, are read."""
        problem = self.problem
        count = 1 << max(len(changed) - 1, 0).bit_length()  # powers of two: few programs
        rows = np.resize(changed, count)
        x, y = (array[problem.batches.rows[rows]] for array in (problem.batches.inputs, problem.batches.targets))
        part = Part(Fresh(problem.predict, x, None), y, np.arange(count) < len(changed))
        total, zero = (jax.tree.map(lambda leaf: jnp.array(leaf[None]), tree) for tree in (self.gradient, problem.zero))
        f, at_base = passes_of.outputs_of(part.jacobian, self.base), jnp.ones(1, bool)
        return states.add_products(total, part, f, zero, v[None, rows], at_base, problem.objective).total

    @promotes
    @jax.default_matmul_precision("highest")
    def advance(self, state: cg.State, places: list[Place]) -> tuple[cg.State, np.ndarray, np.ndarray]:
        """One pass for all: a gradient for problems at a point, else a product; also |r| and its rounding, "k"."""
        n = len(self.problem.batches)
        at_point = jnp.array([place.at_point for place in places])
        v = np.stack([np.zeros(n) if place.asked is None else place.asked.example_weights for place in places])
        state, q, total = states.operands(state, self.gradient, at_point, self.problem.total_penalty, self.leading)
        total = self.add_products(total, q, v, at_point)
        changed = np.minimum(np.abs(v - 1), 1).mean(1)
        state, norms = states.advance(state, total.total, at_point, self.inverse, self.leading, changed)
        return state, placement.on_host(norms), placement.on_host(total.rounding + ROUNDING * total.noise)

    def add_products(self, total: Summed, q: Tree, v: np.ndarray, at_point: Array) -> Summed:
        """`total` plus the products of one pass, as in `states.add_products`."""
        objective = self.problem.objective
        if self.formed is not None:
            f, rows = jnp.stack(self.outputs), jnp.stack(list(self.rows(v)))
            return add_products(total, self.formed, f, q, rows, at_point, objective)
        for part, f, rows in zip(self.problem.parts(), self.outputs, self.rows(v), strict=True):
            total = states.add_products(total, part, f, q, rows, at_point, objective)
        return total

    def rows(self, v: np.ndarray) -> Iterator[Any]:
        """The example weights "k n" batch by batch, "k b"; 0 for padding."""
        at, _ = self.problem.batches.pad(np.arange(v.shape[1]))
        return (placement.divide(v[:, rows].astype(self.problem.dtype), 1) for rows in at)

    @property
    def nearly(self) -> float:
        """The residual norm at which a problem's conjugate gradients end, with its rounding."""
        return max(NEAR * self.target - float(self.gradient.rounding), float(self.gradient.noise))

    def is_done(self, place: Place, norm: float, rounding: float) -> bool:
        """Adds a pass to the history; True if it was the problem's last; decides what the next pass is."""
        name, rows = ("certificate" if place.at_point else "estimate"), place.history
        before = next((row["gradient_norm"] for row in reversed(rows) if row["exact"]), np.inf)
        rounding = rounding if place.at_point else 0.0
        row = {"passes": len(rows) + 1, "gradient_norm": norm, "rounding": rounding, "exact": place.at_point}
        rows.append({**row, name: (norm + rounding) / self.problem.total_penalty})
        left = self.passes - len(rows)
        if place.at_point:  # ends at its target, at the last pass, or where rounding allows no more
            place.at_point = False
            return norm + rounding <= self.target or left < 2 or not norm <= 0.5 * before
        place.at_point = norm <= self.nearly or left == 1 or not np.isfinite(norm)
        return False

    @promotes
    def result(self, place: Place, delta: Tree, k: int) -> Fitted[Solved]:
        """The result of a finished problem, the k-th of those at work."""
        last = place.history[-1]
        converged = last["gradient_norm"] + last["rounding"] <= self.target
        penalty = self.problem.total_penalty
        info = Solved(last["certificate"], last["gradient_norm"], penalty, converged, self.curvature)
        if not converged:
            warn_of(last, self.target / penalty, stacklevel=4)
        dw, seconds = placement.replicate(states.result(self.base, delta, k)), time.perf_counter() - place.began
        return Fitted(dw, place.history, seconds, last["passes"], None, info)
