"""TIFF files: which of them are one picture of known values, and what their numbers mean.

A TIFF may hold pages, previews, sensor data of a camera, floats, and samples of any number of bits. Its first directory
says all of that before a pixel is decoded, so a refusal can name the cause.

Source: TIFF 6.0, and libtiff's TIFFRGBAImage for what readers make of it: MinSampleValue and MaxSampleValue are not
used, and colours of a palette that are all below 256 are of 8 bits.
"""

import io
import struct
from typing import Any

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import COMPRESSION_INFO, ImageFileDirectory_v2

from tangent_jax.core.checks import InputError
from tangent_jax.data.formats import CONVERT

MOST_PAGES = 10_000  # directories that are counted
SUBFILE, OLD_SUBFILE, BITS, COMPRESSION, COLOURS = 254, 255, 258, 259, 262  # tags
SAMPLES, PLANES, PALETTE, SUBFILES, EXTRA, KIND, DNG = 277, 284, 320, 330, 338, 339, 50706
IS_SMALLER, IS_MASK = 1, 4  # bits of NewSubfileType
WHITE_IS_ZERO, GREY, RGB, PALETTED, CMYK, YCBCR = 0, 1, 2, 3, 5, 6  # values of PhotometricInterpretation
COLOURS_OF = {RGB: 3, CMYK: 4, YCBCR: 3}  # samples of a pixel's colour, where it is not one
ALPHA = (1, 2)  # values of ExtraSamples: transparency, multiplied in or not
SENSOR = (32803, 34892)
CIELAB = (8, 9, 10)
WEBP = 50001  # a compression that Pillow knows, and its libtiff on PyPI does not
READ_BITS = (1, 2, 4, 8, 12, 16)
LONG = (b"+\0", b"\0+")  # the version in the header of a BigTIFF
LONG_NUMBER = 4  # the type of a tag of 32-bit numbers
KINDS = {2: "signed numbers", 3: "floats", 5: "complex numbers", 6: "complex numbers"}


def check_tiff(content: bytes, name: str) -> None:
    """Raises InputError unless a TIFF is one picture whose samples have a known range; the message names the cause."""
    pages = directories(content)
    if not pages:
        return  # damaged: the decoder says how
    first = pages[0]
    inner = [page for start in as_tuple(first.get(SUBFILES, ())) for page in directories(content, start)[:1]]
    is_preview = is_smaller(first) and len(pages) + len(inner) > 1
    if DNG in first or is_preview or any(page.get(COLOURS) in SENSOR for page in (first, *inner)):
        what = "camera raw (DNG, NEF, ARW or the like): a TIFF of a preview and of what the sensor saw"
        raise InputError(f"{name} must be a finished picture; it is {what}. {CONVERT}")
    count = sum(not is_smaller(page) and not subfile(page) & IS_MASK for page in pages)
    if count > 1:
        raise InputError(f"{name} must be one picture; it is a TIFF of {count} frames. {CONVERT}")
    cause = unread_samples(first, content[:1] == b"M")
    if cause:
        raise InputError(
            f"{name} must be grey, RGB, CMYK or a palette, of 8 or 16 bits; it is a TIFF {cause}. {CONVERT}"
        )


def unread_samples(page: Any, is_big_endian: bool) -> str:
    """The reason why the samples of a TIFF's page are not read, "" if they are."""
    bits, kinds, extra = (as_tuple(page.get(tag, default)) for tag, default in ((BITS, 1), (KIND, 1), (EXTRA, ())))
    samples, colours = page.get(SAMPLES, 1), page.get(COLOURS, WHITE_IS_ZERO)
    of_bits = f"{' and '.join(str(number) for number in sorted({*bits}))} bits"
    for kind in kinds:
        if kind in KINDS:
            return f"of {KINDS[kind]}, whose range it does not state"
    method = page.get(COMPRESSION, 1)
    if method not in COMPRESSION_INFO or method == WEBP:
        return f"compressed by the method {method} (JPEG 2000, JPEG XL, WebP or another), which Pillow does not read"
    if colours in CIELAB:
        return "in CIELAB colours"
    spare = samples - COLOURS_OF.get(colours, 1)
    has_alpha, is_grey = spare == 1 and bool({*extra[:1]} & {*ALPHA}), colours in (WHITE_IS_ZERO, GREY)
    in_planes = samples > 1 and page.get(PLANES) == 2
    if spare > 1 or (spare and colours not in COLOURS_OF and not has_alpha):
        return f"of {samples} bands that are not all stated to be colours or transparency (photometric=RGB states it)"
    if len({*bits}) > 1 or bits[0] not in READ_BITS:
        return f"of {of_bits} a sample"
    if bits[0] == 12 and (samples > 1 or is_big_endian or not is_grey):
        return "of 12 bits a sample in colour, or in big-endian order"
    if has_alpha and is_grey and (bits[0] == 16 or in_planes or colours == WHITE_IS_ZERO):
        return "of grey with transparency, in 16 bits, in separate planes, or with white as zero"
    if in_planes and page.get(COMPRESSION, 1) == 1 and (bits[0] == 16 or (spare and not has_alpha)):
        return "in separate planes without compression, of 16 bits or with a fourth band"  # Pillow reads other values
    return ""


def as_decoded(content: bytes) -> bytes:
    """A TIFF with the tags that Pillow needs to read its samples as they are.

    Pillow inverts samples of 8 bits whose white is 0; those of more bits `as_eight_bits` inverts. PlanarConfiguration
    has no meaning for one band, and Pillow refuses its value 2.
    """
    first = [*directories(content)[:1], {}][0]
    tags = {}
    if as_tuple(first.get(BITS, 1)) in ((12,), (16,)) and first.get(COLOURS, WHITE_IS_ZERO) == WHITE_IS_ZERO:
        tags[COLOURS] = GREY
    if first.get(SAMPLES, 1) == 1 and first.get(PLANES, 1) != 1:
        tags[PLANES] = 1
    return with_tags(content, tags) if tags else content


def with_tags(content: bytes, tags: dict[int, int]) -> bytes:
    """A TIFF with other numbers for tags of one number in its first directory."""
    order, is_long = (">" if content[:1] == b"M" else "<"), content[2:4] in LONG
    start = ImageFileDirectory_v2(content[: 16 if is_long else 8]).next
    size, first = (20, start + 8) if is_long else (12, start + 2)
    (count,) = struct.unpack_from(f"{order}{'Q' if is_long else 'H'}", content, start)
    changed = bytearray(content)
    for place in range(first, first + size * count, size):
        tag, kind = struct.unpack_from(f"{order}HH", content, place)
        if tag in tags:
            form = "I" if kind == LONG_NUMBER else "H"
            struct.pack_into(f"{order}{form}", changed, place + size - (8 if is_long else 4), tags[tag])
    return bytes(changed)


def directories(content: bytes, start: int | None = None) -> list[Any]:
    """The image file directories of a TIFF from the first, or from `start`, on, each of them once."""
    found, seen = [], set()
    header = content[: 16 if content[2:4] in LONG else 8]
    try:
        directory = ImageFileDirectory_v2(header)
        place = directory.next if start is None else start
        while place and place not in seen and len(found) < MOST_PAGES:
            seen.add(place)
            directory = ImageFileDirectory_v2(header)
            file = io.BytesIO(content)
            file.seek(place)
            directory.load(file)
            found.append(directory)
            place = directory.next
    except Exception:  # damaged directories raise many kinds of errors
        return found
    return found


def as_tuple(value: Any) -> tuple:
    """The values of a tag as a tuple."""
    return value if isinstance(value, tuple) else (value,)


def is_smaller(page: Any) -> bool:
    """True for a page that is another one in fewer pixels."""
    return bool(subfile(page) & IS_SMALLER) or page.get(OLD_SUBFILE) == 2


def subfile(page: Any) -> int:
    """NewSubfileType of a page: bits that say how it relates to the others."""
    return as_tuple(page.get(SUBFILE, 0))[0]


def as_eight_bits(picture: Any, content: bytes) -> Image.Image:
    """The decoded picture of a TIFF, with grey samples of 12 and 16 bits as 8 bits, white as 255."""
    page = directories(content)[0]
    colours = page.get(COLOURS, WHITE_IS_ZERO)
    if picture.mode.startswith("I;16"):
        most = 2 ** as_tuple(page.get(BITS, 1))[0] - 1
        values = np.asarray(picture).astype(np.float32)
        values = most - values if colours == WHITE_IS_ZERO else values
        return Image.fromarray((values * (255 / most)).round().astype(np.uint8))
    palette = as_tuple(page.get(PALETTE, ()))
    if colours == PALETTED and palette and max(palette) < 256:  # Pillow divides by 256, which gives black
        picture.putpalette(np.array(palette, np.uint8).reshape(3, -1).T.tobytes())
    return picture
