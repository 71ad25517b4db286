"""The key of a store, which hides what its lists and receipts say of removed images.

    hidden form = HMAC-SHA256(key, text),   text: a content identifier, an owner, or a word of a request;
                  in commitments and proofs the byte FF and a content identifier, which is no text (UTF-8)

    keys.json    mode 0600: 32 random bytes (hex) made with the store, then the keys of stores that were merged into it

Who has a photograph, a receipt or a list of removed images, but not the key, cannot tell whether it is meant. The key
travels with copies of the store, never with an export or a receipt. A component's own file in the store
keeps plain identifiers, as it keeps the names of its images: a removal must find every copy of an image, also in
components that came from another store, and it deletes that file. So whatever leaves a store hides them first.
A store of version 0.4 has no key; it gets one at its first change, and what its lists say stays valid.

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
NO_TEXT = b"\xff"  # in no text of UTF-8


@dataclasses.dataclass(frozen=True)
class Key:
    """A secret of 32 random bytes."""

    secret: bytes = dataclasses.field(repr=False)

    @property
    def id(self) -> str:
        """16 hex digits that name the key, and tell nothing about it."""
        return hashlib.sha256(self.secret).hexdigest()[:16]

    def hide(self, text: str) -> str:
        """The hidden form (64 hex digits) of a content identifier, an owner, or a word of a request."""
        return hmac.digest(self.secret, text.encode(errors="surrogatepass"), "sha256").hex()

    def hide_committed(self, identifier: str) -> str:
        """The hidden form of an image in commitments and proofs: no text has it in a receipt, so none links both."""
        return hmac.digest(self.secret, NO_TEXT + identifier.encode(errors="surrogatepass"), "sha256").hex()

    def hide_all(self, texts: Iterable[str]) -> tuple[str, ...]:
        """The hidden forms of texts, sorted, so that their order tells nothing."""
        return tuple(sorted({*map(self.hide, texts)}))


@dataclasses.dataclass(frozen=True)
class KeyRing:
    """The keys of a store: its own one first, which hides what it writes, then those of stores merged into it."""

    keys: tuple[Key, ...]

    @classmethod
    def make(cls) -> "KeyRing":
        """A ring with one new key."""
        return cls((Key(secrets.token_bytes(SIZE)),))

    @property
    def own(self) -> Key:
        """The store's own key."""
        return self.keys[0]

    def forms(self, text: str) -> set[str]:
        """Every form that a text may have in the store's lists: under each key, and as version 0.4 wrote it.

        For comparisons alone; only `own.hide` is written, as 0.4 used no key.
        """
        return {key.hide(text) for key in self.keys} | {form_of_04(text)}

    def joined(self, other: "KeyRing") -> "KeyRing":
        """This ring, and the keys of another store's ring."""
        return KeyRing(tuple(dict.fromkeys(self.keys + other.keys)))


@dataclasses.dataclass(frozen=True)
class KeyFile:
    """The fields of keys.json."""

    keys: tuple[str, ...]


def write_keys(path: Path, ring: KeyRing) -> None:
    """Writes keys.json, which its user alone can read, whole or not at all."""
    write_whole(path, seal_fields({"keys": [key.secret.hex() for key in ring.keys]}), private=True)


def read_keys(path: Path, own: str = "") -> KeyRing:
    """Reads keys.json; `own`: the id of the store's key, as store.json names it, "" before it does.

    Raises: InputError if the file is missing or altered, or does not hold that key.
    """
    advice = "Restore it from a backup of the store: without it no list of removed images can be read"
    if not path.is_file():
        raise InputError(f"{path} must hold the store's key; it is missing. {advice}")
    texts = read_sealed(KeyFile, path, advice).keys
    try:
        ring = KeyRing(tuple(Key(bytes.fromhex(text)) for text in texts))
    except ValueError as error:
        raise InputError(f"{path} must hold keys in hex; got others. {advice}") from error
    if any(len(key.secret) != SIZE for key in ring.keys):
        raise InputError(f"{path} must hold keys of {SIZE} bytes; got others. {advice}")
    first = [key for key in ring.keys if own in ("", key.id)]
    if not first:
        raise InputError(f"{path} must hold the store's key {own}; it does not. {advice}")
    return KeyRing((first[0],)).joined(ring)


def form_of_04(text: str) -> str:
    """The form of a text in lists that version 0.4 wrote, without a key."""
    return hashlib.sha256(f"removed {text}".encode(errors="surrogatepass")).hexdigest()
