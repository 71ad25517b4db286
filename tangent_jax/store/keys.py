"""The key of a store, which hides what its lists and receipts say of removed images.

    hidden form = HMAC-SHA256(key, text),   text: a content identifier, an owner, or a word of a request

    keys.json    mode 0600: 32 random bytes (hex), made with the store

Without the key nobody can test whether a photograph is listed, even with a receipt or the list of removed images. The
key travels with copies of the store, never with an export or a receipt. A component's own file in the store keeps plain
identifiers, as it keeps the names of its images: a removal must find every copy of an image, also in components that
came from another store, and it deletes that file. So whatever leaves a store hides them first.

Source: HMAC, RFC 2104.
"""

import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path

from tangent_jax.core.checks import InputError
from tangent_jax.io.files import write_whole
from tangent_jax.io.records import read_sealed, seal_fields

SIZE = 32  # bytes


@dataclasses.dataclass(frozen=True)
class Key:
    """A secret of 32 random bytes."""

    secret: bytes = dataclasses.field(repr=False)

    @property
    def id(self) -> str:
        """16 hex digits that name the key and reveal nothing about it."""
        return hashlib.sha256(self.secret).hexdigest()[:16]

    def hide(self, text: str) -> str:
        """The hidden form (64 hex digits) of a content identifier, an owner, or a word of a request."""
        return hmac.digest(self.secret, text.encode(errors="surrogatepass"), "sha256").hex()

    def hide_all(self, texts: Iterable[str]) -> tuple[str, ...]:
        """The hidden forms of texts, sorted, so that their order reveals nothing."""
        return tuple(sorted({*map(self.hide, texts)}))


@dataclasses.dataclass(frozen=True)
class KeyFile:
    """The fields of keys.json."""

    key: str


def make_key() -> Key:
    """A new key."""
    return Key(secrets.token_bytes(SIZE))


def write_key(path: Path, key: Key) -> None:
    """Writes keys.json, which its user alone can read, whole or not at all."""
    write_whole(path, seal_fields({"key": key.secret.hex()}), private=True)


def read_key(path: Path, identity: str = "") -> Key:
    """Reads keys.json; `identity`: the id of the store's key, as store.json names it, "" before it does.

    Raises:
        InputError: If the file is missing or altered, or does not hold that key.
    """
    advice = "Restore it from a backup of the store: without it no list of removed images can be read"
    if not path.is_file():
        raise InputError(f"{path} must hold the store's key; it is missing. {advice}")
    text = read_sealed(KeyFile, path, advice).key
    try:
        key = Key(bytes.fromhex(text))
    except ValueError as error:
        raise InputError(f"{path} must hold a key in hex; got another text. {advice}") from error
    if len(key.secret) != SIZE:
        raise InputError(f"{path} must hold a key of {SIZE} bytes; got {len(key.secret)}. {advice}")
    if identity not in ("", key.id):
        raise InputError(f"{path} must hold the store's key {identity}; it does not. {advice}")
    return key
