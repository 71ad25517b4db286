"""Decodes images for a model: upright RGB, resized, centre cropped, uint8.

EXIF orientation       applied, as every viewer does
16-bit grey            scaled to 8 bits: v / 257, without stretching the range
transparency           shown on white
several frames         refused, as it is not one picture (a JPEG's preview does not count)
formats                only FORMATS, by content: no other decoder, such as Ghostscript for EPS, is started
32-bit and float grey  refused, as the file does not state their range
"""

import io

import numpy as np
from PIL import Image, ImageOps

from tangent_jax.core import InputError, refusal, require
from tangent_jax.data.preprocessing import ImageSize, Preprocessing, sides

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "PPM", "TIFF")
MOST_PIXELS = 89_000_000  # pixels of an image, before and after it is resized; Pillow warns of more
DO = "Mend or remove it, or set skip_unreadable=True"


def decode(image: bytes | np.ndarray, name: str, size: ImageSize, preprocessing: Preprocessing) -> np.ndarray:
    """Decodes one image, encoded or a uint8 array, to "height width 3" uint8: resized, then torchvision's CenterCrop.

    Raises: InputError naming an image that cannot be read, is too large, or has an unknown range of values.
    """
    try:
        if isinstance(image, np.ndarray):
            picture = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image)
        else:
            picture = Image.open(io.BytesIO(image), formats=FORMATS)
            frames = 1 if picture.format in ("JPEG", "MPO") else getattr(picture, "n_frames", 1)
            require(frames == 1, "decode", "an image of one frame", f"{name} of {frames} frames", DO)
        width, height = picture.size
        turned = (width, height), (height, width)
        either = [preprocessing.resized_shape(shape, size) for shape in turned]  # EXIF may swap the sides
        pixels = max(width * height, *(wide * high for wide, high in either))
        most = f"an image of at most {MOST_PIXELS:,} pixels, also when it is resized for {size}"
        require(pixels <= MOST_PIXELS, "decode", most, f"{name} of {width} x {height}", DO)
        picture = as_rgb(picture, name)
    except InputError:
        raise
    except Exception as error:
        raise refusal("decode", "an image", f"{name} ({type(error).__name__})", DO) from error
    picture = picture.resize(preprocessing.resized_shape(picture.size, size), FILTERS[preprocessing.interpolation])
    height, width = sides(size)
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    return np.asarray(picture.crop((left, top, left + width, top + height)))


def size_of(image: bytes | np.ndarray, name: str) -> tuple[int, int]:
    """(width, height) of an image, encoded or an array "y x ..."; InputError for one that is unreadable."""
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    try:
        return Image.open(io.BytesIO(image), formats=FORMATS).size
    except Exception as error:
        raise refusal("decode", "an image", f"{name} ({type(error).__name__})", DO) from error


def as_rgb(picture: Image.Image, name: str) -> Image.Image:
    """The image upright and in RGB, by the table of the module."""
    picture = ImageOps.exif_transpose(picture)
    known = picture.mode not in ("I", "F")
    require(known, "decode", "8 or 16 bits a channel", f"{name} in mode {picture.mode}, of a range not known", DO)
    if picture.mode.startswith("I;16"):
        picture = Image.fromarray((np.asarray(picture, np.float32) / 257).round().astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")
