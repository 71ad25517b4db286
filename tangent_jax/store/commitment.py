"""A commitment to a set of images, which tells nothing about any of them: the root of a Merkle tree.

    leaf = H(0x00 identifier),   node = H(0x01 left right),   H: SHA-256,   leaves in the order of their identifiers

The identifiers are keyed (keys.py), so who has a photograph and the root cannot tell whether it is among them. Who has
the key can prove later that an image is in the set, by its path to the root, or that it is not, by the paths of its
two neighbours, which lie side by side.

Source: Certificate Transparency, RFC 9162, section 2.1 (hashes, paths and their check).
"""

import bisect
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tangent_jax.core.checks import InputError


@dataclass(frozen=True)
class Commitment:
    """The number of identifiers in a set, and the root of their tree (hex)."""

    count: int
    root: str


@dataclass(frozen=True)
class Path:
    """The path of one leaf: its place from 0, its identifier, and the hashes (hex) beside it, from leaf to root."""

    place: int
    identifier: str
    beside: tuple[str, ...]


def commit(identifiers: Iterable[str]) -> Commitment:
    """The commitment to a set of identifiers; their order and repetitions do not matter."""
    leaves = leaves_of(sorted({*identifiers}))
    return Commitment(len(leaves), root_of(leaves).hex())


def prove(identifiers: Iterable[str], identifier: str) -> tuple[Path, ...]:
    """The proof that an identifier is in the set (its own path), or is not (the paths of its neighbours)."""
    ordered = sorted({*identifiers})
    leaves = leaves_of(ordered)
    place = bisect.bisect_left(ordered, identifier)
    is_in = place < len(ordered) and ordered[place] == identifier
    places = [place] if is_in else [p for p in (place - 1, place) if 0 <= p < len(ordered)]
    return tuple(Path(p, ordered[p], tuple(h.hex() for h in path_of(leaves, p))) for p in places)


def is_in(commitment: Commitment, identifier: str, proof: Sequence[Path]) -> bool:
    """True if the proof shows that the identifier is in the committed set, False if it shows that it is not.

    Raises: InputError if the proof shows neither.
    """
    wrong = [path.place for path in proof if root_by(path, commitment.count) != commitment.root]
    if wrong:
        raise InputError(f"a proof must lead to the root {commitment.root}; the path of leaf {wrong[0]} does not")
    if not commitment.count and commitment != commit(()):
        raise InputError(f"a commitment to no image must have the root of no image; got {commitment.root}")
    if [path.identifier for path in proof] == [identifier]:
        return True
    below = [path.place for path in proof if path.identifier < identifier]
    above = [path.place for path in proof if path.identifier > identifier]
    last_below = max(below, default=-1)
    first_above = min(above, default=commitment.count)
    if len(proof) != len(below) + len(above) or first_above != last_below + 1:
        raise InputError("a proof that an image is not in a set must show its two neighbours; this one does not")
    return False


def leaves_of(ordered: Sequence[str]) -> list[bytes]:
    """The hashes of the leaves."""
    return [hashlib.sha256(b"\0" + identifier.encode()).digest() for identifier in ordered]


def node(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return hashlib.sha256(b"\1" + left + right).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The hash of the tree of these leaves."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    half = left_size(len(leaves))
    return node(root_of(leaves[:half]), root_of(leaves[half:]))


def left_size(count: int) -> int:
    """The number of leaves in the left part of a tree: the largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1


def path_of(leaves: Sequence[bytes], place: int) -> list[bytes]:
    """The hashes beside the path of one leaf, from leaf to root."""
    if len(leaves) <= 1:
        return []
    half = left_size(len(leaves))
    if place < half:
        return [*path_of(leaves[:half], place), root_of(leaves[half:])]
    return [*path_of(leaves[half:], place - half), root_of(leaves[:half])]


def root_by(path: Path, count: int) -> str | None:
    """The root (hex) to which a path leads in a tree of `count` leaves; None for a path of another form."""
    if not 0 <= path.place < count:
        return None
    turns_left: list[bool] = []  # from the root down to the leaf
    start, size = 0, count
    while size > 1:
        half = left_size(size)
        turns_left.append(path.place < start + half)
        start += 0 if turns_left[-1] else half
        size = half if turns_left[-1] else size - half
    if len(turns_left) != len(path.beside):
        return None
    value = leaves_of([path.identifier])[0]
    for is_left, other in zip(reversed(turns_left), path.beside, strict=True):
        try:
            beside = bytes.fromhex(other)
        except ValueError:
            return None
        value = node(value, beside) if is_left else node(beside, value)
    return value.hex()
