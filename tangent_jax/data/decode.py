"""Images as a model wants them: upright RGB, short side resized, centre cropped, uint8.

EXIF orientation       applied, as every viewer does
16-bit grey            scaled to 8 bits: v / 257, whatever part of the range is used
transparency           shown on white
several frames         the first
32-bit and float grey  refused: their range is not in the file
"""

import io

import numpy as np
from PIL import Image, ImageOps

from tangent_jax.core import InputError, refusal, require
from tangent_jax.data.preprocessing import Preprocessing

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
MOST_PIXELS = 89_000_000  # of an image, before and after it is resized: Pillow warns of more
DO = "Mend or remove it, or set skip_unreadable=True"


def decode(image: bytes | np.ndarray, name: str, size: int, preprocessing: Preprocessing) -> np.ndarray:
    """Decodes one image, encoded or a uint8 array, to "size size 3" uint8.

    Source: torchvision's Resize and CenterCrop, as timm evaluates: short side to floor(size / crop).
    Raises: InputError naming an image that cannot be read, is too large, or has an unknown range of values.
    """
    try:
        if isinstance(image, np.ndarray):
            picture = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image)
        else:
            picture = Image.open(io.BytesIO(image))
        short, (width, height) = int(size / preprocessing.crop), picture.size
        factor = short / min(width, height)
        pixels = max(width * height, round(short * max(width, height) * factor))
        most = f"an image of at most {MOST_PIXELS:,} pixels, also when its short side is {short}"
        require(pixels <= MOST_PIXELS, "decode", most, f"{name} of {width} x {height}", DO)
        picture = as_rgb(picture, name)
    except InputError:
        raise
    except Exception as error:
        raise refusal("decode", "an image", f"{name} ({type(error).__name__})", DO) from error
    width, height = picture.size
    resized = (short, int(height * factor)) if width <= height else (int(width * factor), short)
    picture = picture.resize(resized, FILTERS[preprocessing.interpolation])
    left, top = round((resized[0] - size) / 2), round((resized[1] - size) / 2)
    return np.asarray(picture.crop((left, top, left + size, top + size)))


def as_rgb(picture: Image.Image, name: str) -> Image.Image:
    """The image upright and in RGB, by the rules of the module's table."""
    picture = ImageOps.exif_transpose(picture)
    known = picture.mode not in ("I", "F")
    require(known, "decode", "8 or 16 bits a channel", f"{name} in mode {picture.mode}, of a range not known", DO)
    if picture.mode.startswith("I;16"):
        picture = Image.fromarray((np.asarray(picture, np.float32) / 257).round().astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")
