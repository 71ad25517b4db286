"""The members of a tar and of a gzipped tar, read by offset without unpacking.

PATH.tar                the bytes of the file
PATH.tar.gz, PATH.tgz   the unpacked bytes, without a copy on disk: the state of the decompression is kept for every
                        STEP bytes, and a read goes on from the last state before its offset
"""

import bisect
import functools
import io
import threading
import zlib
from collections.abc import Iterator

from tangent_jax.io.paths import Place, open_file, read_range, stamp_of

STEP = 1 << 22  # unpacked bytes between two kept states of a decompression, of 40 kB each
PIECE = 1 << 16  # packed bytes that are read at once
MOST_OPEN = 16  # gzipped tars whose states are kept


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
