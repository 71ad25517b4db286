"""Decodes images for a model: upright RGB, resized, centre cropped, uint8.

EXIF orientation       applied once, as every viewer does; EXIF that cannot be read turns nothing
grey of more bits      scaled to 8 bits by the range that the file states: 255 v / (2^bits - 1), or 255 v / maxval
RGB of 16 bits         the upper 8 of them, as Pillow decodes
transparency           shown on white
colour profiles (ICC)  not applied, as by torchvision, timm and Hugging Face
several frames         refused, as it is not one picture (a preview in it does not count)
formats                those of formats.py, by content
32-bit and float grey  refused, as the file does not state their range
"""

import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from PIL.ExifTags import Base
from PIL.Image import Transpose
from PIL.PngImagePlugin import PngImageFile

from tangent_jax.core.checks import InputError
from tangent_jax.core.preprocessing import INTERPOLATIONS, ImageSize, Preprocessing, sides
from tangent_jax.data.formats import CONVERT, DO, damaged, format_of, open_picture, quiet, without_texts
from tangent_jax.data.tiff import as_decoded, as_eight_bits, check_tiff

FILTERS = {name: Image.Resampling[name.upper()] for name in INTERPOLATIONS}
MOST_PIXELS = 89_000_000  # pixels of an image, before and after it is resized; Pillow warns of more
ANIMATED = ("PNG", "GIF", "WebP", "AVIF")  # formats in which several frames are several pictures of equal rank
PNG_GREY, PNG_RGB = 0, 2  # colour types
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
"""EXIF's orientation -> what turns the picture upright."""


def decode(
    image: bytes | np.ndarray,
    name: str,
    size: ImageSize,
    preprocessing: Preprocessing,
    most_pixels: int = MOST_PIXELS,
) -> UInt8[np.ndarray, "height width 3"]:
    """Decodes one image, encoded or a uint8 array, to "height width 3" uint8: resized, then cropped in the middle.

    Raises:
        InputError: It names an image that cannot be read, is too large, or has an unknown range of values.
    """
    with quiet():
        picture, kind = opened(image, name)
        width, height = picture.size
        turned = (width, height), (height, width)
        either = [preprocessing.resized_shape(shape, size) for shape in turned]  # EXIF may swap the sides
        pixels = max(width * height, *(wide * high for wide, high in either))
        if pixels > most_pixels:
            most = f"at most {most_pixels:,} pixels, also when it is resized for {size}"
            how = "Raise most_pixels or make it smaller, or skip it by skip_unreadable"
            raise InputError(f"{name} must have {most}; it has {width} x {height}. {how}")
        try:
            picture = as_rgb(picture, kind, image, name)
        except InputError:
            raise
        except Exception as error:  # decoders raise many kinds of errors
            raise damaged(name, kind, error) from error
    picture = resized(picture, preprocessing.resized_shape(picture.size, size), FILTERS[preprocessing.interpolation])
    height, width = sides(size)
    left, top = preprocessing.corner(picture.size, size)
    return np.asarray(picture.crop((left, top, left + width, top + height)))


def resized(picture: Image.Image, shape: tuple[int, int], interpolation: Image.Resampling) -> Image.Image:
    """A picture of this width and height, its width resized first, so that every Pillow gives the same bits.

    In one call Pillow 13 resizes the height first where that is faster, and Pillow 12 never: they differ by up to 23
    levels on noise (bicubic), for the values between the two steps are rounded and cut to 0..255
    (findings/pillow13_resize.sh).
    """
    return picture.resize((shape[0], picture.height), interpolation).resize(shape, interpolation)


def size_of(image: bytes | np.ndarray, name: str) -> tuple[int, int]:
    """(width, height) of an image, encoded or a uint8 array; InputError for one that is unreadable."""
    with quiet():
        return opened(image, name)[0].size


def opened(image: bytes | np.ndarray, name: str) -> tuple[Image.Image, str]:
    """(the picture, its format) of an image, encoded or a uint8 array; it is not decoded yet.

    Raises:
        InputError: Other formats, several frames, and a TIFF whose samples have no known range.
    """
    if isinstance(image, np.ndarray):
        try:
            return Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image), "array"
        except Exception as error:
            message = f"{name} must be an array of uint8, height x width x 3; it is {image.dtype}{image.shape}. {DO}"
            raise InputError(message) from error
    kind = format_of(image)
    if kind == "TIFF":
        check_tiff(image, name)
        image = as_decoded(image)
    picture = open_picture(image, kind, name)
    try:
        frames = getattr(picture, "n_frames", 1) if kind in ANIMATED else 1
    except Exception as error:  # they are counted by reading them
        raise damaged(name, kind, error) from error
    if frames > 1:
        raise InputError(f"{name} must be one picture; it is a {kind} of {frames} frames. {CONVERT}")
    return picture, kind


def as_rgb(picture: Image.Image, kind: str, image: bytes | np.ndarray, name: str) -> Image.Image:
    """The image upright and in RGB, by the table of the module."""
    picture.load()
    turn = UPRIGHT.get(orientation(picture))
    if kind == "TIFF":
        assert isinstance(image, bytes)
        picture = as_eight_bits(picture, image)
    elif kind == "PNG" and "transparency" in picture.info:
        assert isinstance(image, bytes)
        picture = with_key_on_white(picture, image)
    elif kind == "PPM" and picture.mode == "I":  # more than 8 bits: Pillow has scaled them to 16
        picture = from_sixteen_bits(np.asarray(picture))
    if picture.mode.startswith("I;16"):
        picture = from_sixteen_bits(np.asarray(picture))
    if picture.mode in ("I", "F"):
        numbers = "floats" if picture.mode == "F" else "32-bit numbers"
        begin = f"{name} must have samples of 8 or 16 bits"
        raise InputError(f"{begin}; it has {numbers}, whose range is not stated. {CONVERT}")
    if picture.mode == "La":  # of a TIFF, whose grey is multiplied by its alpha
        picture = picture.convert("LA")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    picture = picture if picture.mode == "RGB" else picture.convert("RGB")  # which would copy it
    return picture if turn is None else picture.transpose(turn)


def orientation(picture: Image.Image) -> int:
    """EXIF's orientation of a decoded picture, 1 where there is none or EXIF is damaged."""
    try:
        value = picture.getexif().get(Base.Orientation, 1)
    except Exception:  # any bytes may stand there
        return 1
    return value if isinstance(value, int) else 1


def from_sixteen_bits(values: np.ndarray) -> Image.Image:
    """Grey values "y x" of 16 bits as a picture of 8."""
    return Image.fromarray((values.astype(np.float32) / 257).round().astype(np.uint8))


def with_key_on_white(picture: Image.Image, content: bytes) -> Image.Image:
    """A decoded PNG whose tRNS chunk names a transparent colour, which is shown on white.

    The chunk names it in the file's own bits, which Pillow compares with samples that it has scaled to 8 bits.
    """
    depth = content[24]  # of IHDR, which is the first chunk
    colours = content[25]
    key = picture.info["transparency"]
    most = 2**depth - 1
    if colours == PNG_GREY and depth == 16:
        values = np.asarray(picture)
        return from_sixteen_bits(np.where(values == key, 65535, values))
    if colours == PNG_GREY:
        picture.info["transparency"] = (key & most) * 255 // most if depth > 1 else key
    if colours == PNG_RGB and depth == 8:
        picture.info["transparency"] = tuple(part & most for part in key)
    if colours == PNG_RGB and depth == 16:
        lower = PngImageFile(io.BytesIO(without_texts(content)))
        lower.tile = [tile._replace(args="RGB;16L") for tile in lower.tile]  # their second bytes instead of the first
        lower.load()
        upper = np.asarray(picture)
        is_key = (upper == np.array(key) // 256).all(-1) & (np.asarray(lower) == np.array(key) % 256).all(-1)
        return Image.fromarray(np.where(is_key[..., None], np.uint8(255), upper))
    return picture
