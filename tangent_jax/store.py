"""Components on disk: trained steps with their provenance, one commit point, every byte under a hash.

    journal.jsonl      one line per add, compose, remove, export (journal.py), and HEAD, which counts them
    components/ID/     dw/ (Orbax), provenance.json, files.json (SHA-256 of each file)
    composed/ID/       dw/, files.json
    receipts/ID.json   what a removal did
    lock               held while the store is used; names the process that changes it

The store *is* what the journal says. An operation writes what it adds, then its line (the commit), then deletes
what the line took out; whatever no line names is swept away by the next writer. So a store killed at any
instruction reopens as it was before the operation, or as after.
"""

import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from tangent_jax import compose, trees
from tangent_jax.checks import refusal, require
from tangent_jax.files import all_files, check_files, digest, synchronize, write_whole
from tangent_jax.journal import Journal
from tangent_jax.notation import Tree
from tangent_jax.privacy import Spent, spent_together
from tangent_jax.provenance import Provenance, check_same

STATEMENT = (
    "Exact for the components named: their weights and every composition that held them are deleted from this store, "
    "and the composed weights are bitwise those of a store that never held them. Not covered: the pre-trained anchor, "
    "settings chosen with the removed data, compositions exported before (listed), and copies or backups made by "
    "other programs. A distance bound is |grad L_retain(dw)| / lambda: a retrained component is at most that far, in "
    "L2, from the optimum on the data it retains."
)


class Store:
    """A directory of components that compose; safe against kills and other processes, verified byte by byte."""

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

    def provenance(self, name: str) -> Provenance:
        """Where a component came from."""
        return Provenance.from_json((self.folder(name) / "provenance.json").read_text())

    def read(self, name: str) -> Tree:
        """A component's dw, on the host."""
        return read_dw(self.folder(name))

    def folder(self, name: str) -> Path:
        require(name in self.components, "Store", "the name of a component", f"{name} in {self.root}")
        return self.root / "components" / self.components[name]["id"]

    def spent(self, names: Sequence[str]) -> dict | None:
        """What components spent together (`privacy.spent_together`), or None where one has kept no account."""
        origins = [self.provenance(name) for name in names]
        kept = [(Spent.from_json(o.privacy), frozenset(dict(o.examples))) for o in origins if o.privacy is not None]
        return spent_together(kept) if len(kept) == len(origins) else None

    def holding(self, examples: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Which components saw the given examples, and which examples none did.

        Args:    examples: content identifiers, or names of files.
        Returns: (component -> identifiers it saw, unknown); a copy under another name in another shard has
                 the same identifier, and is found.
        """
        seen = {name: self.provenance(name).examples for name in self.components}
        names: dict[str, set[str]] = {}
        for pairs in seen.values():
            for identifier, name in pairs:
                names.setdefault(name, set()).add(identifier)
                names.setdefault(identifier, set()).add(identifier)
        asked = set().union(*(names.get(example, set()) for example in examples))
        affected = {component: sorted(asked & {i for i, _ in pairs}) for component, pairs in seen.items()}
        return {c: found for c, found in affected.items() if found}, [e for e in examples if e not in names]

    # What changes it

    def add(self, name: str, dw: Tree, provenance: Provenance) -> None:
        """Adds a component. Raises InputError if the name is taken, or it could not be summed with those here."""
        require(re.fullmatch(r"[\w.\- ]+", name), "Store.add", "a name of letters, digits, '.', '-', '_'", name)
        with self.using(change=True):
            require(name not in self.components, "Store.add", "a new name", f"{name}, which {self.root} holds")
            if self.components:
                check_same("Store.add", self.provenance(min(self.components)), provenance)
            self.commit({"op": "add", "name": name, **self.write("components", dw, provenance)})

    def compose(self, weights: Mapping[str, float] | None = None) -> Tree:
        """The mean of all components, or the given weighted sum, in the order of the names; kept and journaled.

        Guarantees: reads one component at a time; the same bits for the same components, whatever came and went.
        """
        with self.using(change=True):
            for name in weights or {}:
                self.folder(name)
            dw = self.sum(self.components, weights)
            names = sorted(weights or self.components)
            line = {"op": "compose", "names": names, "weighted": weights, "privacy": self.spent(names)}
            self.commit({**line, **self.write("composed", dw)})
        return dw

    def remove(
        self,
        names: Sequence[str],
        *,
        asked: Sequence[str] = (),
        retrained: Mapping[str, tuple[Tree, Provenance]] | None = None,
        distance_bounds: Mapping[str, float] | None = None,
    ) -> tuple[str, dict]:
        """Takes components out, deletes their weights and every composition that held them, and recomposes.

        Args:       names: the components; asked: the examples that this answers, for the receipt;
                    retrained: what takes a removed component's place, under the same name;
                    distance_bounds: |grad L_retain| / lambda of each retrained one.
        Returns:    (the receipt's ID, the receipt).
        Guarantees: the recomposed weights are bitwise those of a store that never held the components.
        """
        retrained = dict(retrained or {})
        with self.using(change=True):
            require(names and len(set(names)) == len(names), "Store.remove", "distinct names, at least one", names)
            require(set(retrained) <= set(names), "Store.remove", "retrained among the removed", sorted(retrained))
            before = {name: self.provenance(name) for name in names}
            removed = {name: self.components[name] for name in names}
            gone = {i for was in before.values() for i, name in was.examples if {i, name} & {*asked}}
            for name, (_, provenance) in retrained.items():
                check_same("Store.remove", before[name], provenance)
                left = gone & {identifier for identifier, _ in provenance.examples}
                require(not left, "Store.remove", f"{name} retrained without what is removed", sorted(left)[:1])
            whole = [e["weights"] for e in self.composed.values() if e["names"] == sorted(self.components)]
            added = {name: self.write("components", dw, provenance) for name, (dw, provenance) in retrained.items()}
            now = {n: e for n, e in self.components.items() if n not in removed} | added
            dw = self.sum(now) if now else None
            composed = {} if dw is None else self.write("composed", dw)
            receipt = {
                "asked": list(asked),
                "removed": {name: entry["weights"] for name, entry in removed.items()},
                "retrained": {name: entry["weights"] for name, entry in added.items()},
                "survivors": {name: entry["weights"] for name, entry in sorted(now.items())},
                "composed_before": whole[-1] if whole else None,
                "composed_after": composed.get("weights"),
                "exported_before": [
                    line["path"]
                    for line in self.journal.entries
                    if line["op"] == "export" and {*line["names"]} & {*removed}
                ],
                "distance_bounds": dict(distance_bounds or {}),
                "statement": STATEMENT,
            }
            text = json.dumps(receipt, indent=1) + "\n"
            receipt_id = digest(text.encode())[:16]
            write_whole(self.root / "receipts" / f"{receipt_id}.json", text)
            self.commit(
                {
                    "op": "remove",
                    "removed": sorted(removed),
                    "added": added,
                    "names": sorted(now),
                    "composed": composed,
                    "receipt": receipt_id,
                    "receipt_hash": digest(text.encode()),
                }
            )
        return receipt_id, receipt

    def exported(self, path: str | os.PathLike, weights: str) -> None:
        """Journals that the composition of all components left for `path`."""
        with self.using(change=True):
            names = sorted(self.components)
            self.commit({"op": "export", "names": names, "path": str(path), "result": weights})

    # How it proves itself

    def verify(self) -> list[str]:
        """One line for each file that is missing, altered or not the store's; none where all is as journaled."""
        with self.using():
            wrong, known = [], {self.root / "journal.jsonl", self.root / "HEAD", self.root / "lock"}
            for kind, entries in (("components", self.components), ("composed", self.composed)):
                for entry in entries.values():
                    folder = self.root / kind / entry["id"]
                    known |= {*folder.rglob("*"), folder / "files.json"}
                    wrong += check_files(folder, entry["files"])
            for receipt_id, expected in self.receipts.items():
                path = self.root / "receipts" / f"{receipt_id}.json"
                known.add(path)
                if not path.exists() or digest(path.read_bytes()) != expected:
                    wrong.append(f"{path}: altered or missing")
            extra = {path for path in self.root.rglob("*") if path.is_file()} - known
            wrong += [
                f"{path}: not the store's (a killed writer's leftover goes with the next change)" for path in extra
            ]
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
            held = {name: trees.fingerprint(self.read(name)) for name in sorted(self.components)}
            wrong += [f"{name}: holds the removed weights" for name, weights in held.items() if weights in removed]
            same = held == survivors and held
            if same and trees.fingerprint(self.sum(self.components)) != receipt["composed_after"]:
                wrong.append("the survivors' sum is not the receipt's")
        return wrong

    # Underneath

    def sum(self, entries: Mapping[str, dict], weights: Mapping[str, float] | None = None) -> Tree:
        """The weighted sum (None: the mean) of components in the order of their names, one read at a time."""
        weights = weights or dict.fromkeys(entries, 1 / max(len(entries), 1))
        folders = (self.root / "components" / entries[name]["id"] for name in sorted(weights))
        return compose.weighted_sum(map(read_dw, folders), [weights[name] for name in sorted(weights)])

    def write(self, kind: str, dw: Tree, provenance: Provenance | None = None) -> dict[str, str]:
        """Writes a folder that no journal line names yet, and returns what its line must say."""
        dw = jax.tree.map(np.asarray, dw)
        weights = trees.fingerprint(dw)
        identity = digest(f"{weights}{time.time_ns()}{os.getpid()}".encode())[:16]
        folder = self.root / kind / identity
        folder.mkdir(parents=True)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder / "dw", dw)
        if provenance is not None:
            (folder / "provenance.json").write_text(provenance.to_json())
        shapes = {path: [leaf.shape, str(leaf.dtype)] for path, leaf in trees.leaves(dw).items()}
        (folder / "shapes.json").write_text(json.dumps(shapes))
        files = {str(path.relative_to(folder)): digest(path.read_bytes()) for path in all_files(folder)}
        (folder / "files.json").write_text(json.dumps(files, indent=1))
        for path in [*all_files(folder), *(p for p in folder.rglob("*") if p.is_dir()), folder, folder.parent]:
            synchronize(path)
        return {"id": identity, "weights": weights, "files": digest((folder / "files.json").read_bytes())}

    def commit(self, entry: dict) -> None:
        """Journals the operation: from here on it has happened."""
        self.journal.append(entry)
        self.replay()
        self.sweep()

    def replay(self) -> None:
        """The state that the journal's lines make."""
        self.components, self.composed, self.receipts = {}, {}, {}
        for line in self.journal.entries:
            made = {key: line[key] for key in ("id", "weights", "files") if key in line}
            if line["op"] == "add":
                self.components[line["name"]] = made
            elif line["op"] == "compose":
                names = line["names"] if line["weighted"] is None else [*line["names"], "weighted"]
                self.composed[made["id"]] = {**made, "names": names}
            elif line["op"] == "remove":
                gone = set(line["removed"])
                self.components = {n: e for n, e in self.components.items() if n not in gone} | line["added"]
                self.composed = {i: e for i, e in self.composed.items() if not gone & {*e["names"]}}
                if line["composed"]:
                    self.composed[line["composed"]["id"]] = {**line["composed"], "names": line["names"]}
                self.receipts[line["receipt"]] = line["receipt_hash"]

    def sweep(self) -> None:
        """Deletes what no line names: removed weights, and what a killed writer left."""
        live = {entry["id"] for entry in [*self.components.values(), *self.composed.values()]}
        for folder in [*self.root.glob("components/*"), *self.root.glob("composed/*")]:
            if folder.name not in live:
                shutil.rmtree(folder)
        for path in [*self.root.glob("receipts/*"), *self.root.glob("*.partial")]:
            if path.stem not in self.receipts:
                path.unlink()

    @contextmanager
    def using(self, change: bool = False) -> Iterator[None]:
        """Holds the lock, shared for reading, alone for changing; a process that must wait says for whom."""
        with (self.root / "lock").open("a+") as file:
            kind = fcntl.LOCK_EX if change else fcntl.LOCK_SH
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                print(f"Store: waiting for {file.read() or 'a reader'} to release {self.root}", file=sys.stderr)
                fcntl.flock(file, kind)
            self.journal.load()
            self.replay()
            if change:
                file.truncate(0)
                file.write(f"process {os.getpid()} ({Path(sys.argv[0]).name})")
                file.flush()
                self.journal.settle()
                self.sweep()
            try:
                yield
            finally:
                if change:
                    file.truncate(0)


def read_dw(folder: Path) -> Tree:
    """The tree of a component or composition, restored against the shapes it was written with."""
    try:
        shapes = json.loads((folder / "shapes.json").read_text())
        target = {path: np.broadcast_to(np.zeros((), kind), shape) for path, (shape, kind) in shapes.items()}
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(folder / "dw", trees.nest(target))
    except (OSError, ValueError, KeyError) as error:
        raise refusal("Store", "a whole component", f"{folder} ({str(error).splitlines()[0]})", "Run verify") from error
