"""What `store` says of exports that have left: which are revoked, and proofs of their images."""

import json
import sys
from typing import Any

import tangent_jax as tj
from tangent_jax.commands.shared.flags import F, path_of
from tangent_jax.commands.shared.removing import read_asked
from tangent_jax.core.checks import InputError
from tangent_jax.io.files import write_whole
from tangent_jax.io.records import convert, parse_json, plain
from tangent_jax.store.proofs import Proof, check_proof
from tangent_jax.store.proofs import prove as prove_of
from tangent_jax.store.provenance import IDENTIFIER
from tangent_jax.store.revocation import write_revoked
from tangent_jax.store.summary import Summary


def revoked(store: tj.Store) -> dict[str, Any]:
    """Writes the signed list of exports that hold what has left to --to."""
    if not F.to:
        raise InputError("--to must be the file of the list; got none")
    listed, others = write_revoked(store, path_of("to"))
    for own in others:
        print(f"NOT on the list, as no key here revokes it: {own.export.path}; withdraw it by hand", file=sys.stderr)
    return {
        "revoked": [own.export.path for own in listed],
        "not_listed": [own.export.path for own in others],
        "to": F.to,
    }


def prove(store: tj.Store) -> dict[str, Any]:
    """Whether each image of --examples is in the export --source; writes the proofs to --to."""
    if not F.examples:
        raise InputError("--examples must be an image, a folder of images, or a file of identifiers; got none")
    asked = read_asked("examples", F.examples)
    names = [word for word in asked if not IDENTIFIER.fullmatch(word)]
    if names:
        raise InputError(f"--examples must be images, or identifiers of 64 hex digits; got {names[0]}")
    summary = exported_summary()
    proofs = [prove_of(store, summary, identifier) for identifier in asked]
    if F.to:
        write_whole(path_of("to"), json.dumps({"proofs": [plain(proof) for proof in proofs]}, indent=1) + "\n")
    answers = [check_proof(proof, summary) for proof in proofs]
    images = dict(zip(asked, answers, strict=True))
    return {"is_in": images, "proof": F.to}


def check() -> dict[str, Any]:
    """What the proofs in --check show of their images, by hidden form, and the export --source; needs no store."""
    path = path_of("check")
    if not path.is_file():
        raise InputError(f"--check must be a file that store prove --to wrote; {path} is none")
    fields = parse_json(path.read_bytes(), path)
    proofs: tuple[Proof, ...] = convert(tuple[Proof, ...], fields.get("proofs"), path)
    summary = exported_summary()
    return {"is_in": {proof.image: check_proof(proof, summary) for proof in proofs}, "proof": F.check}


def exported_summary() -> Summary:
    """The summary of the export in --source."""
    if not F.source:
        raise InputError("--source must be the folder of an export; got none")
    said = path_of("source") / "provenance.json"
    if not said.is_file():
        raise InputError(f"--source must be the folder of an export; {said} is not there")
    return convert(Summary, parse_json(said.read_bytes(), said).get("of"), f"of in {said}")
