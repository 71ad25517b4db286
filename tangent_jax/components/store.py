"""Components on disk: trained steps with their provenance, one commit point, every byte under a hash.

    journal.jsonl               one line per add, compose, remove, export (journal.py), and HEAD, which counts them
    components/ID.safetensors   dw, its provenance in the metadata (steps.py)
    composed/ID.safetensors     a sum of components
    receipts/ID.json            what a removal did
    lock                        held while the store is used; names the process that changes it

The store *is* what the journal says. An operation writes what it adds, then its line (the commit), then deletes
what the line took out; the next writer deletes every file that the journal does not name. So a store killed at any
instruction reopens as it was before the operation, or as after.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from tangent_jax.components import sums
from tangent_jax.components.journal import Journal
from tangent_jax.components.provenance import Provenance, check_same
from tangent_jax.components.steps import encode_step, read_metadata, read_step
from tangent_jax.core import Tree, refusal, require, trees
from tangent_jax.core.files import digest, locked, write_whole
from tangent_jax.privacy.mechanism import Spent, spent_together

STATEMENT = (
    "Exact for the components named: their weights and every composition that held them are deleted from this store, "
    "and the composed weights are bitwise those of a store that never held them. Not covered: the pre-trained anchor, "
    "settings chosen with the removed data, compositions exported before (listed), and copies or backups made by "
    "other programs. A distance bound is |grad L_retain(dw)| / lambda: a retrained component is at most that far, in "
    "L2, from the optimum on the data it retains."
)


class Retrained(NamedTuple):
    """What takes a removed component's place; `distance_bound`: |grad L_retain| / lambda."""

    dw: Tree
    provenance: Provenance
    distance_bound: float


class Store(Mapping[str, Tree]):
    """A folder of components that compose, by name; safe against kills and other processes, verified byte by byte.

    A mapping: `store[name]` reads one component's dw, as memory maps on the host; names come sorted.
    """

    def __init__(self, root: str | os.PathLike) -> None:
        self.root = Path(root).expanduser().absolute()
        self.root.mkdir(parents=True, exist_ok=True)
        self.components: dict[str, dict] = {}
        self.composed: dict[str, dict] = {}
        self.receipts: dict[str, str] = {}
        self.journal = Journal(self.root)
        with self.using():
            pass

    # What is there

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.components))

    def __len__(self) -> int:
        return len(self.components)

    def __contains__(self, name: object) -> bool:
        return name in self.components

    def __getitem__(self, name: str) -> Tree:
        return read_step(self.path(name))[0]

    def provenance(self, name: str) -> Provenance:
        """Where a component came from."""
        path = self.path(name)
        try:
            return Provenance.from_json(read_metadata(path)["provenance"])
        except (ValueError, KeyError, TypeError) as error:
            raise refusal("Store", f"the provenance of {name}", "damaged metadata", "Run verify") from error

    def path(self, name: str) -> Path:
        """The file of a component."""
        require(name in self.components, "Store", "the name of a component", f"{name} in {self.root}")
        return self.file("components", self.components[name])

    def file(self, kind: str, entry: Mapping[str, str]) -> Path:
        do = f"Convert it: python -m experiments.store convert --store={self.root}"
        old = "files" in entry
        require(not old, "Store", "a store of this version", f"one of version 0.1 in {self.root}", do)
        return self.root / kind / f"{entry['id']}.safetensors"

    def spent(self, names: Sequence[str]) -> dict | None:
        """What components spent together (`spent_together`), or None where one has kept no account."""
        origins = [self.provenance(name) for name in names]
        accounts = [(Spent.from_json(o.privacy), frozenset(dict(o.examples))) for o in origins if o.privacy is not None]
        return spent_together(accounts) if len(accounts) == len(origins) else None

    def holding(self, examples: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Which components saw the given examples, and which examples none did.

        Args:    examples: content identifiers, or names of files.
        Returns: (component -> identifiers it saw, unknown); a copy under another name in another shard has
                 the same identifier, and is found.
        """
        seen = {name: self.provenance(name).examples for name in self}
        names: dict[str, set[str]] = {}
        for pairs in seen.values():
            for identifier, name in pairs:
                names.setdefault(name, set()).add(identifier)
                names.setdefault(identifier, set()).add(identifier)
        asked = set().union(*(names.get(example, set()) for example in examples))
        affected = {component: sorted(asked & {i for i, _ in pairs}) for component, pairs in seen.items()}
        return {c: held for c, held in affected.items() if held}, [e for e in examples if e not in names]

    # What changes it

    def add(self, name: str, dw: Tree, provenance: Provenance) -> None:
        """Adds a component. Raises InputError if the name is taken, or it could not be summed with those here."""
        require(re.fullmatch(r"[\w.\- ]+", name), "Store.add", "a name of letters, digits, '.', '-', '_'", name)
        with self.using(change=True):
            require(name not in self, "Store.add", "a new name", f"{name}, which {self.root} holds")
            if self.components:
                check_same("Store.add", self.provenance(min(self.components)), provenance)
            self.commit({"op": "add", "name": name, **self.write("components", dw, provenance)})

    def compose(self, weights: Mapping[str, float] | None = None) -> Tree:
        """The mean of all components, or the given weighted sum, in the order of the names; kept and journaled.

        Guarantees: reads one component at a time; the same bits for the same components, whatever came and went.
        """
        with self.using(change=True):
            for name in weights or {}:
                self.path(name)
            dw = sums.compose(self, weights or None)
            names = sorted(weights or self.components)
            line = {"op": "compose", "names": names, "weighted": weights, "privacy": self.spent(names)}
            self.commit({**line, **self.write("composed", dw)})
        return dw

    def remove(
        self, names: Sequence[str], *, asked: Sequence[str] = (), retrained: Mapping[str, Retrained] | None = None
    ) -> tuple[str, dict]:
        """Takes components out, deletes their weights and every composition that held them, and recomposes.

        Args:       names: the components; asked: the examples that this answers, for the receipt;
                    retrained: what takes a removed component's place, under the same name.
        Returns:    (the receipt's ID, the receipt).
        Guarantees: the recomposed weights are bitwise those of a store that never held the components.
        """
        retrained = dict(retrained or {})
        with self.using(change=True):
            self.check_removal(names, asked, retrained)
            removed = {name: self.components[name] for name in names}
            added = {name: self.write("components", new.dw, new.provenance) for name, new in retrained.items()}
            now = {n: e for n, e in self.components.items() if n not in removed} | added
            steps = (read_step(self.file("components", now[name]))[0] for name in sorted(now))
            composed = self.write("composed", sums.mean(steps, len(now))) if now else {}
            receipt = self.receipt(removed, added, now, composed)
            receipt |= {
                "asked": list(asked),
                "distance_bounds": {n: new.distance_bound for n, new in retrained.items()},
            }
            text = json.dumps(receipt | {"statement": STATEMENT}, indent=1) + "\n"
            receipt_id = digest(text.encode())[:16]
            write_whole(self.root / "receipts" / f"{receipt_id}.json", text)
            line = {"op": "remove", "removed": sorted(removed), "added": added, "names": sorted(now)}
            line |= {"composed": composed, "receipt": receipt_id, "receipt_hash": digest(text.encode())}
            self.commit(line)
        return receipt_id, json.loads(text)

    def check_removal(self, names: Sequence[str], asked: Sequence[str], retrained: Mapping[str, Retrained]) -> None:
        """Raises InputError for a removal that cannot be done, or would leave what is asked to go."""
        require(names and len(set(names)) == len(names), "Store.remove", "distinct names, at least one", names)
        require(set(retrained) <= set(names), "Store.remove", "retrained among the removed", sorted(retrained))
        before = {name: self.provenance(name) for name in names}
        gone = {i for was in before.values() for i, name in was.examples if {i, name} & {*asked}}
        for name, new in retrained.items():
            check_same("Store.remove", before[name], new.provenance)
            left = gone & {identifier for identifier, _ in new.provenance.examples}
            require(not left, "Store.remove", f"{name} retrained without what is removed", sorted(left)[:1])

    def receipt(self, removed: dict, added: dict, now: dict, composed: dict) -> dict:
        """What a removal did, by the fingerprints of weights."""
        whole = [e["weights"] for e in self.composed.values() if e["names"] == sorted(self.components)]
        exports = [line for line in self.journal.entries if line["op"] == "export" and {*line["names"]} & {*removed}]
        return {
            "removed": {name: entry["weights"] for name, entry in removed.items()},
            "retrained": {name: entry["weights"] for name, entry in added.items()},
            "survivors": {name: entry["weights"] for name, entry in sorted(now.items())},
            "composed_before": whole[-1] if whole else None,
            "composed_after": composed.get("weights"),
            "exported_before": [line["path"] for line in exports],
        }

    def exported(self, path: str | os.PathLike, weights: str) -> None:
        """Journals that the composition of all components left for `path`."""
        with self.using(change=True):
            names = sorted(self.components)
            self.commit({"op": "export", "names": names, "path": str(path), "result": weights})

    # How it proves itself

    def verify(self) -> list[str]:
        """One line for each file that is missing, altered or not the store's; none where all is as journaled."""
        with self.using():
            expected = {self.file("components", e): e["file"] for e in self.components.values()}
            expected |= {self.file("composed", e): e["file"] for e in self.composed.values()}
            expected |= {self.root / "receipts" / f"{name}.json": whole for name, whole in self.receipts.items()}
            wrong = [f"{path}: missing" for path in expected if not path.exists()]
            wrong += [
                f"{p}: altered" for p, whole in expected.items() if p.exists() and digest(p.read_bytes()) != whole
            ]
            known = {*expected, *(self.root / name for name in ("journal.jsonl", "HEAD", "lock"))}
            extra = {path for path in self.root.rglob("*") if path.is_file()} - known
            left = "not the store's (a killed writer's leftover goes with the next change)"
            wrong += [f"{path}: {left}" for path in extra]
        return [line.replace(f"{self.root}/", "") for line in sorted(wrong)]

    def verify_receipt(self, path: str | os.PathLike) -> list[str]:
        """What in a receipt is not so; none where the removal stands.

        Checked: the receipt is one that the journal committed; none of the removed weights is in the store; the
        survivors' sum is what it says, as long as nothing else has come or gone since.
        """
        text = Path(path).read_text()
        try:
            receipt = json.loads(text)
            survivors, removed = receipt["survivors"], set(receipt["removed"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise refusal("verify_receipt", "a receipt of a removal", f"{path} ({type(error).__name__})") from error
        wrong = [] if digest(text.encode()) in self.receipts.values() else [f"{path}: no receipt of {self.root}"]
        with self.using():
            held = {name: trees.fingerprint(self[name]) for name in self}
            wrong += [f"{name}: holds the removed weights" for name, weights in held.items() if weights in removed]
            unchanged = held == survivors and held
            if unchanged and trees.fingerprint(sums.compose(self)) != receipt["composed_after"]:
                wrong.append("the survivors' sum is not the receipt's")
        return wrong

    # Underneath

    def write(self, kind: str, dw: Tree, provenance: Provenance | None = None) -> dict[str, str]:
        """Writes a file that no journal line names yet, and returns what its line must say."""
        dw = jax.tree.map(np.asarray, dw)
        weights = trees.fingerprint(dw)
        content = encode_step(dw, {} if provenance is None else {"provenance": provenance.to_json()})
        identity = digest(f"{weights}{time.time_ns()}{os.getpid()}".encode())[:16]
        entry = {"id": identity, "weights": weights, "file": digest(content)}
        write_whole(self.file(kind, entry), content)
        return entry

    def commit(self, entry: dict) -> None:
        """Journals the operation: from here on it has happened."""
        self.journal.append(entry)
        self.replay()
        self.sweep()

    def replay(self) -> None:
        """The state that the journal's lines make."""
        self.components, self.composed, self.receipts = {}, {}, {}
        for line in self.journal.entries:
            entry = {key: line[key] for key in ("id", "weights", "file", "files") if key in line}
            if line["op"] == "add":
                self.components[line["name"]] = entry
            elif line["op"] == "convert":
                self.components, self.composed = dict(line["components"]), {}
            elif line["op"] == "compose":
                names = line["names"] if line["weighted"] is None else [*line["names"], "weighted"]
                self.composed[entry["id"]] = {**entry, "names": names}
            elif line["op"] == "remove":
                gone = set(line["removed"])
                self.components = {n: e for n, e in self.components.items() if n not in gone} | line["added"]
                self.composed = {i: e for i, e in self.composed.items() if not gone & {*e["names"]}}
                if line["composed"]:
                    self.composed[line["composed"]["id"]] = {**line["composed"], "names": line["names"]}
                self.receipts[line["receipt"]] = line["receipt_hash"]

    def sweep(self) -> None:
        """Deletes what no line names: removed weights, and what a killed writer left."""
        live = {entry["id"] for entry in [*self.components.values(), *self.composed.values()]} | {*self.receipts}
        for kind in ("components", "composed", "receipts"):
            for path in self.root.glob(f"{kind}/*"):
                if path.name.split(".")[0] not in live or path.suffix == ".partial":
                    delete(path)
        for path in self.root.glob("*.partial"):
            delete(path)

    @contextmanager
    def using(self, change: bool = False) -> Iterator[None]:
        """Holds the lock, shared for reading, alone for changing, with the state as the journal has it now."""
        with locked(self.root / "lock", shared=not change):
            self.journal.load()
            self.replay()
            if change:
                self.journal.settle()
                self.sweep()
            yield


def delete(path: Path) -> None:
    """Removes a file, or a folder of version 0.1."""
    if path.is_dir():
        for part in sorted(path.rglob("*"), reverse=True):
            part.rmdir() if part.is_dir() else part.unlink()
        path.rmdir()
    else:
        path.unlink()
