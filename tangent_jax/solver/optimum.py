"""The optimum of the tangent model's objective, by conjugate gradients, with a bound on what is missing.

    dw* = argmin F,   F(dw) = sum_i v_i loss(f_i + J_i dw, y_i) + Lambda / 2 |dw|^2

    certificate = |grad F(dw)| / Lambda >= |dw - dw*|        F is Lambda-strongly convex

Square losses: one linear system (J^T H J + Lambda) dw = -grad F(0), solved by conjugate gradients (Hestenes and
Stiefel 1952) preconditioned by the layers' Kronecker factors (curvature.py). Any other loss: Newton's method with the
same inner solver and a backtracking line search. There is no learning rate.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tangent_jax.core import Tree, check_stop, finite_number, is_stopping, progress_bar, require, trees, whole_number
from tangent_jax.models.features import Features
from tangent_jax.models.predict import Predictor
from tangent_jax.solver.curvature import Curvature, Inverse, invert
from tangent_jax.solver.problem import Problem, make_problem
from tangent_jax.train.batches import Batches
from tangent_jax.train.checkpoints import Saver, run_identity
from tangent_jax.train.objective import Objective, make_objective
from tangent_jax.train.targets import Predict, check_start

Row = dict[str, float]
OnPass = Callable[[Row, Tree], Mapping[str, float] | None]
LINE_SEARCH = optax.scale_by_backtracking_linesearch(max_backtracking_steps=40, decrease_factor=0.5)
SMALLEST = 1e-6  # damping of the preconditioner where the penalty is 0


class Solved(NamedTuple):
    """A step at its optimum, or on the way there.

    `certificate` bounds |dw - dw*| in L2 over the tree, from `gradient_norm` = |grad F(dw)|, computed afresh at the
    end (None where Lambda is 0); `converged`: whether it is what was asked for; `passes` over the data, all counted;
    `history`: a row for each pass, whose gradient is `exact` or an estimate; `curvature`: the factors that
    preconditioned, None for none; `run`: the identity of all that decided it, where checkpoints were kept.
    """

    dw: Tree
    certificate: float | None
    gradient_norm: float
    total_penalty: float
    converged: bool
    passes: int
    history: list[Row]
    seconds: float
    curvature: Curvature | None = None
    run: str | None = None


class State(NamedTuple):
    """Conjugate gradients at a point `base`: dw = base + step; residual r, direction p, rz = <r, (H + Lambda)^-1 r>.

    `at_point`: 1 where base is new, its gradient not yet known; `tolerance`: of |r|, where the inner solver ends.
    """

    base: Tree
    step: Tree
    r: Tree
    p: Tree
    rz: Array
    tolerance: Array
    at_point: Array


def solve(
    predict: Predict,
    data: Batches | Features,
    objective: Objective | None = None,
    start: Tree | Solved | None = None,
    *,
    weights: Any = None,
    certificate: float | None = 0.01,
    passes: int = 200,
    on_pass: OnPass | None = None,
    checkpoints: str | os.PathLike | None = None,
) -> Solved:
    """The optimum of a convex objective over all of `data`, to a requested certificate.

    Args:       predict: a tangent model, or any function (dw, x) -> logits "b c" that is affine in dw; with a Predictor
                the Kronecker factors precondition. data: features or Batches, whose batch size a pass uses;
                objective: None: the paper's; its penalty times the number of examples is Lambda;
                start: a step (needed for a function; None: zero), or what `solve` returned, whose factors serve again;
                weights: of each example, >= 0, None for 1; Lambda does not change with them;
                certificate: how far, in L2, the result may be from the optimum; None: until `passes` are used;
                passes: the most passes over the data, the first gradient and the last check among them;
                on_pass: called after every pass with its row of the history and dw; what it returns is added to the
                row; checkpoints: a folder; a run that was killed goes on from there.
    Returns:    Solved; `converged` is False where the passes were used up, or where rounding allows no more.
    Guarantees: |dw - dw*| <= certificate, for a loss that is convex in the logits. Resumed or not, the same bits.
    Raises:     InputError for a model that is not affine in dw, a penalty of 0 where a certificate is asked for,
                labels of no class, weights that are no weights, a gradient that is not finite.
    """
    whole_number("solve", "passes", passes, 2)
    objective = objective or make_objective()
    if certificate is not None:
        finite_number("solve", "certificate", certificate, 0.0)
        do = "Give the objective a penalty, or pass certificate=None"
        require(objective.penalty > 0, "solve", "penalty > 0 for a certificate", float(objective.penalty), do)
    dw, curvature = started(predict, start)
    check_start("solve", dw)
    problem = make_problem("solve", predict, data, objective, weights, dw)
    saver = None
    if checkpoints is not None:
        settings = objective, problem.weights, certificate, passes, curvature, on_pass
        saver = Saver(checkpoints, run_identity(problem.predict, dw, problem.batches, "solve", *settings))
    solver = Solver(problem, certificate, passes, curvature, saver)
    return solver.run(dw, on_pass)


def started(predict: Predict, start: Tree | Solved | None) -> tuple[Tree, Curvature | None]:
    """(the step to start from, factors that are known)."""
    if isinstance(start, Solved):
        return start.dw, start.curvature
    if start is None:
        do = "Pass start=, a step to begin at"
        require(isinstance(predict, Predictor), "solve", "a start for a function", "none", do)
        assert isinstance(predict, Predictor)
        return predict.zeros(), None
    return start, None


class Solver:
    """One run of `solve`: its passes one by one, each a gradient at a new point or a step of conjugate gradients."""

    def __init__(
        self, problem: Problem, target: float | None, passes: int, curvature: Curvature | None, saver: Saver | None
    ) -> None:
        self.problem, self.passes, self.saver = problem, passes, saver
        self.target = 0.0 if target is None else target * problem.total_penalty  # of |grad F|
        self.curvature, self.given, self.history = curvature, curvature is not None, []
        self.inverse: Inverse | None = None

    def run(self, dw: Tree, on_pass: OnPass | None) -> Solved:
        zeros = jax.tree.map(jnp.zeros_like, dw)
        none = jnp.zeros(())
        state = State(jax.tree.map(jnp.array, dw), zeros, zeros, zeros, none, none, jnp.ones(()))
        if self.saver is not None:
            state, self.history = self.saver.restore(state)
        logits = None
        if self.history and not state.at_point:  # resumed between two points
            logits = self.problem.gradient(state.base)[2]
            self.prepare(logits)
        with progress_bar(self.passes, "pass", len(self.history)) as bar:
            while not self.is_done():
                began = time.perf_counter()
                if state.at_point:
                    state, logits, row = self.begin(state)
                else:
                    assert logits is not None
                    state, row = self.advance(state, logits)
                row |= {"passes": self.used + row.pop("took", 1), "seconds": time.perf_counter() - began}
                row |= (on_pass(row, trees.plus(state.base, state.step)) if on_pass else None) or {}
                self.history.append(row)
                if self.saver is not None and self.saver.is_due(self.is_done() or is_stopping()):
                    self.saver.save(state, self.history)
                bar.update(self.used - bar.n)
                bar.set_postfix(certificate=f"{row.get('certificate', float('inf')):.3g}")
        check_stop()
        return self.solved(state)

    @property
    def used(self) -> int:
        """Passes so far."""
        return int(self.history[-1]["passes"]) if self.history else 0

    @property
    def reserve(self) -> int:
        """Passes that the end of an inner solve takes: the line search's outputs, the gradient at the new point."""
        return 1 if self.problem.is_quadratic else 2

    def is_done(self) -> bool:
        """Whether the last pass was a gradient that meets the target, moved no closer, or left no pass to use."""
        points = [(row["gradient_norm"], row["loss"]) for row in self.history if row["exact"]]
        if not points or not self.history[-1]["exact"]:
            return False
        (before, loss), (now, lower) = points[-2:] if len(points) > 1 else [(np.inf, np.inf), *points]
        stuck = now > 0.5 * before and (lower >= loss or self.problem.is_quadratic)  # rounding allows no more
        return now <= self.target or stuck or self.passes - self.used <= self.reserve

    def begin(self, state: State) -> tuple[State, list[Array], Row]:
        """The gradient at a new point, and from it the first direction."""
        gradient, value, logits = self.problem.gradient(state.base)
        norm = float(jnp.sqrt(trees.squared_norm(gradient)))
        do = "Look for inputs that are not finite"
        require(np.isfinite(norm), "solve", "a finite gradient", norm, do)
        r = jax.tree.map(jnp.negative, gradient)
        row: Row = {"gradient_norm": norm, "loss": value, "exact": True}
        if norm > self.target:
            self.prepare(logits)
        p = self.precondition(r)
        # Newton far from the optimum: an exact inner solution would be of a model that soon changes
        first = next((row["gradient_norm"] for row in self.history if row["exact"]), norm)
        forcing = 0.0 if self.problem.is_quadratic else min(0.1, (norm / first) ** 0.5) * norm
        tolerance = jnp.asarray(max(0.9 * self.target, forcing))
        zeros = jax.tree.map(jnp.zeros_like, r)
        return State(state.base, zeros, r, p, trees.vdot(r, p), tolerance, jnp.zeros(())), logits, self.certified(row)

    def prepare(self, logits: list[Array]) -> None:
        """The factors at a point, where they are not known or change from point to point."""
        if not isinstance(self.problem.predict, Predictor) or (self.given and self.inverse):
            return
        if not self.given and (self.inverse is None or not self.problem.is_quadratic):
            self.curvature = self.problem.curvature(logits, jax.random.key(0))
        assert self.curvature is not None
        self.inverse = invert(self.curvature)

    def precondition(self, r: Tree) -> Tree:
        if self.inverse is None:
            return jax.tree.map(jnp.array, r)  # a copy: `_advance` gives both up
        return _precondition(self.inverse, r, self.problem.total_penalty)

    def advance(self, state: State, logits: list[Array]) -> tuple[State, Row]:
        """One step of conjugate gradients; the last of them ends at a new point."""
        state, norm = _advance(state, self.problem.product(state.p, logits), self.inverse, self.problem.total_penalty)
        row: Row = {"gradient_norm": float(norm), "exact": False}
        left = self.passes - self.used - 1
        if norm > state.tolerance and left > self.reserve and np.isfinite(row["gradient_norm"]):
            return state, self.certified(row)
        t = 1.0
        if not self.problem.is_quadratic:
            t, row["took"] = self.search(state, logits), 2
        base = jax.tree.map(lambda w, d: w + t * d, state.base, state.step)
        zeros = jax.tree.map(jnp.zeros_like, base)
        return state._replace(base=base, step=zeros, at_point=jnp.ones(())), self.certified(row)

    def search(self, state: State, logits: list[Array]) -> float:
        """How far to go along the Newton step: optax's backtracking, on logits that are linear along it."""
        line = self.problem.line(logits, self.problem.outputs(state.step), state.base, state.step)
        value, slope = jax.value_and_grad(line)(jnp.zeros(()))
        if abs(slope) <= 100 * jnp.finfo(value.dtype).eps * abs(value):
            return 1.0  # so near the optimum that rounding hides any fall: Newton's own step is right
        start = jnp.zeros(())
        t, _ = LINE_SEARCH.update(jnp.ones(()), LINE_SEARCH.init(start), start, value=value, grad=slope, value_fn=line)
        return float(jnp.asarray(t))

    def certified(self, row: Row) -> Row:
        """The row with the bound that its gradient gives, where there is one."""
        penalty = self.problem.total_penalty
        return row | ({"certificate": row["gradient_norm"] / penalty} if penalty > 0 else {})

    def solved(self, state: State) -> Solved:
        last, total = self.history[-1], self.problem.total_penalty
        return Solved(
            dw=state.base,
            certificate=last.get("certificate"),
            gradient_norm=last["gradient_norm"],
            total_penalty=total,
            converged=last["gradient_norm"] <= self.target,
            passes=self.used,
            history=self.history,
            seconds=sum(row["seconds"] for row in self.history),
            curvature=self.curvature,
            run=None if self.saver is None else self.saver.run,
        )


def solve_linear(
    problem: Problem, right: Tree, logits: list[Array], inverse: Inverse, tolerance: float, passes: int
) -> Tree:
    """(H + Lambda)^-1 right at a step of these logits, until the residual is `tolerance` of |right|."""
    zeros, p = jax.tree.map(jnp.zeros_like, right), _precondition(inverse, right, problem.total_penalty)
    target, none = tolerance * jnp.sqrt(trees.squared_norm(right)), jnp.zeros(())
    state = State(zeros, zeros, right, p, trees.vdot(right, p), target, none)
    state = jax.tree.map(jnp.array, state)  # copies: `_advance` gives its state up
    for _ in range(passes):
        state, norm = _advance(state, problem.product(state.p, logits), inverse, problem.total_penalty)
        if norm <= target:
            break
    return state.step


@jax.jit
def _precondition(inverse: Inverse, r: Tree, total_penalty: Any) -> Tree:
    return inverse.times(r, jnp.maximum(total_penalty, SMALLEST))


@partial(jax.jit, donate_argnames="state")
def _advance(state: State, bent: Tree, inverse: Inverse | None, total_penalty: Any) -> tuple[State, Array]:
    """One step of preconditioned conjugate gradients; `bent`: (H + Lambda) p. Also |r|."""
    alpha = state.rz / trees.vdot(state.p, bent)
    step = jax.tree.map(lambda x, p: x + alpha * p, state.step, state.p)
    r = jax.tree.map(lambda r, h: r - alpha * h, state.r, bent)
    z = r if inverse is None else inverse.times(r, jnp.maximum(total_penalty, SMALLEST))
    rz = trees.vdot(r, z)
    p = jax.tree.map(lambda z, p: z + rz / state.rz * p, z, state.p)
    return state._replace(step=step, r=r, p=p, rz=rz), jnp.sqrt(trees.squared_norm(r))
