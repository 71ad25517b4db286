"""The frame of every trainer's run: restores, pays, measures, logs, saves, shows progress and stops.

    FOLDER/RUN/checkpoint.json         the last save of a run, by its identity RUN (checkpoints.py)
    FOLDER/RUN/STATE/                  the state of that save
    FOLDER/ledger.json                 the account of a private run, one to a folder (privacy/ledger.py)
    FOLDER/coins.json, steps/T.dw      the coins and the released steps of an audit (privacy/canaries.py)

A trainer names its run by all that decides it, then takes one step after another:

    with Run("fit", on_step) as run:
        if folder is not None:
            run.keep(Saver(folder, identity), measure)
        state = run.restore(state)                     of the last save, with its rows in run.history
        run.show(total, "epoch", len(run.history))
        while ...:
            run.begin()                                paid for before it runs
            state, row = ...                           the trainer's step
            run.end(row, state.dw, state, is_last)     measured, logged, saved when due; then the run may stop

So a killed run resumes from its last save, with the rows of all steps before it. It returns a `Fitted`.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tangent_jax.core import placement
from tangent_jax.core.notation import Tree
from tangent_jax.io import hosts
from tangent_jax.io.progress import check_stop, is_stopping, progress_bar
from tangent_jax.train.checkpoints import History, Row, Saver, check_on_step, position
from tangent_jax.train.log import Log, open_log

OnStep = Callable[[Row, Tree], Mapping[str, float] | None]


class Optimum(NamedTuple):
    """The end of a solver: the exact |grad F(dw)|, Lambda, and True if the requested certificate was reached.

    `curvature`: the factors that preconditioned it (`Curvature`), or None.
    """

    gradient_norm: float
    total_penalty: float
    converged: bool
    curvature: Any = None


class Audit(NamedTuple):
    """The observations of an attacker on a private run.

    `scores`: one for each canary, computed without the coins, "m"; `coins`: True if the canary was in, "m".

    >>> tj.audit.Audit(scores=np.array([2.0, -1.0]), coins=np.array([True, False])).coins.sum()
    np.int64(1)
    """

    scores: np.ndarray
    coins: np.ndarray


class Fitted(NamedTuple):
    """The result of every trainer.

    All trainers:
        dw           the trained tangent weights
        history      a row for each epoch, step or pass, with the values of `on_step`
        seconds      of wall time, with compilation
        steps        the number of steps; for a solver, passes over the data
        run          the identity of all that decided the run, if a folder was given
    Some trainers, else None:
        certificate  solver with Lambda above 0: an upper bound of |dw - dw*| in L2 over the tree
        optimum      solver: how it ended (`Optimum`)
        spent        private run: its account (`Spent`); a kill may lose steps that were paid for
        audit        `fit_audited`: scores and coins (`Audit`)

    >>> demo.fitted.certificate < 0.01, demo.fitted.optimum.converged, demo.fitted.history[0]["exact"]
    (True, True, True)
    """

    dw: Tree
    history: list[Row]
    seconds: float
    steps: int
    run: str | None = None
    certificate: float | None = None
    optimum: Optimum | None = None
    spent: Any = None
    audit: Audit | None = None

    @property
    def curvature(self) -> Any:
        """The factors that preconditioned its solver, or None."""
        return None if self.optimum is None else self.optimum.curvature


class Run(ExitStack):
    """One run of a trainer, as a `with` block.

    `history`: the rows so far; `saver`: None without a folder; `ledger`: that of privacy/ledger.py, None unless
    private.
    """

    def __init__(self, on_step: OnStep | None = None) -> None:
        """Raises InputError for an `on_step` that cannot be called, before anything is trained or paid for."""
        super().__init__()
        check_on_step(on_step)
        self.on_step, self.history = on_step, History()
        self.saver: Saver | None = None
        self.ledger: Any = None
        self.log, self.resumed = Log(None, None, 0), ""

    @property
    def identity(self) -> str | None:
        """The identity of all that decides the run, None without a folder."""
        return None if self.saver is None else self.saver.run

    def keep(self, saver: Saver, measure: str | None, ledger: Any = None) -> None:
        """Keeps the run on disk; `measure`: the name of the values of `on_step`, by `measure_name`."""
        self.saver, self.history.measure, self.ledger = saver, measure, ledger

    def restore(self, state: Tree) -> Tree:
        """The last saved state, with its rows in the history; the given state if there is none."""
        return state if self.saver is None else self.saver.restore(state, self.history)

    def show(self, total: int | None, unit: str, done: int = 0) -> None:
        """Opens the progress bar, at `done` of `total`; the first step that is begun tells where the run goes on."""
        self.bar = self.enter_context(progress_bar(total, unit, done))
        self.resumed = f"going on after {unit} {done} of {total}" if done else ""

    def open_log(self, done: int, total: int | None) -> None:
        """Opens the log, after `done` steps of `total` (None: unknown)."""
        self.log = self.enter_context(open_log(self.identity, done, total))

    def begin(self, count: int = 1) -> None:
        """Starts the next `count` steps; with a ledger, pays for one step."""
        if self.resumed:  # not told of a finished run that is read
            self.bar.tell(self.resumed)
            self.resumed = ""
        if self.ledger is not None:
            self.ledger.pay(self.ledger.spent.steps_paid + 1)
        self.log.begin(count)

    def check_stop(self) -> None:
        """Stops within a row if asked to, but saves the previous row first."""
        hosts.agree_to_stop()
        if self.saver is None or self.saver.steps == len(self.history):
            check_stop()

    def end(self, row: Row, dw: Tree, state: Tree, is_last: bool, measured: Mapping[str, float] | None = None) -> Row:
        """Ends a row: calls `on_step`, keeps the measured values, saves when due, and stops if asked to.

        Returns: the row with the measured values.
        """
        measured = measured or {}
        returned = placement.together(partial(self.on_step, {**row, **measured}, dw)) if self.on_step else None
        whole = self.history.add(row, returned, **measured)
        self.log.add_measured(returned)
        hosts.agree_to_stop()
        if self.saver is not None and self.saver.is_due(is_last or is_stopping()):
            (self.ledger or self.saver).save(state, self.history)
        self.bar.update(position(row) - self.bar.n)
        return whole

    def advance(self, count: int = 1) -> None:
        """Shows `count` more steps of a run without a folder, and stops if asked to."""
        hosts.agree_to_stop()
        self.bar.update(count)
