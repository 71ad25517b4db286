"""The members of a tar and of a gzipped tar, read by offset without unpacking.

    PATH.tar                the bytes of the file
    PATH.tar.gz, PATH.tgz   the unpacked bytes, without a copy on disk: the state of the decompression is kept for every
                            STEP bytes, and a read goes on from the last state before its offset

The first bytes of a file say its kind, whatever its name.
"""

import bisect
import functools
import io
import os
import threading
import zlib
from collections.abc import Iterator

from tangent_jax.core.checks import InputError
from tangent_jax.data.formats import packing_of
from tangent_jax.io.git_lfs import check_no_pointer
from tangent_jax.io.paths import Place, open_file, read_range, stamp_of

STEP = 1 << 22  # unpacked bytes between two kept states of a decompression, of 40 kB each
PIECE = 1 << 16  # packed bytes that are read at once
TAIL = 1024  # bytes to which a stream can return
MOST_OPEN = 16  # gzipped tars whose states are kept
UNPACK = {"compressed by bzip2": "bunzip2", "compressed by xz": "unxz", "compressed by zstd": "unzstd"}
"""The program that unpacks a tar of each packing."""


def is_gzip(file: Place) -> bool:
    """True for a gzipped file, False for a tar; InputError with the remedy for a tar packed in another way."""
    check_no_pointer(file)
    kind = packing_of(read_range(file, 0, 6))
    if kind in ("", "compressed by gzip"):
        return bool(kind)
    remedy = "Unpack it, and open its folder as folder:"
    if kind in UNPACK:
        remedy = f"Run {UNPACK[kind]} {file}"
    elif kind == "a zip":
        remedy = f"Open it as folder:{file}, or write it as a tar"
    raise InputError(f"a tar must be plain or gzipped; {file} is {kind}. {remedy}")


def read_bytes(file: Place, offset: int, size: int, packed: bool) -> bytes:
    """The bytes offset to offset + size of a tar, unpacked if it is `packed`; fewer at its end."""
    if not packed:
        return read_range(file, offset, size)
    return unpacked_of(file, stamp_of(file)).read(offset, size)


@functools.lru_cache(maxsize=MOST_OPEN)
def unpacked_of(file: Place, stamp: tuple) -> "Unpacked":
    """The reader of a gzipped file in one state."""
    return Unpacked(file)


class Unpacked:
    """Reads the unpacked bytes of a gzipped file by offset, in any order, from several threads."""

    def __init__(self, file: Place) -> None:
        self.file = file
        self.lock = threading.Lock()
        self.offsets = [0]
        self.states = [(0, zlib.decompressobj(zlib.MAX_WBITS | 16))]  # (packed offset, state) at each of the offsets

    def read(self, offset: int, size: int) -> bytes:
        """The unpacked bytes offset to offset + size, fewer at the end of the file."""
        with self.lock:
            last = bisect.bisect_right(self.offsets, offset) - 1
            at = self.offsets[last]
            found = io.BytesIO()
            for content in self.unpack(last):
                start = max(offset - at, 0)
                found.write(content[start : start + size - found.tell()])
                at += len(content)
                if found.tell() == size:
                    break
            return found.getvalue()

    def unpack(self, number: int) -> Iterator[bytes]:
        """Yields the unpacked bytes from a kept state on, in pieces, and keeps new states on the way."""
        at = self.offsets[number]
        place, state = self.states[number]
        state = state.copy()
        with open_file(self.file) as content:
            content.seek(place)
            while piece := content.read(PIECE):
                place += len(piece)
                while piece:
                    unpacked = state.decompress(piece)
                    piece = state.unused_data
                    if state.eof:  # the next of several gzips, or padding
                        piece = piece.lstrip(b"\0")
                        state = zlib.decompressobj(zlib.MAX_WBITS | 16)
                    at += len(unpacked)
                    if not piece and at >= self.offsets[-1] + STEP:
                        self.offsets.append(at)
                        self.states.append((place, state.copy()))
                    if unpacked:
                        yield unpacked


class Stream(io.RawIOBase):
    """The unpacked bytes of a gzip, read forwards; a seek leads to later bytes, or back by at most TAIL."""

    def __init__(self, file: Place) -> None:
        self.pieces = Unpacked(file).unpack(0)
        self.held = b""  # the bytes from `at` on that are unpacked
        self.tail = b""  # the bytes before `at`
        self.at = 0

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer at the end."""
        parts = []
        while size and (self.held or self.fill()):
            part = self.held[:size] if size > 0 else self.held
            self.held = self.held[len(part) :]
            self.at += len(part)
            self.tail = (self.tail + part)[-TAIL:]
            size -= len(part) if size > 0 else 0
            parts.append(part)
        return b"".join(parts)

    def fill(self) -> bool:
        """Holds the next piece; False at the end."""
        self.held = next(self.pieces, b"")
        return bool(self.held)

    def tell(self) -> int:
        """The offset of the next byte."""
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Passes over bytes, or returns to the last ones."""
        target = offset + (self.at if whence == os.SEEK_CUR else 0)
        back = self.at - target
        if back > len(self.tail) or whence == os.SEEK_END:
            raise OSError("a gzip is read forwards")
        if back > 0:
            self.held = self.tail[-back:] + self.held
            self.tail = self.tail[:-back]
            self.at = target
        while self.at < target and self.read(min(target - self.at, PIECE)):
            pass
        return self.at
