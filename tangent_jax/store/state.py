"""The state of a store: the journal's lines, folded in their order."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.store.lines import (
    Add,
    Compose,
    Discard,
    Entry,
    Export,
    Exported,
    Line,
    Merge,
    Released,
    Remove,
    parse,
)


@dataclasses.dataclass
class State:
    """A store's content: components by their files' entries, receipts by the hash of their text.

    Attributes:
        composed: For the names of the components of each plain composition (their mean, or the sum of statistics), its
            fingerprint.
        forgotten: Hidden identifiers (keys.py) of removed examples.
        released: For components that were composed or exported and then removed, their privacy cost (None: no account)
            and the hidden units they saw.
        public: Hidden identifiers of their public images.
    """

    components: dict[str, Entry] = dataclasses.field(default_factory=dict)
    composed: dict[tuple[str, ...], str] = dataclasses.field(default_factory=dict)
    receipts: dict[str, str] = dataclasses.field(default_factory=dict)
    forgotten: set[str] = dataclasses.field(default_factory=set)
    released: list[Released] = dataclasses.field(default_factory=list)
    public: set[str] = dataclasses.field(default_factory=set)
    exports: list[Exported] = dataclasses.field(default_factory=list)  # those of merged stores, too
    shown: set[str] = dataclasses.field(default_factory=set)  # ids of components composed or exported
    lines: list[Line] = dataclasses.field(default_factory=list)  # all, in their order

    @property
    def removals(self) -> list[Remove]:
        """The lines of all removals."""
        return [line for line in self.lines if isinstance(line, Remove)]

    @property
    def added(self) -> dict[str, str]:
        """When each component last came in, by name; removed ones are among them."""
        return {name: line.time for line in self.lines for name in line.adds}

    def apply(self, line: Line) -> None:
        """Applies one more journal line."""
        match line:
            case Add():
                self.components[line.name] = line.entry
                if line.shown:
                    self.shown.add(line.entry.id)
            case Compose():
                self.compose(line.names, line.result if line.merge == "mean" else None)
            case Export():
                self.exports.append(line.export)
                self.show(line.export.names)
            case Remove():
                self.take_out(line, line.added)
                if line.composed is not None:
                    self.compose(line.names, line.composed)
                self.receipts[line.receipt] = line.receipt_hash
                self.forgotten |= {*line.forgotten}
            case Discard():
                self.take_out(line, {})
            case Merge():
                self.release(line.released)
                self.exports += line.exports
                self.show(line.showed)
        self.lines.append(line)

    def exports_of(self, names: Collection[str]) -> list[Exported]:
        """The exports that were made of one of these components, by name."""
        return [export for export in self.exports if not {*names}.isdisjoint(export.names)]

    def take_out(self, line: Discard, added: Mapping[str, Entry]) -> None:
        """Takes components out with their compositions, puts others in, and keeps the accounts of those shown."""
        gone = {*line.removed}
        self.components = {name: entry for name, entry in self.components.items() if name not in gone} | {**added}
        self.composed = {names: result for names, result in self.composed.items() if gone.isdisjoint(names)}
        self.release(line.released)

    def compose(self, names: tuple[str, ...], result: str | None) -> None:
        """Notes a composition of components that are in the store; result: its fingerprint, if it is plain."""
        absent = [name for name in names if name not in self.components]
        if absent:
            raise InputError(f"names must be of components that were added before; got {absent[0]}")
        if result is not None:
            self.composed[names] = result
        self.show(names)

    def show(self, names: Iterable[str]) -> None:
        """Notes that those of these components that are in the store were composed or exported."""
        self.shown |= {self.components[name].id for name in names if name in self.components}

    def release(self, accounts: Iterable[Released]) -> None:
        """Adds the accounts of components that were composed or exported and then removed."""
        for account in accounts:
            self.released.append(account)
            self.public |= {*account.public}

    def files(self) -> list[tuple[str, Entry]]:
        """(kind, entry) of all files: components, and their factors."""
        entries = [*self.components.values()]
        factors = [("factors", entry.factors) for entry in entries if entry.factors is not None]
        return [("components", entry) for entry in entries] + factors


def replay(entries: Sequence[dict[str, Any]], before: State | None = None) -> State:
    """The state after the journal's lines; InputError, with its number, for a line that this version does not know.

    Args:
        before: The state after the first of these lines.
    """
    before = before or State()
    done = len(before.lines)
    if done == len(entries):
        return before
    state = State(**{name: copy(value) for name, value in vars(before).items()})
    for number, fields in enumerate(entries[done:], done + 1):
        try:
            state.apply(parse(fields))
        except InputError as error:
            raise InputError(
                f"line {number} of the journal must be one that this version of tangent_jax writes; {error}. "
                "Update tangent_jax, or restore the journal from a backup; nothing was changed"
            ) from error
    return state
