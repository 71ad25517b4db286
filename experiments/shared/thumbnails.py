"""Thumbnails of images, for pages."""

import base64
import io

import numpy as np
from PIL import Image

from tangent_jax.core.preprocessing import Preprocessing
from tangent_jax.data.decode import decode

SIDE = 96  # pixels


def thumbnail(image: bytes | np.ndarray, name: str) -> str:
    """The image, encoded or a uint8 array, as a small data URL."""
    pixels = decode(image, name, SIDE, Preprocessing())
    content = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(content, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
