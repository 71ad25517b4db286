"""The state of a store: the journal's lines, folded in their order."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tangent_jax.core.checks import InputError
from tangent_jax.store.keys import Key
from tangent_jax.store.lines import (
    Add,
    Compose,
    Discard,
    Entry,
    Export,
    Exported,
    Held,
    Line,
    Merge,
    Released,
    Remove,
    parse,
    part,
)
from tangent_jax.store.provenance import Provenance


class Composed(NamedTuple):
    """A composition's file, the names of its components, and True if it is their mean, or the sum of statistics."""

    entry: Entry
    names: tuple[str, ...]
    is_plain: bool = True


@dataclasses.dataclass
class Holding:
    """An export, and what it holds: the fields of `lines.Held`."""

    export: Exported
    weights: set[str]
    names: set[str]
    replaced: set[str]

    @classmethod
    def of(cls, export: Exported, held: Held) -> "Holding":
        """An export that holds this."""
        return cls(export, {*held.weights}, {*held.names}, {*held.replaced})

    @property
    def held(self) -> Held:
        """What it holds, as a line of the journal says it."""
        return Held(
            weights=tuple(sorted(self.weights)), names=tuple(sorted(self.names)), replaced=tuple(sorted(self.replaced))
        )

    def holds(self, name: str, weights: str | None) -> bool:
        """True if it holds a component of this name and these numbers, None if they are not known."""
        return weights in self.weights or name in self.names

    def covers(self, other: "Holding") -> bool:
        """True if it is the same export, and what the other one says of it is known."""
        is_known = self.weights >= other.weights and self.names <= other.names and self.replaced >= other.replaced
        return self.export == other.export and is_known

    def take_in(self, other: "Holding") -> None:
        """Adds what another store says of the same export; names of components whose numbers that one knows go."""
        self.weights |= other.weights
        self.names &= other.names
        self.replaced |= other.replaced


@dataclasses.dataclass
class State:
    """A store's content: components and compositions by their files' entries, receipts by the hash of their text.

    `forgotten`: hidden identifiers (keys.py) of removed examples; `released`: for components that were composed or
    exported and then removed, their privacy cost (None: no account) and the hidden units they saw; `public`: hidden
    identifiers of their public images.
    """

    components: dict[str, Entry] = dataclasses.field(default_factory=dict)
    composed: dict[str, Composed] = dataclasses.field(default_factory=dict)  # by the identity of the file
    receipts: dict[str, str] = dataclasses.field(default_factory=dict)
    forgotten: set[str] = dataclasses.field(default_factory=set)
    released: list[Released] = dataclasses.field(default_factory=list)
    public: set[str] = dataclasses.field(default_factory=set)
    holdings: list[Holding] = dataclasses.field(default_factory=list)  # of all exports
    shown: set[str] = dataclasses.field(default_factory=set)  # ids of components composed or exported
    lines: list[Line] = dataclasses.field(default_factory=list)  # all, in their order

    @property
    def exports(self) -> list[Exported]:
        """All exports."""
        return [holding.export for holding in self.holdings]

    @property
    def removals(self) -> list[Remove]:
        """The lines of all removals."""
        return [line for line in self.lines if isinstance(line, Remove)]

    def apply(self, line: Line) -> None:
        """Applies one more journal line."""
        match line:
            case Add():
                self.components[line.name] = part(Entry, line)
                if line.shown:
                    self.shown.add(line.id)
            case Compose():
                is_plain = line.weighted is None and line.merge == "mean"
                self.compose(Composed(part(Entry, line), line.names, is_plain))
            case Export():
                weights = tuple(self.weights_of(line.names).values())
                names = tuple(name for name in line.names if name not in self.components)
                self.hold(Holding.of(part(Exported, line), Held(weights=weights, names=names)))
                self.show(line.names)
            case Remove():
                self.follow(line)
                self.take_out(line, line.added)
                if line.composed is not None:
                    self.compose(Composed(line.composed, line.names))
                self.receipts[line.receipt] = line.receipt_hash
                self.forgotten |= {*line.forgotten}
            case Discard():
                for name, holding in self.holders(line.seen):
                    holding.names.discard(name)
                    holding.replaced.update(line.seen[name])
                self.take_out(line, {})
            case Merge():
                self.release(line.released)
                held = line.held or [Held(names=export.names) for export in line.exports]
                for export, holds in zip(line.exports, held, strict=True):
                    self.hold(Holding.of(export, holds))
                self.show(line.showed)
        self.lines.append(line)

    def weights_of(self, names: Iterable[str]) -> dict[str, str]:
        """The fingerprints of the numbers of those of these components that are in the store."""
        return {name: self.components[name].weights for name in names if name in self.components}

    def holders(self, names: Collection[str]) -> list[tuple[str, Holding]]:
        """(name, export) for each of these components, and each export that holds it."""
        weights = self.weights_of(names)
        return [(name, own) for name in names for own in self.holdings if own.holds(name, weights.get(name))]

    def exports_of(self, names: Collection[str], images: Collection[str]) -> list[Exported]:
        """The exports that hold one of these components, or that saw one of these images, in hidden forms."""
        held = {own.export for _, own in self.holders(names)}
        return [own.export for own in self.holdings if own.export in held or not own.replaced.isdisjoint(images)]

    @property
    def replaced(self) -> set[str]:
        """The hidden identifiers of images of replaced components that an export holds."""
        return set[str]().union(*(own.replaced for own in self.holdings))

    def hold(self, holding: Holding) -> None:
        """Adds an export, or what a merge says of one that is known."""
        known = [own for own in self.holdings if own.export == holding.export]
        for own in known:
            own.take_in(holding)
        if not known:
            self.holdings.append(holding)

    def follow(self, line: Remove) -> None:
        """Notes the component that a removal trained again, for exports of the old one: they saw all its images."""
        for name, holding in self.holders(line.removed):
            if name in line.added:
                holding.weights.add(line.added[name].weights)

    def take_out(self, line: Discard, added: Mapping[str, Entry]) -> None:
        """Takes components out with their compositions, puts others in, and keeps the accounts of those shown."""
        gone = {*line.removed}
        self.components = {name: entry for name, entry in self.components.items() if name not in gone} | {**added}
        self.composed = {i: composed for i, composed in self.composed.items() if gone.isdisjoint(composed.names)}
        self.release(line.released)

    def compose(self, composed: Composed) -> None:
        """Adds a composition of components that are in the store."""
        absent = [name for name in composed.names if name not in self.components]
        if absent:
            raise InputError(f"names must be of components that were added before; got {absent[0]}")
        self.composed[composed.entry.id] = composed
        self.show(composed.names)

    def show(self, names: Iterable[str]) -> None:
        """Notes that those of these components that are in the store were composed or exported."""
        self.shown |= {self.components[name].id for name in names if name in self.components}

    def release(self, accounts: Iterable[Released]) -> None:
        """Adds the accounts of components that were composed or exported and then removed."""
        for account in accounts:
            self.released.append(account)
            self.public |= {*account.public}

    def accounts_shown(self, before: Mapping[str, Provenance], key: Key) -> tuple[Released, ...]:
        """The accounts of components that are to be removed and were composed or exported: their cost still counts.

        Args: key: of the store, which hides their units.
        """
        shown = [origin for name, origin in before.items() if self.components[name].id in self.shown]
        accounts = []
        for origin in shown:
            if origin.privacy is not None:
                examples = key.hide_all(origin.protected_units())
                public = key.hide_all(identifier for identifier, _ in origin.public)
                accounts.append(Released(privacy=origin.privacy, examples=examples, public=public))
        if len(accounts) < len(shown):
            accounts.append(Released())  # some have no account
        return tuple(accounts)

    def files(self) -> list[tuple[str, Entry]]:
        """(kind, entry) of all files: components, compositions, and the components' factors."""
        entries = [("components", entry) for entry in self.components.values()]
        entries += [("composed", composed.entry) for composed in self.composed.values()]
        return entries + [("factors", entry.factors) for _, entry in entries if entry.factors is not None]


def replay(entries: Iterable[dict[str, Any]]) -> State:
    """The state after the journal's lines; InputError, with its number, for a line that this version does not know."""
    state = State()
    for number, fields in enumerate(entries, 1):
        try:
            state.apply(parse(fields))
        except InputError as error:
            raise InputError(
                f"line {number} of the journal must be one that this version of tangent_jax writes; {error}. "
                "Update tangent_jax, or restore the journal from a backup; nothing was changed"
            ) from error
    return state
