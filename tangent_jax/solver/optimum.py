"""The optimum of the tangent model's objective, by conjugate gradients, with a bound on what is missing.

    dw* = argmin F,   F(dw) = sum_i v_i loss(f_i + J_i dw, y_i) + Lambda / 2 |dw|^2

    certificate = (|grad F(dw)| + rounding) / Lambda >= |dw - dw*|        F is Lambda-strongly convex

`rounding` is what the gradient's own sum may have lost in its dtype (passes.Summed).
Square losses: one linear system (J^T H J + Lambda) dw = -grad F(0), solved by conjugate gradients (Hestenes and
Stiefel 1952) preconditioned by the layers' Kronecker factors (curvature.py). Any other loss: Newton's method with the
same inner solver and a backtracking line search. There is no learning rate.
"""

import os
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tangent_jax.core import Tree, expect, finite_number, placement, trees, whole_number
from tangent_jax.core.boundary import public
from tangent_jax.core.trees import along
from tangent_jax.linear import cg
from tangent_jax.solver.curvature import Curvature, Inverse, check_factors, invert
from tangent_jax.solver.passes import SHOWN, Summed
from tangent_jax.solver.problem import Problem, make_problem
from tangent_jax.train.batches import Batches, Data
from tangent_jax.train.checkpoints import History, Row, Saver, measure_name, run_identity
from tangent_jax.train.objective import Objective, as_objective, make_objective
from tangent_jax.train.run import Fitted, OnStep, Optimum, Run
from tangent_jax.train.targets import Predict, start_of

LINE_SEARCH = optax.scale_by_backtracking_linesearch(max_backtracking_steps=40, decrease_factor=0.5)
INNER = 0.05  # of a gradient, where an inner solve by products in half precision ends: they see no smaller one
SMALLEST = 1e-6  # damping of the preconditioner where the penalty is 0


class State(NamedTuple):
    """A point `base`, and conjugate gradients `inner` from there: dw = base + inner.x.

    `at_point`: 1 where base is new, its gradient not yet known; `tolerance`: of |r|, where the inner solver ends.
    """

    base: Tree
    inner: cg.State
    tolerance: Array
    at_point: Array


@public
def solve(
    predict: Predict,
    data: Batches | Data,
    objective: Objective | None = None,
    *,
    start: Tree | Fitted | None = None,
    example_weights: Any = None,
    certificate: float | None = 0.01,
    passes: int = 200,
    on_step: OnStep | None = None,
    folder: str | os.PathLike | None = None,
) -> Fitted:
    """The optimum of a convex objective over all of `data`, to a requested certificate.

    Args:       predict: a tangent model, which its Kronecker factors precondition where it has a closed form, or any
                function (dw, x) -> outputs "b c" that is affine in dw; data: Features, or Batches, whose batch size a
                pass uses; objective: None: the paper's; its penalty times the number of examples is Lambda;
                start: dw to begin at, None: a predictor's zero; or what `solve` returned, whose factors serve again;
                example_weights: "n", >= 0, None for 1; Lambda does not change with them;
                certificate: how far, in L2, the result may be from the optimum; None: until `passes` are used;
                passes: the most passes over the data. The first is the gradient at the start, the last the check of
                the result, which moves nothing: so the result is the step after pass `passes` - 1;
                on_step: called after every pass with its row of the history and dw; what it returns is added to the
                row; folder: a run that was killed goes on from there, told from others as `fit`'s.
    Returns:    Fitted, with `certificate` (of a gradient computed afresh at the end; None where Lambda is 0) and
                `optimum`, whose `converged` is False where the passes were used up, or where rounding allows no more.
                A row whose gradient is `exact` has a certificate, another an `estimate` of it, which bounds nothing.
    Guarantees: |dw - dw*| <= certificate, the gradient's rounding included, for a loss that is convex in the outputs;
                dw* is the optimum in exact arithmetic, also where products with J are in half precision. Resumed or
                not, the same bits.
    Edge cases: what products with J read is kept from pass to pass where it takes at most a quarter of the devices'
                memory, on a CPU of the machine's; else computed in each.
    Raises:     InputError for a model that is not affine in dw, a start of other leaves, a penalty of 0 where a
                certificate is asked for, targets or weights that are none, a gradient that is not finite.
    """
    whole_number("passes", passes, 2)
    objective = as_objective(objective, make_objective)
    if certificate is not None:
        finite_number("certificate", certificate, 0.0)
        do = "Give the objective a penalty, or pass certificate=None"
        expect(objective.penalty > 0, "penalty > 0 for a certificate", float(objective.penalty), do)
    before, curvature = (start.dw, start.curvature) if isinstance(start, Fitted) else (start, None)
    dw = start_of(predict, before)
    problem = make_problem(predict, data, objective, example_weights, dw, keep=True)
    if curvature is not None:
        check_factors("solve", dw, curvature)
    with Run(on_step) as run:
        if folder is not None:
            name = run_identity(problem.batches, problem.identity_inputs(dw), curvature, certificate, passes)
            run.keep(Saver(folder, name), measure_name(on_step, dw))
        return Solver(problem, certificate, passes, curvature, run.history).run(dw, run)


class Solver:
    """One run of `solve`: its passes one by one, each a gradient at a new point or a step of conjugate gradients."""

    def __init__(
        self, problem: Problem, target: float | None, passes: int, curvature: Curvature | None, history: History
    ) -> None:
        self.problem, self.passes, self.history = problem, passes, history
        self.target = 0.0 if target is None else target * problem.total_penalty  # of |grad F|
        self.curvature, self.is_given = curvature, curvature is not None
        self.inverse: Inverse | None = None
        self.outputs: list[Array] = []  # at the point `base`

    def run(self, dw: Tree, run: Run) -> Fitted:
        """The passes from dw on, or from where the run was stopped, and what they end at."""
        zeros, none = jax.tree.map(jnp.zeros_like, dw), jnp.zeros(())
        state = State(jax.tree.map(jnp.array, dw), cg.State(zeros, zeros, zeros, none), none, jnp.ones(()))
        state = placement.place(run.restore(state))
        if self.history.rows and not self.is_done() and not state.at_point:  # resumed between two points
            self.gradient(state.base)
            self.prepare()
        run.show(self.passes, "pass", self.passes_used)
        run.open_log(self.passes_used, self.passes)
        while not self.is_done():
            began = time.perf_counter()
            run.begin()
            state, row = self.begin(state) if state.at_point else self.advance(state)
            row["seconds"] = time.perf_counter() - began
            run.log.add([{"step": row["passes"], **pass_values(row)}], len(self.problem.batches))
            run.end(row, along(state.base, 1.0, state.inner.x), state, self.is_done(row))
            run.bar.set_postfix({name: f"{row[name]:.3g}" for name in ("certificate", "estimate") if name in row})
        return self.result(state, run.identity)

    @property
    def passes_used(self) -> int:
        """Passes so far."""
        return int(self.history.rows[-1]["passes"]) if self.history.rows else 0

    @property
    def reserve(self) -> int:
        """Passes that the end of an inner solve takes: the line search's outputs, the gradient at the new point."""
        return 1 if self.problem.is_quadratic else 2

    def is_done(self, *new: Row) -> bool:
        """True where the last pass was a gradient that meets the target, moved no closer, or left no pass to use."""
        rows = [*self.history.rows, *new]
        points = [(row["gradient_norm"], row["loss"], row["rounding"]) for row in rows if row["exact"]]
        if not points or not rows[-1]["exact"]:
            return False
        (before, loss, _), (now, lower, rounding) = points[-2:] if len(points) > 1 else [(np.inf,) * 3, *points]
        stuck = now > 0.5 * before and (lower >= loss or self.problem.is_quadratic)  # rounding allows no more
        return now + rounding <= self.target or stuck or self.passes - rows[-1]["passes"] <= self.reserve

    def begin(self, state: State) -> tuple[State, Row]:
        """The gradient at a new point, and from it the first direction, unless the point is the last."""
        (gradient, _), value, rounding = self.gradient(state.base)
        norm = float(trees.norm(gradient))
        expect(np.isfinite(norm), "a finite gradient", norm, "Look for inputs that are not finite")
        row = self.row(norm, loss=value, rounding=rounding, exact=True)
        if self.is_done(row):
            return state, row
        self.prepare()
        # Newton far from the optimum: an exact inner solution would be of a model that soon changes
        first = next((row["gradient_norm"] for row in self.history.rows if row["exact"]), norm)
        forcing = 0.0 if self.problem.is_quadratic else min(0.1, (norm / first) ** 0.5) * norm
        if self.problem.exact is not self.problem.predict:
            forcing = max(forcing, INNER * norm)
        tolerance = jnp.asarray(max(0.9 * self.target - rounding, forcing, SHOWN * rounding))
        return State(state.base, cg.init(gradient, self.inverse), tolerance, jnp.zeros(())), row

    def gradient(self, dw: Tree) -> tuple[Summed, float, float]:
        """Gradient and value of F at dw, and the rounding; a square loss has its factors before, with all it keeps."""
        if self.problem.is_quadratic:
            self.factorise()
        gradient, value, self.outputs = self.problem.gradient(dw)
        return gradient, value, float(gradient.rounding)

    def factorise(self) -> None:
        """The factors, unless they are known, or the model has no closed form to make them of."""
        if self.curvature is None and self.problem.has_factors:
            self.curvature = self.problem.curvature(self.outputs, jax.random.key(0))

    def prepare(self) -> None:
        """The preconditioner at a point: a square loss's, and one of factors that were given, is the same at all."""
        is_fixed = self.is_given or self.problem.is_quadratic
        if self.inverse is not None and is_fixed:
            return
        if not is_fixed:
            self.curvature = None
        self.factorise()
        if self.curvature is not None:
            self.inverse = placement.place(invert(self.curvature, max(self.problem.total_penalty, SMALLEST)))

    def advance(self, state: State) -> tuple[State, Row]:
        """One step of conjugate gradients; the last of them ends at a new point."""
        inner = cg.step(state.inner, self.problem.product(state.inner.p, self.outputs), self.inverse)
        state, norm = state._replace(inner=inner), trees.norm(inner.r)
        row = self.row(float(norm), exact=False)
        left = self.passes - self.passes_used - 1
        if norm > state.tolerance and left > self.reserve and np.isfinite(row["gradient_norm"]):
            return state, row
        t = 1.0
        if not self.problem.is_quadratic:
            t = self.search(state)
            row["passes"] += 1
        base, zeros = along(state.base, t, inner.x), jax.tree.map(jnp.zeros_like, state.base)
        return state._replace(base=base, inner=inner._replace(x=zeros), at_point=jnp.ones(())), row

    def search(self, state: State) -> float:
        """The length of the Newton step by optax's backtracking, on outputs that are linear along it."""
        line, start = self.problem.line(self.outputs, state.base, state.inner.x), jnp.zeros(())
        value, slope = jax.value_and_grad(line)(start)
        if abs(slope) <= 100 * jnp.finfo(self.problem.dtype).eps * abs(value):
            return 1.0  # so near the optimum that rounding hides any fall: Newton's own step is right
        t, _ = LINE_SEARCH.update(jnp.ones(()), LINE_SEARCH.init(start), start, value=value, grad=slope, value_fn=line)
        return float(jnp.asarray(t))

    def row(self, norm: float, **more: Any) -> Row:
        """The row of a pass: a certificate of its gradient where that is exact, else an estimate."""
        penalty, name = self.problem.total_penalty, "certificate" if more["exact"] else "estimate"
        bound = {name: (norm + more.get("rounding", 0.0)) / penalty} if penalty > 0 else {}
        return {"passes": self.passes_used + 1, "gradient_norm": norm, **more, **bound}

    def result(self, state: State, run: str | None) -> Fitted:
        """The result of the passes so far."""
        last, rows = self.history.rows[-1], self.history.merge()
        converged = last["gradient_norm"] + last["rounding"] <= self.target
        optimum = Optimum(last["gradient_norm"], self.problem.total_penalty, converged, self.curvature)
        dw, seconds = placement.replicate(state.base), sum(row["seconds"] for row in rows)
        return Fitted(dw, rows, seconds, self.passes_used, run, last.get("certificate"), optimum)


def pass_values(row: Row) -> Row:
    """The values of a pass that a log holds: of its row the numbers that are measured, no count and no time."""
    return {name: value for name, value in row.items() if name not in ("passes", "exact", "seconds")}
