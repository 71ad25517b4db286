"""The state that the lines of a store's journal make, in order: the only place that knows what each line means."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tangent_jax.core import refusal, require
from tangent_jax.core.checks import visible
from tangent_jax.core.files import fingerprint
from tangent_jax.core.records import convert
from tangent_jax.data.identifiers import hidden
from tangent_jax.privacy.mechanism import Spent
from tangent_jax.store.provenance import Provenance
from tangent_jax.store.receipts import is_name

FIELDS = ("id", "weights", "file", "origin", "crc", "factors")
"""Of a file's entry. "weights" is the fingerprint of its numbers."""


TEXT = ("op", "time", "name", "merge", "receipt", "receipt_hash", "of", "path", "result", "seal")
TYPES: dict[str, Any] = dict.fromkeys((*TEXT, *FIELDS[:-1]), str) | {"shown": bool, "penalty": (int, float)}
TYPES |= dict.fromkeys(("names", "removed", "showed", "released", "forgotten", "exports"), list)
TYPES |= dict.fromkeys(("added", "composed", "factors"), dict)
TYPES |= dict.fromkeys(("weighted", "privacy"), (dict, type(None)))
"""Of the fields of a line."""
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
Hashes = tuple[str, ...]


FILES = ("model.safetensors", "tangent.safetensors", "weights.safetensors", "model.jax", "model.onnx", "run.py",
         "serving.json", "tangent_torch.py", "adapter_model.safetensors", "adapter_config.json", "provenance.json",
         "README.md")  # fmt: skip
EXPORTED = {*FILES, *(f"{name}.partial" for name in FILES)}
"""The names of all files that an export is made of, while they are written too."""


class Exported(NamedTuple):
    """An export: the components whose sum left, the folder, the fingerprint of the sum, and its exporter's seal."""

    names: tuple[str, ...]
    path: str
    result: str = ""
    seal: str = ""

    def text(self, store: str) -> str:
        """The text under the seal; `store`: the identity of the store that exported."""
        return json.dumps(["export", store, self.names, self.path, self.result])

    @property
    def partial(self) -> Path:
        """The folder that is filled, and then becomes `path`: one that is there still was left by a kill."""
        return partial_of(Path(self.path), self.result)


def read_export(names: Any, *said: Any) -> Exported:
    """The export that a journal's line says; its path is text of characters that show."""
    names = convert(Hashes, names, "Store", "names of an export in the journal")
    path, result, seal = convert(tuple[str, str, str], said, "Store", "an export in the journal")
    return Exported(names, visible(path), result, seal)


def partial_of(folder: Path, fingerprint: str) -> Path:
    """The folder that an export of tangent weights of this fingerprint fills, before it becomes `folder`."""
    return folder.parent / f"{folder.name}.{fingerprint[:8]}.partial"


@dataclasses.dataclass
class State:
    """A store's content: components and compositions by their files' entries, receipts by the hash of their text.

    `forgotten`: hashed identifiers of removed examples; `released`: of components that were composed or exported and
    then removed, what they spent (None: no account) and the hashed units they saw; `public`: hashed identifiers of the
    public images of these; `accounts`: both as journaled, by the hash of what they say and of the files of the
    components that left: of a store and its copy, a common account counts once, and one of either alone counts too.
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

    def has_forgotten(self, identifier: str) -> bool:
        """True where an example of this content identifier was removed from the store."""
        return not self.forgotten.isdisjoint(hidden([identifier]))

    def apply(self, line: dict[str, Any]) -> None:
        """Takes one more line into the state."""
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
        else:
            do = "Update tangent_jax; nothing was changed"
            raise refusal("Store", "operations that this version knows", f"{operation!r}, of a later version", do)

    def leave(self, line: dict[str, Any]) -> None:
        """Components go, others may take their names, and the survivors' sum is there."""
        gone = {*line["removed"]}
        files = sorted(entry["id"] for name, entry in self.components.items() if name in gone)
        self.components = {n: e for n, e in self.components.items() if n not in gone} | line.get("added", {})
        self.composed = {i: e for i, e in self.composed.items() if not gone & {*e["names"]}}
        if line.get("composed"):
            self.composed[line["composed"]["id"]] = {**line["composed"], "names": line["names"]}
            self.shown |= {self.components[name]["id"] for name in line["names"]}
        if "receipt" in line:
            self.receipts[line["receipt"]] = line["receipt_hash"]
        self.forgotten |= {*line.get("forgotten", ())}
        self.release(line.get("released", ()), files)

    def merge(self, line: dict[str, Any]) -> None:
        """Takes in what left another store: it stays spent and named where its components are now."""
        self.release(line["released"])
        self.exports += [read_export(*said) for said in line["exports"]]
        self.shown |= {self.components[name]["id"] for name in line["showed"] if name in self.components}

    def release(self, accounts: Iterable[dict[str, Any]], files: Iterable[str] = ()) -> None:
        """Takes in the accounts of components, of these files, that were shown and then left."""
        for number, part in enumerate(accounts):
            part = {"of": [number, *files], **part}
            self.accounts[fingerprint(json.dumps(part, sort_keys=True).encode())] = part
            account = None if part["privacy"] is None else Spent.from_json(part["privacy"], "Store", "the journal")
            hashes, public = (
                convert(Hashes, part.get(f, ()), "Store", f"{f} of the journal") for f in ("examples", "public")
            )
            self.released.append((account, frozenset(hashes)))
            self.public |= {*public}

    def accounts_shown(self, before: Mapping[str, Provenance]) -> list[dict[str, Any]]:
        """The accounts of components that go, where they were composed or exported: those stay spent."""
        shown = [was for name, was in before.items() if self.components[name]["id"] in self.shown]
        lines: list[dict[str, Any]] = []
        for was in shown:
            if was.privacy is not None:
                account = dataclasses.asdict(was.privacy)
                public = sorted(hidden(identifier for identifier, _ in was.public))
                lines.append({"privacy": account, "examples": sorted(hidden(was.protected_units())), "public": public})
        return lines + [{"privacy": None, "examples": []}] * (len(lines) < len(shown))  # of no account

    def files(self) -> list[dict]:
        """The entries of all files: components, compositions, and the components' factors."""
        return with_factors([*self.components.values(), *self.composed.values()])


def with_factors(entries: list[dict]) -> list[dict]:
    """The entries, and those of the factors that they have."""
    return entries + [entry["factors"] for entry in entries if entry.get("factors")]


def replay(entries: Iterable[dict[str, Any]]) -> State:
    """The state that the journal's lines make; InputError for a line that this version does not know."""
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
            raise refusal("Store", expected, got, do) from error
        require(known, "Store", expected, f"line {number}", do)
    return state


def is_well_formed(line: dict[str, Any]) -> bool:
    """True where every file that a line brings is one that a store writes, with its hashes.

    Only what the line itself brings is looked at: lines before it have been, so a journal is read in linear time.
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
