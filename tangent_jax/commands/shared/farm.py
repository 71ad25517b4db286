"""Shard models on many machines: each worker trains some groups of shards, then the launching process composes.

    --worker=I/N              under any scheduler: train the groups whose number is I modulo N, and exit
    --farm=slurm|local        submit N such workers through submitit, wait for them, then compose

The groups of all stores of a command are numbered consecutively. The shards alone decide the groups, so a component has
the same bits whichever worker trains it.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import numpy as np

import tangent_jax as tj
from tangent_jax.commands.shared import command
from tangent_jax.commands.shared.flags import F
from tangent_jax.commands.shared.shards import Method
from tangent_jax.commands.shared.worker import Worker
from tangent_jax.core.checks import refusal, require
from tangent_jax.io.files import hold_lock
from tangent_jax.io.progress import check_stop, progress_bar

LOCAL = {"timeout_min": 60 * 24 * 365}
SLURM = {"time": 60}
REQUEUES = 100  # the most times that submitit requeues a Slurm job at its time limit


class Work(NamedTuple):
    """A store that a command reads, and the shards of its components."""

    method: Method
    rows: dict[str, np.ndarray]
    title: str
    with_factors: bool = False


def check_workers(workers: int, work: Sequence[Work]) -> None:
    """Raises InputError for more workers than there are groups of shards."""
    groups = [names for part in work for names in part.method.groups(part.rows)]
    shards, do = sum(map(len, groups)), "Start fewer workers, or lower --at_once"
    expected = f"at most {len(groups)} workers for {len(groups)} groups of {shards} shards"
    require(workers <= len(groups), "farm", expected, workers, do)


def is_worker() -> bool:
    """True in a process that only trains its groups of shards."""
    return F.worker is not None


def check_flags() -> None:
    """Raises InputError for flags that do not fit a farm, before any long work."""
    if is_worker():
        own_part()
    elif F.farm:
        require(F.workers, "flags", "--workers=N with --farm", "none")
        submitit()
        options()
    else:
        require(F.workers is None, "flags", "--farm with --workers", "none")
        require(not F.farm_options, "flags", "--farm with --farm_options", "none")


def own_part() -> tuple[int, int]:
    """(I, N) of --worker=I/N."""
    given = re.fullmatch(r"(\d+)/(\d+)", F.worker)
    index, workers = map(int, given.groups()) if given else (0, 0)
    require(index < workers, "flags", "--worker=I/N with I in 0..N-1", F.worker)
    return index, workers


def submitit() -> Any:
    """The package submitit; InputError if it, or the Slurm that --farm asks for, is missing."""
    do = "Install tangent-jax[farm], or start --worker=I/N yourself"
    require(importlib.util.find_spec("submitit"), "farm", "the package submitit with --farm", "none", do)
    there, do = shutil.which("sbatch") and shutil.which("srun"), "Use --farm=local, or --worker=I/N elsewhere"
    require(F.farm == "local" or there, "farm", "Slurm's sbatch and srun on PATH", "none", do)
    return importlib.import_module("submitit")


def train_own(work: Sequence[Work]) -> None:
    """Trains the groups of --worker=I/N, and prints them in the last line of stdout."""
    index, workers = own_part()
    check_workers(workers, work)
    number, trained = 0, 0
    for part in work:
        count = len(part.method.groups(part.rows))
        own = {group for group in range(count) if (number + group) % workers == index}
        if own:
            part.method.store(part.rows, part.title, part.with_factors, own)
        number, trained = number + count, trained + len(own)
    print(json.dumps({"worker": index, "workers": workers, "groups": trained}))


def launch(binary: str, work: Sequence[Work]) -> None:
    """Trains the components of all stores by --workers of --farm; InputError naming each worker that failed."""
    check_workers(F.workers, work)
    with ExitStack() as held:
        # a second launcher is refused: its workers would only wait for the first's
        for path in sorted({part.method.path(part.title) for part in work}):
            held.enter_context(hold_lock(tj.store.Claims(tj.Store(path)).lock("launcher"), wait=False))
        base = [sys.executable, "-m", "tangent_jax", binary, *sys.argv[1:]]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        workers = [Worker([*base, f"--worker={i}/{F.workers}"], visible) for i in range(F.workers)]
        jobs = submit(workers)
        print(f"{len(jobs)} workers; logs: {jobs[0].paths.folder}", file=sys.stderr)
        wait(jobs)
        failed = [line for line in map(failure, range(len(jobs)), jobs) if line]
    do = "Run the same command again: what is trained stays"
    require(not failed, "farm", "every worker to finish", "; ".join(failed), do)


def submit(workers: Sequence[Worker]) -> list[Any]:
    """The jobs of the workers, submitted through submitit."""
    folder, is_local, given = command.out_folder() / "farm", F.farm == "local", options()
    package, more = submitit(), {} if is_local else {"max_num_timeout": REQUEUES}
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        executor = (package.LocalExecutor if is_local else package.SlurmExecutor)(folder, **more)
        executor.update_parameters(**given)
        return executor.submit_array(workers)
    except (ValueError, TypeError, FailedJobError, FailedSubmissionError) as error:
        lines = [*filter(None, str(error).splitlines()), type(error).__name__]
        raise refusal("farm", f"options that --farm={F.farm} takes", lines[0], "Mend --farm_options") from error


def options() -> dict[str, Any]:
    """submitit's parameters from --farm_options, with whole numbers as such, over our defaults."""
    given = {}
    for entry in F.farm_options:
        key, _, value = entry.partition("=")
        require(key and value, "flags", "--farm_options=KEY=VALUE,...", entry)
        given[key] = int(value) if value.isdigit() else value
    minutes = {key: value for key, value in given.items() if key in {*LOCAL, *SLURM}}
    are_whole = all(isinstance(value, int) for value in minutes.values())
    require(are_whole, "flags", "whole minutes in --farm_options", minutes)
    unknown = {*given} - {*LOCAL} if F.farm == "local" else {}
    require(not unknown, "flags", f"--farm_options of {', '.join(LOCAL)} with --farm=local", ",".join(unknown))
    return (LOCAL if F.farm == "local" else SLURM) | given


def wait(jobs: Sequence[Any]) -> None:
    """Waits for the jobs; an interruption ends them at their next safe point."""
    pending = [*jobs]
    try:
        with tj.show_progress("farm"), progress_bar(len(jobs), "worker") as bar:
            while pending:
                left = [job for job in pending if not job.done()]
                bar.update(len(pending) - len(left))
                pending = left
                check_stop()
                time.sleep(0.5)
    except BaseException:
        for job in jobs:
            with suppress(OSError, subprocess.SubprocessError):
                job.cancel(check=False)
        raise


def failure(index: int, job: Any) -> str | None:
    """The reason why a worker failed, and its log; None for a finished one."""
    from submitit.core.utils import UncompletedJobError

    try:
        code = job.result()
    except UncompletedJobError:
        code = None
    if code == 0:
        return None
    log = job.paths.stderr
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    kind = "without an exit code" if code is None else f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"worker {index} ended {kind}: {lines[-1] if lines else 'it wrote nothing'} (log: {log})"
