"""Refuses an export that the store which made it has revoked: by a signed list, offline.

    revoked.json    a statement of `tangent-jax store revoked` (io/signing.py), with the exports that hold what has left

An export's provenance.json holds its identity, and the public half of the key that must have signed the list. The list
tells no image, component or folder. Exported programs have a copy of this module (exports/images.py): run.py --revoked.
"""

import hashlib
import json
from pathlib import Path

from tangent_jax.core.checks import InputError
from tangent_jax.io.signing import read_signed

REVOKED = "urn:tangent-jax:revoked-exports:v1"
"""The type of the predicate: {"time", "exports": [{"export", "receipt", "day"}, ...]}."""


def check_revoked(folder: Path, revoked: Path) -> None:
    """Raises InputError for an export on the list in the file `revoked`, and for a list that its store did not sign."""
    if revoked.is_dir():
        raise InputError(f"revoked must be a file that `tangent-jax store revoked` wrote; got the folder {revoked}")
    path = folder / "provenance.json"
    try:
        said = json.loads(path.read_bytes())
        export, key = said.get("export"), said.get("revocation_key")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} must be the export's own; it cannot be read ({error})") from error
    if not (isinstance(export, str) and isinstance(key, str)):
        raise InputError(
            f"{path} must hold a revocation_key, so that a list can be checked; it holds none: no store made the "
            "export, or cryptography was not installed. Export it again by `tangent-jax store export`"
        )
    for name, fingerprint in (said.get("files") or {}).items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != fingerprint:
            raise InputError(f"{path} must be the export's own; its {name} is another file than {folder} has")
    statement = read_signed(revoked, key, "the store that made the export")
    if statement.get("predicateType") != REVOKED:
        raise InputError(f"{revoked} must be a list of revoked exports; got {statement.get('predicateType')!r}")
    for entry in statement["predicate"]["exports"]:
        if entry["export"] == export:
            raise InputError(
                f"{folder} must not be used: its store revoked it on {entry['day']}, by the removal whose receipt has "
                f"the SHA-256 {entry['receipt']}. Take an export that was made later"
            )
