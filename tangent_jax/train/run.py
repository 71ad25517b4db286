"""The frame of every trainer's run: restores, measures, logs, saves, shows progress and stops.

A trainer names its run by all that decides it, then takes one step after another:

    with Run(on_step, progress, log) as run:
        if checkpoints is not None:
            run.keep(checkpoints.open(identity), measure)
        state = run.restore(state)                     of the last save, with its rows in run.history
        run.show(total, "epoch", len(run.history))
        while ...:
            run.begin()
            state, row = ...                           the trainer's step
            run.end(row, state.dw, state, is_last)     measured, logged, saved when due; then the run may stop

So a killed run resumes from its last save, with the rows of all steps before it. It returns a `Fitted`. Where
checkpoints and logs are kept is the caller's concern: `tj.Checkpoints` and `tj.log_steps` keep them in a folder.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from tangent_jax._version import __version__
from tangent_jax.core import placement
from tangent_jax.core.checks import InputError
from tangent_jax.core.identities import identity
from tangent_jax.core.notation import Tree
from tangent_jax.core.progress import Progress, silent
from tangent_jax.core.rows import Rows
from tangent_jax.train.batches import Batches

FORMAT = 3  # of checkpoints and ledgers: part of every run's identity

Row = dict[str, Any]
OnStep = Callable[[Row, Tree], Mapping[str, float] | None]
Info = TypeVar("Info")
OWN = (
    "epoch", "step", "passes", "loss", "seconds", "steps", "examples", "gradient_norm", "non_finite",
    "examples_per_second", "noise_multiplier", "epsilon", "exact", "rounding", "certificate", "estimate",
)  # fmt: skip
"""The names of the values of rows and logs, of all trainers; those that users measure have others."""


@dataclass(frozen=True)
class Fitted(Generic[Info]):
    """The result of every trainer.

    Attributes:
        dw: The trained tangent weights.
        history: A row for each epoch, step or pass, with the values of `on_step`.
        seconds: The seconds of wall time, with compilation.
        steps: Their number, for a solver the passes over the data.
        run: The identity of all that decided the run, if checkpoints were given.
        info: What the trainer adds: `Solved` of a solver, `Private` of a private run, None of `fit`.

    >>> demo.fitted.info.certificate < 0.01, demo.fitted.info.converged, demo.fitted.history[0]["exact"]
    (True, True, True)
    """

    dw: Tree
    history: list[Row]
    seconds: float
    steps: int
    run: str | None = None
    info: Info = None  # pyright: ignore[reportAssignmentType]


@runtime_checkable
class Saved(Protocol):
    """The saves of one run."""

    @property
    def run(self) -> str:
        """The run's identity."""
        ...

    @property
    def steps(self) -> int:
        """The number of rows of the last save."""
        ...

    def restore(self, state: Tree, history: "History") -> Tree:
        """Returns the last saved state, and adds its rows to the history; without a save, the given state."""
        ...

    def is_due(self, last: bool) -> bool:
        """True, in all processes, if the state is to be saved now, as at the run's end."""
        ...

    def save(self, state: Tree, history: "History") -> None:
        """Saves the state and the history."""
        ...


@runtime_checkable
class Checkpoints(Protocol):
    """Where runs are saved, such as `tj.Checkpoints(folder)`."""

    def open(self, run: str) -> Saved:
        """The saves of the run with this identity."""
        ...


def saves_of(checkpoints: Checkpoints, run: str) -> Saved:
    """The saves of a run; InputError for a folder's path, whose files only `tj.Checkpoints` knows."""
    if isinstance(checkpoints, (str, os.PathLike)):
        folder = os.fspath(checkpoints)
        raise InputError(f"checkpoints must be tj.Checkpoints(folder); got {folder!r}. Pass tj.Checkpoints({folder!r})")
    return checkpoints.open(run)


@runtime_checkable
class StepLog(Protocol):
    """The log of one run."""

    def begin(self, count: int) -> None:
        """Starts the next `count` steps."""
        ...

    def add(self, rows: Sequence[Row], examples: int | None = None) -> None:
        """Adds the values of finished steps, computed on `examples` (None: their number is secret)."""
        ...

    def add_measured(self, values: Mapping[str, Any] | None) -> None:
        """Adds the values measured after the last step."""
        ...


@runtime_checkable
class Log(Protocol):
    """Where the steps of runs are logged, such as what `tj.log_steps(folder)` yields."""

    def open(self, run: str | None, done: int, total: int | None) -> AbstractContextManager[StepLog]:
        """The log of a run with this identity, after `done` steps of `total` (None: unknown)."""
        ...


class History:
    """The rows of a run, and the values measured at each; `measure`: the measurement's name, None if unnamed."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.measured: list[Row] = []
        self.measure: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: Row, returned: Any = None, **measured: float) -> Row:
        """Adds a row, its measured values, and the mapping that `on_step` returned.

        Raises:
            InputError: Unless that is a mapping of names, which the row does not have, to numbers, or None.
        """
        returned = {} if returned is None else returned
        if not isinstance(returned, Mapping) or not all(isinstance(name, str) for name in returned):
            raise InputError(f"on_step must return None or {{name: number}}; got {repr(returned)[:60]}.")
        check_names("on_step must return", returned, {*row, *measured})
        self.rows.append(row)
        self.measured.append(measured | {name: as_number(name, value) for name, value in returned.items()})
        return {**row, **self.measured[-1]}

    def merge(self) -> list[Row]:
        """Each row with its measured values."""
        return [{**row, **measured} for row, measured in zip(self.rows, self.measured, strict=True)]


class Run(ExitStack):
    """One run of a trainer, as a `with` block.

    Attributes:
        history: The rows so far.
        saved: None without checkpoints.
        log: The log of its steps, None without one.
    """

    def __init__(self, on_step: OnStep | None = None, progress: Progress = silent, log: Log | None = None) -> None:
        super().__init__()
        self.on_step = on_step
        self.progress = progress
        self.logs = log
        self.history = History()
        self.saved: Saved | None = None
        self.log: StepLog | None = None
        self.position = 0  # of the bar
        self.values: Callable[[Row], Row] | None = None  # of a row, for the bar

    @property
    def identity(self) -> str | None:
        """The identity of all that decides the run, None without checkpoints."""
        return None if self.saved is None else self.saved.run

    def keep(self, saved: Saved, measure: str | None) -> None:
        """Keeps the run; `measure`: the name of the values of `on_step`, by `measure_name`."""
        self.saved = saved
        self.history.measure = measure

    def restore(self, state: Tree) -> Tree:
        """The last saved state, with its rows in the history; the given state if there is none."""
        return state if self.saved is None else self.saved.restore(state, self.history)

    def show(self, total: int | None, unit: str, done: int = 0, values: Callable[[Row], Row] | None = None) -> None:
        """Opens the progress bar, at `done` of `total`; `values`: those of a row that it shows."""
        self.values = values
        self.bar = self.enter_context(self.progress(total=total, unit=unit, initial=done))
        self.position = done

    def open_log(self, done: int, total: int | None) -> None:
        """Opens the log, after `done` steps of `total` (None: unknown)."""
        if self.logs is not None:
            self.log = self.enter_context(self.logs.open(self.identity, done, total))

    def begin(self, count: int = 1) -> None:
        """Starts the next `count` steps."""
        if self.log is not None:
            self.log.begin(count)

    def check_stop(self) -> None:
        """Lets the bar stop the run within a row, if the previous row is saved."""
        if self.saved is None or self.saved.steps == len(self.history):
            self.bar.update(0)

    def end(self, row: Row, dw: Tree, state: Tree, is_last: bool, measured: Mapping[str, float] | None = None) -> None:
        """Ends a row: calls `on_step`, keeps the measured values, saves when due, and lets the bar stop the run."""
        measured = measured or {}
        returned = placement.call_in_all(partial(self.on_step, {**row, **measured}, dw)) if self.on_step else None
        complete = self.history.add(row, returned, **measured)
        if self.log is not None:
            self.log.add_measured(returned)
        if self.saved is not None and self.saved.is_due(is_last):
            self.saved.save(state, self.history)
        if self.values is not None:
            self.bar.set_postfix(self.values(complete))
        try:
            self.advance(position(row) - self.position)
        except KeyboardInterrupt:  # asked since `is_due`
            if self.saved is not None and self.saved.steps < len(self.history):
                self.saved.save(state, self.history)
            raise

    def advance(self, count: int = 1) -> None:
        """Shows `count` more steps; the bar may stop the run."""
        self.position += count
        self.bar.update(count)


def position(row: Mapping[str, Any]) -> int:
    """The number of a row's epoch, step or pass, from 1."""
    return int(next(row[name] for name in ("epoch", "step", "passes") if name in row))


def check_names(must: str, names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raises InputError, which begins with `must`, if one of the names is among OWN or `others`."""
    clash = sorted({*names} & {*OWN, *others})
    if clash:
        raise InputError(f"{must} other names than the run's own; got {', '.join(clash)}. Rename what you measure")


def as_number(name: str, value: Any) -> float | int:
    """A measured value as a Python number; InputError if it is not a number."""
    if isinstance(value, (bool, int, float)):
        return value
    if getattr(value, "shape", None) != ():
        raise InputError(f"{name} from on_step must be a number; got {repr(value)[:60]}.")
    return value.item()


def measure_name(on_step: Any, dw: Tree, *others: Any) -> str | None:
    """The name of a run's measurement: `on_step.name(dw)` with `others`; None for an `on_step` without `name`."""
    if on_step is None:
        return identity(others)[:32]
    name = getattr(on_step, "name", None)
    return identity(name(dw), others)[:32] if callable(name) else None


def run_identity(batches: Batches, *others: Any) -> str:
    """The identity of a run: of every training row, its target, the order, and `others`.

    Args:
        others: Programs (`core.identities.program`), arrays and settings.

    Raises:
        InputError: A value without readable content.
    """
    data = Rows(batches.inputs, batches.rows), batches.targets[batches.rows], batches.batch_size
    order = None if batches.key is None else (batches.key, batches.permutation(0))  # JAX's settings affect it too
    return identity(data, order, others, FORMAT, __version__)[:32]
