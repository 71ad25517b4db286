"""Checks a store against its journal, and a receipt against a store."""

import os
from pathlib import Path

from tangent_jax.core import trees
from tangent_jax.core.checks import InputError, visible
from tangent_jax.io.files import expand_path, file_fingerprint
from tangent_jax.store.disk import MARKS
from tangent_jax.store.receipts import read_receipt, survivors_of
from tangent_jax.store.store import Store


def verify(store: Store) -> list[str]:
    """One line for each file that is missing, altered or not the store's; none if all is as journaled.

    >>> store = demo.store()
    >>> (store.root / "note.txt").write_text("mine")
    4
    >>> tj.store.verify(store)
    ["note.txt: not the store's (a killed writer's leftover goes with the next change)"]
    """
    with store.using():
        expected = fingerprints(store)
        wrong = [f"{path}: missing" for path in expected if not os.path.lexists(path)]
        plain = {path for path in store.root.rglob("*") if path.is_file() and not path.is_symlink()}
        wrong += [f"{p}: altered" for p, sha in expected.items() if p in plain and file_fingerprint(p) != sha]
        marks = {store.root / name for name in (*MARKS, "lock")}
        odd = {p for p in store.root.rglob("*") if p not in plain and (p.is_symlink() or not p.is_dir())}
        wrong += [f"{path}: a link, device or pipe" for path in odd]
        extra = plain - {*expected} - marks
        left = "not the store's (a killed writer's leftover goes with the next change)"
        wrong += [f"{path}: {left}" for path in extra]
        torn = f"{len(store.journal.rest)} bytes after the last line: of a killed writer, or appended"
        wrong += [f"{store.journal.path}: {torn}"] if store.journal.rest else []
        try:
            _ = store.key
        except InputError as error:
            wrong.append(str(error))
    return [visible(line.replace(f"{store.root}/", "")) for line in sorted(wrong)]


def fingerprints(store: Store) -> dict[Path, str]:
    """The SHA-256 that each file of the store must have, by its path."""
    paths = {store.root / kind / f"{entry.id}.safetensors": entry.file for kind, entry in store.state.files()}
    return paths | {store.root / "receipts" / f"{name}.json": sha for name, sha in store.state.receipts.items()}


def verify_receipt(store: Store, path: str | os.PathLike) -> list[str]:
    """One line for each claim of a receipt that is false; none if the removal holds.

    Checks that this store's journal committed the receipt, that no removed component is in the store, and, if
    nothing was added or removed since, that the survivors' sum is the receipt's.

    >>> store = demo.store()
    >>> receipt = tj.store.remove(store, tj.store.plan_removal(store, names=["bob"]))
    >>> tj.store.verify_receipt(store, receipt.path)
    []
    """
    path = expand_path(path)
    receipt, text_fingerprint = read_receipt(path)
    with store.using():
        wrong = []
        if text_fingerprint not in store.state.receipts.values():
            edited = receipt.store == store.identity
            kind = "edited or forged: its journal has no such receipt" if edited else "that of another store"
            wrong.append(f"{path}: no receipt of {store.root}, but {kind}")
        held = {name: trees.fingerprint(store.read_tree(name)) for name in store}
        removed = {*receipt.removed.values()}
        back = [name for name, weights in held.items() if store.key.hide(weights) in removed]
        wrong += [f"{name}: is a removed component" for name in back]
        unchanged = held and receipt.survivors == survivors_of(held, store.key)
        if unchanged and trees.fingerprint(store.sum()) != receipt.composed_after:
            wrong.append("the survivors' sum is not the receipt's")
    return wrong
