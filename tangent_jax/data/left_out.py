"""What a reader leaves out of a data set: the lines become its remarks, or the end of a refusal.

`opening()` surrounds every reader in `open_dataset`, and `leave_out` and `note` record lines in it.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar

from tangent_jax.core.checks import InputError

MOST_SAID = 3  # the most lines about things left out that a refusal says


@dataclasses.dataclass
class Opening:
    """The record of one opening: lines about things left out, and notes about how files were read."""

    left_out: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


OPENING: ContextVar[Opening] = ContextVar("OPENING")
"""The record of the running opening."""


@contextlib.contextmanager
def opening() -> Iterator[Opening]:
    """Records the things left out within the `with` block; an InputError that leaves the block says the first."""
    record = Opening()
    token = OPENING.set(record)
    try:
        yield record
    except InputError as error:
        if not record.left_out:
            raise
        more = len(record.left_out) - MOST_SAID
        end = [f"and {more} more kinds"] if more > 0 else []
        raise InputError("; ".join([str(error).removesuffix("."), *record.left_out[:MOST_SAID], *end])) from error
    finally:
        OPENING.reset(token)


def leave_out(things: str, why: str, count: int, first: str = "", of: str = "") -> None:
    """Records things (files, rows, ...) that the running reader leaves out, such as: left out 2 files of hat: hidden.

    Args:
        first: The name of the first one.
        of: The split, folder or class they belong to.
    """
    if count:
        line = f"left out {count} {things.removesuffix('s') if count == 1 else things}" + (f" of {of}" if of else "")
        OPENING.get().left_out.append(f"{line}: {why}" + (f", such as {first}" if first else ""))


def note(line: str) -> None:
    """Records a remark about how the running reader read a file."""
    OPENING.get().notes.append(line)
