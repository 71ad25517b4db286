"""The exit codes of every command and experiment; the table of docs/reference/commands.md is generated from it."""

import signal
from dataclasses import dataclass

DONE, FAILED, STOPPED = 0, 1, 130


def of_signal(number: int) -> int:
    """The exit code of a process that a signal ends, in a shell's convention."""
    return 128 + number


@dataclass(frozen=True)
class Meaning:
    """A row of the table: the meaning of a code, the output on stderr, and whether to repeat the command."""

    codes: tuple[int, ...]
    means: str
    stderr: str
    again: str


TWICE = of_signal(signal.SIGINT), of_signal(signal.SIGTERM)
MEANINGS = (
    Meaning((DONE,), "done; with --shard: its components are in their stores", "progress", "no"),
    Meaning(
        (FAILED,),
        "bad input, a missing package, a full disk or too little memory; a URL that does not answer, or whose "
        "credentials expired; another process of the job ended",
        "one line that says which, and what to do",
        "once that is fixed; a URL that did not answer: by hand; of a job, all processes",
    ),
    Meaning(
        (FAILED,),
        "`store verify` and `inspect`: a file or receipt was altered; `privacy audit`: the claim is disproved; "
        "`finetune`: the certificate was not reached in the passes",
        "a line for each finding; the result is written",
        "no",
    ),
    Meaning(
        (STOPPED,),
        "stopped by Ctrl-C or SIGTERM; the work is saved",
        "`interrupted; the same command resumes from what is saved`",
        "yes, it resumes",
    ),
    Meaning(
        TWICE, "stopped while libraries were loaded; nothing had begun", "`interrupted before anything began`", "yes"
    ),
    Meaning(TWICE, "stopped a second time; the work since the last save is lost", "`stopping at the next step`", "yes"),
    Meaning(
        (of_signal(signal.SIGKILL),),
        "killed: out of memory, or the grace period was too short",
        "nothing",
        "yes, a few times",
    ),
)
"""The meaning of each code; any other above 128 is a signal's. If a code has two rows, stderr tells which applies."""
