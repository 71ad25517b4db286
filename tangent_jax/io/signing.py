"""Signed statements, in the formats that auditors' tools read: an in-toto Statement in a DSSE envelope, by Ed25519.

    statement = {"_type": STATEMENT, "subject": [{"name", "digest"}], "predicateType", "predicate"}
    signature = Ed25519(key, PAE(payloadType, payload))
    PAE(type, payload) = "DSSEv1" SP LEN(type) SP type SP LEN(payload) SP payload

The signature covers the very bytes of `payload`, and the type with them. Whoever has the public half checks it offline.
Keys are in PEM (PKCS #8, SubjectPublicKeyInfo), as `openssl genpkey -algorithm ed25519` makes them. A file may hold
several private keys: each signs. Needs the package cryptography, of the extra `sign`.

The reading half is copied into exports (exports/images.py): of this library it uses `InputError` alone.

Source: in-toto Attestation Framework, Statement v1; DSSE protocol 1.0.2 (secure-systems-lab); RFC 8032.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import write_whole

STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
END = b"-----END PRIVATE KEY-----\n"


def make_statement(subject: Mapping[str, str], predicate_type: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto Statement; `subject`: the SHA-256 (hex) of each artefact it is about, by the artefact's name."""
    artefacts = [{"name": name, "digest": {"sha256": digest}} for name, digest in subject.items()]
    return {"_type": STATEMENT, "subject": artefacts, "predicateType": predicate_type, "predicate": dict(predicate)}


def sign(statement: Mapping[str, Any], keys: Path) -> dict[str, Any]:
    """The DSSE envelope of a statement, signed with each private key in a PEM file."""
    payload = json.dumps(statement, sort_keys=True).encode()
    signatures = []
    for key in read_private_keys(keys):
        signature = base64.b64encode(key.sign(encoding_of(payload))).decode()
        signatures.append({"keyid": key_id(public_text(key)), "sig": signature})
    return {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": signatures}


def read_signed(path: Path, public_key: str, whose: str) -> dict[str, Any]:
    """The statement in the file of a DSSE envelope.

    Args:   public_key: the PEM text of the key that must have signed it; whose: the key in words, for messages.
    Raises: InputError if the file is no envelope of a statement, or this key did not sign it.
    """
    key = read_public_key(public_key, whose)
    try:
        envelope = json.loads(read_file(path))
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(signature["sig"], validate=True) for signature in envelope["signatures"]]
        kind = envelope["payloadType"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} must be a signed statement (a DSSE envelope); it is not ({error!r})") from error
    if kind != PAYLOAD_TYPE:
        raise InputError(f"{path} must be an envelope of the type {PAYLOAD_TYPE}; got {kind!r}")
    if not any(has_signed(key, payload, signature) for signature in signatures):
        raise InputError(f"{path} must be signed by {whose}; it is signed by another key, or was changed since")
    statement = json.loads(payload)
    if statement.get("_type") != STATEMENT:
        raise InputError(f"{path} must hold an in-toto statement, version 1; got {statement.get('_type')!r}")
    return statement


def encoding_of(payload: bytes) -> bytes:
    """The bytes that a signature covers: DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def has_signed(key: Any, payload: bytes, signature: bytes) -> bool:
    """True if a public key's private half signed this payload."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, encoding_of(payload))
    except InvalidSignature:
        return False
    return True


def make_key(path: Path) -> None:
    """Writes a new private key to a PEM file of mode 0600.

    Raises: InputError if the file exists.
    """
    need_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    if path.exists():
        raise InputError(f"a new key must not replace another; {path} exists")
    write_whole(path, text, private=True)


def join_keys(path: Path, other: Path) -> None:
    """Adds the private keys of another PEM file after those of a PEM file, which may not exist yet."""
    here = read_file(path).split(END) if path.exists() else []
    keys = dict.fromkeys(key for key in [*here, *read_file(other).split(END)] if key.strip())
    write_whole(path, b"".join(key + END for key in keys), private=True)


def public_half(path: Path) -> str:
    """The PEM text of the public half of the first private key in a PEM file."""
    return public_text(read_private_keys(path)[0])


def public_text(private: Any) -> str:
    """The PEM text of the public half of a private key."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return private.public_key().public_bytes(serialization.Encoding.PEM, form).decode()


def key_id(public: str) -> str:
    """The identifier of a public key: the SHA-256 of its PEM text."""
    return hashlib.sha256(public.encode()).hexdigest()


def read_private_keys(path: Path) -> list[Any]:
    """The Ed25519 private keys in a PEM file."""
    need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        texts = [text + END for text in read_file(path).split(END) if text.strip()]
        keys = [load_pem_private_key(text, password=None) for text in texts]
    except (ValueError, TypeError) as error:  # TypeError: the key has a password
        raise InputError(f"{path} must hold an Ed25519 private key (PEM, without a password); {error}") from error
    other = [type(key).__name__ for key in keys if not isinstance(key, Ed25519PrivateKey)]
    if other or not keys:
        raise InputError(f"{path} must hold an Ed25519 private key; got {other[0] if other else 'none'}")
    return keys


def read_public_key(text: str, whose: str) -> Any:
    """The Ed25519 public key in a PEM text; `whose`: the key in words, for messages."""
    need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode(errors="replace"))
    except ValueError as error:
        raise InputError(f"{whose} must be an Ed25519 public key (PEM); {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{whose} must be an Ed25519 public key; got {type(key).__name__}")
    return key


def read_file(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def need_cryptography() -> None:
    """Raises InputError if the package that signs is not installed."""
    if not can_sign():
        raise InputError(
            "signatures need the package cryptography, which is not installed; run pip install cryptography"
        )


def can_sign() -> bool:
    """True if the package that signs is installed."""
    return find_spec("cryptography") is not None
