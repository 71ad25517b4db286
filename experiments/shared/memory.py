"""The C library's treatment of freed memory."""

import ctypes

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # options of glibc's mallopt


def reuse_freed() -> None:
    """Keeps freed memory for the next arrays, as fresh pages cost more than writing to them.

    By default glibc maps every array of more than 32 MB again. With another C library this changes nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (ARENA_MAX, 1)):
            mallopt(name, value)
