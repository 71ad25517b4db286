"""Pointers of Git LFS: the small texts that stand for large files in a clone without it."""

from tangent_jax.core.checks import InputError
from tangent_jax.io.paths import Place, read_range

BEGINNING = b"version https://git-lfs.github.com/"
"""The first bytes of a pointer."""


def is_pointer(content: bytes) -> bool:
    """Returns True for the content of a pointer, or its first bytes."""
    return content.startswith(BEGINNING)


def check_no_pointer(path: Place) -> None:
    """Raises InputError with the remedy for a file that is a pointer; call it before a reader of any format."""
    if is_pointer(read_range(path, 0, len(BEGINNING))):
        raise pointer_error(path)


def pointer_error(path: object) -> InputError:
    """Returns the InputError for a file that is a pointer."""
    return InputError(
        f"{path} must be the file itself; it is a pointer of Git LFS to it, as a clone without Git LFS holds. Run git"
        " lfs pull in the clone, or download the file"
    )
