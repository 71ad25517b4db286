"""The state of a store, which the journal's lines define in order; only this file interprets them."""

import dataclasses
import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tangent_jax.core.checks import InputError, visible
from tangent_jax.data.identifiers import hidden
from tangent_jax.io.files import fingerprint
from tangent_jax.io.records import convert
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.receipts import is_name

FIELDS = ("id", "weights", "file", "origin", "crc", "factors")
"""The fields of a file's entry; "weights" is the fingerprint of its numbers."""


TEXT = ("op", "time", "name", "merge", "receipt", "receipt_hash", "of", "path", "result", "seal")
TYPES: dict[str, Any] = dict.fromkeys((*TEXT, *FIELDS[:-1]), str) | {"shown": bool, "penalty": (int, float)}
TYPES |= dict.fromkeys(("names", "removed", "showed", "released", "forgotten", "exports", "erases"), list)
TYPES |= dict.fromkeys(("added", "composed", "factors"), dict)
TYPES |= dict.fromkeys(("weighted", "privacy"), (dict, type(None)))
"""The types of a line's fields."""
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
Hashes = tuple[str, ...]


def timestamp() -> str:
    """The present time (UTC), as journals and receipts state it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


FILES = ("model.safetensors", "tangent.safetensors", "weights.safetensors", "model.jax", "model.onnx", "run.py",
         "images.py", "serving.json", "tangent_torch.py", "adapter_model.safetensors", "adapter_config.json",
         "provenance.json", "README.md")  # fmt: skip
EXPORTED = {*FILES, *(f"{name}.partial" for name in FILES)}
"""The names of all files of an export, unfinished ones too."""


class Exported(NamedTuple):
    """An export: its components, its folder, the fingerprint of the exported sum, and its exporter's seal."""

    names: tuple[str, ...]
    path: str
    result: str = ""
    seal: str = ""

    def text(self, store: str) -> str:
        """The sealed text; `store`: the identity of the exporting store."""
        return json.dumps(["export", store, self.names, self.path, self.result])

    @property
    def partial(self) -> Path:
        """The folder in which the export is written before it is renamed to `path`; a kill may leave it."""
        return partial_of(Path(self.path), self.result)


def removal_text(store: str, forgotten: Iterable[str]) -> str:
    """The sealed text of a removal: the hashed identifiers that it erased; `store`: the identity of the store."""
    return json.dumps(["remove", store, [*forgotten]])


def read_export(names: Any, *said: Any) -> Exported:
    """The export of a journal line; its path is printable text."""
    names = convert(Hashes, names, "names of an export in the journal")
    path, result, seal = convert(tuple[str, str, str], said, "an export in the journal")
    return Exported(names, visible(path), result, seal)


def partial_of(folder: Path, fingerprint: str) -> Path:
    """The folder in which an export of tangent weights of this fingerprint is written, before it becomes `folder`."""
    return folder.parent / f"{folder.name}.{fingerprint[:8]}.partial"


@dataclasses.dataclass
class State:
    """A store's content: components and compositions by their files' entries, receipts by the hash of their text.

    `forgotten`: hashed identifiers of removed examples; `released`: for components that were composed or exported and
    then removed, their privacy cost (None: no account) and the hashed units they saw; `public`: hashed identifiers of
    their public images; `accounts`: both as journaled, by the hash of their text and of the files of the removed
    components. So an account that a store shares with its copy counts once, and an account of either alone counts too.
    """

    components: dict[str, dict] = dataclasses.field(default_factory=dict)
    composed: dict[str, dict] = dataclasses.field(default_factory=dict)
    receipts: dict[str, str] = dataclasses.field(default_factory=dict)
    forgotten: set[str] = dataclasses.field(default_factory=set)
    released: list[tuple[Spent | None, frozenset[str]]] = dataclasses.field(default_factory=list)
    public: set[str] = dataclasses.field(default_factory=set)
    exports: list[Exported] = dataclasses.field(default_factory=list)
    accounts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    shown: set[str] = dataclasses.field(default_factory=set)  # ids of components composed or exported
    intended: tuple[str, ...] = ()  # traces that removals since the last receipt said they would erase

    def has_forgotten(self, identifier: str) -> bool:
        """True if an example of this content identifier was removed from the store."""
        return bool(self.forgotten) and not self.forgotten.isdisjoint(hidden([identifier]))

    def apply(self, line: dict[str, Any]) -> None:
        """Applies one more journal line."""
        entry = {key: line[key] for key in FIELDS if key in line}
        operation = line["op"]
        if operation == "add":
            self.components[line["name"]] = entry
            self.shown |= {entry["id"]} if line.get("shown") else set()
        elif operation == "compose":
            names = line["names"] if line["weighted"] is None else [*line["names"], "weighted"]
            if line.get("merge", "mean") != "mean":
                names = [*names, f"merged by {line['merge']}"]
            self.composed[entry["id"]] = {**entry, "names": names}
            self.shown |= {self.components[name]["id"] for name in line["names"]}
        elif operation == "export":
            self.exports.append(read_export(line["names"], line["path"], line.get("result", ""), line.get("seal", "")))
            self.shown |= {self.components[name]["id"] for name in line["names"] if name in self.components}
        elif operation in ("remove", "discard"):
            self.leave(line)
        elif operation == "merge":
            self.merge(line)
        elif operation == "intend":
            erases = convert(tuple[str, ...], line["erases"], "erases of the journal")
            self.intended = tuple(dict.fromkeys(self.intended + erases))
        elif operation == "erase":
            pass  # traces of an earlier removal, which erase_traces() erased again: the content is as before
        else:
            raise InputError(
                f"expected operations that this version knows; got {operation!r}, of a later version. Update "
                "tangent_jax; nothing was changed."
            )

    def leave(self, line: dict[str, Any]) -> None:
        """Removes components, adds those that replace them, and sets the survivors' sum."""
        gone = {*line["removed"]}
        files = sorted(entry["id"] for name, entry in self.components.items() if name in gone)
        self.components = {n: e for n, e in self.components.items() if n not in gone} | line.get("added", {})
        self.composed = {i: e for i, e in self.composed.items() if not gone & {*e["names"]}}
        if line.get("composed"):
            self.composed[line["composed"]["id"]] = {**line["composed"], "names": line["names"]}
            self.shown |= {self.components[name]["id"] for name in line["names"]}
        if "receipt" in line:
            self.receipts[line["receipt"]] = line["receipt_hash"]
            self.intended = ()
        self.forgotten |= {*line.get("forgotten", ())}
        self.release(line.get("released", ()), files)

    def merge(self, line: dict[str, Any]) -> None:
        """Adds the released accounts and exports of another store, whose components are here now."""
        self.release(line["released"])
        self.exports += [read_export(*said) for said in line["exports"]]
        self.shown |= {self.components[name]["id"] for name in line["showed"] if name in self.components}

    def release(self, accounts: Iterable[dict[str, Any]], files: Iterable[str] = ()) -> None:
        """Adds the accounts of components, of these files, that were composed or exported and then removed."""
        for number, part in enumerate(accounts):
            part = {"of": [number, *files], **part}
            self.accounts[fingerprint(json.dumps(part, sort_keys=True).encode())] = part
            account = None if part["privacy"] is None else convert(Spent, part["privacy"], "the journal")
            hashes, public = (convert(Hashes, part.get(f, ()), f"{f} of the journal") for f in ("examples", "public"))
            self.released.append((account, frozenset(hashes)))
            self.public |= {*public}

    def accounts_shown(self, before: Mapping[str, Provenance]) -> list[dict[str, Any]]:
        """The accounts of removed components that were composed or exported: their cost still counts."""
        shown = [was for name, was in before.items() if self.components[name]["id"] in self.shown]
        lines: list[dict[str, Any]] = []
        for was in shown:
            if was.privacy is not None:
                account = dataclasses.asdict(was.privacy)
                public = sorted(hidden(identifier for identifier, _ in was.public))
                lines.append({"privacy": account, "examples": sorted(hidden(was.protected_units())), "public": public})
        return lines + [{"privacy": None, "examples": []}] * (len(lines) < len(shown))  # without an account

    def files(self) -> list[dict]:
        """The entries of all files: components, compositions, and the components' factors."""
        return with_factors([*self.components.values(), *self.composed.values()])


def with_factors(entries: list[dict]) -> list[dict]:
    """The entries, and the entries of their factors."""
    return entries + [entry["factors"] for entry in entries if entry.get("factors")]


def replay(entries: Iterable[dict[str, Any]]) -> State:
    """The state after the journal's lines; InputError for a line that this version does not know."""
    state = State()
    expected = "lines of this version in the journal"
    do = "Merge a store of version 0.1 or 0.2 into a new one by tangent_jax 0.3 first"
    for number, line in enumerate(entries, 1):
        try:
            known = is_well_formed(line)
            if known:
                state.apply(line)
        except (KeyError, TypeError, AttributeError) as error:
            got = f"line {number} ({type(error).__name__}: {error})"
            raise InputError(f"expected {expected}; got {got}. {do}.") from error
        if not known:
            raise InputError(f"expected {expected}; got line {number}. {do}.")
    return state


def is_well_formed(line: dict[str, Any]) -> bool:
    """True if a store writes such a line: every new file has a valid name and its hashes.

    Only the line's own files are checked; earlier lines were checked before, so reading a journal takes linear time.
    """
    if not all(isinstance(value, TYPES.get(field, object)) for field, value in line.items()):
        return False
    operation, composed, named = line["op"], [], {}
    if operation == "add":
        named = {line["name"]: line}
    elif operation == "compose":
        composed = [line]
    elif operation in ("remove", "discard"):
        named, composed = line.get("added", {}), [line["composed"]] if line.get("composed") else []
    entries = with_factors([*named.values(), *composed])
    receipts = {line["receipt"]: line["receipt_hash"]} if "receipt" in line else {}
    names = [*named, *(name for field in ("names", "removed", "showed") for name in line.get(field, ()))]
    identities = [*(entry.get("id") for entry in entries), *receipts]
    texts = [entry[field] for entry in entries for field in FIELDS[1:-1]] + [*receipts.values()]
    texts += [text for field, text in line.items() if field != "path" and isinstance(text, str)]
    texts += [] if re.fullmatch(TIME, line["time"]) else [None]
    are_ours = all(isinstance(text, str) and re.fullmatch("[0-9a-f]{16}", text) for text in identities)
    return are_ours and all(map(is_name, names)) and all(isinstance(text, str) and text.isprintable() for text in texts)
