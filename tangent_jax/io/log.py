"""The log of a run: the values of every step or pass, written during the run; and a profiler trace of some steps.

    FOLDER/metrics/RUN/steps.csv     a row for each step; TensorBoard's files lie beside it
    FOLDER/profile/                  the trace, for xprof and TensorBoard's profile page

RUN is the start of the run's identity, so that two runs never share a file. `fit`, `fit_private` and `solve` log values
that they compute anyway. No compiled program and no identity depends on the log: a run has the same bits with and
without it. A resumed run deletes the rows after its last save and continues in the same files.
"""

import csv
import dataclasses
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import jax

from tangent_jax.core.checks import InputError, one_of
from tangent_jax.io import hosts
from tangent_jax.io.files import expand_path, write_whole
from tangent_jax.io.packages import import_extra
from tangent_jax.train.run import Row


class Writer(Protocol):
    """Files or a service that receive the rows of a run."""

    def __init__(self, folder: Path, done: int, run: str | None) -> None:
        """Resumes the run of this identity after step `done`: later steps in `folder` are deleted or hidden.

        A run without an identity is never resumed.
        """
        ...

    def write(self, rows: Sequence[Row]) -> None:
        """Writes rows, each with its "step"; a later kill loses none."""
        ...

    def close(self) -> None:
        """Closes the files or the connection."""
        ...


class Csv:
    """steps.csv: a row for each step, a column for each value; missing values are empty."""

    def __init__(self, folder: Path, done: int, run: str | None) -> None:
        self.path = folder / "steps.csv"
        text = self.path.read_text() if self.path.exists() else ""
        text = text[: text.rfind("\n") + 1]  # a kill may have cut the last line
        rows = [*csv.DictReader(io.StringIO(text))]
        self.columns = [*(rows[0] if rows else ["step"])]
        self.begin([row for row in rows if int(row["step"]) <= done])

    def begin(self, rows: Sequence[Row]) -> None:
        """Rewrites the whole file: the column names, and these rows."""
        head = io.StringIO()
        csv.writer(head).writerow(self.columns)
        write_whole(self.path, head.getvalue() + self.lines(rows))
        self.file = self.path.open("a", newline="")

    def lines(self, rows: Sequence[Row]) -> str:
        """The rows as lines of the file."""
        text = io.StringIO()
        csv.DictWriter(text, self.columns).writerows(rows)
        return text.getvalue()

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows; a new name becomes a new column of the whole file."""
        new = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in self.columns]
        if new:
            self.close()
            with self.path.open(newline="") as file:
                earlier = [*csv.DictReader(file)]
            self.columns += new
            self.begin(earlier)
        self.file.write(self.lines(rows))
        self.file.flush()

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


class TensorBoard:
    """Event files by tensorboardX, without TensorFlow.

    TensorBoard hides the steps that a resumed run repeats: with --load_fast=false as soon as the run resumes, else (its
    reader in Rust, the default where it is installed) the values of each name once that name is written again.
    """

    def __init__(self, folder: Path, done: int, run: str | None) -> None:
        module: Any = import_extra("a writer", *MODULES["tensorboard"])
        # the suffix orders files of one second: they are read in the order of their names
        self.writer = module.SummaryWriter(str(folder), purge_step=done + 1, filename_suffix=f".{done:012}")

    def write(self, rows: Sequence[Row]) -> None:
        """Adds every number as a scalar of its step; tensorboardX replaces signs of a name that TensorBoard lacks."""
        for row in rows:
            for name, value in row.items():
                if name != "step":
                    self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; its environment variables set place and project.

    Its id is the start of the run's identity, by which it is resumed; without an identity it is a new one.
    """

    def __init__(self, folder: Path, done: int, run: str | None) -> None:
        module: Any = import_extra("a writer", *MODULES["wandb"])
        resumed = {} if run is None else {"id": folder.name, "resume": "allow"}
        self.run = module.init(dir=str(folder), reinit="create_new", **resumed)

    def write(self, rows: Sequence[Row]) -> None:
        """Logs every row at its step; of two equal rows of one step the first is kept."""
        for row in rows:
            self.run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    def close(self) -> None:
        """Ends the run."""
        self.run.finish()


WRITERS: dict[str, type[Writer]] = {"csv": Csv, "tensorboard": TensorBoard, "wandb": WeightsAndBiases}
MODULES = {"tensorboard": ("tensorboardX", "data"), "wandb": ("wandb", "wandb")}
"""The module that a writer needs, and the extra that installs it."""


@dataclasses.dataclass(frozen=True)
class LogFolder:
    """Logs runs in a folder by these writers; `profile`: the first and last traced step, or None."""

    folder: Path
    writers: tuple[str, ...]
    profile: tuple[int, int] | None

    @contextmanager
    def open(self, run: str | None, done: int, total: int | None) -> "Iterator[RunLog]":
        """The log of a run with this identity, after `done` steps of `total` (None: unknown).

        Raises:
            InputError: A profile of steps beyond the end.
        """
        if self.profile is not None:
            last = self.profile[1]
            if total is not None and last > total:
                raise InputError(f"profile must end by step {total}, the run's last; got {last}. Trace earlier steps")
            if last <= done:
                print(f"profile: steps up to {done} are done already; nothing is traced", file=sys.stderr)
        log = RunLog(self, run, done)
        try:
            yield log
        finally:
            log.close()


_CURRENT: ContextVar[LogFolder | None] = ContextVar("log", default=None)


def current_log() -> LogFolder | None:
    """The log of the innermost `log_steps`, or None."""
    return _CURRENT.get()


@contextmanager
def log_steps(
    folder: str | os.PathLike, writers: Sequence[str] = ("csv",), profile: tuple[int, int] | None = None
) -> Iterator[LogFolder]:
    """Logs the steps of runs to a folder: those of recipes within the `with` block, and those that get `log=`.

    Args:
        writers: Any of csv, tensorboard, wandb.
        profile: (first, last): `jax.profiler` traces these steps, from 1. `fit` runs up to 64 steps as one program; the
            chunks that contain these steps are traced as a whole.

    Yields:
        The `log` of `fit`, `fit_private` and `solve`.

    Guarantees:
        The result of a run has the same bits; a resumed run continues in its files, with every row once. `fit_private`
        logs private values alone.

    Raises:
        InputError: An unknown writer, one whose package is missing, or invalid steps.

    >>> folder, options = demo.folder(), {"key": jax.random.key(0), "optimizer": tj.adam(0.3), "epochs": 5}
    >>> with tj.log_steps(folder) as log:
    ...     fitted = tj.fit(demo.predict, demo.train, **options, log=log)
    >>> len(next(folder.glob("metrics/*/steps.csv")).read_text().splitlines())
    6
    """
    root = expand_path(folder)
    for name in writers:
        one_of("writers", name, WRITERS)
        if name in MODULES:
            import_extra("a writer", *MODULES[name])
    if profile is not None and not (len(profile) == 2 and 1 <= profile[0] <= profile[1]):
        raise InputError(f"profile must be steps (first, last) with 1 <= first <= last; got {profile}")
    settings = LogFolder(root, tuple(dict.fromkeys(writers)), profile)
    token = _CURRENT.set(settings)
    try:
        yield settings
    finally:
        _CURRENT.reset(token)


class RunLog:
    """The log of one run; `done`: the number of its last step."""

    def __init__(self, settings: LogFolder, run: str | None, done: int) -> None:
        self.settings = settings
        self.done = done
        self.writers: list[Writer] = []
        self.held: list[Row] = []  # the last row, until its measured values are known
        self.traced_from: int | None = None
        self.began = time.perf_counter()
        if settings.writers and hosts.is_writer():
            folder = run_folder(settings.folder / "metrics", run)
            self.writers = [WRITERS[name](folder, done, run) for name in settings.writers]

    def begin(self, count: int = 1) -> None:
        """Starts the next `count` steps."""
        if self.settings.profile is not None and self.traced_from is None:
            first, last = self.settings.profile
            if self.done < last and self.done + count >= first:
                jax.profiler.start_trace(str(self.settings.folder / "profile"))
                self.traced_from = self.done + 1
        self.began = time.perf_counter()

    def add(self, rows: Sequence[Row], examples: int | None = None) -> None:
        """Adds the values of finished steps, computed on `examples` (None: their number is secret)."""
        seconds = time.perf_counter() - self.began
        self.done = rows[-1]["step"]
        if self.settings.profile is not None and self.done >= self.settings.profile[1]:
            self.end_trace()
        if self.writers:
            speed = {} if examples is None else {"examples_per_second": examples / seconds}
            self.write([*self.held, *({**row, **speed} for row in rows[:-1])])
            self.held = [{**rows[-1], **speed}]

    def add_measured(self, values: Mapping[str, Any] | None) -> None:
        """Adds the values measured after the last step, and writes its row. Call it before a save."""
        if self.writers:
            self.write([{**row, **{name: float(v) for name, v in (values or {}).items()}} for row in self.held])
            self.held = []

    def write(self, rows: Sequence[Row]) -> None:
        """Gives rows to all writers."""
        for writer in self.writers if rows else ():
            writer.write(rows)

    def end_trace(self) -> None:
        """Writes the trace, if one was begun, and one line about it on stderr."""
        if self.traced_from is not None:
            jax.profiler.stop_trace()
            where = self.settings.folder / "profile"
            print(f"profile: steps {self.traced_from} to {self.done} in {where}", file=sys.stderr)
            self.traced_from = None

    def close(self) -> None:
        """Closes the trace and the writers."""
        self.end_trace()
        for writer in self.writers:
            writer.close()


def run_folder(metrics: Path, run: str | None) -> Path:
    """The folder of a run's files, named by its identity.

    A run without an identity is never resumed; its folder gets the next number, which no other process takes.
    """
    if run is not None:
        (metrics / run[:8]).mkdir(parents=True, exist_ok=True)
        return metrics / run[:8]
    number = 1
    while True:
        with suppress(FileExistsError):
            (metrics / f"{number}").mkdir(parents=True)
            return metrics / f"{number}"
        number += 1
