"""Pointers of Git LFS: the small texts that stand for large files in a clone without it."""

from tangent_jax.core.checks import InputError
from tangent_jax.io.paths import Place, read_range

BEGINNING = b"version https://git-lfs.github.com/"
"""The first bytes of a pointer."""


def check_no_pointer(path: Place) -> None:
    """Raises InputError with the remedy for a file that is a pointer; call it before a reader of any binary format."""
    check_content(read_range(path, 0, len(BEGINNING)), path)


def check_content(content: bytes, name: object) -> None:
    """Raises InputError with the remedy for the content of a pointer, or its first bytes; `name`: that of the file."""
    if content.startswith(BEGINNING):
        raise InputError(
            f"{name} must be the file itself; it is a pointer of Git LFS to it, as a clone without Git LFS holds. Run"
            " git lfs pull in the clone, or download the file"
        )
