"""Components on disk: trained steps with their provenance, added, summed, removed, exported; disk.py is their folder.

    with store.using(change=True): write files, then commit the journal's line, then delete what the line took out

An operation is the line that it appends to the journal; state.py knows what each means. Every read checks its hash.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tangent_jax.components import sums
from tangent_jax.components.disk import MARKS, Disk, Factors
from tangent_jax.components.merge import merge
from tangent_jax.components.provenance import Provenance, check_same
from tangent_jax.components.receipts import Optimum, Receipt, Traces, check_spelling, read_receipt
from tangent_jax.components.state import hidden
from tangent_jax.components.steps import read_metadata, read_step
from tangent_jax.core import Tree, require, trees
from tangent_jax.core.files import digest, file_digest, write_whole
from tangent_jax.privacy.mechanism import spent_together
from tangent_jax.solver.curvature import Curvature


class Retrained(NamedTuple):
    """What takes a removed component's place; `distance_bound`: |grad L_retain| / lambda; `optimum`: if it is one;
    `factors`: its curvature, where the removed had one."""

    dw: Tree
    provenance: Provenance
    distance_bound: float
    optimum: Optimum | None = None
    factors: Curvature | None = None


class Store(Disk, Mapping[str, Tree]):
    """A folder of components that compose, by name; safe against kills and other processes, verified byte by byte.

    A mapping: `store[name]` reads one component's dw, as memory maps on the host; names come sorted. It is made in a
    folder that does not exist yet or is empty, never in one of other files.
    """

    # What is there

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.state.components))

    def __len__(self) -> int:
        return len(self.state.components)

    def __contains__(self, name: object) -> bool:
        return name in self.state.components

    def __getitem__(self, name: str) -> Tree:
        path, entry = self.path(name), self.state.components[name]
        return self.checked(path, entry)

    def provenance(self, name: str) -> Provenance:
        """Where a component came from; its text is checked against the journal."""
        path, entry = self.path(name), self.state.components[name]
        text = read_metadata(path).get("provenance", "")
        whole = digest(text.encode()) == entry["origin"] if "origin" in entry else file_digest(path) == entry["file"]
        require(whole, "Store", f"the unaltered provenance of {name}", f"another in {path}", "Run verify")
        return Provenance.from_json(text, f"the provenance of {name}")

    def path(self, name: str) -> Path:
        """The file of a component."""
        require(name in self.state.components, "Store", "the name of a component", f"{name} in {self.root}")
        return self.file("components", self.state.components[name])

    def spent(self, names: Sequence[str]) -> dict | None:
        """What components spent together (`spent_together`), or None where one has kept no account.

        Components that were composed or exported here and then removed still count: what left cannot be called back.
        """
        origins = [self.provenance(name) for name in names]
        parts = [(origin.spent, frozenset(hidden(origin.identifiers))) for origin in origins] + self.state.released
        accounts = [(spent, examples) for spent, examples in parts if spent is not None]
        return spent_together(accounts) if accounts and len(accounts) == len(parts) else None

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

    def add(self, name: str, dw: Tree, provenance: Provenance, factors: Curvature | None = None) -> None:
        """Adds a component; with its Kronecker factors it can be merged by curvature.

        Raises: InputError if the name is taken, its weights are here under another name, a leaf is missing, not finite
                or of another shape, it could not be summed with those here, or it saw an example that was removed.
        """
        check_spelling(name)
        with self.using(change=True):
            require(name not in self, "Store.add", "a new name", f"{name}, which {self.root} holds")
            first = min(self, default=None)
            if first is not None:
                check_same("Store.add", self.provenance(first), provenance)
            check_step(dw, provenance)
            if first is not None:
                check_shapes(dw, read_step(self.path(first), check=False)[0])
            self.check_forgotten("Store.add", provenance)
            new = self.write("components", dw, provenance)
            same = [n for n, entry in self.state.components.items() if entry["weights"] == new["weights"]]
            if same:
                self.sweep()  # of what was just written
            require(not same, "Store.add", "weights that no other component has", f"those of {same[:1]}")
            self.commit({"op": "add", "name": name, **new, **self.write_factors(factors, provenance)})

    def check_forgotten(self, function: str, provenance: Provenance) -> None:
        """Raises InputError where a component saw an example that was removed from this store."""
        back = [name for i, name in provenance.examples if self.state.has_forgotten(i)]
        got = f"{len(back)} that were, such as {back[:1]}"
        require(not back, function, "examples that were not removed from this store", got, "Train without them")

    def compose(self, weights: Mapping[str, float] | None = None, how: str = "mean", penalty: float = 1e-3) -> Tree:
        """The mean of all components, or the given weighted sum, in the order of the names; kept and journaled.

        Args:       how, penalty: as `merge`; every component must have its factors then.
        Guarantees: reads one component at a time; the same bits for the same components, whatever came and went.
        """
        with self.using(change=True):
            return self.composing(weights, how, penalty)

    def composing(self, weights: Mapping[str, float] | None, how: str = "mean", penalty: float = 1e-3) -> Tree:
        for name in weights or {}:
            self.path(name)
        require(how == "mean" or not weights, "Store.compose", "weights, or another merge than mean", "both")
        names = sorted(weights or self.state.components)
        dw = sums.compose(self, weights or None) if how == "mean" else merge(self, Factors(self), how, penalty)
        line = {"op": "compose", "names": names, "weighted": weights, "privacy": self.spent(names)}
        line |= {} if how == "mean" else {"merge": how, "penalty": penalty}
        self.commit({**line, **self.write("composed", dw)})
        return dw

    def release(self, path: str | os.PathLike) -> Tree:
        """Composes all components for an export to `path`, and journals that the sum leaves: before it does.

        So no kill and no removal in between can hide an export from a later receipt.
        """
        with self.using(change=True):
            names, dw = sorted(self.state.components), self.composing(None)
            self.commit({"op": "export", "names": names, "path": str(path), "result": trees.fingerprint(dw)})
        return dw

    def discard(self, names: Sequence[str]) -> None:
        """Takes components out because others will take their place: their examples may come back, no receipt."""
        with self.using(change=True):
            removed = {name: self.provenance(name) for name in names}
            self.commit({"op": "discard", "removed": sorted(names), "released": self.was_released(removed)})

    def remove(
        self,
        names: Sequence[str],
        *,
        asked: Sequence[str] = (),
        retrained: Mapping[str, Retrained] | None = None,
        traces: Traces | None = None,
    ) -> tuple[str, dict]:
        """Takes components out, deletes their weights and every composition that held them, and recomposes.

        Args:       names: the components; asked: the examples that this answers, by identifier or name;
                    retrained: what takes a removed component's place, under the same name; traces: what was deleted
                    besides (`erase_traces`), for the receipt.
        Returns:    (the receipt's ID, the receipt).
        Guarantees: the recomposed weights are bitwise those of a store that never held the components. The removed
                    examples cannot come back: those asked for or, if none were, all that no survivor saw.
        """
        retrained = dict(retrained or {})
        with self.using(change=True):
            before, traces = self.check_removal(names, asked, retrained), traces or Traces([], [])
            removed = {name: self.state.components[name] for name in names}
            added: dict[str, Any] = {}
            for name, new in retrained.items():
                added[name] = self.write("components", new.dw, new.provenance)
                added[name] |= self.write_factors(new.factors, new.provenance)
            now = {n: e for n, e in self.state.components.items() if n not in removed} | added
            steps = (self.checked(self.file("components", now[name]), now[name]) for name in sorted(now))
            composed = self.write("composed", sums.mean(steps, len(now))) if now else {}
            whole = [e["weights"] for e in self.state.composed.values() if e["names"] == sorted(self)]
            receipt = Receipt(
                removed={name: entry["weights"] for name, entry in removed.items()},
                retrained={name: entry["weights"] for name, entry in added.items()},
                survivors={name: entry["weights"] for name, entry in sorted(now.items())},
                composed_before=whole[-1] if whole else None,
                composed_after=composed.get("weights"),
                exported_before=tuple(path for held, path in self.state.exports if held & {*removed}),
                asked=tuple(asked),
                distance_bounds={name: float(new.distance_bound) for name, new in retrained.items()},
                deleted=tuple(traces.deleted),
                not_reached=tuple(traces.not_reached),
                optima={name: new.optimum for name, new in retrained.items() if new.optimum is not None},
                store=self.identity,
                journal=self.journal.last(),
            )
            text = json.dumps(dataclasses.asdict(receipt), indent=1) + "\n"
            receipt_id = digest(text.encode())[:16]
            write_whole(self.root / "receipts" / f"{receipt_id}.json", text)
            line: dict[str, Any] = {"op": "remove", "removed": sorted(removed), "added": added, "names": sorted(now)}
            line |= {"composed": composed, "receipt": receipt_id, "receipt_hash": digest(text.encode())}
            line |= {"forgotten": sorted(hidden(self.going(before, asked))), "released": self.was_released(before)}
            self.commit(line)
        return receipt_id, json.loads(text)

    def check_removal(
        self, names: Sequence[str], asked: Sequence[str], retrained: Mapping[str, Retrained]
    ) -> dict[str, Provenance]:
        """The components' origins; InputError for a removal that cannot be done, or would leave what must go."""
        require(names and len(set(names)) == len(names), "Store.remove", "distinct names, at least one", names)
        require(set(retrained) <= set(names), "Store.remove", "retrained among the removed", sorted(retrained))
        do = "Say which examples must go"
        require(asked or not retrained, "Store.remove", "examples asked for, to retrain without", "none", do)
        before = {name: self.provenance(name) for name in names}
        gone = self.going(before, asked)
        for name, new in retrained.items():
            check_same("Store.remove", before[name], new.provenance)
            check_step(new.dw, new.provenance)
            left = gone & new.provenance.identifiers
            require(not left, "Store.remove", f"{name} retrained without what is removed", sorted(left)[:1])
            self.check_forgotten("Store.remove", new.provenance)
        return before

    def going(self, before: Mapping[str, Provenance], asked: Sequence[str]) -> set[str]:
        """The identifiers that a removal takes away: those asked for, or all that no surviving component saw."""
        if asked:
            return {i for was in before.values() for i, name in was.examples if {i, name} & {*asked}}
        left = {i for name in self if name not in before for i in self.provenance(name).identifiers}
        return {i for was in before.values() for i in was.identifiers} - left

    def was_released(self, before: Mapping[str, Provenance]) -> list[dict[str, Any]]:
        """What components that go have spent, where they were composed or exported: it stays spent."""
        shown = [was for name, was in before.items() if self.state.components[name]["id"] in self.state.shown]
        private = [was for was in shown if was.privacy is not None]
        lines = [{"privacy": was.privacy, "examples": sorted(hidden(was.identifiers))} for was in private]
        return lines + [{"privacy": None, "examples": []}] * (len(private) < len(shown))  # of no account

    # How it proves itself

    def verify(self) -> list[str]:
        """One line for each file that is missing, altered or not the store's; none where all is as journaled."""
        with self.using():
            state = self.state
            expected = {self.file("components", e): e["file"] for e in state.components.values()}
            expected |= {self.file("composed", e): e["file"] for e in state.composed.values()}
            kept = [e["factors"] for e in state.components.values() if e.get("factors")]
            expected |= {self.file("factors", e): e["file"] for e in kept}
            expected |= {self.root / "receipts" / f"{name}.json": whole for name, whole in state.receipts.items()}
            wrong = [f"{path}: missing" for path in expected if not path.exists()]
            wrong += [f"{p}: altered" for p, whole in expected.items() if p.exists() and file_digest(p) != whole]
            marks = {self.root / name for name in (*MARKS, "lock")}
            extra = {path for path in self.root.rglob("*") if path.is_file()} - {*expected} - marks
            left = "not the store's (a killed writer's leftover goes with the next change)"
            wrong += [f"{path}: {left}" for path in extra]
            torn = f"{len(self.journal.rest)} bytes after the last line: of a killed writer, or appended"
            wrong += [f"{self.journal.path}: {torn}"] if self.journal.rest else []
        return [line.replace(f"{self.root}/", "") for line in sorted(wrong)]

    def verify_receipt(self, path: str | os.PathLike) -> list[str]:
        """What in a receipt is not so; none where the removal stands.

        Checked: the receipt is one that this store's journal committed; none of the removed weights is in the store;
        the survivors' sum is what it says, as long as nothing else has come or gone since.
        """
        receipt, text_hash = read_receipt(Path(path))
        with self.using():
            wrong = []
            if text_hash not in self.state.receipts.values():
                edited = receipt.store == self.identity
                kind = "edited or forged: its journal has no such receipt" if edited else "that of another store"
                wrong.append(f"{path}: no receipt of {self.root}, but {kind}")
            held = {name: trees.fingerprint(self[name]) for name in self}
            removed = {*receipt.removed.values()}
            wrong += [f"{name}: holds the removed weights" for name, weights in held.items() if weights in removed]
            unchanged = held == receipt.survivors and held
            if unchanged and trees.fingerprint(sums.compose(self)) != receipt.composed_after:
                wrong.append("the survivors' sum is not the receipt's")
        return wrong


def check_step(dw: Tree, provenance: Provenance) -> None:
    """Raises InputError for a step that is empty, has other leaves than its provenance says, or is not finite."""
    leaves = trees.leaves(dw)
    do = "Add what finetune or private wrote"
    require(leaves, "Store.add", "a step with leaves", "none", do)
    differing = sorted({*leaves} ^ {*provenance.subset})
    require(not differing, "Store.add", "the leaves that the provenance names", f"a difference in {differing[:1]}", do)
    for path, leaf in leaves.items():
        require(np.isfinite(np.asarray(leaf, np.float32)).all(), "Store.add", f"{path} finite", "NaN or infinity", do)


def check_shapes(dw: Tree, other: Tree) -> None:
    """Raises InputError naming the first leaf whose shape is not that of another component's."""
    shapes = {path: leaf.shape for path, leaf in trees.leaves(other).items()}
    for path, leaf in trees.leaves(dw).items():
        require(leaf.shape == shapes[path], "Store.add", f"{path} of shape {shapes[path]}", leaf.shape)
