"""The state that the lines of a store's journal make, in order: the only place that knows what each line means."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from tangent_jax.core import refusal, require
from tangent_jax.core.files import fingerprint
from tangent_jax.privacy.mechanism import Spent

FIELDS = ("id", "weights", "file", "origin", "crc", "factors")
"""Of a file's entry. "weights" is the fingerprint of its numbers, under the name that version 0.2 gave it."""


def hidden(identifiers: Iterable[str]) -> set[str]:
    """Content identifiers, hashed again: a store knows what was removed from it, without saying whose it was."""
    return {fingerprint(f"removed {identifier}".encode()) for identifier in identifiers}


@dataclasses.dataclass
class State:
    """A store's content: components and compositions by their files' entries, receipts by the hash of their text.

    `forgotten`: hashed identifiers of removed examples; `released`: of components that were composed or exported and
    then removed, what they spent (None: no account) and the hashed units they saw; `public`: hashed identifiers of the
    public images of these; `exports`: names and path.
    """

    components: dict[str, dict] = dataclasses.field(default_factory=dict)
    composed: dict[str, dict] = dataclasses.field(default_factory=dict)
    receipts: dict[str, str] = dataclasses.field(default_factory=dict)
    forgotten: set[str] = dataclasses.field(default_factory=set)
    released: list[tuple[Spent | None, frozenset[str]]] = dataclasses.field(default_factory=list)
    public: set[str] = dataclasses.field(default_factory=set)
    exports: list[tuple[set[str], str]] = dataclasses.field(default_factory=list)
    shown: set[str] = dataclasses.field(default_factory=set)  # ids of components composed or exported

    def has_forgotten(self, identifier: str) -> bool:
        """True where an example of this content identifier was removed from the store."""
        return not self.forgotten.isdisjoint(hidden([identifier]))

    def apply(self, line: dict[str, Any]) -> None:
        """Takes one more line into the state."""
        entry = {key: line[key] for key in FIELDS if key in line}
        operation = line["op"]
        if operation == "add":
            self.components[line["name"]] = entry
        elif operation == "convert":  # by version 0.2, of a store of 0.1
            self.components, self.composed = dict(line["components"]), {}
        elif operation == "compose":
            names = line["names"] if line["weighted"] is None else [*line["names"], "weighted"]
            if line.get("merge", "mean") != "mean":
                names = [*names, f"merged by {line['merge']}"]
            self.composed[entry["id"]] = {**entry, "names": names}
            self.shown |= {self.components[name]["id"] for name in line["names"]}
        elif operation == "export":
            self.exports.append(({*line["names"]}, line["path"]))
            self.shown |= {self.components[name]["id"] for name in line["names"] if name in self.components}
        elif operation in ("remove", "discard"):
            self.leave(line)
        else:
            do = "Update tangent_jax; nothing was changed"
            raise refusal("Store", "operations that this version knows", f"{operation!r}, of a later version", do)

    def leave(self, line: dict[str, Any]) -> None:
        """Components go, others may take their names, and the survivors' sum is there."""
        gone = {*line["removed"]}
        self.components = {n: e for n, e in self.components.items() if n not in gone} | line.get("added", {})
        self.composed = {i: e for i, e in self.composed.items() if not gone & {*e["names"]}}
        if line.get("composed"):
            self.composed[line["composed"]["id"]] = {**line["composed"], "names": line["names"]}
            self.shown |= {self.components[name]["id"] for name in line["names"]}
        if "receipt" in line:
            self.receipts[line["receipt"]] = line["receipt_hash"]
        self.forgotten |= {*line.get("forgotten", ())}
        for part in line.get("released", ()):
            account = None if part["privacy"] is None else Spent.from_json(part["privacy"], "Store", "the journal")
            self.released.append((account, frozenset(part["examples"])))
            self.public |= {*part.get("public", ())}

    def files(self) -> list[dict]:
        """The entries of all files: components, compositions, and the components' factors."""
        return with_factors([*self.components.values(), *self.composed.values()])


def with_factors(entries: list[dict]) -> list[dict]:
    """The entries, and those of the factors that they have."""
    return entries + [entry["factors"] for entry in entries if entry.get("factors")]


def replay(entries: Iterable[dict[str, Any]]) -> State:
    """The state that the journal's lines make; InputError for a line that this version does not know."""
    state = State()
    for number, line in enumerate(entries, 1):
        try:
            state.apply(line)
            known = is_well_formed(line)
        except (KeyError, TypeError, AttributeError) as error:
            got = f"line {number} ({type(error).__name__}: {error})"
            raise refusal("Store", "lines of this version in the journal", got) from error
        require(known, "Store", "lines of this version in the journal", f"line {number}")
    return state


def is_well_formed(line: dict[str, Any]) -> bool:
    """True where every file that a line brings is one that a store writes, with its hashes.

    Only what the line itself brings is looked at: lines before it have been, so a journal is read in linear time.
    """
    operation, composed, named = line["op"], [], {}
    if operation == "add":
        named = {line["name"]: line}
    elif operation == "convert":
        named = line["components"]
    elif operation == "compose":
        composed = [line]
    elif operation in ("remove", "discard"):
        named, composed = line.get("added", {}), [line["composed"]] if line.get("composed") else []
    entries = with_factors([*named.values(), *composed])
    receipts = {line["receipt"]: line["receipt_hash"]} if "receipt" in line else {}
    identities = [*(entry.get("id") for entry in entries), *receipts]
    hashes = [entry.get(field, "") for entry in entries for field in ("file", "weights")]
    are_ours = all(isinstance(text, str) and re.fullmatch("[0-9a-f]{16}", text) for text in identities)
    return are_ours and all(isinstance(text, str) for text in [*hashes, *receipts.values(), *named])
