"""The formats of pictures: which one some bytes are, by their content, and the decoder that opens it.

A suffix says nothing here: a HEIC photograph that is named .jpg is HEIC. Only the decoders named here are started,
never one that runs a program, such as Ghostscript for EPS. A file of another known format is refused by its name.
"""

import contextlib
import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator

import PIL
from PIL import features
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tangent_jax.core.checks import InputError
from tangent_jax.io.git_lfs import BEGINNING as LFS_POINTER

DO = "Mend or remove it, or skip it by skip_unreadable"
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

PACKED = {
    b"\x1f\x8b": "compressed by gzip",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"Rar!": "a RAR archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"PK\x03\x04": "a zip",
    b"PK\x07\x08": "a zip",
}
"""First bytes of packed files."""

STARTS = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (12, b"CgBI", "a PNG in Apple's form for iOS programs (CgBI)"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"BM", "BMP"),
    (8, b"WEBP", "WebP"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    *((0, b"P" + kind, "PPM") for kind in (b"1", b"2", b"3", b"4", b"5", b"6", b"y")),
    (0, b"PF", "a map of floats (PFM)"),
    (0, b"Pf", "a map of floats (PFM)"),
    (0, b"P7", "PAM"),
    (8, b"CR\x02", "camera raw (Canon CR2)"),
    *((0, start, "TIFF") for start in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    (0, b"FUJIFILMCCD-RAW", "camera raw (Fujifilm RAF)"),
    (0, b"IIRO", "camera raw (Olympus ORF)"),
    (0, b"IIRS", "camera raw (Olympus ORF)"),
    (0, b"MMOR", "camera raw (Olympus ORF)"),
    (0, b"IIU\0", "camera raw (Panasonic RW2)"),
    (0, b"FOVb", "camera raw (Sigma X3F)"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"8BPS", "a Photoshop document (PSD)"),
    (0, b"%!PS", "PostScript (EPS)"),
    (0, b"\xc5\xd0\xd3\xc6", "PostScript (EPS)"),
    (0, b"%PDF-", "a PDF document"),
    (0, b"\0\0\x01\0", "an icon (ICO)"),
    (0, b"icns", "an icon (ICNS)"),
    (0, b"gimp xcf", "a GIMP document (XCF)"),
    (0, b"DDS ", "a DDS texture"),
    (0, b"qoif", "QOI"),
    (0, b"v/1\x01", "OpenEXR"),
    (0, b"#?RADIANCE", "Radiance HDR"),
    (0, b"SIMPLE  =", "FITS"),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5"),
    (128, b"DICM", "DICOM"),
    (0, b"\x93NUMPY", "an array of NumPy (.npy)"),
    *((0, start, kind) for start, kind in PACKED.items()),
    (0, b"\x1aE\xdf\xa3", "a film (Matroska, WebM)"),
    (8, b"AVI ", "a film (AVI)"),
    (0, b"\0\x05\x16\x07", "notes of macOS about another file (AppleDouble)"),
    (0, LFS_POINTER, "a pointer of Git LFS to the picture (git lfs pull fetches it)"),
)
"""(place, bytes there, format), the first that fits; a format without a decoder is named as a refusal names it."""

HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"mif2", b"msf1"}
AVIF_BRANDS = {b"avif", b"avis"}
TEXTS = ((rb"<svg[\s>]", "an SVG drawing"), (rb"<!doctype html|<html[\s>]", "a web page (HTML), not the picture"))


def open_picture(content: bytes, kind: str, name: str) -> Image:
    """The picture of some bytes, whose format is `kind` by `format_of`, opened but not yet decoded.

    Raises:
        InputError: It names the format, if that cannot be read, and the remedy.
    """
    if kind not in DECODERS and kind != "HEIC":
        formats = f"a picture ({', '.join(DECODERS)} or HEIC)"
        raise InputError(f"{name} must be {formats}; it is {kind or beginning(content)}. {CONVERT}")
    decoder = heic_decoder(name) if kind == "HEIC" else DECODERS[kind]
    if kind == "AVIF" and not features.check("avif"):
        how = "Install a Pillow from PyPI, of version 11.3 or later, or save it as JPEG"
        raise InputError(f"{name} is AVIF, which this build of Pillow {PIL.__version__} does not read. {how}")
    try:
        return decoder(io.BytesIO(content))
    except Exception as error:  # decoders raise many kinds of errors
        raise damaged(name, kind, error) from error


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


def packing_of(start: bytes) -> str:
    """How a file is packed, by its first bytes; "" if it is not."""
    return next((kind for mark, kind in PACKED.items() if start.startswith(mark)), "")


def format_of(content: bytes) -> str:
    """The format of some bytes: a key of DECODERS, HEIC, the name of another format, or "" if it is not known."""
    if content[4:8] == b"ftyp":
        return format_of_boxes(content)
    for place, start, kind in STARTS:
        if content[place : place + len(start)] == start:
            return kind
    for pattern, kind in TEXTS:
        if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") and re.search(pattern, content[:4096].lower()):
            return kind
    return ""


def format_of_boxes(content: bytes) -> str:
    """The format of a file in boxes (ISO base media), by its brands."""
    end = max(16, min(int.from_bytes(content[:4], "big"), 1024))
    brands = {content[8:12], *(content[i : i + 4] for i in range(16, end, 4))}
    if brands & AVIF_BRANDS:
        return "AVIF"
    if content[8:12] == b"crx ":
        return "camera raw (Canon CR3)"
    return "HEIC" if brands & HEIC_BRANDS else "a film (MP4, QuickTime)"


def beginning(content: bytes) -> str:
    """A file of no known format in words: empty, or how it begins."""
    if not content:
        return "empty (0 bytes)"
    if not content.strip(b"\0"):
        return f"{len(content)} zero bytes, as a copy that broke off leaves them"
    return f"of no known format, as it begins with {content[:16]!r}"


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
