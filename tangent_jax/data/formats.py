"""The formats of pictures: which one some bytes are, by their content, and the decoder that opens it.

A suffix says nothing here: a HEIC photograph that is named .jpg is HEIC. Only the decoders named here are started,
never one that runs a program, such as Ghostscript for EPS.
"""

import contextlib
import io
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator

from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import MAX_TEXT_CHUNK, PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tangent_jax.core.checks import InputError
from tangent_jax.io.git_lfs import check_content

DO = "Fix or remove it, or skip it by skip_unreadable"
CONVERT = "Save it as JPEG or PNG or remove it, or skip it by skip_unreadable"

# A JPEG is opened by its own class: what follows its first picture (a preview, a depth map, a film) is not looked at.
DECODERS: dict[str, Callable[[io.BytesIO], Image]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "BMP": BmpImageFile,
    "WebP": WebPImageFile,
    "GIF": GifImageFile,
    "PPM": PpmImageFile,
    "TIFF": TiffImageFile,
    "AVIF": AvifImageFile,
}

STARTS = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (12, b"CgBI", ""),  # a PNG of iOS programs, in Apple's own form
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"BM", "BMP"),
    (8, b"WEBP", "WebP"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    *((0, b"P" + kind, "PPM") for kind in (b"1", b"2", b"3", b"4", b"5", b"6", b"y")),
    (8, b"CR\x02", ""),  # camera raw: a TIFF of a preview and of what the sensor saw
    *((0, start, "TIFF") for start in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
)
"""(place, bytes there, format), the first that fits."""

HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"mif2", b"msf1"}
AVIF_BRANDS = {b"avif", b"avis"}


def open_picture(content: bytes, kind: str, name: str) -> Image:
    """The picture of some bytes, whose format is `kind` by `format_of`, opened but not yet decoded.

    Raises:
        InputError: Another format, a damaged file, and a decoder that is not installed.
    """
    check_content(content, name)
    if not kind:
        formats = f"a picture ({', '.join(DECODERS)} or HEIC)"
        raise InputError(f"{name} must be {formats}; it begins with {content[:16]!r}. {CONVERT}")
    decoder = heic_decoder(name) if kind == "HEIC" else DECODERS[kind]
    try:
        return decoder(io.BytesIO(without_texts(content) if kind == "PNG" else content))
    except Exception as error:  # decoders raise many kinds of errors
        raise damaged(name, kind, error) from error


def without_texts(content: bytes) -> bytes:
    """A PNG without its colour profile and without long texts, which Pillow refuses and nobody reads."""
    left_out: list[tuple[int, int]] = []
    place = 8
    while place + 12 <= len(content):
        size, kind = struct.unpack_from(">I4s", content, place)
        end = place + 12 + size
        if kind == b"iCCP" or (kind in (b"tEXt", b"zTXt", b"iTXt") and is_long(kind, content[place + 8 : end - 4])):
            left_out.append((place, end))
        place = end
    starts = [0, *(end for _, end in left_out)]
    ends = [*(start for start, _ in left_out), len(content)]
    return b"".join(content[start:end] for start, end in zip(starts, ends, strict=True)) if left_out else content


def is_long(kind: bytes, chunk: bytes) -> bool:
    """True for a chunk of text of a PNG that has more bytes than Pillow unpacks."""
    text = chunk.partition(b"\0")[2]
    packed = text[1:] if kind == b"zTXt" else b""
    if kind == b"iTXt" and text[:1] == b"\1":
        packed = text[2:].split(b"\0", 2)[-1]
    with contextlib.suppress(zlib.error):
        unpacked = zlib.decompressobj().decompress(packed, MAX_TEXT_CHUNK + 1)
        return max(len(chunk), len(unpacked)) > MAX_TEXT_CHUNK
    return False


def heic_decoder(name: str) -> Callable[[io.BytesIO], Image]:
    """The decoder of HEIC photographs; InputError if pillow-heif is not installed."""
    try:
        from pillow_heif import HeifImageFile  # pyright: ignore
    except ImportError as error:
        how = "pip install pillow-heif (the extra [heif] of tangent-jax), or save it as JPEG"
        raise InputError(f"{name} is a HEIC photograph, and the package that reads it is missing: {how}") from error
    return HeifImageFile


def damaged(name: str, kind: str, error: Exception) -> InputError:
    """The InputError for a picture that its decoder does not read."""
    cause = [*str(error).strip().splitlines(), type(error).__name__][0].rstrip(".")
    return InputError(f"{name} must be a whole {kind} picture; its decoder says: {cause}. {DO}")


def format_of(content: bytes) -> str:
    """The format of some bytes: a key of DECODERS, HEIC, or "" for any other."""
    if content[4:8] == b"ftyp":
        return format_of_boxes(content)
    return next((kind for place, start, kind in STARTS if content[place : place + len(start)] == start), "")


def format_of_boxes(content: bytes) -> str:
    """The format of a file in boxes (ISO base media), by its brands; "" for a film."""
    end = max(16, min(int.from_bytes(content[:4], "big"), 1024))
    brands = {content[8:12], *(content[i : i + 4] for i in range(16, end, 4))}
    if brands & AVIF_BRANDS:
        return "AVIF"
    return "HEIC" if brands & HEIC_BRANDS and content[8:12] != b"crx " else ""


class Quiet:
    """A context in which warnings of the decoders are silent, in all threads that decode at once.

    None of them says more than the result does: a picture that cannot be read is an InputError, metadata are not used,
    and the number of pixels has our own limit. `warnings.catch_warnings` is not for threads, so the first thread that
    enters adds a filter, and the last one that leaves takes it away.
    """

    MODULES = r"(PIL|pillow_heif)\."
    FILTER = ("ignore", None, Warning, re.compile(MODULES), 0)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Silences the warnings within the `with` block."""
        with self.lock:
            self.count += 1
            if [*warnings.filters[:1]] != [self.FILTER]:  # others may have been put before it
                warnings.filterwarnings("ignore", module=self.MODULES)
        try:
            yield
        finally:
            with self.lock:
                self.count -= 1
                if not self.count and self.FILTER in warnings.filters:
                    warnings.filters.remove(self.FILTER)  # pyright: ignore


quiet = Quiet()
