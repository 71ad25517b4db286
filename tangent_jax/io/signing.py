"""Signed statements, in the formats that auditors' tools read: an in-toto Statement in a DSSE envelope, by Ed25519.

    statement = {"_type": STATEMENT, "subject": [{"name", "digest"}], "predicateType", "predicate"}
    signature = Ed25519(key, PAE(payloadType, payload))
    PAE(type, payload) = "DSSEv1" SP LEN(type) SP type SP LEN(payload) SP payload

The signature covers the very bytes of `payload`, and the type with them. Whoever has the public half checks it offline.
Keys are PEM files (PKCS #8, SubjectPublicKeyInfo), as `openssl genpkey -algorithm ed25519` makes them.
Needs the package cryptography (`pip install 'tangent-jax[sign]'`).

Source: in-toto Attestation Framework, Statement v1; DSSE protocol 1.0.2 (secure-systems-lab); RFC 8032.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import open_plain, replace_whole
from tangent_jax.io.records import parse_json

STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def make_statement(subject: Mapping[str, str], predicate_type: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto Statement; `subject`: the SHA-256 (hex) of each artefact it is about, by the artefact's name."""
    artefacts = [{"name": name, "digest": {"sha256": digest}} for name, digest in subject.items()]
    return {"_type": STATEMENT, "subject": artefacts, "predicateType": predicate_type, "predicate": dict(predicate)}


def sign(statement: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """The DSSE envelope of a statement, signed with the private key in a PEM file."""
    private = read_private_key(key)
    payload = json.dumps(statement, sort_keys=True).encode()
    signature = private.sign(encoding_of(payload))
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": key_id(private.public_key()), "sig": base64.b64encode(signature).decode()}],
    }


def read_signed(path: Path, public_keys: Sequence[Path]) -> dict[str, Any]:
    """The statement in the file of a DSSE envelope that one of these public keys signed.

    Raises: InputError if the file is no envelope of a statement, or none of the keys signed it.
    """
    content = read_file(path)
    envelope = parse_json(content, path)
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(signature["sig"], validate=True) for signature in envelope["signatures"]]
        is_statement = envelope["payloadType"] == PAYLOAD_TYPE
    except (KeyError, TypeError, binascii.Error) as error:
        raise InputError(f"{path} must be a signed statement (a DSSE envelope); it is not ({error})") from error
    if not is_statement:
        raise InputError(f"{path} must be an envelope of the type {PAYLOAD_TYPE}; got {envelope['payloadType']!r}")
    if not any(has_signed(public, payload, signature) for public in public_keys for signature in signatures):
        given = ", ".join(map(str, public_keys))
        raise InputError(f"{path} must be signed by the key of {given}; it is not, or it was changed since")
    statement = parse_json(payload, path)
    if statement.get("_type") != STATEMENT:
        raise InputError(f"{path} must hold an in-toto statement, version 1; got {statement.get('_type')!r}")
    return statement


def encoding_of(payload: bytes) -> bytes:
    """The bytes that a signature covers: DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def has_signed(public_key: Path, payload: bytes, signature: bytes) -> bool:
    """True if the key in a PEM file signed this payload."""
    from cryptography.exceptions import InvalidSignature

    try:
        read_public_key(public_key).verify(signature, encoding_of(payload))
    except InvalidSignature:
        return False
    return True


def make_key(path: Path) -> None:
    """Writes a new private key to a PEM file of mode 0600, and its public half beside it, with the suffix `.pub`.

    Raises: InputError if the file exists.
    """
    need_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    if path.exists():
        raise InputError(f"a new key must not replace another; {path} exists")
    replace_whole(path, text, private=True)  # no listener, which may copy it to a URL
    replace_whole(path.with_suffix(".pub"), public_text(private.public_key()))


def public_text(public: Any) -> bytes:
    """The PEM text of a public key."""
    from cryptography.hazmat.primitives import serialization

    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def key_id(public: Any) -> str:
    """The identifier of a public key: the SHA-256 of its PEM text."""
    return hashlib.sha256(public_text(public)).hexdigest()


def read_private_key(path: Path) -> Any:
    """The Ed25519 private key in a PEM file."""
    need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(read_file(path), password=None)
    except (ValueError, TypeError) as error:  # TypeError: the key has a password
        raise InputError(f"{path} must hold an Ed25519 private key (PEM, without a password); {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} must hold an Ed25519 private key; got {type(key).__name__}")
    return key


def read_public_key(path: Path) -> Any:
    """The Ed25519 public key in a PEM file."""
    need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(read_file(path))
    except ValueError as error:
        raise InputError(f"{path} must hold an Ed25519 public key (PEM); {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path} must hold an Ed25519 public key; got {type(key).__name__}")
    return key


def read_file(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        with open_plain(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def need_cryptography() -> None:
    """Raises InputError if the package that signs is not installed."""
    if not find_spec("cryptography"):
        raise InputError("signatures need the package cryptography; run pip install 'tangent-jax[sign]'")
