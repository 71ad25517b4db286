"""The optimum of the tangent model's objective, by conjugate gradients, with a bound on the distance to it.

    dw* = argmin F,   F(dw) = sum_i v_i loss(f_i + J_i dw, y_i) + Lambda / 2 |dw|^2

    certificate = (|grad F(dw)| + rounding) / Lambda >= |dw - dw*|        F is Lambda-strongly convex

`rounding` bounds the gradient's rounding error in its dtype (`Objective.gradient_sizes`). By default GPUs and TPUs
multiply float32 in TF32 or bf16, whose errors are larger: every pass asks JAX for the precision "highest". A square
loss gives one linear system (J^T H J + Lambda) dw = -grad F(0), solved by conjugate gradients (Hestenes and Stiefel
1952) with the layers' Kronecker factors as preconditioner (curvature.py). Other losses use Newton's method with the
same inner solver and a backtracking line search. There is no learning rate.
"""

import time
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tangent_jax.core import placement, trees
from tangent_jax.core.checks import InputError, finite_number, whole_number
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.promotion import promotes
from tangent_jax.core.trees import along
from tangent_jax.linear import cg
from tangent_jax.solver.curvature import Curvature, Inverse, check_factors, invert
from tangent_jax.solver.passes import Summed
from tangent_jax.solver.problem import Problem, make_problem
from tangent_jax.train.batches import Batches, Data
from tangent_jax.train.objective import Objective, as_objective, check_penalty, make_objective
from tangent_jax.train.run import (
    Checkpoints,
    Fitted,
    History,
    Log,
    OnStep,
    Row,
    Run,
    measure_name,
    run_identity,
    saves_of,
)
from tangent_jax.train.targets import Predict, start_of

LINE_SEARCH = optax.scale_by_backtracking_linesearch(max_backtracking_steps=40, decrease_factor=0.5)
INNER = 0.05  # of a gradient: where an inner solve in half precision ends, as its products resolve no less
SMALLEST = 1e-6  # damping of the preconditioner where the penalty is 0


class State(NamedTuple):
    """A point `base`, and conjugate gradients `inner` from there: dw = base + inner.x.

    Attributes:
        at_point: 1 if base is new and its gradient unknown.
        tolerance: The tolerance of |r|, at which the inner solver ends.
    """

    base: Tree
    inner: cg.State
    tolerance: Array
    at_point: Array


class Solved(NamedTuple):
    """The end of a solver.

    Attributes:
        certificate: An upper bound of |dw - dw*|, L2 over the tree, None if Lambda is 0.
        gradient_norm: The exact |grad F(dw)|.
        total_penalty: Lambda.
        converged: True if the requested certificate was reached.
        curvature: The factors that preconditioned it, or None.
    """

    certificate: float | None
    gradient_norm: float
    total_penalty: float
    converged: bool
    curvature: Curvature | None = None


def curvature_of(start: Any) -> Curvature | None:
    """The factors of a solver's result; None for other starts."""
    return start.info.curvature if isinstance(start, Fitted) and isinstance(start.info, Solved) else None


def certificate_of(fitted: Fitted) -> float | None:
    """The certificate of a solver's result; None for other trainers."""
    return fitted.info.certificate if isinstance(fitted.info, Solved) else None


@promotes
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
    checkpoints: Checkpoints | None = None,
    log: Log | None = None,
    progress: Progress = silent,
) -> Fitted[Solved]:
    """The optimum of a convex objective over all of `data`, to a requested certificate.

    Args:
        predict: A tangent model, preconditioned by its Kronecker factors if it has a closed form, or any function (dw,
            x) -> outputs "b c" that is affine in dw.
        data: Features, or Batches, whose batch size a pass uses.
        objective: None: the paper's; Lambda is its penalty times the number of examples.
        start: dw to start from, None: a predictor's zero, or a result of `solve`, whose factors are reused.
        example_weights: "n", >= 0, None for 1; Lambda does not change with them.
        certificate: The largest allowed L2 distance from the optimum, None: use all `passes`.
        passes: The most passes over the data. The first one is the gradient at the start, the last one checks the
            result and moves nothing, so the result is the step after pass `passes` - 1.
        on_step: Called after every pass with its row of the history and dw; the values it returns are added to the row.
        checkpoints, log, progress: As for `fit`.

    Returns:
        Fitted, with `info.certificate` (from an exact gradient at the end; None if Lambda is 0), and `info.converged`,
        which is False if the passes were used up, or rounding allows no more; if a certificate was asked for, a warning
        says so. A row with an `exact` gradient has a certificate, any other an `estimate`, which bounds nothing.

    Guarantees:
        |dw - dw*| <= certificate, including the gradient's rounding, for a loss that is convex in the outputs; dw* is
        the optimum in exact arithmetic, even if products with J are in half precision. The same bits, resumed or not.

    Edge cases:
        What products with J read is kept between passes if it takes at most a quarter of the devices' memory (on a CPU,
        of the machine's); otherwise each pass computes it again.

    Raises:
        InputError: A model that is not affine in dw, a start of other leaves, a certificate with penalty 0, invalid
            targets or weights, a gradient that is not finite.

    >>> fitted = tj.solve(demo.predict, demo.train, demo.objective, certificate=0.01)
    >>> fitted.info.certificate <= 0.01, tj.evaluate(demo.predict, fitted.dw, demo.test)
    (True, 0.917)
    """
    whole_number("passes", passes, 2)
    objective = as_objective(objective, make_objective)
    if certificate is not None:
        finite_number("certificate", certificate, 0.0)
        check_penalty(objective, otherwise=", or pass certificate=None")
    dw, curvature = start_of(predict, start.dw if isinstance(start, Fitted) else start), curvature_of(start)
    problem = make_problem(predict, data, objective, example_weights, dw, keep=True)
    if curvature is not None:
        check_factors(dw, curvature)
    with Run(on_step, progress, log) as run:
        if checkpoints is not None:
            name = run_identity(problem.batches, problem.identity_inputs(dw), curvature, certificate, passes)
            run.keep(saves_of(checkpoints, name), measure_name(on_step, dw))
        return Solver(problem, certificate, passes, curvature, run.history).run(dw, run)


class Solver:
    """One run of `solve`: each pass is a gradient at a new point or a step of conjugate gradients."""

    def __init__(
        self, problem: Problem, target: float | None, passes: int, curvature: Curvature | None, history: History
    ) -> None:
        self.problem, self.passes, self.history = problem, passes, history
        self.target = 0.0 if target is None else target * problem.total_penalty  # of |grad F|
        self.curvature, self.is_given = curvature, curvature is not None
        self.inverse: Inverse | None = None
        self.outputs: list[Array] = []  # at the point `base`

    def run(self, dw: Tree, run: Run) -> Fitted[Solved]:
        """Runs the passes from dw, or from a checkpoint, and returns the result."""
        zeros, none = jax.tree.map(jnp.zeros_like, dw), jnp.zeros(())
        state = State(jax.tree.map(jnp.array, dw), cg.State(zeros, zeros, zeros, none), none, jnp.ones(()))
        state = placement.place(run.restore(state))
        if self.history.rows and not self.is_done() and not state.at_point:  # resumed between two points
            self.resume(state.base)
        run.show(self.passes, "pass", self.passes_used, shown_values)
        run.open_log(self.passes_used, self.passes)
        while not self.is_done():
            began = time.perf_counter()
            run.begin()
            state, row = self.begin(state) if state.at_point else self.advance(state)
            row["seconds"] = time.perf_counter() - began
            if run.log is not None:
                run.log.add([{"step": row["passes"], **pass_values(row)}], len(self.problem.batches))
            run.end(row, along(state.base, 1.0, state.inner.x), state, self.is_done(row))
        return self.result(state, run.identity)

    @property
    def passes_used(self) -> int:
        """The number of passes so far."""
        return int(self.history.rows[-1]["passes"]) if self.history.rows else 0

    @property
    def reserve(self) -> int:
        """The passes at the end of an inner solve: the line search's outputs, the gradient at the new point."""
        return 1 if self.problem.is_quadratic else 2

    def is_done(self, *new: Row) -> bool:
        """True if the last pass was a gradient that meets the target, came no closer, or used up the passes."""
        rows = [*self.history.rows, *new]
        points = [(row["gradient_norm"], row["loss"], row["rounding"]) for row in rows if row["exact"]]
        if not points or not rows[-1]["exact"]:
            return False
        (before, loss, _), (now, lower, rounding) = points[-2:] if len(points) > 1 else [(np.inf,) * 3, *points]
        stuck = now > 0.5 * before and (lower >= loss or self.problem.is_quadratic)  # rounding allows no more
        return now + rounding <= self.target or stuck or self.passes - rows[-1]["passes"] <= self.reserve

    @jax.default_matmul_precision("highest")
    def resume(self, base: Tree) -> None:
        """Computes again what a stopped run had at this point."""
        self.gradient(base)
        self.prepare()

    @jax.default_matmul_precision("highest")
    def begin(self, state: State) -> tuple[State, Row]:
        """Computes the gradient at a new point, and the first direction, unless the point is the last."""
        gradient, value = self.gradient(state.base)
        norm, rounding = float(trees.norm(gradient.total)), float(gradient.rounding)
        if not np.isfinite(norm):
            raise InputError(f"the gradient must be finite; got norm {norm}. Look for inputs that are not finite.")
        row = self.row(norm, loss=value, rounding=rounding, exact=True)
        if self.is_done(row):
            return state, row
        self.prepare()
        # far from the optimum Newton's model soon changes: an exact inner solution would be wasted
        first = next((row["gradient_norm"] for row in self.history.rows if row["exact"]), norm)
        forcing = 0.0 if self.problem.is_quadratic else min(0.1, (norm / first) ** 0.5) * norm
        if self.problem.predict.exact is not self.problem.predict:
            forcing = max(forcing, INNER * norm)
        tolerance = jnp.asarray(max(0.9 * self.target - rounding, forcing, float(gradient.noise)))
        return State(state.base, cg.init(gradient.total, self.inverse), tolerance, jnp.zeros(())), row

    def gradient(self, dw: Tree) -> tuple[Summed, float]:
        """Gradient and value of F at dw; for a square loss the factors are computed first."""
        if self.problem.is_quadratic:
            self.factorise()
        gradient, value, self.outputs = self.problem.gradient(dw)
        return gradient, value

    def factorise(self) -> None:
        """Computes the factors, unless they are known or the model has no closed form."""
        if self.curvature is None and self.problem.predict.has_factors:
            self.curvature = self.problem.curvature(self.outputs, jax.random.key(0))

    def prepare(self) -> None:
        """Computes the preconditioner at a point; a square loss, and given factors, have one for all points."""
        is_fixed = self.is_given or self.problem.is_quadratic
        if self.inverse is not None and is_fixed:
            return
        if not is_fixed:
            self.curvature = None
        self.factorise()
        if self.curvature is not None:
            self.inverse = placement.place(invert(self.curvature, max(self.problem.total_penalty, SMALLEST)))

    @jax.default_matmul_precision("highest")
    def advance(self, state: State) -> tuple[State, Row]:
        """One step of conjugate gradients; the last one ends at a new point."""
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
        """The length of the Newton step, by optax's backtracking on outputs that are linear along it."""
        line, start = self.problem.line(self.outputs, state.base, state.inner.x), jnp.zeros(())
        value, slope = jax.value_and_grad(line)(start)
        if abs(slope) <= 100 * jnp.finfo(self.problem.dtype).eps * abs(value):
            return 1.0  # so near the optimum that rounding hides any decrease: take the full Newton step
        t, _ = LINE_SEARCH.update(jnp.ones(()), LINE_SEARCH.init(start), start, value=value, grad=slope, value_fn=line)
        return float(jnp.asarray(t))

    def row(self, norm: float, **more: Any) -> Row:
        """The row of a pass: with a certificate if its gradient is exact, else with an estimate."""
        penalty, name = self.problem.total_penalty, "certificate" if more["exact"] else "estimate"
        bound = {name: (norm + more.get("rounding", 0.0)) / penalty} if penalty > 0 else {}
        return {"passes": self.passes_used + 1, "gradient_norm": norm, **more, **bound}

    def result(self, state: State, run: str | None) -> Fitted[Solved]:
        """The result of the passes so far."""
        last, rows = self.history.rows[-1], self.history.merge()
        converged = last["gradient_norm"] + last["rounding"] <= self.target
        penalty = self.problem.total_penalty
        info = Solved(last.get("certificate"), last["gradient_norm"], penalty, converged, self.curvature)
        if self.target and not converged:
            warn_of(last, self.target / penalty, stacklevel=5)
        dw, seconds = placement.replicate(state.base), sum(row["seconds"] for row in rows)
        return Fitted(dw, rows, seconds, self.passes_used, run, info)


def warn_of(last: Row, target: float, stacklevel: int) -> None:
    """Warns that a run ended with a certificate above the requested one."""
    asked = f"the certificate is {last['certificate']:.3g}, not {target:.3g}"
    text = f"not converged after {int(last['passes'])} passes: {asked}. Raise passes or penalty."
    warnings.warn(text, stacklevel=stacklevel)


def shown_values(row: Row) -> Row:
    """The certificate or estimate of a row, as a progress bar shows it."""
    return {name: f"{row[name]:.3g}" for name in ("certificate", "estimate") if name in row}


def pass_values(row: Row) -> Row:
    """The values of a pass that are logged: measured numbers, no counts or times."""
    return {name: value for name, value in row.items() if name not in ("passes", "exact", "seconds")}
