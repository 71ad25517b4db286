"""Skipped items: what a reader leaves out of a data set becomes its remarks, or a part of a refusal.

A reader calls `leave_out(LeftOut(...))`. `opening()` surrounds every reader in `open_dataset`: an InputError that ends
the opening says the first things that were left out, and the same values make `Dataset.remarks`.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar

from tangent_jax.core.checks import InputError

MOST_SAID = 3  # the most kinds of things left out that a refusal says


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Things that a reader left out: `count` `things` (files, rows, ...), of `total` if known, and why.

    `first` is the name of the first one; `of` names the split or file they belong to; `class_name` is their class.
    """

    things: str
    why: str
    count: int
    first: str = ""
    total: int | None = None
    of: str = ""
    class_name: str | None = None

    def __str__(self) -> str:
        """Returns the line, such as: left out 2 of 2 files of hat: HEIC, such as hat/1.heic."""
        count = f"{self.count}" if self.total is None else f"{self.count} of {self.total}"
        things = self.things.removesuffix("s") if (self.total or self.count) == 1 else self.things
        owner = self.of or self.class_name
        line = f"left out {count} {things}" + (f" of {owner}" if owner else "") + f": {self.why}"
        return f"{line}, such as {self.first}" if self.first else line


class NoImagesOfClass(InputError):
    """The refusal of a class without images; says first what was left out of that class."""

    def __init__(self, message: str, class_name: str) -> None:
        super().__init__(message)
        self.class_name = class_name


@dataclasses.dataclass
class Opening:
    """The record of one opening: what was left out, and notes about how files were read."""

    left_out: list[LeftOut] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def remarks(self) -> tuple[str, ...]:
        """Returns a line for each thing left out, then the notes."""
        return (*map(str, self.left_out), *self.notes)

    def summary(self, class_name: str | None = None) -> str:
        """Returns the first things left out, those of a class first, and how many more; "" if there are none."""
        ordered = sorted(self.left_out, key=lambda entry: class_name is None or entry.class_name != class_name)
        more = len(ordered) - MOST_SAID
        lines = [*map(str, ordered[:MOST_SAID]), *([f"and {more} more kinds"] if more > 0 else [])]
        return "; ".join(lines)


OPENING: ContextVar[Opening] = ContextVar("OPENING")
"""The record of the running opening."""


@contextlib.contextmanager
def opening() -> Iterator[Opening]:
    """Records the things left out within the `with` block; an InputError that leaves the block says it too."""
    record = Opening()
    token = OPENING.set(record)
    try:
        yield record
    except InputError as error:
        summary = record.summary(getattr(error, "class_name", None))
        if not summary:
            raise
        raise InputError(f"{str(error).removesuffix('.')}; {summary}") from error
    finally:
        OPENING.reset(token)


def leave_out(entry: LeftOut) -> None:
    """Records things that the running reader leaves out; nothing is recorded for a count of 0."""
    if entry.count:
        OPENING.get().left_out.append(entry)


def note(line: str) -> None:
    """Records a remark about how the running reader read a file."""
    OPENING.get().notes.append(line)
