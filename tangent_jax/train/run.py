"""The frame of a run: how any trainer's run is restored, paid for, measured, logged, saved, shown and stopped.

    FOLDER/RUN/checkpoint.json         the last save of a run, by its identity RUN (checkpoints.py)
    FOLDER/RUN/STATE/                  the state of that save
    FOLDER/ledger.json                 the account of a private run, one to a folder (privacy/ledger.py)
    FOLDER/coins.json, steps/T.dw      the coins and the released steps of an audit (privacy/canaries.py)

A trainer says what decides its run, then takes one step after another:

    with Run("fit", on_step) as run:
        if folder is not None:
            run.keep(Saver(folder, identity), measure)
        state = run.restore(state)                     of the last save, with its rows in run.history
        run.show(total, "epoch", len(run.history))
        while ...:
            run.begin()                                paid for, before it is taken
            state, row = ...                           the trainer's step
            run.end(row, state.dw, state, is_last)     measured, logged, saved where it is due; then a run may stop

So a run that was killed goes on from its last save, and all steps before that have their rows. It ends in a `Fitted`.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tangent_jax.core import Tree, check_stop, is_stopping, placement, progress_bar
from tangent_jax.train.checkpoints import History, Row, Saver, check_on_step, position
from tangent_jax.train.log import Log, open_log

OnStep = Callable[[Row, Tree], Mapping[str, float] | None]


class Optimum(NamedTuple):
    """The end of a solver: |grad F(dw)|, computed afresh; Lambda; and whether the certificate is what was asked for.

    `curvature`: the factors that preconditioned (`Curvature`), None for none.
    """

    gradient_norm: float
    total_penalty: float
    converged: bool
    curvature: Any = None


class Audit(NamedTuple):
    """The readings of an attacker on a private run.

    `scores`: one for each canary, made without the coins, "m"; `coins`: True where the canary was in, "m".
    """

    scores: np.ndarray
    coins: np.ndarray


class Fitted(NamedTuple):
    """The result of every trainer.

    Of all trainers:
        dw           the trained tangent weights
        history      a row for each epoch, step or pass, with the values of `on_step`
        seconds      of wall time, with compilation
        steps        that were taken; of a solver, passes over the data
        run          the identity of all that decided it, where a folder was given
    Of some, else None:
        certificate  of a solver, where Lambda is above 0: an upper bound of |dw - dw*| in L2 over the tree
        optimum      of a solver: how it ended (`Optimum`)
        spent        of a private run: its account (`Spent`); paid for are more steps than taken where a kill lost some
        audit        of `fit_audited`: scores and coins (`Audit`)
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
        """The factors that preconditioned its solver; None for none."""
        return None if self.optimum is None else self.optimum.curvature


class Run(ExitStack):
    """One run of a trainer, in a `with`.

    `history`: the rows so far; `saver`: None for a run that is not kept; `ledger`: that of privacy/ledger.py, None
    for a run that is not private.
    """

    def __init__(self, on_step: OnStep | None = None) -> None:
        """Raises InputError for an `on_step` that cannot be called: before anything is trained or paid for."""
        super().__init__()
        check_on_step(on_step)
        self.on_step, self.history = on_step, History()
        self.saver: Saver | None = None
        self.ledger: Any = None
        self.log = Log(None, None, 0)

    @property
    def identity(self) -> str | None:
        """The identity of all that decides the run, None for a run that is not kept."""
        return None if self.saver is None else self.saver.run

    def keep(self, saver: Saver, measure: str | None, ledger: Any = None) -> None:
        """Keeps the run; `measure`: as `measure_name` names what `on_step` returns."""
        self.saver, self.history.measure, self.ledger = saver, measure, ledger

    def restore(self, state: Tree) -> Tree:
        """The state of the last save, whose rows the history then has; the given state without one."""
        return state if self.saver is None else self.saver.restore(state, self.history)

    def show(self, total: int | None, unit: str, done: int = 0) -> None:
        """Opens the bar, at `done` of `total`."""
        self.bar = self.enter_context(progress_bar(total, unit, done))

    def open_log(self, done: int, total: int | None) -> None:
        """Opens the log, after `done` steps of `total`: None where their number is not known."""
        self.log = self.enter_context(open_log(self.identity, done, total))

    def begin(self, count: int = 1) -> None:
        """The next `count` steps begin. With a ledger it is one, and paid for now."""
        if self.ledger is not None:
            self.ledger.pay(self.ledger.spent.steps_paid + 1)
        self.log.begin(count)

    def check_stop(self) -> None:
        """Stops amid a row, unless the row before it is not saved yet: then this one ends first."""
        placement.agree_to_stop()
        if self.saver is None or self.saver.steps == len(self.history):
            check_stop()

    def end(self, row: Row, dw: Tree, state: Tree, is_last: bool, measured: Mapping[str, float] | None = None) -> Row:
        """Ends a row: calls `on_step`, keeps what was measured, saves where it is due, and stops where it was asked to.

        Returns: the row with what was measured.
        """
        measured = measured or {}
        returned = placement.together(partial(self.on_step, {**row, **measured}, dw)) if self.on_step else None
        whole = self.history.add(row, returned, **measured)
        self.log.add_measured(returned)
        placement.agree_to_stop()
        if self.saver is not None and self.saver.is_due(is_last or is_stopping()):
            (self.ledger or self.saver).save(state, self.history)
        self.bar.update(position(row) - self.bar.n)
        return whole

    def advance(self, count: int = 1) -> None:
        """Shows `count` more of a run that is not kept, and stops where it was asked to."""
        placement.agree_to_stop()
        self.bar.update(count)
