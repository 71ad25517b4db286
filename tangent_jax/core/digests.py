"""Digests of arrays: hashes of their bytes, on all cores; of weights that were loaded, once a process.

digest = SHA-256(SHA-256(piece) of all pieces)        a piece: rows of 16 MiB or less, at least one
"""

import hashlib
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from tangent_jax.core.placement import cores

PIECE = 1 << 24  # bytes
KNOWN: dict[int, bytes | None] = {}
"""The digest of each array registered by `note`, by the array's `id`; None until it is asked for."""


def digests(arrays: Sequence[Any]) -> list[bytes]:
    """The digest of each array: of NumPy, of JAX, or of rows on disk, which are read piece by piece.

    Guarantees:
        Equal for equal bytes, wherever they lie; the bytes of weights that were loaded are read once.
    """
    with ThreadPoolExecutor(cores()) as pool:

        def submit(array: Any) -> bytes | Iterator[bytes]:
            return KNOWN.get(id(array)) or pool.map(digest_of_piece, *zip(*pieces(at_hand(array)), strict=True))

        waiting = [submit(array) for array in arrays]
        return [finished(array, found) for array, found in zip(arrays, waiting, strict=True)]


def finished(array: Any, found: bytes | Iterator[bytes]) -> bytes:
    """The digest of an array, given it or those of its pieces; kept if the array was noted."""
    digest = found if isinstance(found, bytes) else hashlib.sha256(b"".join(found)).digest()
    if id(array) in KNOWN:
        KNOWN[id(array)] = digest
    return digest


def note(array: jax.Array, copy: Shaped[np.ndarray, "..."]) -> None:
    """Tells that nobody changes the memory of an array, so that its digest is kept; `copy`: the host's copy of it.

    A JAX array on a CPU may share its memory with a NumPy array or a tensor of the caller's, who may write there.
    """
    KNOWN[id(array)] = None
    weakref.finalize(array, KNOWN.pop, id(array), None)
    if not is_on_host(array):  # so that it is not brought back to be hashed
        finished(array, map(digest_of_piece, *zip(*pieces(copy), strict=True)))


def is_on_host(array: jax.Array) -> bool:
    """True for an array in the host's memory."""
    return next(iter(array.devices())).platform == "cpu"


def at_hand(array: Any) -> Any:
    """The array, as NumPy's if it is one of JAX in the host's memory; rows on a disk or device stay there."""
    return np.asarray(array) if isinstance(array, jax.Array) and is_on_host(array) else array


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
