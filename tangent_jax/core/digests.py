"""Digests of arrays: hashes of their bytes, on all cores, and once a process for an array that cannot change.

digest = SHA-256(SHA-256(piece) of all pieces)        a piece: rows of 16 MiB or less, at least one
"""

import hashlib
import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

PIECE = 1 << 24  # bytes
KNOWN: dict[int, bytes] = {}
"""The digest of each JAX array that was asked for, by the array's `id`; it goes when the array goes."""


def digests(arrays: Sequence[Any]) -> list[bytes]:
    """The digest of each array: of NumPy, of JAX, or of rows on disk, which are read piece by piece.

    Guarantees: equal for equal bytes, wherever they lie; a JAX array's bytes are read once.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def digest(array: Any) -> bytes | Iterator[bytes]:
            return KNOWN.get(id(array)) or pool.map(digest_of_piece, *zip(*pieces(host(array)), strict=True))

        found = [digest(array) for array in arrays]
        return [keep(array, at) for array, at in zip(arrays, found, strict=True)]


def keep(array: Any, found: bytes | Iterator[bytes]) -> bytes:
    """The digest of an array, given it or those of its pieces; kept for a JAX array."""
    if isinstance(found, bytes):
        return found
    digest = hashlib.sha256(b"".join(found)).digest()
    if isinstance(array, jax.Array):
        KNOWN[id(array)] = digest
        weakref.finalize(array, KNOWN.pop, id(array), None)
    return digest


def note(array: jax.Array, copy: Shaped[np.ndarray, "..."]) -> None:
    """Keeps the digest of an array on another device, by the copy of it that the host has."""
    if next(iter(array.devices())).platform != "cpu":
        keep(array, map(digest_of_piece, *zip(*pieces(copy), strict=True)))


def host(array: Any) -> Any:
    """The array on the host; rows on disk stay there."""
    return np.asarray(array) if isinstance(array, jax.Array) else array


def pieces(array: Any) -> list[tuple[Any, slice | tuple[()]]]:
    """The array with the place of each piece."""
    if not array.shape or not array.nbytes:
        return [(array, ())]
    rows = max(1, PIECE // (array.nbytes // len(array)))
    return [(array, slice(start, start + rows)) for start in range(0, len(array), rows)]


def digest_of_piece(array: Any, at: Any) -> bytes:
    """The SHA-256 of the bytes at a place of an array."""
    return hashlib.sha256(array_bytes(np.asarray(array[at]))).digest()


def array_bytes(value: Shaped[np.ndarray, "..."]) -> bytes | memoryview:
    """The bytes of an array in row-major order, without a copy if it is stored so."""
    if value.ndim and value.size and not value.dtype.hasobject:
        return np.ascontiguousarray(value).view(np.uint8).data
    return value.tobytes()
