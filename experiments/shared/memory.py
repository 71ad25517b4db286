"""Memory that is freed, as the C library keeps it."""

import ctypes

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # of glibc's mallopt


def reuse_freed() -> None:
    """Keeps freed memory for the next arrays: a fresh page costs more than what is written to it, and glibc maps every
    array of more than 32 MB anew. Where the C library is another, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (ARENA_MAX, 1)):
            mallopt(name, value)
