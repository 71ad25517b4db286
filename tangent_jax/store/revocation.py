"""What a store signs: the list of its exports that hold what has left it (io/revoked.py reads it), and receipts.

An export is on the list from the first removal of a component that it was made of, or of an image of a component that
was replaced since (`Store.discard`). A component is known by its numbers, under any name. The list holds identities of
exports, hashes of receipts and days: no image, no component and no folder.
"""

import dataclasses
import json
from collections.abc import Container, Iterable
from pathlib import Path

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import write_whole
from tangent_jax.io.revoked import REVOKED
from tangent_jax.io.signing import key_id, make_key, make_statement, public_text, read_private_keys, sign
from tangent_jax.store.disk import SIGNING
from tangent_jax.store.lines import Exported, Line, Remove, timestamp
from tangent_jax.store.receipts import as_statement, read_receipt
from tangent_jax.store.state import State
from tangent_jax.store.store import Store


@dataclasses.dataclass(frozen=True)
class Revoked:
    """An export that holds what has left; receipt: the SHA-256 of the removal's receipt, day: its day (UTC)."""

    export: Exported
    receipt: str
    day: str

    def can_be_listed(self, keys: Container[str]) -> bool:
        """True if a list that these keys sign, by their identifiers, can hold the export."""
        return bool(self.export.identity) and self.export.key in keys


def revoked_exports(lines: Iterable[Line], receipts: Container[str] | None = None) -> list[Revoked]:
    """The exports that hold what a later line removed, each with the first such removal.

    `receipts`: the hashes of the receipts of the removals that count, None for all.
    """
    found: dict[Exported, Revoked] = {}
    state = State()
    for line in lines:
        if isinstance(line, Remove) and (receipts is None or line.receipt_hash in receipts):
            held = state.exports_of(line.removed, line.forgotten + line.replaced)
            found = {export: Revoked(export, line.receipt_hash, line.time[:10]) for export in held} | found
        state.apply(line)
    return [*found.values()]


def own_keys(store: Store) -> set[str]:
    """The identifiers of the keys that sign a store's lists; none before the first export that a list can revoke.

    Raises: InputError if there are keys, and cryptography is not installed.
    """
    path = store.root / SIGNING
    return {key_id(public_text(key)) for key in read_private_keys(path)} if path.is_file() else set()


def write_revoked(store: Store, path: Path) -> tuple[list[Revoked], list[Revoked]]:
    """Writes the signed list to a file; returns what is on it, and what ought to be, but no key here can revoke it.

    Such exports have no key (made without cryptography), or a key that was lost.
    Raises: InputError if the store has no key that signs, or cryptography is not installed.

    >>> _ = (store := demo.store()).release("served", store.sum())
    >>> _ = tj.store.remove(store, tj.store.plan_removal(store, names=["bob"]))
    >>> listed, others = write_revoked(store, demo.folder() / "revoked.json")
    >>> len(listed), len(others)
    (1, 0)
    """
    if path.is_dir():
        raise InputError(f"the list of revoked exports must be a file; got the folder {path}")
    with store.using():
        keys = store.root / SIGNING
        if not keys.is_file():
            raise InputError(
                f"{store.root} must have {SIGNING}, which an export makes where cryptography is installed; it has "
                "none. Run pip install 'tangent-jax[sign]', and export again: no list revokes earlier exports"
            )
        here = own_keys(store)
        found = revoked_exports(store.state.lines)
        listed = [own for own in found if own.can_be_listed(here)]
        exports = [{"export": own.export.identity, "receipt": own.receipt, "day": own.day} for own in listed]
        statement = make_statement(
            {"journal": store.journal.last()}, REVOKED, {"time": timestamp(), "exports": exports}
        )
        write_whole(path, json.dumps(sign(statement, keys), indent=1) + "\n")
    return listed, [own for own in found if own not in listed]


def sign_receipt(store: Store, receipt: Path, path: Path) -> None:
    """Writes a receipt, signed with the store's key, to a file: a DSSE envelope, whose public half exports hold.

    Raises: InputError if the receipt does not hold in this store, or the package cryptography is not installed.
    """
    wrong = store.verify_receipt(receipt)
    if wrong:
        raise InputError(f"a receipt must hold before it is signed; it does not: {wrong[0]}")
    with store.using(change=True):
        if not (store.root / SIGNING).exists():
            make_key(store.root / SIGNING)
        envelope = sign(as_statement(read_receipt(receipt)[0]), store.root / SIGNING)
    write_whole(path, json.dumps(envelope, indent=1) + "\n")
